"""The broker's side of a compaction process: a Cleaner that runs its jobs in another process.

RULES    1. The process starts with the first job and ends when no job is left, or with the broker.
         2. Callbacks run on the event loop; the thread of the process waits for the answer to a replacement.
         3. If the process is killed by a signal, its job fails and may be retried: out of memory, or an operator. If it exits
            by itself, the job fails permanently: that is a fault that would repeat.
NOT HERE The work of the process (`compaction_main.py`), the choice of jobs (`replication/partition/compactor.py`).
"""

from __future__ import annotations

import asyncio
from queue import SimpleQueue

from broker.io.helper_process import HelperDied, HelperProcess
from replication.completion import Completion
from replication.partition.compactor import Outcome, Replace
from storage.compaction.cleaner_job import CleanerJob, CleaningFailed, CleaningResult, Replacement


class CleanerProcess:
    """Runs compaction jobs in a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_per_second: float) -> None:
        self._loop = loop
        self._helper = HelperProcess(loop, "compaction", "broker.io.compaction_main", repr(bytes_per_second))
        self._replies: SimpleQueue[bool] = SimpleQueue()

    def start(self, job: CleanerJob, replace: Replace) -> Completion[Outcome]:
        """Runs a job; `replace` and the callbacks of the result are called on the loop."""
        outcome = self._helper.run(lambda: self._exchange(job, replace), _on_death)
        return outcome.map(lambda found: None if self._helper.is_stopped else found)

    def on_idle(self) -> None:
        """Ends the process, if it runs."""
        self._helper.end_process()

    def stop(self) -> None:
        """Kills the process; the job in progress is discarded."""
        self._replies.put(False)
        self._helper.stop()

    # ------------------------------------------------------------ in the thread
    def _exchange(self, job: CleanerJob, replace: Replace) -> Outcome:
        helper = self._helper
        helper.send(job)
        while isinstance(message := helper.receive(), Replacement):
            self._loop.call_soon_threadsafe(self._replace, replace, message)
            helper.send(self._replies.get())
        assert message is None or isinstance(message, CleaningResult | CleaningFailed)
        return message

    def _replace(self, replace: Replace, new: Replacement) -> None:
        replace(new).then(lambda replaced: self._replies.put(replaced.value))


def _on_death(death: HelperDied) -> CleaningFailed:
    """The outcome of a job whose process has ended (rule 3)."""
    return CleaningFailed(is_damage=not death.was_killed, text=str(death))

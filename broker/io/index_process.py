"""The broker's side of a key index process.

RULES    1. Jobs run in the order of their submission.
         2. The process ends when it had no job between two calls of `check`.
         3. It is killed when it has the same job for `patience` calls: it hangs. The next job starts another one.
NOT HERE The work of the process (`index_main.py`), the choice of jobs (replication/partition/key_indexer.py, key_search.py).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from broker.io.helper_process import HelperDied, HelperProcess
from replication.completion import Completion
from storage.keyindex.index_jobs import Job, JobFailed

_log = logging.getLogger("barnabas.keyindex")


class IndexProcess:
    """Runs jobs of the key index in a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, niceness: int, patience: int) -> None:
        self._name = name
        self._patience = patience
        self._known_work: int | None = None
        self._checks = 0  # with the same work
        self._helper = HelperProcess(loop, name, "broker.io.index_main", str(niceness))
        self._is_used = False

    def submit(self, job: Job) -> Completion[Any]:
        """The job's result, or a JobFailed."""
        self._is_used = True
        return self._helper.run(lambda: self._exchange(job), _on_death)

    def check(self) -> None:
        """Ends the process if it was not used since the last call, or hangs."""
        work = self._helper.work_in_progress
        self._checks = self._checks + 1 if work is not None and work == self._known_work else 0
        self._known_work = work
        if self._checks >= self._patience:
            _log.warning("the %s process is killed, since it does not answer", self._name)
            self._helper.kill_process()
        elif work is None and not self._is_used:
            self._helper.end_process()
        self._is_used = False

    def stop(self) -> None:
        """Kills the process."""
        self._helper.stop()

    def _exchange(self, job: Job) -> object:
        self._helper.send(job)
        return self._helper.receive()


def _on_death(death: HelperDied) -> JobFailed:
    return JobFailed(str(death))

"""The broker's side of a compaction process: a Cleaner that runs its jobs in another process.

RULES    1. The process starts with the first job and ends when no job is left, or with the broker.
         2. One thread writes to and reads from the pipes; callbacks run on the event loop.
         3. If the process is killed by a signal, its job fails and may be retried: out of memory, or an operator. If it exits
            by itself, the job fails permanently: that is a fault that would repeat.
NOT HERE The work of the process (`compaction_main.py`), the choice of jobs (`replication/partition/compactor.py`).
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from replication.completion import Completion
from replication.partition.compactor import Outcome, Replace
from storage.compaction.cleaner_job import CleanerJob, CleaningFailed, CleaningResult, Replacement

_ROOT = str(Path(__file__).resolve().parents[2])
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from broker.io.compaction_main import main; main(float(sys.argv[2]))"
)


class CleanerProcess:
    """Runs compaction jobs in a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_per_second: float) -> None:
        self._loop = loop
        self._bytes_per_second = bytes_per_second
        self._queue: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._replies: SimpleQueue[bool] = SimpleQueue()
        self._thread: Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def start(self, job: CleanerJob, replace: Replace) -> Completion[Outcome]:
        """Runs a job; `replace` and the callbacks of the result are called on the loop."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="compaction", daemon=True)
            self._thread.start()
        ended: Completion[Outcome] = Completion()
        self._queue.put(lambda: self._run_job(job, replace, ended))
        return ended

    def on_idle(self) -> None:
        """Ends the process, if it runs."""
        if self._process is not None:
            self._queue.put(self._stop_process)

    def stop(self) -> None:
        """Kills the process; the job in progress is discarded."""
        self._is_stopped = True
        thread, process = self._thread, self._process
        if process is not None:
            process.kill()
        self._replies.put(False)
        if thread is not None:
            self._queue.put(self._stop_thread)
            thread.join()

    # ------------------------------------------------------------ in the thread
    def _work(self) -> None:
        while self._queue.get()():
            pass

    def _run_job(self, job: CleanerJob, replace: Replace, ended: Completion[Outcome]) -> bool:
        try:
            outcome = self._exchange(job, replace)
        except (OSError, EOFError, pickle.PickleError) as error:
            outcome = self._on_process_exit(error)
        self._loop.call_soon_threadsafe(ended.complete, None if self._is_stopped else outcome)
        return True

    def _on_process_exit(self, error: Exception) -> CleaningFailed:
        """The outcome of a job whose process has ended (rule 3)."""
        status = self._process
        self._stop_process()
        code = None if status is None else status.returncode
        if code is not None and code < 0:
            return CleaningFailed(
                is_damage=False, text=f"the compaction process was killed by {signal.Signals(-code).name}"
            )
        return CleaningFailed(is_damage=True, text=f"the compaction process failed ({error!r})")

    def _exchange(self, job: CleanerJob, replace: Replace) -> Outcome:
        process = self._ensure_process()
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump(job, process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        while isinstance(message := pickle.load(process.stdout), Replacement):  # noqa: S301  # our own process
            self._loop.call_soon_threadsafe(self._replace, replace, message)
            pickle.dump(self._replies.get(), process.stdin)
            process.stdin.flush()
        assert message is None or isinstance(message, CleaningResult | CleaningFailed)
        return message

    def _replace(self, replace: Replace, new: Replacement) -> None:
        replace(new).then(lambda replaced: self._replies.put(replaced.value))

    def _ensure_process(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None:
            command = [sys.executable, "-P", "-c", _START, _ROOT, repr(self._bytes_per_second)]
            process = self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if self._is_stopped:  # `stop` ran before the process existed
                process.kill()
        return process

    def _stop_process(self) -> bool:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # the process is dead and reads nothing
                process.stdin.close()
            process.stdout.close()
            process.wait()
        return True

    def _stop_thread(self) -> bool:
        self._stop_process()
        return False

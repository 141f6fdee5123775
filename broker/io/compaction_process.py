"""The broker's end of a helper process that compacts: a Cleaner whose work happens elsewhere.

RULES    1. The process starts with the first job and ends when there is nothing to do, or with the broker.
         2. One thread of ours writes to and reads from its pipes, which is waiting and nothing else; what it has to tell
            is told on the loop.
         3. A helper that is killed fails its job, which may be tried again: whoever is short of memory, or made a mistake,
            kills one. One that ends by itself fails it for good: that is a fault of ours, which it would meet again.
NOT HERE What it does (`compaction_main.py`), which job is next (`replication/partition/compactor.py`).
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
from typing import NamedTuple

from replication.partition.compactor import Done, Replace
from storage.compaction.cleaner_job import Cleaned, Failed, Job, Replacement

_ROOT = str(Path(__file__).resolve().parents[2])
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from broker.io.compaction_main import main; main(float(sys.argv[2]))"
)


class _Task(NamedTuple):
    job: Job
    replace: Replace
    done: Done


class HelperCleaner:
    """Does jobs in a process of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_per_second: float) -> None:
        self._loop = loop
        self._bytes_per_second = bytes_per_second
        self._tasks: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._verdicts: SimpleQueue[bool] = SimpleQueue()
        self._thread: Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def start(self, job: Job, replace: Replace, done: Done) -> None:
        """Do a job; both are called on the loop."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="compaction", daemon=True)
            self._thread.start()
        self._tasks.put(lambda: self._do(_Task(job, replace, done)))

    def rest(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._tasks.put(self._end)

    def stop(self) -> None:
        """End the process now; what it was doing has never been."""
        self._is_stopped = True
        thread, process = self._thread, self._process
        if process is not None:
            process.kill()
        self._verdicts.put(False)
        if thread is not None:
            self._tasks.put(self._end_all)
            thread.join()

    # ------------------------------------------------------------ in the thread
    def _work(self) -> None:
        while self._tasks.get()():
            pass

    def _do(self, task: _Task) -> bool:
        try:
            outcome = self._converse(task)
        except (OSError, EOFError, pickle.PickleError) as error:
            outcome = self._ended(error)
        self._loop.call_soon_threadsafe(task.done, None if self._is_stopped else outcome)
        return True

    def _ended(self, error: Exception) -> Failed:
        """What the end of the process means (rule 3)."""
        status = self._process
        self._end()
        code = None if status is None else status.returncode
        if code is not None and code < 0:
            return Failed(is_damage=False, text=f"the helper process was ended by {signal.Signals(-code).name}")
        return Failed(is_damage=True, text=f"the helper process ended over it ({error!r})")

    def _converse(self, task: _Task) -> Cleaned | Failed | None:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump(task.job, process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        while isinstance(said := pickle.load(process.stdout), Replacement):  # noqa: S301  # our own process
            self._loop.call_soon_threadsafe(task.replace, said, self._verdicts.put)
            pickle.dump(self._verdicts.get(), process.stdin)
            process.stdin.flush()
        assert said is None or isinstance(said, Cleaned | Failed)
        return said

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None:
            command = [sys.executable, "-P", "-c", _START, _ROOT, repr(self._bytes_per_second)]
            process = self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if self._is_stopped:  # since a moment ago: nobody else will
                process.kill()
        return process

    def _end(self) -> bool:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # it is dead, and what was still to be said to it is of no use
                process.stdin.close()
            process.stdout.close()
            process.wait()
        return True

    def _end_all(self) -> bool:
        self._end()
        return False

"""A helper process of the broker: it starts when it is needed, one thread talks to it, and it ends with the broker.

FORMAT   Standard input and output of the process carry pickled values, one after the other.
RULES    1. The process starts with the first work, and ends with the broker or by `end_process`.
         2. One thread writes to and reads from the pipes; results are completed on the event loop.
         3. Only the broker has the other ends of the pipes, so pickles are safe.
         4. Work whose completion was cancelled is not begun.
NOT HERE What is exchanged (`compaction_process.py`, `index_process.py`), the other side (`helper_main.py`).
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
from typing import TypeVar

from replication.completion import Completion

T = TypeVar("T")

_ROOT = str(Path(__file__).resolve().parents[2])
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from importlib import import_module; import_module(sys.argv[2]).main(*sys.argv[3:])"
)


class HelperDied(Exception):
    """The process has ended; a later work starts another one."""

    def __init__(self, name: str, exit_code: int | None, cause: Exception) -> None:
        self.was_killed = exit_code is not None and exit_code < 0
        """By a signal: out of memory, or an operator. Otherwise a bug, which would repeat."""
        by = f"was killed by {signal.Signals(-exit_code).name}" if exit_code is not None and exit_code < 0 else None
        super().__init__(f"the {name} process {by or f'failed ({cause!r})'}")


class HelperProcess:
    """The process and the thread that talks to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, module: str, *arguments: str) -> None:
        """`module` has the function `main`, which gets the arguments."""
        self._loop = loop
        self._name = name
        self._command = [sys.executable, "-P", "-c", _START, _ROOT, module, *arguments]
        self._queue: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._thread: Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0
        self._is_working = False
        self.is_stopped = False

    @property
    def work_in_progress(self) -> int | None:
        """A number of the work that the thread does now; None if there is none."""
        return self._begun if self._is_working else None

    def run(self, work: Callable[[], T], on_death: Callable[[HelperDied], T]) -> Completion[T]:
        """Calls `work` in the thread, where it may `send` and `receive`; if the process dies, `on_death`."""
        if self._thread is None:
            self._thread = Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        done: Completion[T] = Completion()
        self._queue.put(lambda: self._run(work, on_death, done))
        return done

    def end_process(self) -> None:
        """Ends the process after the work that was given; further work starts another one."""
        if self._process is not None:
            self._queue.put(self._end_process)

    def kill_process(self) -> None:
        """Kills the process; the work in progress fails, and further work starts another one."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Kills the process; the work in progress is discarded."""
        self.is_stopped = True
        thread = self._thread
        self.kill_process()
        if thread is not None:
            self._queue.put(lambda: not self._end_process())
            thread.join()

    # ------------------------------------------------------------ in the thread
    def send(self, value: object) -> None:
        """Sends a value."""
        pipe = self._ensure_process().stdin
        assert pipe is not None
        pickle.dump(value, pipe, pickle.HIGHEST_PROTOCOL)
        pipe.flush()

    def receive(self) -> object:
        """The next value of the process."""
        pipe = self._ensure_process().stdout
        assert pipe is not None
        return pickle.load(pipe)  # noqa: S301  # rule 3

    def _serve(self) -> None:
        while self._queue.get()():
            pass

    def _run(self, work: Callable[[], T], on_death: Callable[[HelperDied], T], done: Completion[T]) -> bool:
        if done.is_cancelled:
            return True
        self._begun, self._is_working = self._begun + 1, True
        try:
            result = work()
        except (OSError, EOFError, pickle.PickleError) as error:
            process = self._process
            self._end_process()
            result = on_death(HelperDied(self._name, None if process is None else process.returncode, error))
        self._is_working = False
        self._loop.call_soon_threadsafe(done.complete, result)
        return True

    def _ensure_process(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None:
            process = self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if self.is_stopped:  # `stop` ran before the process existed
                process.kill()
        return process

    def _end_process(self) -> bool:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # the process is dead and reads nothing
                process.stdin.close()
            process.stdout.close()
            process.wait()
        return True

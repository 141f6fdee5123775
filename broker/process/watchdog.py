"""Detects stalls of the event loop: how many, how long, and in which call.

RULES    1. While requests are handled, a thread schedules a callback on the loop every STALL_S. If the callback runs later than
            STALL_S, that is a stall; the thread captures the stack of the loop's thread during it. More frequent probes
            would cost: each takes the interpreter from the loop for a moment.
         2. The measured duration is the time from the probe to the callback: up to STALL_S too short, never too long. So every
            stall of 2 * STALL_S or more is detected.
         3. Without requests the thread is parked and nothing wakes up. The handler of a request tests `is_parked` and calls
            `wake`, nothing else.
         4. The API key of the last request is named too. On a compiled build the stack has no frames of compiled modules, and a
            compiled function that calls nothing keeps the interpreter, so that the stack is not captured.
         5. At most one log line per LOG_INTERVAL_S covers all stalls since the previous line; a last one at shutdown.
NOT HERE Moving slow work off the loop (`replication/io_executor.py`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from threading import Event, Semaphore, Thread, get_ident
from types import FrameType
from typing import Final, NamedTuple

from protocol.api import ApiKey

_log = logging.getLogger("barnabas.watchdog")

STALL_S: Final = 0.020
AWAKE_S: Final = 0.1
"""How long the thread probes after it was woken."""
LOG_INTERVAL_S: Final = 2.0
_MAX_FRAMES: Final = 8
_NOT_SEEN: Final = "(it ended before its stack was captured)"


class Stall(NamedTuple):
    """One stall of the event loop."""

    seconds: float
    cpu_seconds: float
    """CPU time of the loop's thread during the stall; near zero when it waited for a disk or for the CPU."""
    stack: str
    """And the last request (rule 4)."""


class StallLog:
    """Counts all stalls and logs them."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log_line = log
        self.count = 0
        self.seconds = 0.0
        self.longest_s = 0.0
        self._unlogged: list[Stall] = []
        self._next_log_s = 0.0

    def add(self, stall: Stall, now_s: float) -> None:
        """Counts a stall, and logs it if a line is due."""
        self.count += 1
        self.seconds += stall.seconds
        self.longest_s = max(self.longest_s, stall.seconds)
        self._unlogged.append(stall)
        self.log_due(now_s)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next line is due; None if nothing is unlogged."""
        return max(0.0, self._next_log_s - now_s) if self._unlogged else None

    def log_due(self, now_s: float) -> None:
        """Logs the unlogged stalls if a line is due (rule 5)."""
        if not self._unlogged or now_s < self._next_log_s:
            return
        self._next_log_s = now_s + LOG_INTERVAL_S
        unlogged, self._unlogged = self._unlogged, []
        longest = max(unlogged)
        often = f"{len(unlogged)} times, longest" if len(unlogged) > 1 else "once,"
        self._log_line(
            f"the event loop stalled {often} {_ms(longest.seconds)} ({_ms(longest.cpu_seconds)} of CPU time) "
            f"in {longest.stack}"
        )

    def log_summary(self) -> None:
        """Logs the total at shutdown."""
        self._next_log_s = 0.0
        self.log_due(0.0)
        if self.count:
            self._log_line(
                f"the event loop stalled {self.count} times for more than {_ms(STALL_S)}, {_ms(self.seconds)} in total, "
                f"longest {_ms(self.longest_s)}"
            )


class Watchdog:
    """The probing thread and its callback on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, log: Callable[[str], None] = _log.warning) -> None:
        self._loop = loop
        self.stalls = StallLog(log)
        self.is_parked = True
        """Whether the handler of a request must call `wake`."""
        self.last_request: ApiKey | None = None
        """Of the last request whose handling began; the dispatcher sets it."""
        self._stopping = Event()
        self._wake_up = Semaphore(0)
        self._replied = Event()
        self._replied_s = 0.0
        self._replied_after: ApiKey | None = None
        self._loop_thread = 0
        self._loop_clock = 0
        self._thread: Thread | None = None

    def wake(self) -> None:
        """Probes for AWAKE_S. Call it on the loop, and only if `is_parked`."""
        self.is_parked = False
        if self._thread is None:
            self._loop_thread = get_ident()
            self._loop_clock = time.pthread_getcpuclockid(self._loop_thread)
            self._thread = Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        else:
            self._wake_up.release()

    def stop(self) -> None:
        """Ends the thread and logs the summary. Call it after the loop has stopped."""
        self._stopping.set()
        self.is_parked = False
        if self._thread is not None:
            self._on_loop()
            self._wake_up.release()
            self._thread.join()
        self.stalls.log_summary()

    def _run(self) -> None:
        while not self._stopping.is_set():
            awake_until_s = time.monotonic() + AWAKE_S
            while not self._stopping.is_set() and time.monotonic() < awake_until_s:
                self._probe()
            self._park()

    def _park(self) -> None:
        self.is_parked = True
        wait_s = self.stalls.wait_s(time.monotonic())
        if not self._wake_up.acquire(timeout=wait_s):
            self.stalls.log_due(time.monotonic())
            self._wake_up.acquire()

    def _probe(self) -> None:
        cpu_s, sent_s = time.clock_gettime(self._loop_clock), time.monotonic()
        self._replied.clear()
        try:
            self._loop.call_soon_threadsafe(self._on_loop)
        except RuntimeError:  # the loop is closed
            self._stopping.set()
            return
        stack = request = None
        self._stopping.wait(STALL_S)
        if not self._replied.is_set():
            stack = describe(sys._current_frames().get(self._loop_thread))  # noqa: SLF001  # no public API
            request = self.last_request
            self._replied.wait()
        seconds = self._replied_s - sent_s
        if seconds >= STALL_S and not self._stopping.is_set():
            cpu_s = time.clock_gettime(self._loop_clock) - cpu_s
            place = describe_place(stack, request if stack else self._replied_after)
            self.stalls.add(Stall(seconds, cpu_s, place), time.monotonic())

    def _on_loop(self) -> None:
        self._replied_s = time.monotonic()
        self._replied_after = self.last_request
        self._replied.set()


def describe(frame: FrameType | None) -> str:
    """A stack in one line, the innermost call first."""
    calls: list[str] = []
    while frame is not None and len(calls) < _MAX_FRAMES:
        code = frame.f_code
        calls.append(f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{code.co_name}")
        frame = frame.f_back
    return " <- ".join(calls) or "no Python"


def describe_place(stack: str | None, last_request: ApiKey | None) -> str:
    """Where a stall was: its stack, if it was captured, and the last request before it ended."""
    request = "" if last_request is None else f"; last request {last_request.name}"
    return (stack or _NOT_SEEN) + request


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"

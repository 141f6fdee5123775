"""Sees the event loop stand still: how often, how long, and in which call (design D6).

RULES    1. While requests are served, a thread of its own asks the loop every STALL_S for a sign of life. What comes
            later than STALL_S is a stall; the stack of the loop's thread is taken while it lasts. Asking more often
            would be felt: each time the thread takes the interpreter away from the loop for a moment.
         2. A stall counts from the question to the sign: up to STALL_S less than it lasted, and never more. So each
            of twice STALL_S and more is seen.
         3. Without requests the thread sleeps, and nothing wakes up: whoever serves a request tests `is_parked` and
            calls `wake`, nothing else.
         4. At most one log line every few seconds, about all stalls since the line before, and one at the end.
NOT HERE What to do about a stall: the way of slow work (`replication/io_executor.py`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from threading import Event, Semaphore, Thread, get_ident
from types import FrameType
from typing import Final, NamedTuple

_log = logging.getLogger("barnabas.watchdog")

STALL_S: Final = 0.020
AWAKE_S: Final = 0.1
"""So long the thread looks after it was woken."""
SAY_EVERY_S: Final = 2.0
_KEPT: Final = 16
_DEPTH: Final = 8
_UNSEEN: Final = "(it was over before anybody could look)"


class Stall(NamedTuple):
    """The loop stood still once."""

    seconds: float
    cpu_seconds: float
    """How much of it the loop's thread had a processor: next to nothing when it waited for a disk or for its turn."""
    stack: str


class Stalls:
    """What is known of all stalls so far."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.count = 0
        self.seconds = 0.0
        self.longest_s = 0.0
        self.recent: deque[Stall] = deque(maxlen=_KEPT)
        self._untold: list[Stall] = []
        self._may_say_from_s = 0.0

    def add(self, stall: Stall, now_s: float) -> None:
        """Count one, and tell of it unless something was told lately."""
        self.count += 1
        self.seconds += stall.seconds
        self.longest_s = max(self.longest_s, stall.seconds)
        self.recent.append(stall)
        self._untold.append(stall)
        self.tell(now_s)

    def wait_s(self, now_s: float) -> float | None:
        """How long to keep quiet; None when there is nothing to tell."""
        return max(0.0, self._may_say_from_s - now_s) if self._untold else None

    def tell(self, now_s: float) -> None:
        """Tell of what was not told yet, unless something was told lately (rule 4)."""
        if not self._untold or now_s < self._may_say_from_s:
            return
        self._may_say_from_s = now_s + SAY_EVERY_S
        untold, self._untold = self._untold, []
        longest = max(untold)
        often = f"{len(untold)} times, at the longest" if len(untold) > 1 else "once,"
        self._say(
            f"the loop stood still {often} {_ms(longest.seconds)} ({_ms(longest.cpu_seconds)} of processor time) "
            f"in {longest.stack}"
        )

    def tell_all(self) -> None:
        """Sum up at the end."""
        self._may_say_from_s = 0.0
        self.tell(0.0)
        if self.count:
            self._say(
                f"the loop stood still {self.count} times for more than {_ms(STALL_S)}, {_ms(self.seconds)} together, "
                f"{_ms(self.longest_s)} at the longest"
            )


class Watchdog:
    """The thread that asks, and the loop's answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, say: Callable[[str], None] = _log.warning) -> None:
        self._loop = loop
        self.stalls = Stalls(say)
        self.is_parked = True
        """Whether `wake` has to be called when there is something to look at."""
        self._stopping = Event()
        self._bell = Semaphore(0)
        self._answered = Event()
        self._answered_s = 0.0
        self._loop_thread = 0
        self._loop_clock = 0
        self._thread: Thread | None = None

    def wake(self) -> None:
        """Look for a while; called on the loop, and only when parked."""
        self.is_parked = False
        if self._thread is None:
            self._loop_thread = get_ident()
            self._loop_clock = time.pthread_getcpuclockid(self._loop_thread)
            self._thread = Thread(target=self._look, name="watchdog", daemon=True)
            self._thread.start()
        else:
            self._bell.release()

    def stop(self) -> None:
        """End the thread and sum up; called when the loop has ended."""
        self._stopping.set()
        self.is_parked = False
        if self._thread is not None:
            self._sign_of_life()
            self._bell.release()
            self._thread.join()
        self.stalls.tell_all()

    def _look(self) -> None:
        while not self._stopping.is_set():
            awake_until_s = time.monotonic() + AWAKE_S
            while not self._stopping.is_set() and time.monotonic() < awake_until_s:
                self._ask()
            self._park()

    def _park(self) -> None:
        self.is_parked = True
        wait_s = self.stalls.wait_s(time.monotonic())
        if not self._bell.acquire(timeout=wait_s):
            self.stalls.tell(time.monotonic())
            self._bell.acquire()

    def _ask(self) -> None:
        cpu_s, asked_s = time.clock_gettime(self._loop_clock), time.monotonic()
        self._answered.clear()
        try:
            self._loop.call_soon_threadsafe(self._sign_of_life)
        except RuntimeError:  # the loop was closed
            self._stopping.set()
            return
        stack = _UNSEEN
        self._stopping.wait(STALL_S)
        if not self._answered.is_set():
            stack = describe(sys._current_frames().get(self._loop_thread))  # noqa: SLF001  # there is no other way
            self._answered.wait()
        seconds = self._answered_s - asked_s
        if seconds >= STALL_S and not self._stopping.is_set():
            cpu_s = time.clock_gettime(self._loop_clock) - cpu_s
            self.stalls.add(Stall(seconds, cpu_s, stack), time.monotonic())

    def _sign_of_life(self) -> None:
        self._answered_s = time.monotonic()
        self._answered.set()


def describe(frame: FrameType | None) -> str:
    """A stack in one line, the innermost call first."""
    calls: list[str] = []
    while frame is not None and len(calls) < _DEPTH:
        code = frame.f_code
        calls.append(f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{code.co_name}")
        frame = frame.f_back
    return " <- ".join(calls) or "no Python"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"

"""Runs the deadlines of the timer queue from one timer of the event loop.

RULES    1. The loop's timer is set for the earliest deadline only, and moved when an earlier one is scheduled.
         2. Without deadlines there is no timer: an idle broker does not wake up.
         3. A late loop expires nothing by itself: requests and thread reports that arrived in the meantime are handled first,
            then the deadlines are run.
NOT HERE The deadlines (`replication/timer_queue.py`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from replication.timer_queue import TimerQueue

LATE_MS: Final = 100
"""A loop that is this late has unhandled requests and reports."""


def mono_ms() -> int:
    """The monotonic clock in milliseconds, as deadlines use it."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """The wall clock in milliseconds since the epoch, as timestamps use it."""
    return time.time_ns() // 1_000_000


class SystemClock:
    """Both clocks as an object."""

    mono_ms = staticmethod(mono_ms)
    wall_ms = staticmethod(wall_ms)


class LoopTimer:
    """The event loop's timer of a timer queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: TimerQueue) -> None:
        self._loop = loop
        self._timers = timers
        self._handle: asyncio.Handle | None = None
        self._due_mono_ms = 0
        timers.on_earlier = self._arm

    def _arm(self) -> None:
        due_mono_ms = self._timers.next_mono_ms()
        if due_mono_ms is None:
            return
        if self._handle is not None:
            if self._due_mono_ms <= due_mono_ms:
                return
            self._handle.cancel()
        self._due_mono_ms = due_mono_ms
        self._handle = self._loop.call_later(max(0, due_mono_ms - mono_ms()) / 1000, self._run)

    def _run(self) -> None:
        if mono_ms() - self._due_mono_ms < LATE_MS:
            self._run_due()
        else:
            self._handle = self._loop.call_later(0.001, self._run_late)

    def _run_late(self) -> None:
        """The loop has polled its sockets; this runs after the reports of threads that are queued now."""
        self._handle = self._loop.call_soon(self._run_due)

    def _run_due(self) -> None:
        self._handle = None
        self._timers.run_due(mono_ms())
        self._arm()

    def stop(self) -> None:
        """Cancels the timer."""
        self._timers.on_earlier = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

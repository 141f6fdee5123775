"""Drives the one heap of deadlines with one timer of the event loop (design D7).

RULES    1. The loop's timer is set for the nearest deadline only, and moved when a nearer one comes.
         2. With nothing to wait for there is no timer: an idle broker does not wake up.
         3. Nothing is over because of us: when the loop comes late, what has come in meanwhile is heard before
            anything is due, requests of clients as well as reports of threads.
NOT HERE What is due (`replication/timer_queue.py` and whoever schedules there).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from replication.timer_queue import Deadlines

LATE_MS: Final = 100
"""A loop that had so much else to do has not heard everything that came in meanwhile."""


def mono_ms() -> int:
    """The monotonic clock in milliseconds, as deadlines count."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """The wall clock in milliseconds since 1970, as timestamps count."""
    return time.time_ns() // 1_000_000


class SystemClock:
    """The two clocks as a value that can be handed on, for what asks at moments of its own."""

    @staticmethod
    def mono_ms() -> int:
        """Monotonic milliseconds."""
        return mono_ms()

    @staticmethod
    def wall_ms() -> int:
        """Milliseconds since 1970."""
        return wall_ms()


class LoopTimer:
    """The event loop's timer for a heap of deadlines."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._handle: asyncio.Handle | None = None
        self._due_mono_ms = 0
        deadlines.on_earlier = self._arm

    def _arm(self) -> None:
        due_mono_ms = self._deadlines.next_mono_ms()
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
        """The loop has looked at its sockets; what threads report stands in line now, and this goes behind it."""
        self._handle = self._loop.call_soon(self._run_due)

    def _run_due(self) -> None:
        self._handle = None
        self._deadlines.run_due(mono_ms())
        self._arm()

    def stop(self) -> None:
        """Forget the timer; nothing runs any more."""
        self._deadlines.on_earlier = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

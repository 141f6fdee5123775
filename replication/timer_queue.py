"""Timers in one heap: delayed operations, session timeouts, rebalance timeouts.

RULES    1. Time is a parameter, in monotonic milliseconds; nothing here reads a clock.
         2. A cancelled timer stays in the heap until it is reached, or until cancelled timers are the majority and the heap is
            rebuilt.
         3. `on_earlier` notifies the driver (the event loop's timer, or a simulation) when the next timer is due earlier.
NOT HERE What a timer does: its callback.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

_COMPACT_AT = 1024


class Clock(Protocol):
    """The monotonic clock and the wall clock."""

    def mono_ms(self) -> int:
        """Monotonic milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""


class Timer:
    """A scheduled callback; keep it to cancel it."""

    __slots__ = ("_queue", "at_mono_ms", "callback", "sequence")

    def __init__(self, queue: TimerQueue, at_mono_ms: int, sequence: int, callback: Callable[[], None]) -> None:
        self._queue = queue
        self.at_mono_ms = at_mono_ms
        self.sequence = sequence
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Timer) -> bool:
        if self.at_mono_ms != other.at_mono_ms:
            return self.at_mono_ms < other.at_mono_ms
        return self.sequence < other.sequence

    @property
    def is_pending(self) -> bool:
        """Whether it has neither run nor been cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """Cancel the callback; does nothing after it ran."""
        if self.callback is not None:
            self.callback = None
            self._queue.on_cancelled()


class TimerQueue:
    """Callbacks ordered by due time; those with equal times run in the order of scheduling."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._sequence = 0
        self._cancelled = 0
        self.on_earlier: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def schedule(self, at_mono_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` in the first `run_due` at or after `at_mono_ms`."""
        self._sequence += 1
        timer = Timer(self, at_mono_ms, self._sequence, callback)
        heap = self._heap
        heappush(heap, timer)
        if heap[0] is timer and self.on_earlier is not None:
            self.on_earlier()
        return timer

    def next_mono_ms(self) -> int | None:
        """When the next timer is due; None if there is none."""
        heap = self._heap
        while heap and heap[0].callback is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0].at_mono_ms if heap else None

    def run_due(self, mono_ms: int) -> None:
        """Run all due timers, including those that become due meanwhile."""
        heap = self._heap
        while heap and heap[0].at_mono_ms <= mono_ms:
            timer = heappop(heap)
            callback = timer.callback
            if callback is None:
                self._cancelled -= 1
                continue
            timer.callback = None
            callback()

    def on_cancelled(self) -> None:
        """Count a cancelled timer; rebuild the heap when most timers are cancelled."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_AT and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [timer for timer in self._heap if timer.callback is not None]
            heapify(self._heap)
            self._cancelled = 0

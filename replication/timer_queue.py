"""One heap of deadlines for everything that waits: parked requests, sessions, rebalances.

RULES    1. Time is handed in as monotonic milliseconds; nothing here reads a clock.
         2. A cancelled deadline costs nothing more than its place in the heap until it is reached, or until
            cancelled ones are the majority and the heap is built anew.
         3. Whoever drives this (one timer in the daemon, a loop in a simulation) is told through `on_earlier`
            when the next deadline has moved nearer.
NOT HERE What a deadline means: its callback knows.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

_COMPACT_AT = 1024


class Deadline:
    """One entry; keep it to cancel it."""

    __slots__ = ("_owner", "at_mono_ms", "callback", "sequence")

    def __init__(self, owner: Deadlines, at_mono_ms: int, sequence: int, callback: Callable[[], None]) -> None:
        self._owner = owner
        self.at_mono_ms = at_mono_ms
        self.sequence = sequence
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Deadline) -> bool:
        if self.at_mono_ms != other.at_mono_ms:
            return self.at_mono_ms < other.at_mono_ms
        return self.sequence < other.sequence

    @property
    def is_pending(self) -> bool:
        """Whether it has neither run nor been cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run already."""
        if self.callback is not None:
            self.callback = None
            self._owner.note_cancelled()


class Deadlines:
    """Callbacks ordered by the monotonic millisecond at which they are due; equal ones run in order of arrival."""

    def __init__(self) -> None:
        self._heap: list[Deadline] = []
        self._sequence = 0
        self._cancelled = 0
        self.on_earlier: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def schedule(self, at_mono_ms: int, callback: Callable[[], None]) -> Deadline:
        """Have `callback` run by the first `run_due` at or after `at_mono_ms`."""
        self._sequence += 1
        deadline = Deadline(self, at_mono_ms, self._sequence, callback)
        heap = self._heap
        heappush(heap, deadline)
        if heap[0] is deadline and self.on_earlier is not None:
            self.on_earlier()
        return deadline

    def next_mono_ms(self) -> int | None:
        """When the nearest deadline is due; None when nothing waits."""
        heap = self._heap
        while heap and heap[0].callback is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0].at_mono_ms if heap else None

    def run_due(self, mono_ms: int) -> int:
        """Run what is due, what becomes due meanwhile included; return how many ran."""
        heap = self._heap
        ran = 0
        while heap and heap[0].at_mono_ms <= mono_ms:
            deadline = heappop(heap)
            callback = deadline.callback
            if callback is None:
                self._cancelled -= 1
                continue
            deadline.callback = None
            ran += 1
            callback()
            heap = self._heap
        return ran

    def note_cancelled(self) -> None:
        """A deadline of this heap was cancelled; build the heap anew when most of it is dead."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_AT and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [deadline for deadline in self._heap if deadline.callback is not None]
            heapify(self._heap)
            self._cancelled = 0

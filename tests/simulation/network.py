"""Simulated time, and a network that loses, delays, duplicates and reorders messages, and partitions nodes.

RULES    1. Events run in the order of simulated time; events of the same time run in the order of scheduling.
         2. All random numbers come from one generator in this order: one seed, one simulation.
         3. Without faults (`has_faults` is false), every message arrives once and soon, except over a cut link.
NOT HERE The nodes, and the schedule of faults.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

MAX_EVENTS = 200_000
"""Far more than a simulation needs."""

Reply = Callable[[Any], None]
ResponseCallback = Callable[[Any], None]
"""Receives a response; None if none arrived in time."""


class Timeline:
    """The scheduled events."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.event_count = 0

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), action))

    def run(self, duration_ms: int, then: Callable[[], None]) -> None:
        """Run the events of a period; `then` follows each event."""
        until_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            self.event_count += 1
            assert self.event_count < MAX_EVENTS, "the simulation does not terminate"
            action()
            then()
        self.now_ms = until_ms


class Network:
    """The links between nodes, by node id."""

    def __init__(self, timeline: Timeline, random: Random) -> None:
        """Choose the fault rates at random."""
        self._timeline = timeline
        self._random = random
        self.loss = random.choice((0.0, 0.0, 0.05, 0.3))
        self.max_delay_ms = random.choice((20, 200, 1500))
        """The maximum delay of one message in ten."""
        self.duplication = 0.02
        """The rate of duplicated messages."""
        self.cuts: set[tuple[int, int]] = set()
        """The (source, target) pairs of cut links."""
        self.has_faults = True

    def request(
        self, source: int, target: int, deliver: Callable[[Reply], bool], on_response: ResponseCallback, timeout_ms: int
    ) -> None:
        """Send a request, and its response back; None if no response arrives in time.

        `deliver` receives the reply callback; it returns False if no process listens, which the source learns like a response.
        """
        is_complete = False

        def complete(message: Any) -> None:
            nonlocal is_complete
            if not is_complete:
                is_complete = True
                on_response(message)

        def arrive() -> None:
            if not deliver(lambda message: self.carry(target, source, lambda: complete(message))):
                self.carry(target, source, lambda: complete(None))

        self.carry(source, target, arrive)
        self._timeline.after(timeout_ms, lambda: complete(None))

    def carry(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        """Deliver a message after a delay, possibly never or twice."""
        random = self._random
        for _ in range(2 if self.has_faults and random.random() < self.duplication else 1):
            delay_ms = random.randint(0, 3) if random.random() < 0.9 else random.randrange(self.max_delay_ms)
            if not self.has_faults:
                delay_ms = min(delay_ms, 3)
            elif random.random() < self.loss:
                continue
            self._timeline.after(delay_ms, lambda: arrive() if (source, target) not in self.cuts else None)

    def cut(self, node: int, others: list[int], *, is_both_ways: bool) -> None:
        """Cut the links from a node to others, and back if `is_both_ways`."""
        for other in others:
            self.cuts.add((node, other))
            if is_both_ways:
                self.cuts.add((other, node))

    def heal(self) -> None:
        self.cuts.clear()

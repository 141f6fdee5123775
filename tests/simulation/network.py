"""Simulated time, and a network between numbered nodes that loses, delays, doubles, overtakes and cuts.

RULES    1. Events happen in the order of simulated time; those of one moment in the order in which they were asked for.
         2. Whatever is drawn is drawn from one generator, in that order: one seed, one history.
         3. In peace (`is_troubled` is false) everything arrives once, soon; only what is cut does not.
NOT HERE Who the nodes are, and what goes wrong when.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from protocol.schema import Message

MOST_EVENTS = 200_000
"""Far more than any history has."""

Reply = Callable[[Message], None]
Answered = Callable[[Message | None], None]


class Timeline:
    """Everything that will happen."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.ran = 0

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), act))

    def run(self, duration_ms: int, then: Callable[[], None]) -> None:
        """Let time pass; `then` follows on every event."""
        until_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, act = heapq.heappop(self._events)
            self.ran += 1
            assert self.ran < MOST_EVENTS, "something goes on without end"
            act()
            then()
        self.now_ms = until_ms


class Network:
    """Between nodes, by their numbers."""

    def __init__(self, timeline: Timeline, random: Random) -> None:
        """Draw how bad it is."""
        self._timeline = timeline
        self._random = random
        self.loss = random.choice((0.0, 0.0, 0.05, 0.3))
        self.slowest_ms = random.choice((20, 200, 1500))
        """What one message in ten may take."""
        self.doubling = 0.02
        """How many messages arrive twice."""
        self.cuts: set[tuple[int, int]] = set()
        """Directions in which nothing gets through."""
        self.is_troubled = True

    def ask(
        self, source: int, target: int, deliver: Callable[[Reply], bool], answered: Answered, timeout_ms: int
    ) -> None:
        """Carry a question there and its answer back, unless one of them is lost; None: no answer came in time.

        `deliver` is called with where to answer; False: nobody listens there, which is seen at once.
        """
        is_over = False

        def end(message: Message | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answered(message)

        def arrive() -> None:
            if not deliver(lambda message: self.carry(target, source, lambda: end(message))):
                self.carry(target, source, lambda: end(None))

        self.carry(source, target, arrive)
        self._timeline.after(timeout_ms, lambda: end(None))

    def carry(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        """Have something arrive, perhaps; perhaps twice."""
        random = self._random
        for _ in range(2 if self.is_troubled and random.random() < self.doubling else 1):
            delay_ms = random.randint(0, 3) if random.random() < 0.9 else random.randrange(self.slowest_ms)
            if not self.is_troubled:
                delay_ms = min(delay_ms, 3)
            elif random.random() < self.loss:
                continue
            self._timeline.after(delay_ms, lambda: arrive() if (source, target) not in self.cuts else None)

    def cut(self, node: int, others: list[int], *, is_both_ways: bool) -> None:
        """Nobody of some hears of a node; nor it of them, where it is cut both ways."""
        for other in others:
            self.cuts.add((node, other))
            if is_both_ways:
                self.cuts.add((other, node))

    def heal(self) -> None:
        """Nothing is cut any more."""
        self.cuts.clear()

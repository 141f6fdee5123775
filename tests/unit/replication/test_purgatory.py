"""Rules of replication/purgatory.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.purgatory import Key, Purgatory, Waiter
from replication.timer_queue import Deadlines


class Counter(Waiter):
    """Needs so many tries; remembers how it ended."""

    __slots__ = ("ended", "needed", "on_try", "tries")

    def __init__(self, needed: int = 1) -> None:
        super().__init__()
        self.needed = needed
        self.tries = 0
        self.ended: list[str] = []
        self.on_try = lambda: None

    def try_complete(self) -> bool:
        self.tries += 1
        self.on_try()
        if self.tries < self.needed:
            return False
        self.ended.append("answered")
        return True

    def expire(self) -> None:
        self.ended.append("expired")


class Notes:
    """A watcher that is no waiter."""

    def __init__(self) -> None:
        self.moves: list[Key] = []

    def moved(self, key: Key) -> None:
        self.moves.append(key)


@pytest.fixture
def purgatory() -> Purgatory:
    return Purgatory(Deadlines())


def is_empty(purgatory: Purgatory) -> bool:
    return len(purgatory) == 0 and purgatory.watched_keys == 0 and purgatory.drain() == 0


def test_woken_waiter_tries_again_only_when_drained(purgatory):
    """Rule 2."""
    waiter = Counter()
    purgatory.park(waiter, ["a"], 100)
    purgatory.wake("a")
    assert waiter.tries == 0
    assert purgatory.drain() == 1
    assert waiter.ended == ["answered"]
    assert is_empty(purgatory)
    assert len(purgatory.deadlines) == 0


def test_several_wakes_before_a_drain_are_one_try(purgatory):
    """Rule 2."""
    waiter = Counter(needed=2)
    purgatory.park(waiter, ["a", "b"], 100)
    for key in "aabba":
        purgatory.wake(key)
    purgatory.drain()
    assert waiter.tries == 1
    assert waiter.is_parked
    purgatory.wake("b")
    purgatory.drain()
    assert waiter.ended == ["answered"]


def test_wake_of_another_key_disturbs_nobody(purgatory):
    """Rule 1."""
    waiter = Counter()
    purgatory.park(waiter, ["a"], 100)
    purgatory.wake("b")
    assert purgatory.drain() == 0


def test_waiters_are_tried_in_the_order_in_which_they_came(purgatory):
    """Rule 1."""
    order = []
    for name in "xyz":
        waiter = Counter()
        waiter.on_try = lambda name=name: order.append(name)
        purgatory.park(waiter, ["a"], 100)
    purgatory.wake("a")
    purgatory.drain()
    assert order == ["x", "y", "z"]


def test_deadline_expires_a_waiter_and_no_wake_reaches_it_later(purgatory):
    """Rule 3."""
    waiter = Counter()
    purgatory.park(waiter, ["a"], 100)
    purgatory.wake("a")
    purgatory.deadlines.run_due(99)
    assert waiter.ended == []
    purgatory.deadlines.run_due(100)
    assert waiter.ended == ["expired"]
    purgatory.drain()
    assert waiter.tries == 0
    assert is_empty(purgatory)


def test_cancelled_waiter_is_forgotten(purgatory):
    """Rule 3."""
    waiter = Counter()
    purgatory.park(waiter, ["a", "b"], 100)
    purgatory.wake("a")
    waiter.cancel()
    waiter.cancel()
    purgatory.drain()
    purgatory.deadlines.run_due(1000)
    assert waiter.tries == 0
    assert waiter.ended == []
    assert is_empty(purgatory)


def test_driver_is_told_once_when_the_queue_fills(purgatory):
    """Rule 4."""
    told = []
    purgatory.on_wake = lambda: told.append(1)
    for _ in range(3):
        purgatory.park(Counter(), ["a"], 100)
    purgatory.wake("a")
    assert told == [1]
    purgatory.drain()
    purgatory.park(Counter(), ["a"], 100)
    purgatory.wake("a")
    assert told == [1, 1]


def test_what_a_drain_wakes_is_left_for_the_next_one(purgatory):
    """Rule 4."""
    told = []
    purgatory.on_wake = lambda: told.append(1)
    ping, pong = Counter(needed=10), Counter(needed=10)
    ping.on_try = lambda: purgatory.wake("pong")
    pong.on_try = lambda: purgatory.wake("ping")
    purgatory.park(ping, ["ping"], 100)
    purgatory.park(pong, ["pong"], 100)
    purgatory.wake("ping")
    assert purgatory.drain() == 1
    assert (ping.tries, pong.tries) == (1, 0)
    assert told == [1, 1]
    assert purgatory.drain() == 1
    assert (ping.tries, pong.tries) == (1, 1)


def test_failing_waiter_does_not_make_the_others_forgotten(purgatory):
    """Rule 2, for those behind one that raises."""
    told = []
    purgatory.on_wake = lambda: told.append(1)
    faulty, behind = Counter(), Counter()
    faulty.on_try = lambda: 1 / 0
    purgatory.park(faulty, ["a"], 100)
    purgatory.park(behind, ["a"], 100)
    purgatory.wake("a")
    with pytest.raises(ZeroDivisionError):
        purgatory.drain()
    assert told == [1, 1]
    purgatory.drain()
    assert behind.ended == ["answered"]


def test_watcher_hears_of_every_move_at_once(purgatory):
    """Rule 1: a session's notes do not wait for a drain."""
    notes = Notes()
    purgatory.watch(notes, "a")
    purgatory.watch(notes, "a")
    purgatory.watch(notes, "b")
    purgatory.wake("a")
    purgatory.wake("b")
    purgatory.unwatch(notes, "a")
    purgatory.unwatch(notes, "a")
    purgatory.wake("a")
    assert notes.moves == ["a", "b"]
    purgatory.unwatch(notes, "b")
    assert purgatory.watched_keys == 0


def test_waiter_without_keys_is_woken_by_its_own_hand(purgatory):
    """A session wakes its parked fetch itself."""
    waiter = Counter()
    purgatory.park(waiter, (), 100)
    waiter.wake()
    waiter.wake()
    assert purgatory.drain() == 1
    assert waiter.ended == ["answered"]
    waiter.wake()
    assert is_empty(purgatory)


@given(st.integers(0, 2**32))
def test_nothing_leaks_whatever_happens_in_which_order(seed):
    """Rule 3, as a property: every waiter ends exactly once and nothing remembers it."""
    chance = random.Random(seed)
    purgatory = Purgatory(Deadlines())
    parked: list[Counter] = []
    cancelled: set[Counter] = set()
    everyone: list[Counter] = []
    now = 0
    for _ in range(60):
        action = chance.randrange(6)
        if action <= 1:
            waiter = Counter(needed=chance.randrange(1, 4))
            if chance.random() < 0.2:
                other = chance.randrange(5)
                waiter.on_try = lambda other=other: purgatory.wake(other)
            keys = {chance.randrange(5) for _ in range(chance.randrange(4))}
            purgatory.park(waiter, keys, now + chance.randrange(1, 20))
            parked.append(waiter)
            everyone.append(waiter)
        elif action == 2:
            purgatory.wake(chance.randrange(5))
        elif action == 3:
            purgatory.drain()
        elif action == 4 and parked:
            waiter = parked[chance.randrange(len(parked))]
            if waiter.is_parked:
                waiter.cancel()
                cancelled.add(waiter)
        else:
            now += chance.randrange(5)
            purgatory.deadlines.run_due(now)
        parked = [waiter for waiter in parked if waiter.is_parked]
        assert len(purgatory) == len(parked) == len(purgatory.deadlines)
    purgatory.deadlines.run_due(now + 1000)
    purgatory.drain()
    for waiter in everyone:
        assert len(waiter.ended) == (0 if waiter in cancelled else 1), f"seed {seed}"
    assert is_empty(purgatory), f"seed {seed}"

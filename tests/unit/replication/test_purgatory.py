"""Rules of replication/purgatory.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.purgatory import DelayedOperation, Key, Purgatory
from replication.timer_queue import TimerQueue


class CountingOperation(DelayedOperation):
    """Completes at the n-th try."""

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


class RecordingWatcher:
    """A watcher that is no operation."""

    def __init__(self) -> None:
        self.moves: list[Key] = []

    def on_key_changed(self, key: Key) -> None:
        self.moves.append(key)


@pytest.fixture
def purgatory() -> Purgatory:
    return Purgatory(TimerQueue())


def is_empty(purgatory: Purgatory) -> bool:
    return len(purgatory) == 0 and purgatory.watched_keys == 0 and purgatory.drain() == 0


def test_a_woken_operation_is_retried_by_the_next_drain(purgatory):
    waiter = CountingOperation()
    purgatory.park(waiter, ["a"], 100)
    purgatory.wake("a")
    assert waiter.tries == 0
    assert purgatory.drain() == 1
    assert waiter.ended == ["answered"]
    assert is_empty(purgatory)
    assert len(purgatory.timers) == 0


def test_several_wakes_before_a_drain_are_one_try(purgatory):
    waiter = CountingOperation(needed=2)
    purgatory.park(waiter, ["a", "b"], 100)
    for key in "aabba":
        purgatory.wake(key)
    purgatory.drain()
    assert waiter.tries == 1
    assert waiter.is_waiting
    purgatory.wake("b")
    purgatory.drain()
    assert waiter.ended == ["answered"]


def test_a_wake_of_another_key_has_no_effect(purgatory):
    waiter = CountingOperation()
    purgatory.park(waiter, ["a"], 100)
    purgatory.wake("b")
    assert purgatory.drain() == 0


def test_operations_are_retried_in_the_order_in_which_they_were_added(purgatory):
    order = []
    for name in "xyz":
        waiter = CountingOperation()
        waiter.on_try = lambda name=name: order.append(name)
        purgatory.park(waiter, ["a"], 100)
    purgatory.wake("a")
    purgatory.drain()
    assert order == ["x", "y", "z"]


def test_an_expired_operation_is_not_retried(purgatory):
    waiter = CountingOperation()
    purgatory.park(waiter, ["a"], 100)
    purgatory.wake("a")
    purgatory.timers.run_due(99)
    assert waiter.ended == []
    purgatory.timers.run_due(100)
    assert waiter.ended == ["expired"]
    purgatory.drain()
    assert waiter.tries == 0
    assert is_empty(purgatory)


def test_a_cancelled_operation_neither_completes_nor_expires(purgatory):
    waiter = CountingOperation()
    purgatory.park(waiter, ["a", "b"], 100)
    purgatory.wake("a")
    waiter.cancel()
    waiter.cancel()
    purgatory.drain()
    purgatory.timers.run_due(1000)
    assert waiter.tries == 0
    assert waiter.ended == []
    assert is_empty(purgatory)


def test_the_driver_is_notified_once_when_the_queue_becomes_non_empty(purgatory):
    told = []
    purgatory.on_wake = lambda: told.append(1)
    for _ in range(3):
        purgatory.park(CountingOperation(), ["a"], 100)
    purgatory.wake("a")
    assert told == [1]
    purgatory.drain()
    purgatory.park(CountingOperation(), ["a"], 100)
    purgatory.wake("a")
    assert told == [1, 1]


def test_operations_woken_during_a_drain_wait_for_the_next_one(purgatory):
    told = []
    purgatory.on_wake = lambda: told.append(1)
    ping, pong = CountingOperation(needed=10), CountingOperation(needed=10)
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


def test_an_exception_in_one_operation_does_not_lose_the_others(purgatory):
    told = []
    purgatory.on_wake = lambda: told.append(1)
    faulty, behind = CountingOperation(), CountingOperation()
    faulty.on_try = lambda: 1 / 0
    purgatory.park(faulty, ["a"], 100)
    purgatory.park(behind, ["a"], 100)
    purgatory.wake("a")
    with pytest.raises(ZeroDivisionError):
        purgatory.drain()
    assert told == [1, 1]
    purgatory.drain()
    assert behind.ended == ["answered"]


def test_a_watcher_is_notified_of_every_change_at_once(purgatory):
    notes = RecordingWatcher()
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


def test_an_operation_without_keys_can_wake_itself(purgatory):
    waiter = CountingOperation()
    purgatory.park(waiter, (), 100)
    waiter.wake()
    waiter.wake()
    assert purgatory.drain() == 1
    assert waiter.ended == ["answered"]
    waiter.wake()
    assert is_empty(purgatory)


@given(st.integers(0, 2**32))
def test_every_operation_ends_once_and_is_removed_in_any_order_of_events(seed):
    chance = random.Random(seed)
    purgatory = Purgatory(TimerQueue())
    parked: list[CountingOperation] = []
    cancelled: set[CountingOperation] = set()
    everyone: list[CountingOperation] = []
    now = 0
    for _ in range(60):
        action = chance.randrange(6)
        if action <= 1:
            waiter = CountingOperation(needed=chance.randrange(1, 4))
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
            if waiter.is_waiting:
                waiter.cancel()
                cancelled.add(waiter)
        else:
            now += chance.randrange(5)
            purgatory.timers.run_due(now)
        parked = [waiter for waiter in parked if waiter.is_waiting]
        assert len(purgatory) == len(parked) == len(purgatory.timers)
    purgatory.timers.run_due(now + 1000)
    purgatory.drain()
    for waiter in everyone:
        assert len(waiter.ended) == (0 if waiter in cancelled else 1), f"seed {seed}"
    assert is_empty(purgatory), f"seed {seed}"

"""The rules of `Purgatory`."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.purgatory import DelayedOperation, Key, Purgatory
from replication.timer_queue import TimerQueue

pytestmark = pytest.mark.pure_python("extends a compiled class")


class CountingOperation(DelayedOperation):
    """Completes at the n-th try."""

    __slots__ = ("deadline", "needed", "on_try", "results", "tries")

    def __init__(self, needed: int = 1) -> None:
        super().__init__()
        self.needed = needed
        self.deadline = 0
        self.tries = 0
        self.results: list[str] = []
        self.on_try: Callable[[], object] = lambda: None

    @property
    def is_waiting(self) -> bool:
        return self.purgatory is not None

    def try_complete(self) -> bool:
        assert self.is_waiting, "an ended operation is not retried"
        self.tries += 1
        self.on_try()
        if self.tries < self.needed:
            return False
        self.results.append("completed")
        return True

    def expire(self) -> None:
        self.results.append("expired")


class RecordingWatcher:
    """A watcher that is no operation."""

    def __init__(self) -> None:
        self.changes: list[Key] = []

    def on_key_changed(self, key: Key) -> None:
        self.changes.append(key)


@pytest.fixture
def purgatory() -> Purgatory:
    return Purgatory(TimerQueue())


def is_empty(purgatory: Purgatory) -> bool:
    return len(purgatory) == 0 and len(purgatory._watchers) == 0 and purgatory.drain() == 0


def test_a_woken_operation_is_retried_by_the_next_drain(purgatory: Purgatory) -> None:
    operation = CountingOperation()
    purgatory.park(operation, ["a"], 100)
    purgatory.wake("a")
    assert operation.tries == 0
    assert purgatory.drain() == 1
    assert operation.results == ["completed"]
    assert is_empty(purgatory)
    assert len(purgatory.timers) == 0


def test_several_wakes_before_a_drain_are_one_try(purgatory: Purgatory) -> None:
    operation = CountingOperation(needed=2)
    purgatory.park(operation, ["a", "b"], 100)
    for key in "aabba":
        purgatory.wake(key)
    purgatory.drain()
    assert operation.tries == 1
    assert operation.is_waiting
    purgatory.wake("b")
    purgatory.drain()
    assert operation.results == ["completed"]


def test_a_wake_of_another_key_has_no_effect(purgatory: Purgatory) -> None:
    operation = CountingOperation()
    purgatory.park(operation, ["a"], 100)
    purgatory.wake("b")
    assert purgatory.drain() == 0


def test_operations_are_retried_in_the_order_in_which_they_were_added(purgatory: Purgatory) -> None:
    order: list[str] = []
    for name in "xyz":
        operation = CountingOperation()
        operation.on_try = partial(order.append, name)
        purgatory.park(operation, ["a"], 100)
    purgatory.wake("a")
    purgatory.drain()
    assert order == ["x", "y", "z"]


def test_the_driver_is_notified_once_when_the_queue_becomes_non_empty(purgatory: Purgatory) -> None:
    signals = []
    purgatory.on_wake = lambda: signals.append(1)
    for _ in range(3):
        purgatory.park(CountingOperation(), ["a"], 100)
    purgatory.wake("a")
    assert signals == [1]
    purgatory.drain()
    purgatory.park(CountingOperation(), ["a"], 100)
    purgatory.wake("a")
    assert signals == [1, 1]


def test_operations_woken_during_a_drain_wait_for_the_next_one(purgatory: Purgatory) -> None:
    signals = []
    purgatory.on_wake = lambda: signals.append(1)
    ping, pong = CountingOperation(needed=10), CountingOperation(needed=10)
    ping.on_try = lambda: purgatory.wake("pong")
    pong.on_try = lambda: purgatory.wake("ping")
    purgatory.park(ping, ["ping"], 100)
    purgatory.park(pong, ["pong"], 100)
    purgatory.wake("ping")
    assert purgatory.drain() == 1
    assert (ping.tries, pong.tries) == (1, 0)
    assert signals == [1, 1]
    assert purgatory.drain() == 1
    assert (ping.tries, pong.tries) == (1, 1)


def test_an_exception_in_one_operation_does_not_lose_the_others(purgatory: Purgatory) -> None:
    signals = []
    purgatory.on_wake = lambda: signals.append(1)
    faulty, behind = CountingOperation(), CountingOperation()
    faulty.on_try = lambda: 1 / 0
    purgatory.park(faulty, ["a"], 100)
    purgatory.park(behind, ["a"], 100)
    purgatory.wake("a")
    with pytest.raises(ZeroDivisionError):
        purgatory.drain()
    assert signals == [1, 1]
    purgatory.drain()
    assert behind.results == ["completed"]


def test_a_watcher_is_notified_of_every_change_at_once(purgatory: Purgatory) -> None:
    watcher = RecordingWatcher()
    purgatory.watch(watcher, "a")
    purgatory.watch(watcher, "a")
    purgatory.watch(watcher, "b")
    purgatory.wake("a")
    purgatory.wake("b")
    purgatory.unwatch(watcher, "a")
    purgatory.unwatch(watcher, "a")
    purgatory.wake("a")
    assert watcher.changes == ["a", "b"]
    purgatory.unwatch(watcher, "b")
    assert len(purgatory._watchers) == 0


def test_an_operation_without_keys_can_wake_itself(purgatory: Purgatory) -> None:
    operation = CountingOperation()
    purgatory.park(operation, (), 100)
    operation.wake()
    operation.wake()
    assert purgatory.drain() == 1
    assert operation.results == ["completed"]
    operation.wake()
    assert is_empty(purgatory)


@given(st.integers(0, 2**32))
def test_every_operation_ends_once_and_is_removed_in_any_order_of_events(seed: int) -> None:
    """It completes, it expires at its deadline, or it is cancelled; it is not retried afterwards."""
    rng = random.Random(seed)
    purgatory = Purgatory(TimerQueue())
    parked: list[CountingOperation] = []
    cancelled: set[CountingOperation] = set()
    operations: list[CountingOperation] = []
    now = 0
    for _ in range(60):
        action = rng.randrange(6)
        if action <= 1:
            operation = CountingOperation(needed=rng.randrange(1, 4))
            if rng.random() < 0.2:
                other = rng.randrange(5)
                operation.on_try = partial(purgatory.wake, other)
            keys = {rng.randrange(5) for _ in range(rng.randrange(4))}
            operation.deadline = now + rng.randrange(1, 20)
            purgatory.park(operation, keys, operation.deadline)
            parked.append(operation)
            operations.append(operation)
        elif action == 2:
            purgatory.wake(rng.randrange(5))
        elif action == 3:
            purgatory.drain()
        elif action == 4 and parked:
            operation = parked[rng.randrange(len(parked))]
            if operation.is_waiting:
                operation.cancel()
                operation.cancel()  # the second one has no effect
                cancelled.add(operation)
        else:
            now += rng.randrange(5)
            purgatory.timers.run_due(now)
            assert all(("expired" in one.results) <= (one.deadline <= now) for one in operations)
            assert not any(one.is_waiting and one.deadline <= now for one in operations)
        parked = [operation for operation in parked if operation.is_waiting]
        assert len(purgatory) == len(parked) == len(purgatory.timers)
    purgatory.timers.run_due(now + 1000)
    purgatory.drain()
    for operation in operations:
        assert len(operation.results) == (0 if operation in cancelled else 1), f"seed {seed}"
    assert is_empty(purgatory), f"seed {seed}"

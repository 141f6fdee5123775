"""The rules of `TimerQueue`."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from replication.timer_queue import TimerQueue


def test_only_an_earlier_timer_notifies_the_driver() -> None:
    timers, notified = TimerQueue(), []
    timers.on_earlier = lambda: notified.append(timers.next_mono_ms())
    for at in (50, 60, 70, 40, 30):
        timers.schedule(at, lambda: None)
    assert notified == [50, 40, 30]


def test_cancelled_timers_are_removed_from_the_heap() -> None:
    timers = TimerQueue()
    keep = timers.schedule(10**9, lambda: None)
    for at in range(20_000):
        timers.schedule(10**6 + at, lambda: None).cancel()
    assert len(timers._heap) < 3000
    assert keep.is_pending


def test_due_timers_run_in_order_of_time_then_of_scheduling_and_cancelled_ones_neither_run_nor_count() -> None:
    """A random history agrees with a sorted list."""
    number = 11
    rng = random.Random(number)
    timers, now = TimerQueue(), 0
    model: dict[int, int] = {}
    ran: list[int] = []
    handles: dict[int, Any] = {}
    for turn in range(5000):
        action = rng.random()
        if action < 0.6:
            at = now + rng.randrange(100)
            handles[turn] = timers.schedule(at, partial(ran.append, turn))
            model[turn] = at
        elif action < 0.8 and model:
            cancelled = rng.choice(list(model))
            handles[cancelled].cancel()
            handles[cancelled].cancel()  # the second one has no effect
            del model[cancelled]
        else:
            now += rng.randrange(30)
            due = sorted((at, key) for key, at in model.items() if at <= now)
            ran.clear()
            timers.run_due(now)
            assert ran == [key for _, key in due], f"seed {number}, turn {turn}"
            for _, key in due:
                del model[key]
        assert (len(timers), timers.next_mono_ms()) == (len(model), min(model.values(), default=None))

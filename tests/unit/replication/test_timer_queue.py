"""The rules of `TimerQueue`."""

from __future__ import annotations

import random

from replication.timer_queue import TimerQueue


def test_due_timers_run_in_order_of_time_and_then_of_scheduling() -> None:
    timers, ran = TimerQueue(), []
    for name, at in [("c", 20), ("a", 10), ("b", 10), ("d", 30)]:
        timers.schedule(at, lambda name=name: ran.append(name))
    assert timers.run_due(20) == 3
    assert ran == ["a", "b", "c"]
    assert timers.next_mono_ms() == 30


def test_a_cancelled_timer_never_runs_and_does_not_count() -> None:
    timers, ran = TimerQueue(), []
    first = timers.schedule(1, lambda: ran.append(1))
    second = timers.schedule(2, lambda: ran.append(2))
    first.cancel()
    first.cancel()
    assert (len(timers), timers.next_mono_ms()) == (1, 2)
    timers.run_due(5)
    second.cancel()
    assert (ran, len(timers), timers.next_mono_ms()) == ([2], 0, None)


def test_only_an_earlier_timer_notifies_the_driver() -> None:
    timers, notified = TimerQueue(), []
    timers.on_earlier = lambda: notified.append(timers.next_mono_ms())
    for at in (50, 60, 40, 45):
        timers.schedule(at, lambda: None)
    assert notified == [50, 40]


def test_cancelled_timers_are_removed_from_the_heap() -> None:
    timers = TimerQueue()
    keep = timers.schedule(10**9, lambda: None)
    for at in range(20_000):
        timers.schedule(10**6 + at, lambda: None).cancel()
    assert len(timers._heap) < 3000
    assert keep.is_pending


def test_a_random_history_agrees_with_a_sorted_list() -> None:
    number = 11
    rng = random.Random(number)
    timers, model, ran, handles, now = TimerQueue(), {}, [], {}, 0
    for turn in range(5000):
        action = rng.random()
        if action < 0.6:
            at = now + rng.randrange(100)
            handles[turn] = timers.schedule(at, lambda turn=turn: ran.append(turn))
            model[turn] = at
        elif action < 0.8 and model:
            cancelled = rng.choice(list(model))
            handles[cancelled].cancel()
            del model[cancelled]
        else:
            now += rng.randrange(30)
            due = sorted((at, key) for key, at in model.items() if at <= now)
            ran.clear()
            timers.run_due(now)
            assert ran == [key for _, key in due], f"seed {number}, turn {turn}"
            for _, key in due:
                del model[key]

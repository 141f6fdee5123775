"""One heap of deadlines for everything that waits."""

from __future__ import annotations

import random

from replication.timer_queue import Deadlines


def test_what_is_due_runs_in_order_of_time_and_then_of_arrival() -> None:
    """Equal deadlines run as they came."""
    deadlines, ran = Deadlines(), []
    for name, at in [("c", 20), ("a", 10), ("b", 10), ("d", 30)]:
        deadlines.schedule(at, lambda name=name: ran.append(name))
    assert deadlines.run_due(20) == 3
    assert ran == ["a", "b", "c"]
    assert deadlines.next_mono_ms() == 30


def test_a_cancelled_deadline_never_runs_and_does_not_count() -> None:
    """Rule 2, and cancelling twice or after the run is harmless."""
    deadlines, ran = Deadlines(), []
    first = deadlines.schedule(1, lambda: ran.append(1))
    second = deadlines.schedule(2, lambda: ran.append(2))
    first.cancel()
    first.cancel()
    assert (len(deadlines), deadlines.next_mono_ms()) == (1, 2)
    deadlines.run_due(5)
    second.cancel()
    assert (ran, len(deadlines), deadlines.next_mono_ms()) == ([2], 0, None)


def test_only_a_nearer_deadline_is_announced() -> None:
    """Rule 3: the driver is told when it has to wake up earlier, and only then."""
    deadlines, told = Deadlines(), []
    deadlines.on_earlier = lambda: told.append(deadlines.next_mono_ms())
    for at in (50, 60, 40, 45):
        deadlines.schedule(at, lambda: None)
    assert told == [50, 40]


def test_cancelled_deadlines_do_not_pile_up() -> None:
    """Rule 2: a million parked and answered requests leave a small heap."""
    deadlines = Deadlines()
    keep = deadlines.schedule(10**9, lambda: None)
    for at in range(20_000):
        deadlines.schedule(10**6 + at, lambda: None).cancel()
    assert len(deadlines._heap) < 3000
    assert keep.is_pending


def test_a_random_history_agrees_with_a_sorted_list() -> None:
    """Against the plainest model; the seed is in the failure."""
    number = 11
    rng = random.Random(number)
    deadlines, model, ran, handles, now = Deadlines(), {}, [], {}, 0
    for turn in range(5000):
        action = rng.random()
        if action < 0.6:
            at = now + rng.randrange(100)
            handles[turn] = deadlines.schedule(at, lambda turn=turn: ran.append(turn))
            model[turn] = at
        elif action < 0.8 and model:
            gone = rng.choice(list(model))
            handles[gone].cancel()
            del model[gone]
        else:
            now += rng.randrange(30)
            due = sorted((at, key) for key, at in model.items() if at <= now)
            ran.clear()
            deadlines.run_due(now)
            assert ran == [key for _, key in due], f"seed {number}, turn {turn}"
            for _, key in due:
                del model[key]

"""Which records are done (broker/coordinators/delivery/progress.py)."""

from __future__ import annotations

import random

import pytest

from broker.coordinators.delivery.progress import Progress, Step, read_progress
from tests.support.seeds import seed_of


def test_a_later_step_replaces_those_that_it_covers() -> None:
    progress = Progress().advanced(10, 500, 7).advanced(20, 500, 8)
    assert progress.steps == (Step(20, 500, 8),)


def test_a_clock_that_is_set_back_adds_a_step_until_the_time_is_reached_again() -> None:
    progress = Progress().advanced(10, 5_000, 0).advanced(20, 1_000, 0)
    assert progress.is_done(4_000, 9)
    assert not progress.is_done(4_000, 15), "it is due after the clock's new time"
    assert progress.is_done(900, 15)
    assert progress.advanced(20, 6_000, 0).steps == (Step(20, 6_000, 0),)


def test_the_union_of_all_steps_is_done() -> None:
    seed = seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    progress, steps = Progress(), list[Step]()
    for _ in range(50):
        steps.append(Step(rng.randrange(30), rng.randrange(30), rng.randrange(30)))
        progress = progress.advanced(*steps[-1])
        for due in range(30):
            for offset in range(30):
                expected = any(offset < one.end_offset and (due, offset) <= one[1:] for one in steps)
                assert progress.is_done(due, offset) is expected
    assert read_progress(progress.end_offset, progress.metadata()) == progress


@pytest.mark.parametrize("metadata", ["", None, "x", "1;2", "1;a,b,c"])
def test_an_offset_of_an_operator_means_that_all_records_before_it_are_done(metadata: str | None) -> None:
    progress = read_progress(5, metadata)
    assert progress.is_done(1 << 50, 4)
    assert not progress.is_done(0, 5)


def test_without_a_committed_offset_nothing_is_done() -> None:
    assert read_progress(-1, "") == Progress()


def test_limited_steps_say_nothing_about_records_at_the_limit_or_after_it() -> None:
    progress = Progress().advanced(5, 9_000, 0).advanced(10, 5_000, 0).advanced(20, 1_000, 0)
    limited = progress.limited_to(8)
    assert limited.steps == (Step(5, 9_000, 0), Step(8, 5_000, 0))
    assert progress.limited_to(20) == progress

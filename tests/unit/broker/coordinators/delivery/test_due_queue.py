"""The queue of pending records (broker/coordinators/delivery/due_queue.py)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.coordinators.delivery import due_queue
from broker.coordinators.delivery.due_queue import DueQueue
from storage.config.config_def import MAX_LONG
from tests.support.seeds import seed_of


def complete_queue(max_bytes: int = 1 << 20) -> DueQueue:
    queue = DueQueue(max_bytes)
    queue.end_scan()
    return queue


def shrink(queue: DueQueue) -> None:
    for _ in queue.shrink():
        pass


def test_nothing_is_taken_before_the_first_scan_has_ended() -> None:
    queue = DueQueue(1 << 20)
    queue.add(5, 1)
    assert queue.take(MAX_LONG - 1, 10) == []
    queue.end_scan()
    assert queue.take(MAX_LONG - 1, 10) == [(5, 1)]


def test_records_are_taken_in_the_order_of_due_time_and_offset_while_others_are_added() -> None:
    seed = seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    queue, model, now_ms = complete_queue(), set[tuple[int, int]](), 0
    for offset in range(3_000):
        entry = (now_ms + rng.choice((0, rng.randrange(20_000), rng.randrange(20_000_000))), offset)
        queue.add(*entry)
        model.add(entry)
        if rng.random() < 0.1:
            now_ms += rng.randrange(2_000)
            limit = rng.randrange(1, 50)
            expected = sorted(one for one in model if one[0] <= now_ms)[:limit]
            assert queue.take(now_ms, limit) == expected
            model.difference_update(expected)
            assert len(queue) == len(model)
            first = min((offset for _, offset in model), default=MAX_LONG)
            assert queue.first_offset() <= first
            assert queue.next_due_ms() <= min(model, default=(MAX_LONG, 0))[0]


def test_what_is_due_last_is_dropped_above_the_limit_and_added_by_a_scan() -> None:
    queue = complete_queue(max_bytes=1_700)
    for offset in range(200):
        queue.add(offset * 1_024, offset)
        shrink(queue)
    horizon_ms = queue.horizon_ms
    assert 0 < horizon_ms < 200 * 1_024
    assert len(queue) == 200
    assert queue.first_offset() == 0
    taken = queue.take(MAX_LONG - 1, 1_000)
    assert [offset for _, offset in taken] == list(range(horizon_ms // 1_024))
    assert queue.next_due_ms() == horizon_ms
    assert queue.begin_scan() == horizon_ms
    for offset in range(horizon_ms // 1_024, 200):
        queue.add(offset * 1_024, offset)
        assert queue.take(MAX_LONG - 1, 1_000) == [], "the scan has not ended"
    queue.end_scan()
    assert queue.take(MAX_LONG - 1, 1)[0][1] == horizon_ms // 1_024


def test_what_is_due_soon_is_known_before_it_is_taken() -> None:
    queue = complete_queue()
    for offset in range(100):
        queue.add(offset * 100, offset)
    queue.take(2_000, 5)
    assert sorted(queue.upcoming(1_500, 100)) == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert sorted(queue.upcoming(1_500, 3)) == [5, 6, 7]


def test_only_records_that_are_ready_are_taken_in_order() -> None:
    queue = complete_queue()
    for offset in range(10):
        queue.add(offset, offset)
    assert queue.take(100, 10, {0, 1, 3}) == [(0, 0), (1, 1)]
    assert queue.take(100, 10, {2, 3}) == [(2, 2), (3, 3)]
    assert len(queue) == 6


@pytest.mark.parametrize(
    "due_of", [lambda _: 5, lambda rng: rng.randrange(1_024), lambda rng: rng.randrange(4_000_000)]
)
def test_a_step_does_not_grow_with_the_records_that_are_due_together(
    due_of: Callable[[random.Random], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_queue, "_STEP", 64)
    seed = seed_of()
    print(f"seed {seed}")
    rng, queue = random.Random(seed), complete_queue()
    entries = [(due_of(rng), offset) for offset in range(10_000)]
    for entry in entries:
        queue.add(*entry)
    assert sum(1 for _ in queue.prepare(0)) >= 10_000 // 64
    assert queue.take(4_000_000, 10_000) == sorted(entries)

"""The queue of pending records (broker/coordinators/delivery/due_queue.py)."""

from __future__ import annotations

import random

from broker.coordinators.delivery.due_queue import DueQueue
from storage.config.config_def import MAX_LONG
from tests.support.seeds import seed_of


def complete_queue(max_bytes: int = 1 << 20) -> DueQueue:
    queue = DueQueue(max_bytes)
    queue.end_scan()
    return queue


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
        entry = (now_ms + rng.randrange(20_000), offset)
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
            assert queue.next_due_ms() <= min(model)[0]


def test_what_is_due_last_is_dropped_above_the_limit_and_added_by_a_scan() -> None:
    queue = complete_queue(max_bytes=10_000)
    for offset in range(200):
        queue.add(offset * 1_024, offset)
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


def test_the_window_has_what_is_due_between_two_times() -> None:
    queue = complete_queue()
    for offset in range(100):
        queue.add(offset * 100, offset)
    queue.take(2_000, 5)
    assert sorted(queue.window(1_000, 1_500, 100)) == [11, 12, 13, 14, 15]
    assert queue.window(1_000, 1_500, 1) == [], "a bucket with more records is left out"

"""The cleanable part of a log and when it is due, as in Apache Kafka's LogCleanerManager."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage.compaction.cleanable import LogToClean, bounds_of, may_be_due, measure, nothing_to_clean
from storage.log.log import Log
from tests.support.compaction import COMPACTED, closed, put
from tests.support.logs import NOW_MS, ProducerInfo, log_at


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Four closed segments of one record each, a second apart, and one record in the active segment."""
    log = log_at(tmp_path, config=replace(COMPACTED, segment_bytes=100_000))
    for number in range(5):
        put(log, ("key", "v" * 100), timestamp_ms=NOW_MS + 1000 * number)
        if number < 4:
            closed(log)
    return log


def dirt_of(log: Log, wall_ms: int = NOW_MS + 10_000, **settings: float) -> LogToClean:
    log.config = replace(log.config, **settings)  # type: ignore[arg-type]
    bounds = bounds_of(log, wall_ms)
    dirt = measure(log.open().engine.view(), bounds)
    if dirt.is_due(log.config):
        assert may_be_due(log.open().engine, bounds), "the first look is never too strict"
    return dirt


def test_the_whole_closed_log_is_dirty_before_the_first_compaction(log: Log) -> None:
    found = dirt_of(log)
    assert found == (0, 4, 0, 4 * log.open().engine.segments()[0].size, False)
    assert found.ratio == 1.0


@pytest.mark.parametrize(
    ("first_dirty_offset", "clean", "expected"),
    [(0, 0, 0), (1, 1, 1), (3, 3, 3), (4, 4, 4), (5, 4, 5), (6, 0, 0), (-1, 0, 0)],
    ids=["none", "one", "three", "all", "up to the end", "beyond the end", "never cleaned"],
)
def test_clean_bytes_end_at_the_first_dirty_offset(
    log: Log, first_dirty_offset: int, clean: int, expected: int
) -> None:
    """An offset outside the log is replaced by the log start."""
    log.offsets.first_dirty_offset = first_dirty_offset
    size = log.open().engine.segments()[0].size
    found = dirt_of(log)
    assert (found.first_dirty_offset, found.clean_bytes, found.dirty_bytes) == (
        expected, clean * size, (4 - clean) * size
    )  # fmt: skip


def test_a_first_dirty_offset_below_the_log_start_becomes_the_log_start(log: Log) -> None:
    log.offsets.first_dirty_offset = 1
    log.open().trim(3, NOW_MS)
    assert dirt_of(log).first_dirty_offset == 3


@pytest.mark.parametrize(
    ("ratio", "first_dirty_offset", "is_due"),
    [(0.5, 2, False), (0.49, 2, True), (0.0, 4, False), (0.0, 3, True), (1.0, 0, False), (0.99, 0, True)],
)
def test_a_log_is_due_above_the_dirty_ratio(log: Log, ratio: float, first_dirty_offset: int, *, is_due: bool) -> None:
    log.offsets.first_dirty_offset = first_dirty_offset
    assert dirt_of(log, min_cleanable_dirty_ratio=ratio).is_due(log.config) == is_due


@pytest.mark.parametrize(
    ("lag_ms", "end_offset"), [(0, 4), (1, 4), (7000, 4), (7001, 3), (8001, 2), (10_000, 1), (10_001, 0)]
)
def test_segments_younger_than_the_lag_are_not_cleanable(log: Log, lag_ms: int, end_offset: int) -> None:
    """Segment n's max timestamp is 10 - n seconds old; one exactly as old as the lag is cleanable."""
    found = dirt_of(log, min_compaction_lag_ms=lag_ms)
    assert (found.end_offset, found.dirty_bytes) == (end_offset, end_offset * log.open().engine.segments()[0].size)


@pytest.mark.parametrize(
    ("lag_ms", "first_dirty_offset", "is_due"),
    [(9_999, 0, True), (10_000, 0, False), (8_999, 1, True), (9_000, 1, False), (1, 4, False)],
)
def test_a_dirty_segment_older_than_the_max_lag_is_due(
    log: Log, lag_ms: int, first_dirty_offset: int, *, is_due: bool
) -> None:
    log.offsets.first_dirty_offset = first_dirty_offset
    found = dirt_of(log, max_compaction_lag_ms=lag_ms, min_cleanable_dirty_ratio=1.0)
    assert found.is_due(log.config) == is_due


def test_segments_from_the_last_stable_offset_on_are_not_cleanable(log: Log) -> None:
    closed(log)
    put(log, ("key", "v"), producer=ProducerInfo(1, 0, 0, transactional=True))
    closed(log)
    put(log, ("key", "v"))
    closed(log)
    assert dirt_of(log).end_offset == 5
    log.high_watermark = 2
    log.offsets.high_watermark = 2  # it does not go back by itself
    assert dirt_of(log).end_offset == 2


def test_nothing_to_clean_ignores_the_lag(log: Log) -> None:
    assert not nothing_to_clean(log.open().engine, bounds_of(log, NOW_MS))
    log.offsets.first_dirty_offset = 4
    assert nothing_to_clean(log.open().engine, bounds_of(log, NOW_MS))

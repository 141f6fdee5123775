"""Which segments become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage.compaction.cleaner import clean
from storage.compaction.cleaner_job import CleanerJob, Replacement
from storage.io.disk import Disk
from storage.log.log import Log
from tests.support.compaction import COMPACTED, batches_of, compact, job_for, kept, put
from tests.support.logs import NOW_MS, flush, log_at
from tests.support.segments import batch

FAR = 2**31
SEGMENTS = 8


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return log_at(tmp_path, config=replace(COMPACTED, segment_bytes=1000))


def fill(log: Log, key: Callable[[int], str] = str, size: int = 300) -> None:
    """Segments of one batch each, all but the active one."""
    for number in range(SEGMENTS):
        put(log, (key(number), "v" * size))
        log.open().roll(NOW_MS)
    flush(log)


def groups(job: CleanerJob) -> list[list[int]]:
    """The base offsets of the segments that a job replaces by one."""
    steps = clean(Disk(), job)
    return [[segment.base_offset for segment in step.replaced] for step in steps if isinstance(step, Replacement)]


def test_the_retained_size_and_that_of_the_next_segment_count(log: Log) -> None:
    fill(log)
    size = log.open().engine.segments()[0].size
    job = job_for(log)
    for limit, expected in ((2 * size, [0, 2, 4, 6]), (2 * size - 1, list(range(SEGMENTS))), (8 * size, [0])):
        limited = job._replace(config=replace(job.config, segment_bytes=limit))
        assert [group[0] for group in groups(limited)] == expected


@pytest.mark.pure_python("replaces a limit of a compiled module")
def test_a_new_segment_replaces_a_limited_number(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are renamed at a time: 4,000 took more than a second."""
    monkeypatch.setattr("storage.compaction.cleaner.MAX_REPLACED", 3)
    fill(log, size=10)
    assert groups(job_for(log)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    compact(log)
    assert kept(log) == [(number, str(number), "v" * 10) for number in range(SEGMENTS)]
    assert [segment.base_offset for segment in log.open().engine.segments()] == [0, 3, 6, SEGMENTS]


def test_segments_without_retained_records_become_one_with_an_empty_batch(log: Log) -> None:
    """Some clients report an error after a dozen responses without records."""
    fill(log, lambda _: "k", size=900)
    put(log, ("k", "last"))
    log.open().roll(NOW_MS)
    flush(log)
    assert groups(job_for(log)) == [list(range(SEGMENTS + 1))]
    compact(log)
    assert kept(log) == [(SEGMENTS, "k", "last")]
    put(log, ("k", "newer"))
    log.open().roll(NOW_MS)
    put(log, ("k", "active"))
    log.open().roll(NOW_MS)
    flush(log)
    compact(log)
    assert [header.record_count for _, _, header in batches_of(log)] == [1]


def test_the_last_batch_is_retained_as_a_header_at_the_end_of_each_new_segment(log: Log) -> None:
    for number in range(4):
        put(log, (f"own{number}", "v" * 400))
        put(log, ("k", "v" * 400))
        log.open().roll(NOW_MS)
    put(log, ("k", "last"))
    log.open().roll(NOW_MS)
    flush(log)
    compact(log)
    found = [(header.base_offset, header.record_count) for _, _, header in batches_of(log)]
    assert found == [(0, 1), (1, 0), (2, 1), (3, 0), (4, 1), (5, 0), (6, 1), (8, 1)]


@pytest.mark.parametrize("column", ["offset", "time"])
def test_index_sizes_count(log: Log, column: str) -> None:
    log.update_config(replace(log.config, segment_bytes=100_000, index_interval_bytes=0))
    entry_bytes = {"offset": 8, "time": 12}[column]
    for number in range(SEGMENTS):
        for record in range(3):
            put(
                log,
                (f"k{number}-{record}", "v" * 300),
                timestamp_ms=NOW_MS + (column == "time") * (number * 10 + record),
            )
        log.open().roll(NOW_MS)
    flush(log)
    job = job_for(log)
    limited = job._replace(config=replace(job.config, segment_index_bytes=6 * entry_bytes))
    assert [len(group) for group in groups(limited)] == [2] * (SEGMENTS // 2)


def test_segments_above_the_recovery_point_do_not_join_those_below_it(log: Log) -> None:
    fill(log, lambda _: "k")
    assert groups(job_for(log)._replace(recovery_point=5)) == [[0, 1, 2, 3, 4], [5, 6, 7]]


def test_offsets_are_relative_ones_of_the_new_segment(log: Log) -> None:
    put(log, ("a", "1"))
    log.open().roll(NOW_MS)
    far = log.open().prepare_as_follower(batch(FAR - 1), wall_ms=NOW_MS)
    assert far is not None
    far.write()
    far.commit(NOW_MS)
    log.high_watermark = log.log_end_offset
    log.open().roll(NOW_MS)
    put(log, ("b", "1"))
    log.open().roll(NOW_MS)
    flush(log)
    assert groups(job_for(log)) == [[0, 1], [FAR]]

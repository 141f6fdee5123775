"""Logs with many segments: work per segment is limited."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from protocol.control_records import ControlType
from protocol.records import headers
from storage.config.log_config import LogConfig
from storage.directories.log_manager import LogManager
from storage.engine import SegmentInfo
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import TEMPORARY, Disk, File, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.io.flush_task import SEGMENTS_AT_A_TIME
from storage.log.log import Log
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin
from storage.log.retention import MAX_SEGMENTS_PER_PASS
from storage.segments.directory_recovery import LOG
from storage.segments.durability import TRIMMED_FILES
from storage.segments.segment_engine import SegmentEngine
from storage.segments.segments_view import SegmentsView
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    BIG,
    NOW_MS,
    TOPIC_ID,
    ProducerInfo,
    append,
    append_records,
    fill,
    log_at,
    marker,
    produced,
    retained,
    values_of,
)
from tests.support.segments import close_idle_files

MANY = 5 * MAX_SEGMENTS_PER_PASS
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=150)
"""A segment for each batch."""


class CountingDisk(Disk):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.renamed: list[str] = []

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        self.opened.append(path)
        return super().open(path, write=write, create=create)

    def rename(self, source: str, target: str) -> None:
        self.renamed.append(source)
        super().rename(source, target)


def closed(root: Path, count: int = MANY) -> None:
    """A closed log of `count` segments, a millisecond apart."""
    log = log_at(root, config=CONFIG)
    fill(log, count, step_ms=1)
    log.high_watermark = count
    log.close()


def reopened(root: Path) -> Log:
    closed(root)
    return log_at(root, config=CONFIG)


def engine_of(log: Log) -> SegmentEngine:
    engine = log.open().engine
    assert isinstance(engine, SegmentEngine)
    return engine


# ---- looking ---------------------------------------------------------------------------------------------


def opened_by(view: SegmentsView) -> list[int]:
    """The base offsets of the segments whose files a view has opened."""
    return [segment.base_offset for segment in view.opened]


def test_a_view_shares_the_files_of_the_engine_and_opens_others(tmp_path: Path) -> None:
    log = reopened(tmp_path)
    engine = engine_of(log)
    wait_for_disk(log.open().reader.read, 7, 1 << 20, Isolation.LOG_END)
    view = engine.view()
    assert opened_by(view) == []
    for offset in (7, 9):
        assert view.read_batches(offset, 1)
    assert opened_by(view) == [9]


def test_a_view_answers_as_of_its_time(tmp_path: Path) -> None:
    log = reopened(tmp_path)
    engine = engine_of(log)
    views = [engine.view()]
    append(log, "x" * 300, timestamp_ms=NOW_MS + MANY)
    views.append(engine.view())
    append(log, "x" * 300, timestamp_ms=NOW_MS + MANY + 1)
    for end, view in enumerate(views, MANY):
        for offset in (0, 7, MANY - 1):
            assert headers(view.read_batches(offset, 1))[0][1].base_offset == offset
            assert view.find_timestamp(NOW_MS + offset, 0) == offset
        assert view.read_batches(end, 1) == b""
        assert view.segments() == [SegmentInfo(base, base + 1, size) for base, _, size in engine.segments()[:end]]
        assert view.max_timestamp() == (NOW_MS + end - 1, end - 1)


def test_timestamps_are_found_without_opening_all_indexes(tmp_path: Path) -> None:
    closed(tmp_path)
    disk = CountingDisk()
    engine = engine_of(log_at(tmp_path, disk=disk, config=CONFIG))
    disk.opened.clear()
    for target in (MANY - 3, MANY - 3, MANY - 4):
        found = wait_for_disk(
            engine.lookup, target, lambda view, target=target: view.find_timestamp(NOW_MS + target, 0)
        )
        assert found == target
    wanted = [f"{tmp_path}/t-0/{target:020d}" for target in (MANY - 3, MANY - 4)]
    times = [f"{tmp_path}/t-0/{base:020d}.timeindex" for base in range(MANY - 2)]
    opened = [stem + suffix for stem in wanted for suffix in (".index", ".timeindex", LOG)]
    assert sorted(disk.opened) == sorted(times + opened)


@pytest.mark.parametrize("damage", [bytes(24), b"torn", b""])
def test_an_invalid_last_time_index_entry_causes_a_rebuild(tmp_path: Path, damage: bytes) -> None:
    closed(tmp_path, 3)
    (tmp_path / f"t-0/{1:020d}.timeindex").write_bytes(damage)
    engine = engine_of(log_at(tmp_path, config=CONFIG))
    assert engine.view().segment_max_timestamp(0) == NOW_MS
    if damage:
        assert engine.view().segment_max_timestamp(1) == NOW_MS + 1
    assert engine.view().segment_max_timestamp(2) == NOW_MS + 2


# ---- making durable --------------------------------------------------------------------------------------


def test_many_segments_are_synced_a_few_at_a_time(tmp_path: Path) -> None:
    disk = Disk()
    log = log_at(tmp_path, disk=disk, config=CONFIG)
    fill(log, MANY)
    before, reached, is_complete = disk.open_files, [], False
    while not is_complete:
        assert log.open().flush.is_due(log.config, NOW_MS)
        work = log.open().flush.begin(SEGMENTS_AT_A_TIME)
        assert disk.open_files - before <= 5 * SEGMENTS_AT_A_TIME
        work()
        log.open().flush.complete(work.end_offset)
        reached.append(log.flushed_end_offset)
        assert log.recovery_point <= work.end_offset
        is_complete = work.is_complete
        del work
    assert reached == list(range(SEGMENTS_AT_A_TIME, MANY + 1, SEGMENTS_AT_A_TIME))
    assert log.open().flush.decided_end_offset == log.recovery_point + 1 == MANY
    assert not log.open().flush.is_due(log.config, NOW_MS)


def test_appends_between_partial_syncs_are_covered_by_the_last_one(tmp_path: Path) -> None:
    log = log_at(tmp_path, config=CONFIG)
    fill(log, 2 * SEGMENTS_AT_A_TIME)
    for _ in range(3):
        work = log.open().flush.begin(SEGMENTS_AT_A_TIME)
        append(log, "x" * 300)
        work()
        log.open().flush.complete(work.end_offset)
    assert work.is_complete
    assert log.flushed_end_offset == work.end_offset == log.log_end_offset - 1


def test_a_partial_sync_covers_no_pending_append(tmp_path: Path) -> None:
    log = log_at(tmp_path, config=LogConfig(segment_bytes=800))
    append(log, BIG)
    under_way = [
        wait_for_disk(log.open().appends.prepare, produced(BIG), leader_epoch=0, wall_ms=NOW_MS) for _ in range(2)
    ]
    work = log.open().flush.begin(1)
    assert (work.end_offset, log.log_end_offset) == (1, 1)
    work()
    log.open().flush.complete(work.end_offset)
    for prepared in under_way:
        prepared.write()
        prepared.commit(NOW_MS)
    assert (log.flushed_end_offset, log.log_end_offset) == (1, 3)


def test_a_partial_sync_decides_no_transaction_that_ends_above_it(tmp_path: Path) -> None:
    log = log_at(tmp_path, config=CONFIG)
    append(log, BIG, producer=ProducerInfo(1, 0, 0, transactional=True))
    append(log, BIG)
    append_records(log, marker(ControlType.COMMIT, 1, 0), origin=AppendOrigin.COORDINATOR)
    settled = []
    for most in (1, None):
        work = log.open().flush.begin(most)
        work()
        log.open().flush.complete(work.end_offset)
        settled.append((work.end_offset, log.open().flush.decided_end_offset))
    assert settled == [(1, 0), (3, 3)]


def test_a_log_of_many_segments_is_closed_durably(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = log_at(tmp_path, disk=disk, config=CONFIG)
    fill(log, MANY)
    log.close()
    suffixes = {".log", ".index", ".timeindex", ".snapshot"}
    files = {str(path) for path in (tmp_path / "t-0").iterdir() if path.suffix in suffixes}
    assert files <= {path.removesuffix(TEMPORARY) for path in disk.syncs}
    assert log.recovery_point == MANY


# ---- deleting --------------------------------------------------------------------------------------------


def test_retention_deletes_a_few_segments_per_step(tmp_path: Path) -> None:
    disk = CountingDisk()
    config = LogConfig(segment_bytes=400, retention_ms=1000)
    manager = LogManager(disk, {str(tmp_path): bytes(16)}, config, random_bytes=bytes)
    manager.load()
    long, short = (manager.get_or_create(topic, 0, TOPIC_ID, config) for topic in ("long", "short"))
    fill(long, MANY)
    append(long, "young", timestamp_ms=NOW_MS + 5000)
    append(short, "old")
    for log in (long, short):
        log.high_watermark = log.log_end_offset
        log.open().flush.flush_all()
    steps = retained(manager, NOW_MS + 2000)
    seen = []
    for number, log in enumerate(steps):
        seen.append(log.topic)
        assert sum(path.endswith(LOG) for path in disk.renamed) <= MAX_SEGMENTS_PER_PASS
        disk.renamed.clear()
        append(long, f"between {number}", timestamp_ms=NOW_MS + 5000)
    assert seen == ["long"] * (MANY // MAX_SEGMENTS_PER_PASS + 1) + ["short"]
    assert [value for _, value in values_of(long)] == ["young", *(f"between {number}" for number in range(len(seen)))]
    assert short.log_start_offset == 1


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_deletion_of_many_records_deletes_a_few_segments_at_a_time(tmp_path: Path, is_flushed: bool) -> None:
    """Of segments that are not flushed as many stay open: a later sync needs them."""
    disk = Disk()
    log = log_at(tmp_path, disk=disk, config=CONFIG)
    fill(log, MANY)
    log.high_watermark = MANY
    if is_flushed:
        log.open().flush.flush_all()
    close_idle_files(log.open().engine)
    before = disk.open_files
    for _ in range(MANY):
        start_offset = log.open().engine.start_offset
        log.open().trim(MANY - 1, NOW_MS)
        assert log.open().engine.start_offset - start_offset <= MAX_SEGMENTS_PER_PASS
        assert disk.open_files - before <= TRIMMED_FILES
    assert log.log_start_offset == MANY - 1
    assert log.open().has_deletable_segments is not is_flushed
    while log.open().has_deletable_segments:
        log.open().flush.flush_all()
        log.open().trim(MANY - 1, NOW_MS)
    assert disk.open_files <= before + 1


def test_no_segment_is_deleted_before_an_older_one(tmp_path: Path) -> None:

    class Failing(Disk):
        def rename(self, source: str, target: str) -> None:
            """Fail for the second segment."""
            if source.endswith(f"{1:020d}.log"):
                raise StorageError("rename", source, OSError(errno.EIO, "failing"))
            super().rename(source, target)

    log = log_at(tmp_path, disk=Failing(), config=CONFIG)
    fill(log, 5)
    log.high_watermark = 5
    changes: list[FileOp] = []
    log.files.submit = changes.append
    log.open().trim(3, NOW_MS)
    for change in changes:
        with suppress(StorageError):
            change()
    bases = [base for base in range(5) if (tmp_path / f"t-0/{base:020d}.log").exists()]
    assert bases == [1, 2, 3, 4]

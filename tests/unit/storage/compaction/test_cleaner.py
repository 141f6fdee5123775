"""A log before and after a compaction: retained records, batches and markers, and files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.compression import Compression
from protocol.control_records import ControlType
from protocol.errors import ErrorCode, KafkaError
from storage.compaction.cleaner import clean
from storage.compaction.cleaner_job import CleanerResources, CleaningResult, Replacement
from storage.compaction.offset_map import SLOT_BYTES
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin
from storage.log.open_log import OpenLog
from storage.segments.directory_recovery import CLEANED, LOG, SWAP
from tests.support.compaction import (
    COMPACTED,
    batches_of,
    cleaned,
    closed,
    committed_records,
    compact,
    job_for,
    kept,
    keyed,
    put,
)
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import NOW_MS, ProducerInfo, append, append_records, log_at, marker

LATER_MS = NOW_MS + 10_000
MUCH_LATER_MS = LATER_MS + 10_000


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A compacted log with one large segment."""
    return log_at(tmp_path, config=replace(COMPACTED, segment_bytes=100_000))


def end(log: Log, kind: ControlType, producer_id: int, epoch: int = 0) -> int:
    """Append a marker; returns its offset."""
    data = marker(kind, producer_id, epoch)
    offset = append_records(log, data, origin=AppendOrigin.COORDINATOR).base_offset
    log.high_watermark = log.log_end_offset
    return offset


def test_the_last_record_of_each_key_keeps_its_offset(log: Log) -> None:
    for codec in Compression:
        put(log, ("a", codec.name), ("b", codec.name), ("a", codec.name + "2"), (codec.name, "own"), compression=codec)
    closed(log)
    cleaned = compact(log)
    assert isinstance(cleaned, CleaningResult)
    assert (cleaned.records_read, cleaned.records_written) == (20, 7)
    assert kept(log) == [
        (3, "NONE", "own"), (7, "GZIP", "own"), (11, "SNAPPY", "own"), (15, "LZ4", "own"),
        (17, "b", "ZSTD"), (18, "a", "ZSTD2"), (19, "ZSTD", "own"),
    ]  # fmt: skip
    assert (log.log_start_offset, log.log_end_offset, log.offsets.first_dirty_offset) == (0, 20, 20)


def test_the_active_segment_is_neither_cleaned_nor_read(log: Log) -> None:
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    closed(log)
    put(log, ("a", "3"))
    compact(log)
    assert kept(log) == [(1, "a", "2"), (2, "a", "3")]


def test_a_second_compaction_changes_nothing(log: Log) -> None:
    put(log, ("a", "1"), ("a", "2"))
    closed(log)
    assert compact(log) is not None
    assert compact(log) is None


def test_a_tombstone_is_removed_after_delete_retention_ms(log: Log) -> None:
    cleaned(log, [("a", "1"), ("b", "1")], [("a", None)], wall_ms=LATER_MS)
    assert kept(log) == [(1, "b", "1"), (2, "a", None)]
    horizons = [header.delete_horizon_ms for _, _, header in batches_of(log)]
    assert horizons == [None, LATER_MS + 1000]
    cleaned(log, [("c", "1")], wall_ms=LATER_MS + 999)
    assert kept(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    cleaned(log, [("d", "1")], wall_ms=LATER_MS + 1000)
    assert kept(log) == [(1, "b", "1"), (3, "c", "1"), (4, "d", "1")]


def test_a_record_without_a_key_is_removed(log: Log) -> None:
    log.update_config(replace(log.config, cleanup_policy=frozenset({"delete"})))
    append(log, "no key")
    put(log, ("a", "1"))
    log.update_config(replace(log.config, cleanup_policy=frozenset({"compact"})))
    cleaned(log)
    assert kept(log) == [(1, "a", "1")]


def test_the_last_batch_of_the_log_is_retained_as_a_header(log: Log) -> None:
    """Otherwise the next compaction would not know the log's end."""
    cleaned(log, [("a", "1")], [("a", None)], wall_ms=LATER_MS)
    cleaned(log, [("a", "2")], wall_ms=LATER_MS)
    assert [(header.base_offset, header.record_count) for _, _, header in batches_of(log)] == [(2, 1)]
    cleaned(log, [("a", None)], wall_ms=MUCH_LATER_MS)
    put(log, ("b", None))
    closed(log)
    log.offsets.first_dirty_offset = 0
    compact(log, MUCH_LATER_MS + 5000)
    cleaned(log, [("c", "1")], wall_ms=MUCH_LATER_MS + 50_000)
    assert [(header.base_offset, header.record_count) for _, _, header in batches_of(log)] == [(5, 1)]


class TestProducers:
    def test_the_last_batch_of_a_known_producer_is_retained_as_a_header(self, log: Log) -> None:
        put(log, ("a", "1"), producer=ProducerInfo(7, 0, 0))
        put(log, ("a", "2"), ("b", "2"), producer=ProducerInfo(7, 0, 1))
        put(log, ("a", "3"), ("b", "3"))
        cleaned(log)
        found = [(h.base_offset, h.last_offset, h.record_count, h.last_sequence) for _, _, h in batches_of(log)]
        assert found == [(1, 2, 0, 2), (3, 4, 2, -1)]

    def test_no_batch_of_an_expired_producer_is_retained(self, log: Log) -> None:
        put(log, ("a", "1"), producer=ProducerInfo(7, 0, 0))
        put(log, ("a", "2"))
        closed(log)
        log.open().producers.clear()
        compact(log)
        assert [header.base_offset for _, _, header in batches_of(log)] == [1]

    def test_duplicates_are_detected_after_a_recovery_of_compacted_segments(self, log: Log, tmp_path: Path) -> None:
        put(log, ("a", "1"), producer=ProducerInfo(7, 0, 0))
        cleaned(log, [("a", "2")])
        log.close()
        for name in os.listdir(tmp_path / "t-0"):
            if name.endswith(".snapshot"):
                (tmp_path / "t-0" / name).unlink()
        again = log_at(tmp_path, config=log.config, is_clean=False)
        data = keyed(("a", "1"), producer=ProducerInfo(7, 0, 0))
        assert append_records(again, data).duplicate
        assert again.log_end_offset == 2


class TestTransactions:
    def test_aborted_records_are_removed_and_replace_no_record(self, log: Log) -> None:
        put(log, ("a", "1"))
        put(log, ("a", "aborted"), ("x", "aborted"), producer=ProducerInfo(7, 0, 0, transactional=True))
        end(log, ControlType.ABORT, 7)
        put(log, ("b", "1"), producer=ProducerInfo(8, 0, 0, transactional=True))
        end(log, ControlType.COMMIT, 8)
        cleaned(log)
        assert kept(log) == [(0, "a", "1"), (4, "b", "1")]
        assert [record.offset for record in committed_records(log)] == [0, 4]

    def test_the_transaction_index_keeps_transactions_with_a_retained_batch(self, log: Log) -> None:
        put(log, ("a", "aborted"), producer=ProducerInfo(7, 0, 0, transactional=True))
        end(log, ControlType.ABORT, 7)
        cleaned(log, [("b", "1")])
        aborted = wait_for_disk(log.open().engine.aborted, 0, log.log_end_offset)
        assert [(found.producer_id, found.first_offset, found.last_offset) for found in aborted] == [(7, 0, 1)]

    @pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
    def test_a_marker_is_removed_after_its_batches_and_delete_retention_ms(self, log: Log, kind: ControlType) -> None:
        put(log, ("a", "1"), producer=ProducerInfo(7, 0, 0, transactional=True))
        end(log, kind, 7)
        put(log, ("a", "2"))

        def round_at(wall_ms: int) -> list[int]:
            put(log, ("other", str(wall_ms)))
            closed(log)
            log.open().producers.clear()
            compact(log, wall_ms)
            return [header.base_offset for _, _, header in batches_of(log) if header.is_control]

        assert round_at(LATER_MS) == [1], "its batch was seen on the way"
        assert round_at(LATER_MS + 1) == [1], "from now on its time counts"
        assert round_at(LATER_MS + 1000) == [1]
        assert round_at(LATER_MS + 1001) == []
        assert wait_for_disk(log.open().engine.aborted, 0, log.log_end_offset) == []

    def test_open_transactions_are_not_cleaned(self, log: Log) -> None:
        put(log, ("a", "1"))
        closed(log)
        put(log, ("a", "2"), producer=ProducerInfo(7, 0, 0, transactional=True))
        closed(log)
        cleaned(log, [("a", "3")])
        assert log.offsets.first_dirty_offset == 1
        assert [offset for offset, _, _ in kept(log)] == [0, 1, 2]


def test_a_full_map_ends_the_compaction_and_the_next_one_continues(log: Log) -> None:
    """The first dirty offset is inside a segment then."""
    for number in range(40):
        put(log, (f"k{number}", "1"), (f"k{number % 3}", "2"))
    closed(log)
    before = kept(log)
    tiny = CleanerResources(memory_bytes=11 * SLOT_BYTES, load_factor=0.9)
    ends = []
    while (cleaned := compact(log, resources=tiny)) is not None:
        ends.append(cleaned.next_dirty_offset)
        assert len(ends) < 40
    assert len(ends) > 3
    assert ends == sorted(set(ends))
    last = {key: (offset, value) for offset, key, value in before}
    assert kept(log) == sorted((offset, key, value) for key, (offset, value) in last.items())


def test_a_batch_larger_than_the_buffer_is_read_alone(log: Log) -> None:
    put(log, ("a", "x" * 20_000), ("b", "y"))
    put(log, ("a", "z" * 30_000))
    closed(log)
    compact(log, resources=CleanerResources(buffer_bytes=4096))
    assert [(offset, key) for offset, key, _ in kept(log)] == [(1, "b"), (2, "a")]


def test_a_corrupt_batch_fails_the_compaction(log: Log, tmp_path: Path) -> None:
    put(log, ("a", "1" * 50), ("b", "1"))
    put(log, ("a", "2"))
    closed(log)
    path = tmp_path / "t-0" / f"{0:020d}{LOG}"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(KafkaError) as refused:
        compact(log)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert path.read_bytes() == data
    assert not [name for name in os.listdir(log.path) if name.endswith(CLEANED)], "nothing is left behind"


@pytest.mark.parametrize("size", [0, 40, 84, 300])
def test_a_file_that_is_shorter_than_its_segment_fails_the_compaction(log: Log, tmp_path: Path, size: int) -> None:
    """As that of a topic that was deleted and created again in the meantime."""
    put(log, ("a", "1" * 50))
    put(log, ("a", "2" * 300))
    closed(log)
    path = tmp_path / "t-0" / f"{0:020d}{LOG}"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(KafkaError) as refused:
        compact(log)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


class TestFiles:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        log = log_at(tmp_path, config=replace(COMPACTED, segment_bytes=1000, file_delete_delay_ms=0))
        for number in range(40):
            put(log, (f"k{number % 4}", "v" * 100), (f"own{number // 10}", "x"))
        closed(log)
        return log

    def names(self, log: Log) -> list[str]:
        return sorted(name for name in os.listdir(log.path) if LOG in name)

    def test_small_segments_are_merged(self, log: Log) -> None:
        before = [name for name in self.names(log) if name.endswith(LOG)]
        compact(log)
        after = [name for name in self.names(log) if name.endswith(LOG)]
        assert len(after) < len(before) / 2
        assert not [name for name in os.listdir(log.path) if name.endswith((CLEANED, SWAP))]
        bases = {int(name[:20]) for name in after}
        snapshots = {int(name[:20]) for name in os.listdir(log.path) if name.endswith(".snapshot")}
        assert snapshots <= bases

    def test_every_record_is_found_by_offset_and_time(self, log: Log) -> None:
        compact(log)

        def look(log: Log) -> None:
            found = kept(log)
            for offset in range(log.log_end_offset):
                info = wait_for_disk(log.open().reader.read, offset, 1, Isolation.LOG_END)
                assert info.size > 0
                first = next(entry for entry in found if entry[0] >= offset)
                data = wait_for_disk(log.open().reader.read_records, offset, 1)
                assert data
                assert first in found
            assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS) is not None

        look(log)
        log.close()
        look(log_at(Path(log.directory), config=log.config))

    def test_a_rebuilt_index_equals_the_compacted_one(self, log: Log) -> None:
        compact(log)
        before = {name: (Path(log.path) / name).read_bytes() for name in os.listdir(log.path) if "index" in name}
        log.close()
        again = log_at(Path(log.directory), config=log.config, is_clean=False)
        assert kept(again)
        again.close()
        for name, data in before.items():
            if not name.endswith(".deleted") and int(name[:20]) < again.log_end_offset - 1:
                assert (Path(log.path) / name).read_bytes() == data

    def test_files_of_a_cancelled_compaction_are_deleted_first(self, log: Log) -> None:
        """A crash would otherwise take the new set for incomplete."""
        left = Path(log.path) / f"{0:020d}{LOG}{CLEANED}"
        left.write_bytes(b"half")
        disk = Disk()
        steps = clean(disk, job_for(log))
        next(steps)
        assert not left.exists()
        steps.close()

    def test_a_failure_keeps_the_files_of_segments_that_wait_for_their_renames(self, log: Log) -> None:
        disk = FaultyDisk()
        steps = clean(disk, job_for(log))
        first = next(step for step in steps if isinstance(step, Replacement))
        disk.space_left = 0
        with pytest.raises(StorageError):
            list(steps)
        left = [name for name in os.listdir(log.path) if name.endswith(CLEANED)]
        assert {int(name[:20]) for name in left} == {first.replaced[0].base_offset}
        assert f"{first.replaced[0].base_offset:020d}{LOG}{CLEANED}" in left

    def test_the_new_file_has_the_modification_time_of_the_replaced_one(self, log: Log) -> None:
        for name in self.names(log):
            os.utime(Path(log.path) / name, (1_600_000_000, 1_600_000_000))
        compact(log)
        first = next(name for name in self.names(log) if name.endswith(LOG))
        assert (Path(log.path) / first).stat().st_mtime == 1_600_000_000


def test_without_the_new_files_the_old_segments_stay(log: Log) -> None:
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    closed(log)
    job = job_for(log)
    before = sorted(name for name in os.listdir(log.path) if "." in name)
    with pytest.raises(StorageError, match="it does not exist"):
        log.open().replace(job.segments, 10, NOW_MS, has_aborted=False)
    assert sorted(name for name in os.listdir(log.path) if "." in name) == before


Act = Callable[[OpenLog], None]


@pytest.mark.parametrize(
    "act",
    [lambda log: log.truncate(3), lambda log: log.truncate_fully(2), lambda log: log.trim(20, NOW_MS)],
    ids=["cut", "emptied", "trimmed"],
)
def test_a_replacement_of_deleted_segments_is_rejected(tmp_path: Path, act: Act) -> None:
    log = log_at(tmp_path, config=COMPACTED)
    for _ in range(20):
        put(log, ("a", "x" * 100), ("b", "y" * 100))
    closed(log)
    segments = log.open().engine.segments()[:-1]
    act(log.open())
    assert not log.open().replace(segments, 10, NOW_MS, has_aborted=False)

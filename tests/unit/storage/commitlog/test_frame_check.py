"""Damaged frames of sealed files that a start has not read: found before their batches are served."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from protocol.errors import ErrorCode, KafkaError
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.frame_check import with_range
from storage.commitlog.log_file import LogFile
from storage.commitlog.queue_file import Entry
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from tests.support.segments import append, batch, region_bytes
from tests.unit.storage.commitlog.test_cleaning import clean
from tests.unit.storage.commitlog.test_commit_log import (
    FILE_BYTES,
    Process,
    append_to,
    bytes_of,
    change_at_random,
    damage,
    state_of,
)

CHECKED_BYTES = (0, 7, 8, 12, 15, 16, 17, 20, 23, 26)
"""Positions in a batch: base offset, length, leader epoch, magic, CRC, last offset delta."""


def entries_of(engine: CommitLogEngine) -> list[tuple[LogFile, Entry]]:
    return list(engine.view().entries_from(engine.start_offset))


def read(engine: CommitLogEngine, offset: int, max_bytes: int = 1 << 30) -> bytes:
    found = wait_for_disk(engine.locate, offset, max_bytes, engine.end_offset, min_one_batch=True)
    return region_bytes(found.regions)


def sealed(root: Path, count: int = 30) -> list[bytes]:
    """Two partitions with batches in turn; the files are sealed."""
    process = Process(root)
    written = []
    for _ in range(count):
        written.append(append_to(process[0]))
        append_to(process[1])
    process.log.close()
    return written


@pytest.mark.parametrize("at", CHECKED_BYTES)
def test_a_damaged_batch_is_an_error_and_no_other_batch_is(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    written = sealed(tmp_path)
    file, entry = entries_of(Process(tmp_path)[0])[11]
    damage(Path(file.path), entry.position + at)
    process = Process(tmp_path)
    engine = process[0]
    assert read(engine, 0) == b"".join(written[:11])
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            read(engine, 11)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert read(engine, 12) == b"".join(written[12:])
    assert len(bytes_of(process[1])) == len(b"".join(written))
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert file.path in line
    assert "-0 there, " in line
    assert "up to offset 11," in line
    assert "continue at offset 12" in line


def test_damage_in_the_head_of_a_frame_is_an_error(tmp_path: Path) -> None:
    sealed(tmp_path)
    file, entry = entries_of(Process(tmp_path)[0])[3]
    damage(Path(file.path), entry.position - 1)
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read(Process(tmp_path)[0], 3)


def test_the_first_batch_of_a_later_file_may_be_damaged(tmp_path: Path) -> None:
    written = sealed(tmp_path)
    found = entries_of(Process(tmp_path)[0])
    number = next(number for number, (file, _) in enumerate(found) if file is not found[0][0])
    damage(Path(found[number][0].path), found[number][1].position)
    engine = Process(tmp_path)[0]
    assert read(engine, 0) == b"".join(written[:number])
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read(engine, number)


def test_a_read_in_the_middle_of_a_frame_checks_all_of_it(tmp_path: Path) -> None:
    process = Process(tmp_path)
    batches = [batch(base, 2, size=100, timestamp_ms=base) for base in range(0, 200, 2)]
    append_to(process[1])
    append(process[0], b"".join(batches[:90]))
    append(process[0], b"".join(batches[90:]))
    process.log.close()
    entries = entries_of(Process(tmp_path)[0])
    damage(Path(entries[0][0].path), entries[2][1].position)
    engine = Process(tmp_path)[0]
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read(engine, 171)
    assert read(engine, 181) == b"".join(batches[90:])


def test_a_damaged_batch_in_a_sound_frame_costs_no_other_one(tmp_path: Path) -> None:
    process = Process(tmp_path)
    batches = [batch(base, size=100, timestamp_ms=base) for base in range(90)]
    append(process[0], b"".join(batches))
    process.log.close()
    file, entry = entries_of(Process(tmp_path)[0])[70]
    damage(Path(file.path), entry.position + 26)
    engine = Process(tmp_path)[0]
    assert read(engine, 3) == b"".join(batches[3:70])
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read(engine, 70)
    assert read(engine, 71) == b"".join(batches[71:])


def test_a_truncation_in_the_middle_of_a_frame_leaves_it_valid(tmp_path: Path) -> None:
    process = Process(tmp_path)
    batches = [batch(base, size=100, timestamp_ms=base) for base in range(9)]
    append(process[0], b"".join(batches))
    process[0].truncate(4)
    process.log.close()
    assert read(Process(tmp_path)[0], 0) == b"".join(batches[:4])


def test_a_file_without_its_header_is_compared_with_its_queue_file(tmp_path: Path) -> None:
    written = sealed(tmp_path)
    file, entry = entries_of(Process(tmp_path)[0])[3]
    damage(Path(file.path), 10)
    engine = Process(tmp_path)[0]
    assert bytes_of(engine) == b"".join(written)
    damage(Path(file.path), entry.position + 7)
    engine = Process(tmp_path)[0]
    assert read(engine, 0) == b"".join(written[:3])
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read(engine, 3)
    assert read(engine, 4) == b"".join(written[4:])


def test_each_frame_is_checked_once_for_a_reader_that_continues(tmp_path: Path) -> None:
    sealed(tmp_path)
    engine = Process(tmp_path)[0]
    for offset in range(0, 30, 3):
        read(engine, offset, max_bytes=600)
    assert not isinstance(engine.locate(0, 1 << 30, 30, min_one_batch=True), DiskLookup)
    assert not isinstance(engine.locate(7, 100, 30, min_one_batch=True), DiskLookup)


def test_files_of_this_process_are_not_checked(tmp_path: Path) -> None:
    process = Process(tmp_path)
    for _ in range(60):
        append_to(process[0])
        append_to(process[1])
    process[0].trim(50)
    process.log.finish_active()
    assert all(file.is_verified for file in process.log.files)
    assert clean(process).metrics.runs
    assert all(file.is_verified and file.is_sealed for file in process.log.files)


def test_files_that_a_start_has_scanned_are_not_checked_again(tmp_path: Path) -> None:
    process = Process(tmp_path)
    append_to(process[0])
    killed = Process(tmp_path)
    assert len(read(killed[0], 0)) > 0
    assert [file.is_verified for file in killed.log.files] == [True]


def test_cleaning_does_not_copy_a_damaged_frame(tmp_path: Path) -> None:
    process = Process(tmp_path)
    for _ in range(60):
        append_to(process[0])
        append_to(process[1])
    process[1].trim(50)
    process.log.close()
    file, entry = entries_of(Process(tmp_path)[0])[3]
    damage(Path(file.path), entry.position + 5)
    process = Process(tmp_path)
    engine = process[0]
    assert clean(process).metrics.damaged_files == 1
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read(engine, 3)


def test_a_recovery_ends_the_partition_before_a_damaged_frame(tmp_path: Path) -> None:
    written = sealed(tmp_path)
    file, entry = entries_of(Process(tmp_path)[0])[11]
    damage(Path(file.path), entry.position + 4)
    engine = Process(tmp_path)[0]
    engine.recover(0, lambda *_: None)
    assert engine.end_offset == 11
    assert bytes_of(engine) == b"".join(written[:11])


@pytest.mark.parametrize("at", [4, 24])
def test_no_time_is_found_in_a_damaged_batch(tmp_path: Path, at: int) -> None:
    sealed(tmp_path)
    file, entry = entries_of(Process(tmp_path)[0])[11]
    damage(Path(file.path), entry.position + at)
    view = Process(tmp_path)[0].view()
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        view.find_timestamp(entry.max_timestamp, 0)
    assert view.find_timestamp(entry.max_timestamp + 1, 0) == 12


@pytest.mark.parametrize("at", [4, 24])
def test_a_damaged_batch_can_be_truncated(tmp_path: Path, at: int) -> None:
    written = sealed(tmp_path)
    file, entry = entries_of(Process(tmp_path)[0])[11]
    damage(Path(file.path), entry.position + at)
    engine = Process(tmp_path)[0]
    engine.truncate(11)
    assert engine.end_offset == 11
    assert bytes_of(engine) == b"".join(written[:11])


@pytest.mark.parametrize("seed", range(5))
def test_sound_files_are_served_whatever_is_in_them(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    process = Process(tmp_path)
    contents = change_at_random(process, dice, 300)
    process.log.close()
    process = Process(tmp_path)
    for number, content in contents.items():
        assert bytes_of(process[number]) == content
    states = [state_of(process[number]) for number in contents]
    assert states == [state_of(process[number]) for number in contents]


def test_neighbouring_ranges_become_one() -> None:
    ranges = with_range(with_range(with_range((), 0, 10), 20, 30), 10, 20)
    assert ranges == ((0, 30),)
    for first in range(100, 200, 20):
        ranges = with_range(ranges, first, first + 10)
    assert ranges == ((180, 190), (160, 170), (140, 150), (120, 130))


def test_frames_larger_than_a_file_are_checked(tmp_path: Path) -> None:
    process = Process(tmp_path)
    data = append_to(process[0], size=3 * FILE_BYTES)
    process.log.close()
    assert read(Process(tmp_path)[0], 0) == data

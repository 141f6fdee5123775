"""Appends of several partitions to a commit log that are written together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from protocol.primitives import Buffer
from storage.commitlog.frames import FILE_HEADER, HEAD_SIZE, LONG, Frame, FrameKind, parse_file_header, scan
from storage.commitlog.slot_append import SlotAppend
from storage.io.disk import StorageError
from storage.io.disk_lookup import read_waiting
from tests.support.crashing_disk import CrashingDisk
from tests.support.faulty_disk import FaultyDisk, FaultyFile
from tests.support.segments import NOW_MS, batch, infos
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, bytes_of, sync

Writes = list[tuple[SlotAppend, bytes]]


def reserve(process: Process, sizes: list[tuple[int, int]]) -> Writes:
    """Reserve an append for each partition and size."""
    writes: Writes = []
    ends = {number: process[number].end_offset for number, _ in sizes}
    for number, size in sizes:
        data = batch(ends[number], size=size)
        ends[number] += 1
        writes.append((process[number].reserve(len(data), infos(data), NOW_MS), data))
    return writes


def publish(process: Process, writes: Writes) -> dict[int, bytes]:
    """Publish them; returns what was added to each partition."""
    added: dict[int, bytes] = {}
    for append, data in writes:
        number = append.slot.slot_id.partition
        process[number].publish(append)
        added[number] = added.get(number, b"") + data
    return added


def frames_of(process: Process) -> list[tuple[FrameKind, Buffer]]:
    """Kind and payload of the frames in the last file."""
    log_file = process.log.files[-1]
    file = log_file.log.get(read_waiting)
    file_id = parse_file_header(file.pread(FILE_HEADER.size, 0), log_file.start)
    assert file_id is not None
    frames = scan(file, file_id, log_file.start, log_file.end - log_file.start)
    return [(frame.kind, frame.payload) for frame in frames if isinstance(frame, Frame)]


def test_appends_of_many_partitions_are_one_system_call(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = Process(tmp_path, disk, file_bytes=1 << 20)
    append_to(process[0])
    disk.reset_counters()
    writes = reserve(process, [(number, 200) for number in range(1, 101)])
    process.log.write_together(writes)
    assert len(disk.writes) == 1
    assert publish(process, writes) == {number: bytes_of(process[number]) for number in range(1, 101)}


@pytest.mark.parametrize("is_single", [True, False])
def test_an_append_may_be_reserved_while_an_earlier_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_single: bool
) -> None:
    process = Process(tmp_path, FaultyDisk(), file_bytes=1 << 20)
    append_to(process[0])
    engine, written = process[0], bytes_of(process[0])
    data = [batch(engine.end_offset + number, size=200) for number in range(2)]
    writes = [(engine.reserve(len(data[0]), infos(data[0]), NOW_MS), data[0])]
    write_some_of = FaultyFile._write_some_of

    def reserve_and_write(file: FaultyFile, buffers: Sequence[Buffer], position: int) -> int:
        if len(writes) == 1:  # as the event loop, while a thread writes
            writes.append((engine.reserve(len(data[1]), infos(data[1]), NOW_MS), data[1]))
        return write_some_of(file, buffers, position)

    monkeypatch.setattr(FaultyFile, "_write_some_of", reserve_and_write)
    for number in range(2):
        if is_single:
            process.log.write(*writes[number])
        else:
            process.log.write_together([writes[number]])
    publish(process, writes)
    assert bytes_of(engine) == written + data[0] + data[1]


def test_the_first_append_after_a_sync_is_one_write_with_the_proof_of_the_sync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = Process(tmp_path, disk, file_bytes=1 << 20)
    append_to(process[0])
    sync(process[0])
    durable = process.log.files[-1].end
    ((append, data),) = reserve(process, [(0, 200)])
    disk.space_left = 10
    with pytest.raises(StorageError):
        process.log.write(append, data)
    disk.space_left = None
    disk.reset_counters()
    process.log.write(append, data)
    assert publish(process, [(append, data)]) == {0: data}
    append_to(process[0])
    assert len(disk.writes) == 2
    proof = FrameKind.DURABLE, LONG.pack(durable)
    assert frames_of(process)[-3:] == [proof, (FrameKind.BATCHES, b""), (FrameKind.BATCHES, b"")]


def test_an_end_of_a_file_divides_a_write_and_nothing_else(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = Process(tmp_path, disk)
    append_to(process[0], 1000)
    disk.reset_counters()
    writes = reserve(process, [(number, 400) for number in range(1, 8)])
    process.log.write_together(writes)
    data_writes = [path for path, position, _ in disk.writes if path.endswith(".clog") and position]
    assert len(data_writes) == len(set(data_writes)) == 2
    expected = publish(process, writes)
    again = Process(tmp_path)
    assert {number: bytes_of(again[number]) for number in expected} == expected


def test_a_failed_write_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = Process(tmp_path, disk, file_bytes=1 << 20)
    append_to(process[0])
    end, slots = process.log.files[-1].end, process.log.unsynced()
    writes = reserve(process, [(number, 200) for number in range(5)])
    disk.space_left = 300
    with pytest.raises(StorageError):
        process.log.write_together(writes)
    assert (process.log.files[-1].end, process.log.unsynced()) == (end, slots)
    assert [append.slot.number for append, _ in writes] == [0, -1, -1, -1, -1]
    other = append_to_new(process, disk)
    process.log.write_together(writes)
    expected = publish(process, writes)
    again = Process(tmp_path, file_bytes=1 << 20)
    assert bytes_of(again[9]) == other
    assert {number: bytes_of(again[number], 0 if number else 1) for number in expected} == expected


def append_to_new(process: Process, disk: FaultyDisk) -> bytes:
    """A new partition takes the number that the failed write did not use."""
    disk.space_left = None
    return append_to(process[9])


def test_a_repeated_job_writes_what_is_missing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = Process(tmp_path, disk)
    append_to(process[0], 1000)
    writes = reserve(process, [(number, 500) for number in range(1, 8)])
    disk.space_left = 3000
    with pytest.raises(StorageError):
        process.log.write_together(writes)
    assert 0 < sum(append.file is not None for append, _ in writes) < 7
    disk.space_left = None
    process.log.write_together(writes)
    expected = publish(process, writes)
    again = Process(tmp_path)
    assert {number: bytes_of(again[number]) for number in expected} == expected


def test_writes_of_a_partition_are_in_the_order_of_its_offsets(tmp_path: Path) -> None:
    process = Process(tmp_path)
    writes = reserve(process, [(0, 200), (1, 200), (0, 300), (0, 250)])
    process.log.write_together([writes[3], writes[2]])
    assert [append.file for append, _ in writes] == [None] * 4
    process.log.write_together([writes[1], writes[0]])
    expected = publish(process, writes)
    again = Process(tmp_path)
    assert (bytes_of(again[0]), bytes_of(again[1])) == (expected[0], expected[1])


def test_an_append_that_another_call_has_written_writes_what_waits_behind_it(tmp_path: Path) -> None:
    """The calls of those behind it have returned: they count on the call of the first one, which may be the last to run."""
    disk = FaultyDisk()
    process = Process(tmp_path, disk)
    append_to(process[0], 1000)
    first, *others = writes = reserve(process, [(0, 500)] * 7)
    process.log.write_together(others[:-1])
    disk.space_left = 3000
    with pytest.raises(StorageError):
        process.log.write_together([first, others[-1]])  # another thread takes over what waits for the lock
    assert first[0].file is not None
    assert others[-2][0].file is None
    disk.space_left = None
    process.log.write(*first)
    assert all(append.file is not None for append, _ in writes)
    added = publish(process, writes)[0]
    assert bytes_of(Process(tmp_path)[0]).endswith(added)


@pytest.mark.parametrize("seed", range(12))
def test_a_loss_of_power_within_a_write_keeps_a_prefix_of_its_partitions(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    dice, disk = Random(seed), CrashingDisk()
    process = Process(tmp_path, disk)
    written, synced = dict.fromkeys(range(6), b""), dict.fromkeys(range(6), 0)
    for _ in range(40):
        sizes = [(number, dice.randrange(150, 500)) for number in dice.sample(range(6), dice.randrange(1, 6))]
        writes = reserve(process, sizes)
        process.log.write_together(writes)
        for number, data in publish(process, writes).items():
            written[number] += data
        if dice.random() < 0.15:
            sync(process[dice.randrange(6)])
            synced = {number: len(data) for number, data in written.items()}
    disk.crash(dice)
    again = Process(tmp_path, disk)
    for number, data in written.items():
        found = bytes_of(again[number])
        assert data.startswith(found)
        assert len(found) >= synced[number]
        written[number] = found
    writes = reserve(again, [(number, 200) for number in range(6)])
    again.log.write_together(writes)
    for number, data in publish(again, writes).items():
        written[number] += data
    last = Process(tmp_path)
    assert {number: bytes_of(last[number]) for number in written} == written


def test_frames_of_a_failed_write_are_not_recovered(tmp_path: Path) -> None:
    """The appends have failed; the first frames may be whole."""
    disk = FaultyDisk()
    process = Process(tmp_path, disk, file_bytes=1 << 20)
    for number in range(3):
        append_to(process[number])
    sync(process[0])
    append_to(process[0])  # the proof of the sync is not in the write that fails
    writes = reserve(process, [(number, 200) for number in range(3)])
    disk.space_left = 2 * (HEAD_SIZE + 200) + 50
    with pytest.raises(StorageError):
        process.log.write_together(writes)
    disk.space_left = None
    again = Process(tmp_path, file_bytes=1 << 20)
    assert [bytes_of(again[number]) for number in range(3)] == [bytes_of(process[number]) for number in range(3)]

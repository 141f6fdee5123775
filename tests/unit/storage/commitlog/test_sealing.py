"""Sealing a file of the commit log that many partitions have used (storage/commitlog/sealing.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.commitlog.cleaner import Cleaner
from storage.commitlog.commit_log import SLOTS_PER_TURN
from storage.commitlog.slots import Slot
from tests.support.segments import NOW_MS
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, bytes_of, state_of

FILE_BYTES = 32 * 1024
PARTITIONS = 100


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_an_append_that_finishes_a_file_records_the_states_of_few_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20,000 partitions they take 70 ms of the event loop, their entries 25 ms."""
    recorded: list[int] = []
    state = Slot.state

    def counted(slot: Slot) -> list[object]:
        recorded[-1] += 1
        return state(slot)

    monkeypatch.setattr(Slot, "state", counted)
    process = Process(tmp_path, file_bytes=FILE_BYTES)
    while len(process.log.sealed_files) < 2:
        recorded.append(0)
        append_to(process[len(recorded) % PARTITIONS])
    assert sum(recorded) >= PARTITIONS
    assert max(recorded) <= 10
    for number in range(PARTITIONS):
        append_to(process[number])
    assert all(some.file is not process.log.files[0] for slot in process.log.slots for some in slot.slices)


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_cleaning_finishes_a_file_of_many_partitions_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 partitions took 120 ms of the event loop, and 100 ms of the interpreter lock in another thread."""
    recorded: list[int] = []
    state = Slot.state

    def counted(slot: Slot) -> list[object]:
        recorded.append(1)
        return state(slot)

    monkeypatch.setattr(Slot, "state", counted)
    process, count = Process(tmp_path, file_bytes=1 << 20), 2 * SLOTS_PER_TURN + 1
    for number in range(count):
        append_to(process[number])
    cleaner = Cleaner(process.disk, process.log, max_dead_ms=1000)
    assert cleaner.begin_pass(NOW_MS)
    turns = []
    while not cleaner.begin_pass(NOW_MS + 1000):
        turns.append(len(recorded))
    assert turns == [SLOTS_PER_TURN, 2 * SLOTS_PER_TURN]
    assert len(recorded) == count
    assert len(process.log.sealed_files) == 1
    while process.log.release_replaced():
        turns.append(sum(len(slot.slices) for slot in process.log.slots))
    assert len(turns) > 2
    assert not any(slot.slices for slot in process.log.slots)
    process.log.close()
    assert len(Process(tmp_path)[count - 1].segments()) == 1


def test_partitions_that_change_while_states_are_recorded_have_that_at_the_end_of_the_file(tmp_path: Path) -> None:
    """A start reads it in the queue file, and makes the same one from the frames."""
    process = Process(tmp_path, file_bytes=FILE_BYTES)
    contents = dict.fromkeys(range(PARTITIONS), b"")
    number = 0
    while len(process.log.files) < 4:
        partition = number * 7 % PARTITIONS
        contents[partition] += append_to(process[partition])
        if number % 50 == 0:
            process[partition].truncate(process[partition].end_offset - 1)
            process[partition].end_truncation()
            contents[partition] = bytes_of(process[partition])
        number += 1
    states = {partition: state_of(process[partition]) for partition in contents}
    process.log.close()
    queues = {path: path.read_bytes() for path in process.paths(".queue")}
    assert len(queues) == 4
    again = Process(tmp_path)
    assert {partition: state_of(again[partition]) for partition in contents} == states
    assert {partition: bytes_of(again[partition]) for partition in contents} == contents
    for path in queues:
        path.unlink()
    Process(tmp_path).log.open()
    assert {path: path.read_bytes() for path in process.paths(".queue")} == queues

"""Sealing a file of the commit log that many partitions have used (storage/commitlog/sealing.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.commitlog.slots import Slot
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

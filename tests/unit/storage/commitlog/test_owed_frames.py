"""START, ROLL and SNAPSHOT frames that a thread writes later."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from protocol.errors import KafkaError
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.engine import AbortedTransaction
from storage.io.deferred_file_ops import FileOp
from tests.support.faulty_disk import FaultyDisk
from tests.support.segments import NOW_MS, batch, infos
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, bytes_of, state_of

SLOTS = 3


class Machine:
    """Appends are published, and owed frames written, at random times."""

    def __init__(self, root: Path, seed: int) -> None:
        self.process = Process(root)
        self.random = Random(seed)
        self.waiting: deque[FileOp] = deque()
        self.unpublished: list[deque[object]] = [deque() for _ in range(SLOTS)]
        self.next_offsets = [0] * SLOTS
        for number in range(SLOTS):
            self.process[number].submit = self.waiting.append

    def change(self) -> None:
        number, what = self.random.randrange(SLOTS), self.random.random()
        engine = self.process[number]
        if what < 0.4:
            self.write_owed()  # deferred_file_ops.py rule 1
            data = batch(self.next_offsets[number], size=self.random.randrange(150, 600))
            reservation = engine.reserve(len(data), infos(data), NOW_MS)
            engine.write(reservation, data)
            self.next_offsets[number] += 1
            self.unpublished[number].append(reservation)
        elif what < 0.7:
            self.publish(number)
        elif what < 0.8:
            engine.trim(self.random.randint(engine.start_offset, engine.end_offset))
        elif what < 0.9 and not self.unpublished[number] and engine.end_offset:
            if engine.roll(NOW_MS):
                engine.store_snapshot(engine.end_offset, b"producers at %d" % engine.end_offset)
        else:
            self.write_owed()

    def write_owed(self) -> None:
        while self.waiting:
            self.waiting.popleft()()

    def publish(self, number: int) -> None:
        if self.unpublished[number]:
            self.process[number].publish(self.unpublished[number].popleft())  # type: ignore[arg-type]

    def settle(self) -> None:
        self.write_owed()
        for number in range(SLOTS):
            while self.unpublished[number]:
                self.publish(number)

    def states(self, process: Process | None = None) -> list[object]:
        found = process or self.process
        return [(state_of(found[number]), found[number].snapshots()) for number in range(SLOTS)]


@pytest.mark.parametrize("seed", range(20))
def test_a_restart_finds_the_same_state_with_and_without_queue_files(tmp_path: Path, seed: int) -> None:
    machine = Machine(tmp_path / "log", seed)
    for _ in range(300):
        machine.change()
    machine.settle()
    before = machine.states()
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    assert machine.states(Process(tmp_path / "killed")) == before
    machine.process.log.close()
    opened = Process(tmp_path / "log")
    assert machine.states(opened) == before
    for path in opened.paths(".queue"):
        path.unlink()
    assert machine.states(Process(tmp_path / "log")) == before


def test_a_start_is_written_before_the_files_of_its_batches_are_removed(tmp_path: Path) -> None:
    process = Process(tmp_path / "log")
    waiting: list[FileOp] = []
    process[0].submit = waiting.append
    for _ in range(12):
        append_to(process[0], 500)
    process[0].trim(process[0].end_offset)
    start_offset = process[0].start_offset
    assert start_offset > 0
    shutil.copytree(tmp_path / "log", tmp_path / "early")
    assert Process(tmp_path / "early")[0].start_offset == 0
    process.log.sync_written()
    shutil.copytree(tmp_path / "log", tmp_path / "late")
    assert Process(tmp_path / "late")[0].start_offset == start_offset


def test_the_frames_of_a_deleted_partition_are_not_written(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = Process(tmp_path, disk)
    waiting: list[FileOp] = []
    process[0].submit = waiting.append
    for _ in range(12):
        append_to(process[0], 500)
    process[0].trim(process[0].end_offset)
    process.log.drop(process.log.slot(process[0]._slot_id))
    disk.reset_counters()
    waiting.pop()()
    assert not disk.writes


LATE: dict[str, Callable[[CommitLogEngine], object]] = {
    "truncate": lambda engine: engine.truncate(1),
    "reset": lambda engine: engine.reset(0),
    "snapshot": lambda engine: engine.store_snapshot(1, b"producers at 1"),
    "aborted": lambda engine: engine.add_aborted(AbortedTransaction(1, 0, 1, 0)),
}


@pytest.mark.parametrize("late", LATE)
def test_a_thread_that_uses_a_deleted_partition_does_not_change_the_next_one_with_its_number(
    tmp_path: Path, late: str
) -> None:
    """It was opening or truncating the log when the topic was deleted."""
    process = Process(tmp_path)
    deleted = process[0]
    for _ in range(3):
        append_to(deleted)
    process.log.drop(process.log.slot(deleted._slot_id))
    process.log.finish_active()  # so that the number is free
    kept = append_to(process[1]) + append_to(process[1])
    with pytest.raises(KafkaError, match="was deleted"):
        LATE[late](deleted)
    process.log.apply_changes()
    assert bytes_of(process[1]) == kept
    again = Process(tmp_path)[1]
    assert (bytes_of(again), again.snapshots(), again.aborted(0, 2)) == (kept, {}, [])

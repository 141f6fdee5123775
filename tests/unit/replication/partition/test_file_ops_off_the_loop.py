"""No file of a partition is changed on the event loop: changes are queued for the threads of the log directory.

The executor queues everything until the test runs it; the disk rejects every other change.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.control_records import ControlType
from protocol.errors import ErrorCode
from replication.io_executor import IoResult, Run
from storage.commitlog.commit_log import CommitLog
from storage.directories.log_maintenance import due_deletions
from storage.io.disk import File
from storage.io.disk_lookup import wait_for_disk
from storage.log.log_validator import AppendOrigin
from tests.support.crashing_disk import CrashingDisk
from tests.support.logs import SMALL_FILE_BYTES, ProducerInfo, marker, produced, retained
from tests.support.partition_rig import code_of
from tests.support.replica_harness import NOW_MS, HeldWork, QueuedIoExecutor, ReplicaHarness


class GuardedDisk(CrashingDisk):
    """A disk that only the executor may change."""

    is_blocking_forbidden = False

    def before_change(self) -> None:
        assert not self.is_blocking_forbidden, "a file is changed on the event loop"

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        if create and not os.path.exists(path):
            self.before_change()
        return super().open(path, write=write, create=create)

    def make_dirs(self, path: str) -> None:
        self.before_change()
        super().make_dirs(path)

    def remove_tree(self, path: str) -> None:
        self.before_change()
        super().remove_tree(path)


class GuardedExecutor(QueuedIoExecutor):
    """The only one that may change the disk."""

    def __init__(self, disk: GuardedDisk) -> None:
        super().__init__()
        self._disk = disk

    def run_all(self, only: str = "") -> None:
        """Run all queued work and what follows from it; reads before syncs and writes, because they may run at any time."""
        while queued := sorted({(work.kind, work.directory) for work in self.work if only in work.kind}):
            work = next(work for work in self.work if (work.kind, work.directory) == queued[0])
            self.work.remove(work)
            self._disk.is_blocking_forbidden = False
            held = HeldWork(work.run)
            try:
                held.finish()
            finally:
                self._disk.is_blocking_forbidden = True
            work.result.complete(held.result.value)


class Rig:
    """One broker on such a disk."""

    def __init__(self, path: Path) -> None:
        self.disk = GuardedDisk()
        self.executor = GuardedExecutor(self.disk)
        self.harness = ReplicaHarness(path, worker=self.executor, disk=self.disk)
        self.directory = path / "logs-0"
        self.disk.is_blocking_forbidden = True
        self.codes: list[ErrorCode] = []

    def append(self, value: bytes = b"v" * 200, topic: str = "t") -> None:
        builder = BatchBuilder()
        builder.append(self.harness.wall_ms, None, value)
        append = self.harness.append(topic, records=builder.build(), acks=1)
        append.then(lambda _: self.codes.append(code_of(append)))

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))

    def files(self, pattern: str) -> list[Path]:
        """The files of the partition."""
        return sorted((self.directory / "t-0").glob(pattern))

    def retain(self) -> None:
        list(retained(self.harness.log_manager, self.harness.wall_ms))

    def deletions(self) -> list[tuple[str, Any]]:
        """The deletions that are due long after."""
        return list(due_deletions(self.harness.log_manager, self.harness.wall_ms + 10**9))


SMALL: dict[str, Any] = {"segment_bytes": 1 << 20, "index_interval_bytes": 1, "retention_bytes": 3 << 20}
LARGE = b"v" * 400_000


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """With a topic t."""
    rig = Rig(tmp_path)
    rig.harness.create("t", **SMALL)
    return rig


def test_creating_appending_and_deleting_change_no_file_on_the_loop(rig: Rig) -> None:
    rig.append()
    assert not rig.codes
    assert rig.names() == []
    rig.executor.run_all()
    assert rig.codes == [ErrorCode.NONE]
    assert rig.names() == ["t-0"]
    rig.harness.delete("t")
    assert rig.names() == ["t-0"]
    rig.executor.run_all()
    assert rig.names()[0].endswith("-delete")


def test_rolling_and_indexing_change_no_file_on_the_loop(rig: Rig) -> None:
    rig.append()
    rig.executor.run_all()
    for _ in range(200):  # enough that the index is written before the roll
        rig.append()
    for _ in range(20):
        rig.append(LARGE)
    assert len(rig.codes) == 1
    rig.executor.run_all()
    assert rig.codes == [ErrorCode.NONE] * 221
    finished = rig.files("*.log")[:-1]
    assert len(finished) == 9
    assert len(rig.files("*.snapshot")) == 9
    assert [path.with_suffix(".timeindex").stat().st_size for path in finished] == [12] * 9
    assert finished[0].with_suffix(".index").stat().st_size > 199 * 8


def test_retention_changes_no_file_on_the_loop(rig: Rig) -> None:
    for _ in range(20):
        rig.append(LARGE)
        rig.executor.run_all()
    before = rig.files("*.log")
    rig.retain()
    for _ in range(3):
        list(rig.harness.log_manager.file_handles.close_idle())
    assert rig.files("*.log") == before
    rig.executor.run_all()
    kept = rig.files("*.log")
    assert len(kept) < len(before)
    for directory, work in rig.deletions():
        rig.executor.background(directory, work)
    rig.executor.run_all()
    assert not rig.files("*.deleted")
    assert rig.files("*.log") == kept


def test_retention_and_delete_records_run_before_writes_that_wait_for_space(tmp_path: Path) -> None:
    """The active segment stays, and so does a segment whose indexes are not written yet."""
    rig = Rig(tmp_path)
    rig.harness.create("t", **SMALL | {"retention_bytes": 1})
    for _ in range(20):
        rig.append(LARGE)
        rig.executor.run_all()
    before = rig.files("*.log")
    for _ in range(3):
        rig.append(LARGE)  # the first one rolls
    rig.harness.replicas.on_space_changed(str(rig.directory), has_room=False)
    assert rig.harness.replicas.delete_records("t", 0, 2, rig.harness.wall_ms).result() == 2
    rig.executor.run_all("background")
    assert rig.files("*.log") == before[1:]
    rig.retain()
    rig.executor.run_all("background")
    assert rig.files("*.log") == before[-1:]
    assert sum(len(work.args[1]) for _, work in rig.deletions()) > 2 * (len(before) - 1)
    rig.harness.replicas.on_space_changed(str(rig.directory), has_room=True)
    rig.executor.run_all()
    assert rig.codes == [ErrorCode.NONE] * 23
    assert rig.harness.partition("t").log.log_end_offset == 23
    bases = {path.stem for path in rig.files("*.log")}
    assert {path.stem for path in rig.files("*index")} == bases, "no index was recreated for a deleted segment"


def test_a_recreated_topic_does_not_see_the_files_of_the_old_one(rig: Rig) -> None:
    rig.append(b"old")
    rig.executor.run_all()
    rig.harness.delete("t")
    rig.harness.create("t", **SMALL)
    rig.append(b"new")
    rig.executor.run_all()
    assert rig.codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert rig.harness.partition("t").log.log_end_offset == 1
    assert len(rig.names()) == 2


def test_deleting_a_topic_cancels_its_queued_work(rig: Rig) -> None:
    for _ in range(20):
        rig.append(LARGE)
    rig.harness.delete("t")
    rig.harness.create("other")
    rig.append(topic="other")
    rig.executor.run_all()
    assert rig.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 20 + [ErrorCode.NONE]
    assert "other-0" in rig.names()
    assert not rig.harness.log_manager.offline


def test_a_failed_file_operation_takes_its_directory_offline(rig: Rig) -> None:
    rig.append()
    rig.executor.run_all()
    for number in range(2, 9):
        (rig.directory / "t-0" / f"{number:020d}.log").mkdir()
    for _ in range(9):
        rig.append(LARGE)
    rig.executor.run_all()
    assert rig.codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(rig.harness.log_manager.offline) == [str(rig.directory)]


class TestCommitLog:
    """A partition in the commit log."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Rig:
        rig = Rig(tmp_path)
        rig.harness.create("t", barnabas_storage_engine="commitlog", segment_bytes=1 << 20, retention_bytes=3 << 20)
        return rig

    def test_appends_snapshots_and_aborted_transactions_change_no_file_on_the_loop(self, rig: Rig) -> None:
        producer = ProducerInfo(7, 0, 0, transactional=True)
        for number in range(6):
            first = produced(LARGE, producer=producer._replace(sequence=number))
            rig.harness.append("t", records=first)
            rig.harness.append("t", records=marker(ControlType.ABORT, 7, 0), origin=AppendOrigin.COORDINATOR)
        rig.executor.run_all()
        opened = rig.harness.partition("t").log.open()
        assert opened.engine.end_offset == 12
        found = wait_for_disk(opened.engine.aborted, 0, 12)
        assert [(one.first_offset, one.last_offset) for one in found] == [(at, at + 1) for at in range(0, 12, 2)]
        bases = [segment.base_offset for segment in opened.engine.segments()[1:]]
        assert len(bases) == 2
        assert opened.snapshots.offsets == bases

    def test_an_append_that_creates_a_file_counts_with_its_size(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So the thread makes it, not the event loop."""
        sizes: list[int] = []
        write = rig.executor.write

        def record(directory: str, size: int, run: Run, calls: int) -> IoResult:
            sizes.append(size)
            return write(directory, size, run, calls)

        monkeypatch.setattr(rig.executor, "write", record)
        for _ in range(2):
            rig.append(LARGE)
            rig.executor.run_all()
        assert sizes[0] >= SMALL_FILE_BYTES
        assert 0 < sizes[-1] < SMALL_FILE_BYTES

    def test_deleted_records_and_expired_segments_change_no_file_on_the_loop(self, rig: Rig) -> None:
        for _ in range(8):
            rig.append(LARGE)
        rig.executor.run_all()
        log = rig.harness.partition("t").log
        opened = log.open()
        base_offset = opened.engine.segments()[1].base_offset
        opened.trim(base_offset + 1, NOW_MS)
        assert opened.engine.start_offset == base_offset
        opened.roll(NOW_MS)
        opened.trim(8, NOW_MS)
        assert (opened.engine.segments(), opened.snapshots.offsets) == ([(8, 8, 0)], [8])
        rig.append(LARGE)
        rig.executor.run_all()
        rig.disk.is_blocking_forbidden = False
        restarted = CommitLog(
            rig.disk, str(rig.directory), random_bytes=os.urandom, new_lock=nullcontext, file_bytes=SMALL_FILE_BYTES
        )
        restarted.open()
        assert [(slot.start_offset, slot.end_offset) for slot in restarted.slots] == [(8, 9)]

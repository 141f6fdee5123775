"""No file of a partition is changed on the event loop: changes are queued for the threads of the log directory.

The executor queues everything until the test runs it; the disk rejects every other change.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.records import BatchBuilder
from replication.io_executor import Begin, IoCallback, Run
from storage.io.disk import Buffer, Disk, File, StorageError
from storage.log.log import AppendOrigin
from tests.support.replica_harness import ReplicaHarness


class GuardedFile(File):
    """Rejects changes while the guard is on."""

    __slots__ = ()
    _disk: GuardedDisk

    def _write_some(self, buffer: Buffer, position: int) -> int:
        self._disk.check("write", self.path)
        return super()._write_some(buffer, position)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self.path)
        super().truncate(size)

    def sync(self) -> None:
        self._disk.check("sync", self.path)
        super().sync()


class GuardedDisk(Disk):
    """A disk that only the executor may change."""

    def __init__(self) -> None:
        super().__init__()
        self.is_blocking_forbidden = False

    def check(self, what: str, path: str) -> None:
        assert not self.is_blocking_forbidden, f"{what} {path} on the event loop"

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        if create and not os.path.exists(path):
            self.check("make", path)
        plain = super().open(path, write=write, create=create)
        descriptor = os.dup(plain.fileno())
        plain.close()
        return GuardedFile(self, path, descriptor)

    def make_dirs(self, path: str) -> None:
        self.check("make", path)
        super().make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        super().rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self.check("delete", path)
        super().unlink(path, missing_ok=missing_ok)

    def remove_tree(self, path: str) -> None:
        self.check("delete", path)
        super().remove_tree(path)


class QueueingExecutor:
    """Runs nothing until `run_all`."""

    def __init__(self, disk: GuardedDisk) -> None:
        self._disk = disk
        self._queues: dict[tuple[str, str], deque[tuple[Run, IoCallback]]] = {}

    def _put(self, kind: str, directory: str, run: Run, done: IoCallback) -> None:
        self._queues.setdefault((kind, directory), deque()).append((run, done))

    def write(self, directory: str, size: int, run: Run, done: IoCallback) -> None:
        self._put("write", directory, run, done)

    def sync(self, directory: str, begin: Begin, done: IoCallback) -> None:
        self._put("sync", directory, begin(), done)

    def read(self, directory: str, run: Run, done: IoCallback) -> None:
        self._put("read", directory, run, done)

    def directory_op(self, directory: str, run: Run, done: IoCallback) -> None:
        self._put("name", directory, run, done)

    def background(self, directory: str, run: Run, done: IoCallback) -> None:
        self._put("background", directory, run, done)

    def run_all(self, only: str = "") -> None:
        """Run all queued work and what follows from it; reads first, because they may run at any time."""
        while jobs := next(
            (self._queues[key] for key in sorted(self._queues) if only in key[0] and self._queues[key]), None
        ):
            run, done = jobs.popleft()
            self._disk.is_blocking_forbidden = False
            error = None
            try:
                run()
            except StorageError as failure:
                error = failure
            finally:
                self._disk.is_blocking_forbidden = True
            done(error)


class Rig:
    """One broker on such a disk."""

    def __init__(self, path: Path) -> None:
        self.disk = GuardedDisk()
        self.executor = QueueingExecutor(self.disk)
        self.harness = ReplicaHarness(path, worker=self.executor, disk=self.disk)
        self.directory = path / "logs-0"
        self.disk.is_blocking_forbidden = True
        self.codes: list[ErrorCode] = []

    def append(self, value: bytes = b"v" * 200, topic: str = "t") -> None:
        builder = BatchBuilder()
        builder.append(self.harness.wall_ms, None, value)
        self.harness.replicas.append(
            topic, 0, builder.build(), acks=1, wall_ms=self.harness.wall_ms, origin=AppendOrigin.CLIENT, done=self._done
        )

    def _done(self, code: ErrorCode, *_: Any) -> None:
        self.codes.append(code)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))


SMALL: dict[str, Any] = {"segment_bytes": 1 << 20, "index_interval_bytes": 1, "retention_bytes": 3 << 20}
LARGE = b"v" * 400_000


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_creating_appending_and_deleting_change_no_file_on_the_loop(rig: Rig) -> None:
    rig.harness.create("t", **SMALL)
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
    rig.harness.create("t", **SMALL)
    rig.append()
    rig.executor.run_all()
    for _ in range(200):  # enough that the index is written before the roll
        rig.append()
    for _ in range(20):
        rig.append(LARGE)
    assert len(rig.codes) == 1
    rig.executor.run_all()
    assert rig.codes == [ErrorCode.NONE] * 221
    folder = rig.directory / "t-0"
    finished = sorted(folder.glob("*.log"))[:-1]
    assert len(finished) == 9
    assert len(list(folder.glob("*.snapshot"))) == 9
    assert [path.with_suffix(".timeindex").stat().st_size for path in finished] == [12] * 9
    assert finished[0].with_suffix(".index").stat().st_size > 199 * 8


def test_retention_changes_no_file_on_the_loop(rig: Rig) -> None:
    rig.harness.create("t", **SMALL)
    for _ in range(20):
        rig.append(LARGE)
        rig.executor.run_all()
    before = len(list((rig.directory / "t-0").glob("*.log")))
    for _ in rig.harness.log_manager.retain(rig.harness.wall_ms):
        pass
    for _ in range(3):
        list(rig.harness.log_manager.file_handles.close_idle())
    assert len(list((rig.directory / "t-0").glob("*.log"))) == before
    rig.executor.run_all()
    kept = list((rig.directory / "t-0").glob("*.log"))
    assert len(kept) < before
    deletions = rig.harness.log_manager.deletions(rig.harness.wall_ms + 10**9)
    for directory, work in deletions:
        rig.executor.background(directory, work, lambda _: None)
    rig.executor.run_all()
    assert not list((rig.directory / "t-0").glob("*.deleted"))
    assert sorted((rig.directory / "t-0").glob("*.log")) == sorted(kept)


def test_retention_and_delete_records_run_before_writes_that_wait_for_space(rig: Rig) -> None:
    """The active segment stays, and so does a segment whose indexes are not written yet."""
    rig.harness.create("t", **SMALL | {"retention_bytes": 1})
    for _ in range(20):
        rig.append(LARGE)
        rig.executor.run_all()
    folder = rig.directory / "t-0"
    before = sorted(path.name for path in folder.glob("*.log"))
    for _ in range(3):
        rig.append(LARGE)  # the first one rolls
    rig.harness.replicas.on_space_changed(str(rig.directory), has_room=False)
    assert rig.harness.replicas.delete_records("t", 0, 2, rig.harness.wall_ms) == 2
    rig.executor.run_all("background")
    assert sorted(path.name for path in folder.glob("*.log")) == before[1:]
    for _ in rig.harness.log_manager.retain(rig.harness.wall_ms):
        pass
    rig.executor.run_all("background")
    assert sorted(path.name for path in folder.glob("*.log")) == before[-1:]
    deletions = rig.harness.log_manager.deletions(rig.harness.wall_ms + 10**9)
    assert sum(len(work.args[1]) for _, work in deletions) > 2 * (len(before) - 1)
    rig.harness.replicas.on_space_changed(str(rig.directory), has_room=True)
    rig.executor.run_all()
    assert rig.codes == [ErrorCode.NONE] * 23
    assert rig.harness.partition("t").log.log_end_offset == 23
    bases = {path.name[:20] for path in folder.glob("*.log")}
    assert {path.name[:20] for path in folder.glob("*index")} == bases, "no index was recreated for a deleted segment"


def test_a_recreated_topic_does_not_see_the_files_of_the_old_one(rig: Rig) -> None:
    rig.harness.create("t", **SMALL)
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
    rig.harness.create("t", **SMALL)
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
    rig.harness.create("t", **SMALL)
    rig.append()
    rig.executor.run_all()
    for number in range(2, 9):
        (rig.directory / "t-0" / f"{number:020d}.log").mkdir()
    for _ in range(9):
        rig.append(LARGE)
    rig.executor.run_all()
    assert rig.codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(rig.harness.log_manager.offline) == [str(rig.directory)]

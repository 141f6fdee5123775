"""No file of a partition is changed by the one who may not wait: it is closed work for its directory's lane (design D6).

The worker here keeps everything until it is let go, as that of a directory that has become slow; the disk refuses
every change while nothing is let go.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.records import BatchBuilder
from replication.io_executor import Begin, Done, Run
from storage.io.disk import Buffer, Disk, File, StorageError
from storage.log.log import Origin
from tests.support.replica_harness import World


class GuardedFile(File):
    """Refuses to be changed while the guard stands."""

    __slots__ = ()
    _disk: GuardedDisk

    def _write_some(self, buffer: Buffer, position: int) -> int:
        self._disk.judge("write", self.path)
        return super()._write_some(buffer, position)

    def truncate(self, size: int) -> None:
        self._disk.judge("truncate", self.path)
        super().truncate(size)

    def sync(self) -> None:
        self._disk.judge("sync", self.path)
        super().sync()


class GuardedDisk(Disk):
    """A disk on which only the worker may change anything."""

    def __init__(self) -> None:
        super().__init__()
        self.is_guarded = False

    def judge(self, what: str, path: str) -> None:
        assert not self.is_guarded, f"{what} {path} by who may not wait"

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        if create and not os.path.exists(path):
            self.judge("make", path)
        plain = super().open(path, write=write, create=create)
        descriptor = os.dup(plain.fileno())
        plain.close()
        return GuardedFile(self, path, descriptor)

    def make_dirs(self, path: str) -> None:
        self.judge("make", path)
        super().make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        self.judge("rename", source)
        super().rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self.judge("delete", path)
        super().unlink(path, missing_ok=missing_ok)

    def remove_tree(self, path: str) -> None:
        self.judge("delete", path)
        super().remove_tree(path)


class Lanes:
    """A worker whose threads do nothing until `let_go`."""

    def __init__(self, disk: GuardedDisk) -> None:
        self._disk = disk
        self._lanes: dict[tuple[str, str], deque[tuple[Run, Done]]] = {}

    def _put(self, kind: str, directory: str, run: Run, done: Done) -> None:
        self._lanes.setdefault((kind, directory), deque()).append((run, done))

    def write(self, directory: str, size: int, run: Run, done: Done) -> None:
        self._put("write", directory, run, done)

    def sync(self, directory: str, begin: Begin, done: Done) -> None:
        self._put("sync", directory, begin(), done)

    def read(self, directory: str, run: Run, done: Done) -> None:
        self._put("read", directory, run, done)

    def name(self, directory: str, run: Run, done: Done) -> None:
        self._put("name", directory, run, done)

    def background(self, directory: str, run: Run, done: Done) -> None:
        self._put("background", directory, run, done)

    def let_go(self, only: str = "") -> None:
        """Do all that is waiting, and what follows from it; reads first, since they may be done at any time."""
        while jobs := next(
            (self._lanes[key] for key in sorted(self._lanes) if only in key[0] and self._lanes[key]), None
        ):
            run, done = jobs.popleft()
            self._disk.is_guarded = False
            error = None
            try:
                run()
            except StorageError as failure:
                error = failure
            finally:
                self._disk.is_guarded = True
            done(error)


class Stage:
    """One broker on such a disk."""

    def __init__(self, path: Path) -> None:
        self.disk = GuardedDisk()
        self.lanes = Lanes(self.disk)
        self.world = World(path, worker=self.lanes, disk=self.disk)
        self.directory = path / "logs-0"
        self.disk.is_guarded = True
        self.codes: list[ErrorCode] = []

    def append(self, value: bytes = b"v" * 200, topic: str = "t") -> None:
        builder = BatchBuilder()
        builder.append(self.world.wall_ms, None, value)
        self.world.replicas.append(
            topic, 0, builder.build(), acks=1, wall_ms=self.world.wall_ms, origin=Origin.CLIENT, done=self._done
        )

    def _done(self, code: ErrorCode, *_: Any) -> None:
        self.codes.append(code)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))


SMALL: dict[str, Any] = {"segment_bytes": 1 << 20, "index_interval_bytes": 1, "retention_bytes": 3 << 20}
LARGE = b"v" * 400_000


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_topics_are_made_appended_to_and_deleted_without_touching_the_disk(stage: Stage) -> None:
    """Every step is handed over, and nothing is acknowledged before it is written."""
    stage.world.create("t", **SMALL)
    stage.append()
    assert not stage.codes
    assert stage.names() == []
    stage.lanes.let_go()
    assert stage.codes == [ErrorCode.NONE]
    assert stage.names() == ["t-0"]
    stage.world.delete("t")
    assert stage.names() == ["t-0"]
    stage.lanes.let_go()
    assert stage.names()[0].endswith("-delete")


def test_segments_are_rolled_and_indexed_without_touching_the_disk(stage: Stage) -> None:
    """A roll makes three files, finishes two indexes and writes a snapshot: all behind the writes before it."""
    stage.world.create("t", **SMALL)
    stage.append()
    stage.lanes.let_go()
    for _ in range(200):  # so many that the index has to be written out on the way
        stage.append()
    for _ in range(20):
        stage.append(LARGE)
    assert len(stage.codes) == 1
    stage.lanes.let_go()
    assert stage.codes == [ErrorCode.NONE] * 221
    folder = stage.directory / "t-0"
    finished = sorted(folder.glob("*.log"))[:-1]
    assert len(finished) == 9
    assert len(list(folder.glob("*.snapshot"))) == 9
    assert [path.with_suffix(".timeindex").stat().st_size for path in finished] == [12] * 9
    assert finished[0].with_suffix(".index").stat().st_size > 199 * 8


def test_old_segments_go_without_touching_the_disk(stage: Stage) -> None:
    """Retention renames in the lane, and deletes only what was renamed."""
    stage.world.create("t", **SMALL)
    for _ in range(20):
        stage.append(LARGE)
        stage.lanes.let_go()
    before = len(list((stage.directory / "t-0").glob("*.log")))
    for _ in stage.world.log_manager.retain(stage.world.wall_ms):
        pass
    for _ in range(3):
        list(stage.world.log_manager.open_files.close_idle())
    assert len(list((stage.directory / "t-0").glob("*.log"))) == before
    stage.lanes.let_go()
    kept = list((stage.directory / "t-0").glob("*.log"))
    assert len(kept) < before
    doomed = stage.world.log_manager.deletions(stage.world.wall_ms + 10**9)
    for directory, work in doomed:
        stage.lanes.background(directory, work, lambda _: None)
    stage.lanes.let_go()
    assert not list((stage.directory / "t-0").glob("*.deleted"))
    assert sorted((stage.directory / "t-0").glob("*.log")) == sorted(kept)


def test_what_makes_room_on_a_full_disk_waits_for_nothing(stage: Stage) -> None:
    """Rule 2 of storage/io/disk_space.py: what lacks nothing goes, by retention or by request, while writes wait for just that room.

    The segment that is written to stays, and so does one whose indexes are still to be written.
    """
    stage.world.create("t", **SMALL | {"retention_bytes": 1})
    for _ in range(20):
        stage.append(LARGE)
        stage.lanes.let_go()
    folder = stage.directory / "t-0"
    before = sorted(path.name for path in folder.glob("*.log"))
    for _ in range(3):
        stage.append(LARGE)  # the first begins a segment
    stage.world.replicas.room_changed(str(stage.directory), has_room=False)
    assert stage.world.replicas.delete_records("t", 0, 2, stage.world.wall_ms) == 2
    stage.lanes.let_go("background")
    assert sorted(path.name for path in folder.glob("*.log")) == before[1:]
    for _ in stage.world.log_manager.retain(stage.world.wall_ms):
        pass
    stage.lanes.let_go("background")
    assert sorted(path.name for path in folder.glob("*.log")) == before[-1:]
    doomed = stage.world.log_manager.deletions(stage.world.wall_ms + 10**9)
    assert sum(len(work.args[1]) for _, work in doomed) > 2 * (len(before) - 1)
    stage.world.replicas.room_changed(str(stage.directory), has_room=True)
    stage.lanes.let_go()
    assert stage.codes == [ErrorCode.NONE] * 23
    assert stage.world.partition("t").log.log_end_offset == 23
    bases = {path.name[:20] for path in folder.glob("*.log")}
    assert {path.name[:20] for path in folder.glob("*index")} == bases, "none was made anew for what is gone"


def test_a_topic_that_is_made_again_does_not_see_what_is_still_to_be_renamed(stage: Stage) -> None:
    """All changes of a directory are made in their order, and a log is opened behind them."""
    stage.world.create("t", **SMALL)
    stage.append(b"old")
    stage.lanes.let_go()
    stage.world.delete("t")
    stage.world.create("t", **SMALL)
    stage.append(b"new")
    stage.lanes.let_go()
    assert stage.codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert stage.world.partition("t").log.log_end_offset == 1
    assert len(stage.names()) == 2


def test_a_topic_may_go_while_everything_of_it_is_still_waiting(stage: Stage) -> None:
    """What was to be done for it is left undone, and its directory goes on."""
    stage.world.create("t", **SMALL)
    for _ in range(20):
        stage.append(LARGE)
    stage.world.delete("t")
    stage.world.create("other")
    stage.append(topic="other")
    stage.lanes.let_go()
    assert stage.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 20 + [ErrorCode.NONE]
    assert "other-0" in stage.names()
    assert not stage.world.log_manager.offline


def test_a_change_that_fails_takes_its_directory_away(stage: Stage) -> None:
    """A file in the way of a new segment: nobody is told that the record is safe."""
    stage.world.create("t", **SMALL)
    stage.append()
    stage.lanes.let_go()
    for number in range(2, 9):
        (stage.directory / "t-0" / f"{number:020d}.log").mkdir()
    for _ in range(9):
        stage.append(LARGE)
    stage.lanes.let_go()
    assert stage.codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(stage.world.log_manager.offline) == [str(stage.directory)]

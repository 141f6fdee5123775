"""A topic is deleted and created again while threads use the files of the first one (storage/io/path_guard.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread

import pytest

from storage.config.log_config import LogConfig
from storage.directories.log_manager import LogManager
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk, File
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from tests.support.logs import NOW_MS, SMALL, TOPIC_ID, append, produced

OTHER_ID = bytes(range(2, 18))
PATIENCE_S = 0.2
"""Timeout of a blocked thread, whose rename must not run before."""


class SlowDisk(Disk):
    """Blocks the creation or opening of a named file until its directory is renamed, or a timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_name = ""
        self.is_amid = Event()
        self.was_made_again = Event()
        self.on_open: Callable[[], None] | None = None

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        if self.on_open is not None:
            self.on_open()
        if self.slow_name and path.endswith(self.slow_name) and not self.is_amid.is_set():
            self.is_amid.set()
            self.was_made_again.wait(PATIENCE_S)
        return super().open(path, write=write, create=create)


class Broker:
    """A log manager whose file operations run when a test says so."""

    def __init__(self, path: Path) -> None:
        self.disk = SlowDisk()
        self.directory = path / "t-0"
        self.manager = LogManager(
            self.disk, {str(path): bytes(16)}, SMALL, random_bytes=Random(1).randbytes, new_lock=Lock
        )
        self.manager.load()
        self.log = self.manager.get_or_create("t", 0, TOPIC_ID, SMALL)
        self.changes: list[FileOp] = []
        self.names: list[FileOp] = []

    def hold(self) -> None:
        self.manager.submit = lambda _, change: self.changes.append(change)
        self.manager.submit_directory_op = lambda _, change: self.names.append(change)

    def recreate(self) -> Log:
        """Delete the topic, create it again, and run the renames on this thread."""
        self.manager.delete(self.log)
        log = self.manager.get_or_create("t", 0, OTHER_ID, SMALL)
        for change in self.names:
            change()
        self.disk.was_made_again.set()
        return log

    def recreate_during(self, work: Callable[[], None], slow_name: str) -> Log:
        """The same while another thread is in `work`, blocked at the opening of that file."""
        self.disk.slow_name = slow_name
        thread = Thread(target=work)
        thread.start()
        assert self.disk.is_amid.wait(10)
        log = self.recreate()
        thread.join()
        return log

    def files(self) -> list[str]:
        return sorted(os.listdir(self.directory))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def make_changes(broker: Broker) -> None:
    for change in broker.changes:
        change()


@pytest.mark.parametrize("file_name", ["04.index", ".snapshot.tmp"], ids=["segment", "producer snapshot"])
def test_a_pending_roll_creates_no_file_in_the_new_directory(broker: Broker, file_name: str) -> None:
    append(broker.log, "a", "b", "c", "d")
    broker.hold()
    broker.log.open().roll(0)
    new = broker.recreate_during(lambda: make_changes(broker), file_name)
    assert broker.files() == ["partition.metadata"]
    assert (new.log_start_offset, new.log_end_offset) == (0, 0)


def test_a_pending_open_creates_no_file_in_the_new_directory(broker: Broker) -> None:
    broker.hold()
    opener = broker.log._open_work()  # as a reader thread does
    broker.recreate_during(lambda: broker.log.files.run_guarded(lambda: opener() and None), "0.index")
    assert broker.files() == ["partition.metadata"]


@pytest.mark.parametrize("is_opening", [False, True])
def test_work_on_a_deleted_log_does_not_run(broker: Broker, is_opening: bool) -> None:
    if not is_opening:
        append(broker.log, "a")
    broker.hold()
    if not is_opening:
        broker.log.open().roll(0)
    opener = broker.log._open_work()  # as a reader thread does
    new = broker.recreate()
    late = make_changes if not is_opening else lambda _: broker.log.files.run_guarded(lambda: opener() and None)
    new.open()
    append(new, "x")
    before = broker.files()
    late(broker)
    assert broker.files() == before
    assert (broker.directory / f"{0:020d}.log").stat().st_size == new.open().engine.size_bytes


def test_a_pending_write_does_not_reach_the_new_topic(broker: Broker) -> None:
    append(broker.log, "a")
    prepared = wait_for_disk(broker.log.open().appends.prepare, produced("late"), leader_epoch=0, wall_ms=NOW_MS)
    broker.log.open().engine.close_if_written(broker.log.open().engine._active)  # type: ignore[attr-defined]
    broker.hold()
    new: list[Log] = []

    def recreate() -> None:
        broker.disk.on_open = None
        new.append(broker.recreate())
        append(new[0], "x")

    broker.disk.on_open = recreate
    prepared.write()
    assert (broker.directory / f"{0:020d}.log").stat().st_size == new[0].open().engine.size_bytes


@pytest.mark.parametrize("file_name", ["leader-epoch-checkpoint.tmp", "partition.metadata"])
def test_a_pending_flush_writes_nothing_to_the_new_directory(broker: Broker, file_name: str) -> None:
    broker.log.assign_epoch(5)
    append(broker.log, "a", epoch=5)
    broker.hold()
    work = broker.log.open().flush.begin()
    assert work.replacements
    broker.recreate_during(work, file_name)
    assert broker.files() == ["partition.metadata"]


def test_only_users_of_that_log_are_waited_for(tmp_path: Path) -> None:
    manager = LogManager(
        Disk(), {str(tmp_path): bytes(16)}, LogConfig(), random_bytes=Random(1).randbytes, new_lock=Lock
    )
    manager.load()
    one, other = (manager.get_or_create("t", number, TOPIC_ID, SMALL) for number in (0, 1))
    one.files.run_guarded(lambda: manager.delete(other))
    assert sorted(name[-7:] for name in os.listdir(tmp_path) if name.startswith("t-")) == ["-delete", "t-0"]

"""A topic is deleted and made again under its name while threads are at the files of the first (storage/io/path_guard.py)."""

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
from storage.log.log import Log
from tests.support.logs import NOW_MS, SMALL, TOPIC_ID, append, produced

OTHER_ID = bytes(range(2, 18))
PATIENCE_S = 0.2
"""So long a thread that is held up waits for a renaming that must not come: who breaks the rule is quicker."""


class SlowDisk(Disk):
    """Holds up the call that makes or opens a file of a certain name, until its directory was renamed or that is late."""

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
    """A log manager whose names and other changes are made by threads of their own, when a test says so."""

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

    def make_again(self) -> Log:
        """Delete the topic, make it again, and have the names changed by this thread."""
        self.manager.delete(self.log)
        log = self.manager.get_or_create("t", 0, OTHER_ID, SMALL)
        for change in self.names:
            change()
        self.disk.was_made_again.set()
        return log

    def make_again_amid(self, work: Callable[[], None], slow_name: str) -> Log:
        """The same while another thread is at `work`, which is held up where it opens that file."""
        self.disk.slow_name = slow_name
        thread = Thread(target=work)
        thread.start()
        assert self.disk.is_amid.wait(10)
        log = self.make_again()
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


def test_a_roll_that_is_under_way_makes_no_file_in_the_new_directory(broker: Broker) -> None:
    """Rule 2; else the new log would begin where the old one had rolled."""
    append(broker.log, "a", "b", "c", "d")
    broker.hold()
    broker.log.roll(0)
    new = broker.make_again_amid(lambda: make_changes(broker), "04.index")
    assert broker.files() == ["partition.metadata"]
    assert (new.log_start_offset, new.log_end_offset) == (0, 0)


def test_a_snapshot_of_producers_that_is_under_way_is_none_of_the_new_topic(broker: Broker) -> None:
    """Rule 2."""
    append(broker.log, "a")
    broker.hold()
    broker.log.roll(0)
    broker.make_again_amid(lambda: make_changes(broker), ".snapshot.tmp")
    assert broker.files() == ["partition.metadata"]


def test_an_opening_that_is_under_way_makes_no_file_in_the_new_directory(broker: Broker) -> None:
    """Rule 2; it could even cut off what the new topic was given meanwhile."""
    broker.hold()
    opener = broker.log._open_work()  # as a reader thread does
    broker.make_again_amid(lambda: broker.log.run_guarded(lambda: opener() and None), "0.index")
    assert broker.files() == ["partition.metadata"]


@pytest.mark.parametrize("is_opening", [False, True])
def test_what_comes_too_late_is_not_done(broker: Broker, is_opening: bool) -> None:
    """Rule 1."""
    if not is_opening:
        append(broker.log, "a")
    broker.hold()
    if not is_opening:
        broker.log.roll(0)
    opener = broker.log._open_work()  # as a reader thread does
    new = broker.make_again()
    late = make_changes if not is_opening else lambda _: broker.log.run_guarded(lambda: opener() and None)
    new.open()
    append(new, "x")
    before = broker.files()
    late(broker)
    assert broker.files() == before
    assert (broker.directory / f"{0:020d}.log").stat().st_size == new.size_bytes


def test_bytes_that_are_being_written_do_not_come_into_the_new_topic(broker: Broker) -> None:
    """Also where the file has to be opened for them: it was closed meanwhile, since too many were open."""
    append(broker.log, "a")
    prepared = broker.log.prepare(produced("late"), leader_epoch=0, wall_ms=NOW_MS)
    broker.log.open().close_if_written(broker.log.open()._active)  # type: ignore[attr-defined]
    broker.hold()
    new: list[Log] = []

    def make_again() -> None:
        broker.disk.on_open = None
        new.append(broker.make_again())
        append(new[0], "x")

    broker.disk.on_open = make_again
    broker.log.write(prepared)
    assert (broker.directory / f"{0:020d}.log").stat().st_size == new[0].size_bytes


@pytest.mark.parametrize("amid", ["leader-epoch-checkpoint.tmp", "partition.metadata"])
def test_a_sync_that_is_under_way_leaves_nothing_in_the_new_directory(broker: Broker, amid: str) -> None:
    """It writes the epochs beside their file, and puts them in its place; else these would be of the old topic."""
    broker.log.assign_epoch(5)
    append(broker.log, "a", epoch=5)
    broker.hold()
    work = broker.log.sync_work()
    assert work.replacements
    broker.make_again_amid(work, amid)
    assert broker.files() == ["partition.metadata"]


def test_only_the_visits_to_that_log_are_waited_for(tmp_path: Path) -> None:
    """Rule 3."""
    manager = LogManager(
        Disk(), {str(tmp_path): bytes(16)}, LogConfig(), random_bytes=Random(1).randbytes, new_lock=Lock
    )
    manager.load()
    one, other = (manager.get_or_create("t", number, TOPIC_ID, SMALL) for number in (0, 1))
    one.run_guarded(lambda: manager.delete(other))
    assert sorted(name[-7:] for name in os.listdir(tmp_path) if name.startswith("t-")) == ["-delete", "t-0"]

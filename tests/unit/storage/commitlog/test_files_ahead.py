"""Files that a commit log creates ahead, while appends go on in another thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from pathlib import Path

import pytest

from storage.commitlog.files_ahead import FILES_AHEAD
from storage.commitlog.frames import FILE_HEADER
from storage.config.log_config import LogConfig
from storage.io.disk import StorageError
from tests.support.faulty_disk import FaultyDisk, FaultyFile
from tests.support.segments import NOW_MS, batch, infos
from tests.unit.storage.commitlog.test_commit_log import FILE_BYTES, Process, append_to, bytes_of

HALF = FILE_BYTES // 2
LIMIT_S = 20


class BlockingSync:
    """Syncs of the background thread wait; those of the appends do not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.thread: threading.Thread | None = None
        self.is_blocked = threading.Event()
        self.may_end = threading.Event()
        sync_once = FaultyFile.sync_once

        def sync(file: FaultyFile) -> None:
            if threading.current_thread() is self.thread:
                self.is_blocked.set()
                assert self.may_end.wait(LIMIT_S)
            sync_once(file)

        patch.setattr(FaultyFile, "sync_once", sync)


class Rig:
    """A commit log whose background work runs in a thread when the test says so."""

    def __init__(self, root: Path, blocking: BlockingSync, pool: ThreadPoolExecutor) -> None:
        self.process = Process(root, FaultyDisk(), new_lock=threading.Lock)
        self.process[0].update_config(LogConfig())
        self.content = append_to(self.process[0])
        self.blocking = blocking
        self.pool = pool
        self.jobs: list[Callable[[], None]] = []
        self.process.log.submit = self.jobs.append

    def begin_refill(self) -> Future[None]:
        """Create files in the background; returns while the first of them is synced."""
        refill = self.jobs.pop(0)

        def run() -> None:
            self.blocking.thread = threading.current_thread()
            refill()

        running = self.pool.submit(run)
        assert self.blocking.is_blocked.wait(LIMIT_S)
        return running

    def end_refill(self, running: Future[None]) -> None:
        self.blocking.may_end.set()
        running.result(LIMIT_S)

    def append(self, size: int = HALF) -> None:
        self.content += append_to(self.process[0], size)

    def begin_append(self, size: int = HALF) -> Future[None]:
        return self.pool.submit(self.append, size)

    def starts(self) -> list[int]:
        """The numbers of the log files on disk."""
        return [int(path.stem) // FILE_BYTES for path in self.process.paths(".clog")]

    def fill_files(self, count: int) -> None:
        """Append until this many more files have frames: one append each."""
        files = len(self.process.log.files) + count
        while len(self.process.log.files) < files:
            self.append()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    blocking = BlockingSync(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        try:
            yield Rig(tmp_path, blocking, pool)
        finally:
            blocking.may_end.set()


def check_and_reopen(rig: Rig) -> None:
    assert bytes_of(rig.process[0]) == rig.content
    for job in rig.jobs:
        job()
    assert bytes_of(Process(rig.process.root)[0]) == rig.content


def test_an_append_takes_a_file_while_another_one_is_created(rig: Rig) -> None:
    rig.fill_files(1)
    assert rig.starts() == [0, 1, 2]
    running = rig.begin_refill()
    rig.begin_append().result(LIMIT_S)
    assert rig.process.log.files[-1].start == 2 * FILE_BYTES, "a file that was created ahead is in use"
    assert not running.done()
    rig.end_refill(running)
    assert rig.starts() == [0, 1, 2, 3, 4]
    check_and_reopen(rig)


def test_an_append_without_a_file_ahead_waits_for_the_one_that_is_created_and_no_other(rig: Rig) -> None:
    rig.fill_files(FILES_AHEAD)
    assert rig.starts() == [0, 1, 2]
    running = rig.begin_refill()
    waiting = rig.begin_append()
    with pytest.raises(StillWaiting):
        waiting.result(0.05)
    rig.end_refill(running)
    waiting.result(LIMIT_S)
    assert rig.starts() == [0, 1, 2, 3], "neither the append nor the background created another one"
    check_and_reopen(rig)


def test_a_file_that_is_created_behind_a_released_one_is_deleted(rig: Rig) -> None:
    rig.fill_files(1)
    running = rig.begin_refill()
    released = rig.pool.submit(rig.process.log.release_ballast)
    rig.end_refill(running)
    assert released.result(LIMIT_S)
    numbers = [start for start in rig.starts() if start > 1]
    assert numbers == list(range(2, 2 + len(numbers))), "there is no gap"
    check_and_reopen(rig)


def test_a_file_that_a_large_append_has_skipped_meanwhile_is_deleted(rig: Rig) -> None:
    rig.fill_files(1)
    running = rig.begin_refill()
    large = rig.begin_append(3 * FILE_BYTES)  # takes file 2
    large.result(LIMIT_S)
    assert not running.done()
    after = rig.begin_append()
    rig.end_refill(running)
    after.result(LIMIT_S)
    assert [file.start // FILE_BYTES for file in rig.process.log.files] == [0, 1, 2, 6]
    assert [start for start in rig.starts() if start < 7] == [0, 1, 2, 6]
    check_and_reopen(rig)


def test_a_write_that_may_create_a_file_has_the_size_of_that_file(rig: Rig) -> None:
    log = rig.process.log
    assert log.write_size(HALF) == HALF, "a file is ahead"
    rig.fill_files(FILES_AHEAD)
    assert (log.write_size(10), log.write_size(HALF)) == (10, HALF + FILE_BYTES)
    rig.blocking.may_end.set()
    for job in rig.jobs:
        job()
    assert log.write_size(HALF) == HALF


def test_an_append_that_finds_no_space_for_a_file_leaves_the_log_usable(rig: Rig) -> None:
    rig.fill_files(FILES_AHEAD)
    disk = rig.process.disk
    assert isinstance(disk, FaultyDisk)
    engine, data = rig.process[0], batch(rig.process[0].end_offset, size=HALF)
    reservation = engine.reserve(len(data), infos(data), NOW_MS)
    disk.space_left = 10
    with pytest.raises(StorageError):
        engine.write(reservation, data)
    disk.space_left = None
    engine.write(reservation, data)
    engine.publish(reservation)
    rig.content += data
    assert rig.starts() == [0, 1, 2, 3]
    check_and_reopen(rig)


@pytest.mark.parametrize("size", [0, 20])
def test_a_kill_while_a_file_is_created_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """The file is created again when it is needed."""
    process = Process(tmp_path)
    kept = append_to(process[0], 300)
    created = process.paths(".clog")[-1]
    assert created.stat().st_size == FILE_HEADER.size
    os.truncate(created, size)
    caplog.clear()
    again = Process(tmp_path)
    assert bytes_of(again[0]) == kept
    assert "creation was interrupted" in caplog.text
    assert not [line for line in caplog.records if line.levelname == "ERROR"]
    while not created.with_suffix(".queue").exists():
        kept += append_to(again[0], 300)
    assert bytes_of(Process(tmp_path)[0]) == kept

"""Syncing many files together (storage/io/aio_fsync.py, Disk.sync_files)."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.io.aio_fsync import CAPACITY, NOT_SUBMITTED, SyncQueue
from storage.io.disk import Disk, File, StorageError, sync_results
from storage.io.flush_task import FlushTask, flush_together
from tests.support.faulty_disk import FaultyDisk


@pytest.fixture
def queue() -> Iterator[SyncQueue]:
    queue = SyncQueue.open()
    if queue is None:
        pytest.skip("this system has no queue for syncs")
    yield queue
    queue.close()


def files(disk: Disk, directory: Path, count: int) -> list[File]:
    made = [disk.open(f"{directory}/{number}", write=True, create=True) for number in range(count)]
    for file in made:
        file.pwrite(b"x" * 100, 0)
    return made


def polled(queue: SyncQueue) -> Sequence[int]:
    """The results, as soon as the queue's descriptor is readable."""
    numbers = None
    while numbers is None:
        assert select.select([queue], [], [], 30)[0]
        numbers = queue.poll()
    return numbers


def descriptors(some: list[File]) -> list[int]:
    return [file.fileno() for file in some]


@pytest.mark.parametrize("count", [1, 5, CAPACITY])
def test_a_queue_returns_a_result_per_file(queue: SyncQueue, tmp_path: Path, count: int) -> None:
    some = files(Disk(), tmp_path, count)
    for _ in range(3):
        assert queue.submit(descriptors(some))
        assert queue.wait() == [0] * count


def test_the_eventfd_is_readable_after_a_completion(queue: SyncQueue, tmp_path: Path) -> None:
    assert queue.poll() is None
    assert queue.submit(descriptors(files(Disk(), tmp_path, 5)))
    assert polled(queue) == [0] * 5


def test_the_results_of_a_batch_are_read_once(
    queue: SyncQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = files(Disk(), tmp_path, 5)
    some = descriptors(held)
    assert queue.submit(some)
    assert queue.wait() == [0] * 5
    fetched: list[int] = []
    reap: Callable[..., Any] = SyncQueue._reap

    def counted(*arguments: object) -> object:
        fetched.append(1)
        return reap(*arguments)

    monkeypatch.setattr(SyncQueue, "_reap", counted)
    for _ in range(20):
        fetched.clear()
        assert queue.submit(some)
        assert polled(queue) == [0] * 5
    assert len(fetched) == 1


def test_requests_that_the_kernel_rejects_are_not_submitted(queue: SyncQueue, tmp_path: Path) -> None:
    some = files(Disk(), tmp_path, 2)
    unsyncable, other = os.pipe()
    assert not queue.submit([unsyncable, *descriptors(some)])
    assert queue.submit([some[0].fileno(), unsyncable, some[1].fileno()])
    assert queue.wait() == [0, NOT_SUBMITTED, NOT_SUBMITTED]
    os.close(unsyncable)
    os.close(other)


def test_a_failure_belongs_to_its_file(tmp_path: Path) -> None:
    some = files(FaultyDisk(), tmp_path, 3)
    failures = sync_results(some, [0, errno.EIO, NOT_SUBMITTED])
    assert list(failures) == [some[1]]
    assert str(failures[some[1]]) == f"Cannot sync {some[1].path}: Input/output error."
    disk = some[2]._disk
    assert isinstance(disk, FaultyDisk)
    assert disk.syncs == [some[2].path]


@pytest.mark.parametrize("count", [0, 1, 2, CAPACITY + 3])
def test_a_disk_syncs_any_number_of_files(tmp_path: Path, count: int) -> None:
    assert Disk().sync_files(files(Disk(), tmp_path, count)) == {}


def test_a_file_with_its_own_sync_method_is_synced_by_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    some = files(disk, tmp_path, 3)
    assert disk.sync_files([*some, disk.open_directory(str(tmp_path))]) == {}
    assert disk.syncs == [file.path for file in some]
    disk.fail_syncs = errno.EIO
    assert list(disk.sync_files(some)) == some


def test_a_failed_flush_of_one_log_does_not_affect_others(tmp_path: Path) -> None:
    disk = FaultyDisk()
    healthy = files(Disk(), tmp_path, 2)
    broken = files(disk, tmp_path, 2)
    disk.fail_syncs = errno.EIO
    paths = [f"{tmp_path}/{name}" for name in ("healthy", "broken", "gone")]
    syncs = [
        FlushTask(Disk(), healthy, lambda: True, replacements=[(paths[0], b"")], directories=[str(tmp_path)]),
        FlushTask(disk, broken, lambda: True, replacements=[(paths[1], b"")], directories=[str(tmp_path)]),
        FlushTask(disk, broken, lambda: False, replacements=[(paths[2], b"")], directories=[str(tmp_path)]),
    ]
    first, second, third = flush_together(syncs)
    assert (first, third) == (None, None)
    assert second is not None
    assert second.path == broken[0].path
    assert [Path(path).exists() for path in paths] == [True, False, False]


def test_a_flush_syncs_bytes_before_names_and_each_directory_once(tmp_path: Path) -> None:
    events: list[str] = []

    class Told(Disk):
        def sync_files(self, files: Sequence[File]) -> dict[File, StorageError]:
            events.append("sync " + " ".join(sorted(Path(file.path).name for file in files)))
            return super().sync_files(files)

        def rename(self, source: str, target: str) -> None:
            events.append(f"rename {Path(target).name}")
            super().rename(source, target)

    disk = Told()
    for name in "ab":
        (tmp_path / name).mkdir()
    syncs = [
        FlushTask(
            disk, files(disk, tmp_path / name, 1), lambda: True, replacements=[(f"{tmp_path}/{name}/epochs", b"new")],
            written=[f"{tmp_path}/{name}/0", f"{tmp_path}/{name}/missing"], directories=[f"{tmp_path}/{name}", str(tmp_path)],
        )
        for name in "ab"
    ]  # fmt: skip
    assert flush_together(syncs) == [None, None]
    names = " ".join(sorted(["a", "b", tmp_path.name]))
    assert events == ["sync 0 0 0 0 epochs.tmp epochs.tmp", "rename epochs", "rename epochs", f"sync {names}"]
    assert (tmp_path / "a" / "epochs").read_bytes() == b"new"

"""The jobs of a key index process (storage/keyindex/index_jobs.py)."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.primitives import Buffer
from storage.io.disk import Disk, File
from storage.keyindex import index_jobs
from storage.keyindex.entries import size_of
from storage.keyindex.index_directory import FAN
from storage.keyindex.index_file import IndexRange
from storage.keyindex.index_jobs import (
    AddBatches,
    FindOffsets,
    IndexJobs,
    JobFailed,
    MatchRecords,
    MergeRanges,
    RemoveRanges,
    WriteRange,
)
from tests.support.seeds import seed_of

ALL_TIMES = (0, 1 << 62)
DIGEST = b"\1" * 8


def batch(base_offset: int, *sizes: int) -> bytes:
    builder = BatchBuilder(base_offset, compression=Compression.GZIP)
    for size in sizes:
        builder.append(1, b"k", bytes(size))
    return bytes(builder.build())


class FullDisk(Disk):
    """Refuses all writes when it is full."""

    is_full = False

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        class OpenFile(File):
            def _write_some(self, buffer: Buffer, position: int) -> int:
                if disk.is_full:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return super()._write_some(buffer, position)

        disk, opened = self, super().open(path, write=write, create=create)
        descriptor, opened._descriptor = opened._descriptor, -1
        return OpenFile(self, path, descriptor)


class Directory:
    """The index files of a partition."""

    def __init__(self, jobs: IndexJobs, path: Path) -> None:
        self.jobs = jobs
        self.path = str(path)
        self.ranges: tuple[IndexRange, ...] = ()
        path.mkdir()

    def add(self) -> None:
        """A batch that no file has yet."""
        offset = self.ranges[-1].end_offset if self.ranges else 0
        self.jobs.run(AddBatches(self.path, ("key",), offset, offset + 1, batch(offset, 1)))

    def write(self) -> object:
        """A file of what was added."""
        found = self.jobs.run(WriteRange(self.path, DIGEST))
        if isinstance(found, IndexRange):
            self.ranges += (found,)
        return found

    def fill(self) -> None:
        """Files that are to be merged."""
        for _ in range(FAN):
            self.add()
            self.write()

    def begin_merge(self) -> None:
        assert self.jobs.run(MergeRanges(self.path, DIGEST, self.ranges, 0)) is None

    def end_merge(self) -> object:
        """The result; meanwhile the log's start moves."""
        jobs = (MergeRanges(self.path, DIGEST, self.ranges, start) for start in range(1, 10))
        return next((found for job in jobs if (found := self.jobs.run(job)) is not None), None)

    def unfinished(self) -> list[str]:
        return [name for name in os.listdir(self.path) if name.endswith(".new")]


def match(batches: list[bytes], max_bytes: int) -> list[tuple[int, int]]:
    """Offset and size of the result."""
    offsets = frozenset(range(1000))
    found = IndexJobs(Disk()).run(MatchRecords(tuple(batches), offsets, (), "key", b"k", *ALL_TIMES, max_bytes))
    assert isinstance(found, list)
    return [(record.offset, size_of(record)) for record in found]


@pytest.mark.parametrize("seed", range(20))
def test_the_result_of_a_comparison_is_bounded_and_ends_above_the_limit_if_it_is_cut(seed: int) -> None:
    seed += seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    sizes = [[rng.choice((0, 5, 50)) for _ in range(rng.randrange(1, 9))] for _ in range(4)]
    batches: list[bytes] = []
    every: list[tuple[int, int]] = []
    base = 0
    for group in sizes:
        batches.insert(0, batch(base, *group))
        every += [(base + number, size + 1) for number, size in enumerate(group)]
        base += len(group)
    every.reverse()
    max_bytes = rng.choice((1, 20, 60, 200, 10_000))
    found = match(batches, max_bytes)
    assert found == every[: len(found)]
    if len(found) < len(every):
        assert len(found) > 1
        assert sum(size for _, size in found) > max_bytes
    assert len(found) <= 2 or sum(size for _, size in found[:-1]) <= max_bytes


@pytest.fixture
def full_disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def directory(tmp_path: Path, full_disk: FullDisk, monkeypatch: pytest.MonkeyPatch) -> Directory:
    monkeypatch.setattr(index_jobs, "_MERGE_STEPS", 1)
    return Directory(IndexJobs(full_disk), tmp_path / "t-0")


def test_a_merge_goes_on_when_records_are_deleted_meanwhile(directory: Directory) -> None:
    directory.fill()
    directory.begin_merge()
    assert directory.end_merge() == IndexRange(0, 4, -1, 4, 1, 1)


def test_a_deletion_in_another_partition_interrupts_nothing(directory: Directory, tmp_path: Path) -> None:
    directory.fill()
    directory.add()
    directory.begin_merge()
    other = Directory(directory.jobs, tmp_path / "t-1")
    directory.jobs.run(RemoveRanges(other.path, ()))
    assert isinstance(directory.end_merge(), IndexRange)
    assert isinstance(directory.write(), IndexRange)


def test_a_full_disk_gets_back_the_space_of_an_unfinished_file(directory: Directory, full_disk: FullDisk) -> None:
    directory.fill()
    directory.add()
    full_disk.is_full = True
    assert isinstance(directory.write(), JobFailed)
    assert directory.unfinished() == []
    directory.begin_merge()
    assert directory.unfinished() != []
    assert isinstance(directory.end_merge(), JobFailed)
    assert directory.unfinished() == []


def test_a_merge_that_is_not_needed_any_more_leaves_no_file(directory: Directory) -> None:
    directory.fill()
    directory.begin_merge()
    directory.jobs.run(RemoveRanges(directory.path, directory.ranges))
    assert os.listdir(directory.path) == []


def test_searches_keep_no_deleted_file_open(directory: Directory, full_disk: FullDisk) -> None:
    directory.fill()
    searcher = IndexJobs(full_disk)
    job = FindOffsets(directory.path, DIGEST, "key", b"k", 0, 4, *ALL_TIMES, 10)
    assert searcher.run(job) == [3, 2, 1, 0]
    assert full_disk.open_files == FAN
    directory.begin_merge()
    directory.end_merge()
    assert searcher.run(job) == [3, 2, 1, 0]
    assert full_disk.open_files == 1

"""Sending from a cold page cache (broker/network/page_cache_prefetch.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.network.page_cache_prefetch import (
    KEPT_SHARE,
    MIN_KEPT_BYTES,
    PREFETCH_BYTES,
    READ_AHEAD_BYTES,
    PageCachePrefetcher,
    ReadAhead,
)
from broker.network.sender import RegionEnded, Sender
from broker.network.socket_io import PlaintextTransportLayer
from protocol.file_region import FileRegion, ScatteredRegion
from protocol.primitives import Buffer
from replication.io_executor import IoExecutor, IoResult, Run
from storage.io.disk import Disk, File, StorageError
from tests.support.cold_disk import ColdDisk
from tests.support.replica_harness import HeldWork

MIB = 1 << 20


class ColdTransport(PlaintextTransportLayer):
    """Takes everything, as long as it need not wait for the disk."""

    joins_regions = False

    def __init__(self) -> None:
        self.sent = b""
        self.by_sendfile = 0

    def send(self, buffer: Buffer, *, more: bool) -> int | None:
        self.sent += bytes(buffer)
        return len(buffer)

    def send_all(self, buffers: Sequence[Buffer], *, more: bool) -> int | None:
        return self.send(b"".join(buffers), more=more)

    def send_file(self, region: FileRegion, skip: int, limit: int) -> int | None:
        count = min(limit, region.length - skip)
        data = cast("File", region.file).pread(count, region.position + skip)
        self.by_sendfile += count
        return self.send(data, more=False)


class Rig:
    """A sender on a cold disk, and its reader thread."""

    def __init__(self, path: Path, size: int, *, keeps: bool = True, memory_bytes: int = 0) -> None:
        self.disk = ColdDisk(keeps=keeps)
        (path / "t-0").mkdir()
        self.file = self.disk.open(str(path / "t-0" / "0.log"), write=True, create=True)
        self.data = os.urandom(size)
        self.file.pwrite(self.data, 0)
        self.transport = ColdTransport()
        self.jobs: list[HeldWork] = []
        self.on_directory_failed: list[str] = []
        self.prefetcher = PageCachePrefetcher(
            cast("IoExecutor", self),
            lambda directory, error: self.on_directory_failed.append(directory),
            memory_bytes,
        )
        self.connect()

    def another_file(self) -> File:
        """A cold file with the same contents."""
        file = self.disk.open(os.path.join(os.path.dirname(self.file.path), "1.log"), write=True, create=True)
        file.pwrite(self.data, 0)
        return file

    def connect(self) -> None:
        """A new connection."""
        self.read_ahead = ReadAhead(self.prefetcher)
        self.sender = Sender(self.transport, self.read_ahead)

    def read(self, directory: str, run: Run) -> IoResult:
        self.jobs.append(HeldWork(run))
        return self.jobs[-1].result

    def prefetch(self) -> None:
        """Reads the uncached region, as the connection and the reader do."""
        assert self.sender.uncached is not None
        prefetched = self.read_ahead.prefetch(self.sender.uncached)
        prefetched.then(lambda done: self.sender.resume_after_prefetch(done.value))
        self.finish_jobs()

    def send(self, *parts: Any) -> None:
        """Sends a response while the disk is guarded."""
        with self.disk.blocking_forbidden():
            is_sent = self.sender.send(list(parts))
        turns = 0
        while not is_sent:
            turns += 1
            assert turns < 5000, "no progress"
            if self.sender.uncached is not None:
                self.prefetch()
            with self.disk.blocking_forbidden():
                is_sent = self.sender.resume()
        self.finish_jobs()

    def finish_jobs(self) -> None:
        while self.jobs:
            self.jobs.pop(0).finish()

    def region(self, position: int = 0, length: int | None = None) -> FileRegion:
        return FileRegion(self.file, position, len(self.data) - position if length is None else length)


def test_an_uncached_region_is_prefetched_in_pieces_and_sent_by_sendfile(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 5 * MIB + 77)
    rig.send(b"header", rig.region(), b"trailer")
    assert rig.transport.sent == b"header" + rig.data + b"trailer"
    assert rig.transport.by_sendfile == len(rig.data)
    assert max(length for _, _, length in rig.disk.warmed) == PREFETCH_BYTES


def test_the_next_piece_is_prefetched_while_one_is_sent(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 5 * MIB)
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([rig.region()])
    rig.prefetch()
    assert [(position, length) for _, position, length in rig.disk.warmed] == [
        (0, PREFETCH_BYTES),
        (PREFETCH_BYTES, PREFETCH_BYTES),
    ]


def test_requests_that_continue_a_scan_find_what_was_read_ahead(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 7 * MIB)
    for number in range(7):  # as a Fetch does, each begins before the end of the last one
        rig.send(rig.region(max(number * MIB - 16_384, 0), MIB))
    assert [(position, position + length) for _, position, length in rig.disk.warmed] == [
        (0, MIB),
        (MIB, 3 * MIB),
        (3 * MIB, 5 * MIB),
        (5 * MIB, 7 * MIB),
    ]


def test_the_region_of_the_next_partition_is_read_before_what_a_later_request_needs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 4 * MIB)
    other = rig.another_file()
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([b"a", rig.region(0, MIB), b"b", FileRegion(other, 0, MIB // 2), b"c"])
    rig.prefetch()
    assert rig.disk.warmed == [("0.log", 0, MIB), ("1.log", 0, MIB // 2), ("0.log", MIB, 2 * MIB)]
    with rig.disk.blocking_forbidden():
        assert rig.sender.resume()
    assert rig.transport.sent == b"a" + rig.data[:MIB] + b"b" + rig.data[: MIB // 2] + b"c"


def test_a_cached_next_region_is_not_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 4 * MIB)
    other = rig.another_file()
    other.pread(MIB, 0)
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([rig.region(0, MIB), b"b", FileRegion(other, 0, MIB)])
    rig.prefetch()
    assert rig.disk.warmed == [("0.log", 0, MIB), ("0.log", MIB, 2 * MIB)]


def test_each_reader_that_begins_with_the_file_scans_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 20 * MIB)
    for _ in range(2):
        for number in range(8):
            rig.send(rig.region(number * MIB, MIB))
        assert [(position, length) for _, position, length in rig.disk.warmed][:2] == [(0, MIB), (MIB, 2 * MIB)]
        rig.disk.evict_all()
        rig.disk.warmed.clear()
        rig.connect()


def test_a_few_missing_pages_of_cached_records_begin_no_scan(tmp_path: Path) -> None:
    """The kernel reclaims single pages: only their pieces wait for a thread, and nothing is read ahead."""
    rig = Rig(tmp_path, 8 * MIB)
    rig.file.pread(8 * MIB, 0)
    for missing in (17, 600, 1900):
        rig.file.drop_cache(missing * 4096, 4096)
    for number in range(8):
        rig.send(rig.region(number * MIB, MIB))
    assert rig.transport.sent == rig.data
    assert [(position, length) for _, position, length in rig.disk.warmed] == [
        (0, MIB),
        (2 * MIB, MIB),
        (7 * MIB, MIB),
    ]


def test_the_cached_rest_of_a_region_is_not_read_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 8 * MIB)
    rig.file.pread(8 * MIB, 0)
    rig.file.drop_cache(17 * 4096, 4096)
    rig.send(rig.region())
    assert rig.transport.sent == rig.data
    assert rig.disk.warmed == [("0.log", 0, PREFETCH_BYTES)]


def test_reading_ahead_ends_where_all_that_follows_is_cached(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 5 * MIB + READ_AHEAD_BYTES)
    rig.file.pread(READ_AHEAD_BYTES + 2 * MIB, 3 * MIB)
    rig.disk.warmed.clear()
    for number in range(12):
        rig.send(rig.region(number * MIB, MIB))
    assert [(position, length) for _, position, length in rig.disk.warmed] == [
        (0, MIB),
        (MIB, 2 * MIB),
        (3 * MIB, 2 * MIB),  # finds it cached
    ]


def test_of_a_scan_only_what_a_thread_has_read_is_sent(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 9 * MIB)
    rig.send(rig.region(0, MIB))
    rig.file.pread(4 * MIB, 3 * MIB)  # as the kernel's read-ahead does
    rig.send(rig.region(2 * MIB, MIB))
    assert rig.disk.warmed.pop() == ("0.log", 3 * MIB, 2 * MIB)
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([rig.region(5 * MIB, MIB)])
    rig.prefetch()
    assert rig.disk.warmed == [
        ("0.log", 0, MIB),
        ("0.log", MIB, 2 * MIB),
        ("0.log", 5 * MIB, MIB),
        ("0.log", 6 * MIB, 2 * MIB),
    ]
    assert rig.sender.resume()


def test_a_cached_piece_far_before_the_end_of_the_reads_waits_for_the_thread(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 9 * MIB)
    rig.prefetcher.record_scan(rig.file, 8 * MIB, is_continued=True)  # two reads are under way
    rig.file.pread(MIB, 2 * MIB)  # as the kernel's read-ahead does
    piece = rig.region(2 * MIB, MIB)
    assert not rig.read_ahead.is_cached(piece, 0, MIB)
    rig.prefetcher.record_passed(rig.file, 3 * MIB)
    assert rig.read_ahead.is_cached(piece, 0, MIB)


def test_a_request_elsewhere_in_the_file_reads_nothing_ahead(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 12 * MIB)
    for position in (9 * MIB, 3 * MIB, 6 * MIB):
        rig.send(rig.region(position, MIB))
    assert [(position, length) for _, position, length in rig.disk.warmed] == [
        (9 * MIB, MIB),
        (3 * MIB, MIB),
        (6 * MIB, MIB),
    ]


@pytest.mark.pure_python("replaces a constant of a compiled module")
def test_the_scans_of_few_files_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.network.page_cache_prefetch._MAX_SCANS", 2)
    rig = Rig(tmp_path, 5 * MIB)
    others = [rig.disk.open(str(tmp_path / "t-0" / f"{number}.log"), write=True, create=True) for number in (1, 2)]
    for other in others:
        other.pwrite(bytes(5 * MIB), 0)
    rig.send(rig.region(0, MIB))
    for other in others:
        rig.send(FileRegion(other, 0, MIB))
    rig.disk.warmed.clear()
    rig.send(rig.region(3 * MIB - 4096, MIB))
    assert [(position, length) for _, position, length in rig.disk.warmed] == [(3 * MIB - 4096, MIB)]


def test_the_ranges_of_an_uncached_scattered_region_are_read_by_one_job(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 4 * MIB)
    spans = [(number * 60_000, 16_384) for number in range(64)]
    region = ScatteredRegion(rig.file, spans, 64 * 16_384)
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([b"header", region, b"trailer"])
    rig.prefetch()
    assert [(position, length) for _, position, length in rig.disk.announced] == spans[1:]
    with rig.disk.blocking_forbidden():
        assert rig.sender.resume()
    expected = b"".join([rig.data[position : position + length] for position, length in spans])
    assert rig.transport.sent == b"header" + expected + b"trailer"


def test_a_scattered_region_on_a_disk_without_page_cache_is_read_through_the_thread(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MIB, keeps=False)
    spans = [(7, 500), (5000, 100_000), (300_000, 16_384)]
    rig.send(b"header", ScatteredRegion(rig.file, spans, 116_884), b"trailer")
    expected = b"".join([rig.data[position : position + length] for position, length in spans])
    assert rig.transport.sent == b"header" + expected + b"trailer"
    assert rig.transport.by_sendfile == 0


def test_a_region_behind_the_end_of_its_file_ends_the_connection(tmp_path: Path) -> None:
    """A file that was cut off: what it still has is sent, the rest is not read for ever."""
    rig = Rig(tmp_path, MIB, keeps=False)
    with pytest.raises(RegionEnded):
        rig.send(b"header", rig.region(length=MIB + 10))
    assert rig.transport.sent == b"header" + rig.data


def test_a_cached_region_needs_no_thread(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 3 * MIB)
    rig.file.pread(len(rig.data), 0)
    rig.send(rig.region())
    assert (rig.transport.sent, rig.disk.warmed) == (rig.data, [])


def test_a_disk_without_page_cache_is_read_through_the_thread(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 3 * MIB + 5, keeps=False)
    rig.send(b"header", rig.region(7), b"trailer")
    assert rig.transport.sent == b"header" + rig.data[7:] + b"trailer"
    assert rig.transport.by_sendfile == 0


def test_a_scan_evicts_only_what_it_prefetched(tmp_path: Path) -> None:
    hot = 6 * MIB, READ_AHEAD_BYTES + 4 * MIB
    rig = Rig(tmp_path, sum(hot) + 12 * MIB)
    rig.file.pread(hot[1], hot[0])
    rig.send(rig.region())
    assert rig.transport.sent == rig.data
    assert rig.file.is_resident(*hot)
    assert rig.file.cached_bytes(0, 6 * MIB) == 0
    assert rig.file.cached_bytes(0, len(rig.data)) <= MIN_KEPT_BYTES + hot[1]


def test_other_readers_of_prefetched_records_need_no_disk(tmp_path: Path) -> None:
    """The second reader is as far behind as the limit allows."""
    rig = Rig(tmp_path, 48 * MIB, memory_bytes=KEPT_SHARE * 24 * MIB)
    rig.send(rig.region(0, 20 * MIB))
    rig.disk.warmed.clear()
    rig.sender = Sender(rig.transport, ReadAhead(rig.prefetcher))
    rig.send(rig.region(0, 20 * MIB))
    assert not rig.disk.warmed
    rig.send(rig.region(20 * MIB))
    assert rig.file.cached_bytes(0, 20 * MIB) == 0
    assert rig.file.cached_bytes(0, 48 * MIB) <= 24 * MIB


def test_a_range_that_others_evicted_is_new_when_it_is_read_again(tmp_path: Path) -> None:
    """Else its first read, the oldest, would evict what the last one brought."""
    rig = Rig(tmp_path, 24 * MIB, memory_bytes=KEPT_SHARE * 24 * MIB)
    for _ in range(5):
        rig.disk.evict_all()
        rig.send(rig.region(0, 16 * MIB))
    assert rig.file.cached_bytes(0, 16 * MIB) == 16 * MIB


def test_many_short_ranges_count_more_than_their_bytes(tmp_path: Path) -> None:
    """Else millions of them would be remembered."""
    rig = Rig(tmp_path, 8 * MIB)
    for number in range(100):
        rig.send(rig.region(number * 80_000, 70_000))
    assert len(rig.prefetcher._brought) <= 64


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the kernel cannot be asked")
def test_a_scan_does_not_fill_the_page_cache_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    path = tmp_path / "t-0" / "0.log"
    path.write_bytes(os.urandom(40 * MIB))
    file = Disk().open(str(path), write=True)
    os.fsync(file.fileno())
    file.drop_cache(0, 40 * MIB)
    jobs: list[HeldWork] = []

    def read(_: str, run: Run) -> IoResult:
        jobs.append(HeldWork(run))
        return jobs[-1].result

    read_ahead = ReadAhead(PageCachePrefetcher(cast("IoExecutor", SimpleNamespace(read=read)), lambda *_: None))
    sender = Sender(ColdTransport(), read_ahead)
    is_sent = sender.send([FileRegion(file, 0, 40 * MIB)])
    while not is_sent:
        if sender.uncached is not None:
            read_ahead.prefetch(sender.uncached).then(lambda done: sender.resume_after_prefetch(done.value))
            while jobs:
                jobs.pop(0).finish()
        is_sent = sender.resume()
    assert file.cached_bytes(0, 40 * MIB) <= MIN_KEPT_BYTES


def test_a_finished_scan_holds_no_file_open(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 3 * MIB)
    rig.send(rig.region())
    open_files = rig.disk.open_files
    del rig.file
    rig.read_ahead._last = None  # the last region is let go of by the next one
    assert rig.disk.open_files == open_files - 1


def test_a_read_error_is_reported(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MIB)
    with rig.disk.blocking_forbidden():
        rig.sender.send([rig.region()])
    assert rig.sender.uncached is not None
    prefetched = rig.read_ahead.prefetch(rig.sender.uncached)
    rig.jobs.pop(0).finish(StorageError("read", "x"))
    assert rig.on_directory_failed == [str(tmp_path)]
    assert str(prefetched.error) == "Cannot read x."


def test_an_error_of_the_cache_query_is_left_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, MIB)

    def fail(*_: Any) -> None:
        raise StorageError("read", "x")

    monkeypatch.setattr(type(rig.file), "is_resident", fail)
    assert not rig.sender.send([rig.region()])
    assert rig.sender.uncached is not None


@pytest.mark.parametrize("position", [0, 3 * MIB])
def test_nothing_is_sent_before_the_uncached_region_is_read(tmp_path: Path, position: Any) -> None:
    rig = Rig(tmp_path, 4 * MIB)
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([rig.region(position)])
        assert not rig.sender.send([b"later"])
        assert not rig.sender.resume()
    assert rig.transport.sent == b""


class SmallSocket(ColdTransport):
    """Accepts few bytes at a time, then none until the next attempt."""

    is_full = True

    def send_file(self, region: FileRegion, skip: int, limit: int) -> int | None:
        self.is_full = not self.is_full
        return None if self.is_full else super().send_file(region, skip, min(limit, 100_000))


def test_a_piece_is_queried_once_however_small_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, 4 * MIB)
    rig.file.pread(4 * MIB, 0)
    rig.transport = SmallSocket()
    rig.sender = Sender(rig.transport, rig.read_ahead)
    queried: list[int] = []
    is_resident = type(rig.file).is_resident

    def count(file: Any, position: int, length: int) -> bool:
        queried.append(length)
        return bool(is_resident(file, position, length))

    monkeypatch.setattr(type(rig.file), "is_resident", count)
    rig.send(rig.region())
    assert rig.transport.sent == rig.data
    assert sum(queried) < 4 * MIB + 100


@pytest.mark.parametrize(("seconds", "is_asked"), [(0.005, False), (0.02, True)])
def test_the_rest_of_a_piece_is_queried_again_after_a_while(tmp_path: Path, seconds: float, is_asked: bool) -> None:
    rig = Rig(tmp_path, MIB)
    rig.file.pread(MIB, 0)
    rig.transport = SmallSocket()
    now_s = 100.0
    rig.sender = Sender(rig.transport, rig.read_ahead, lambda: now_s)
    assert not rig.sender.send([rig.region()])
    rig.file.drop_cache(0, MIB)
    now_s += seconds
    assert not rig.sender.resume()
    assert (rig.sender.uncached is not None) is is_asked


def lone_sender(rig: Rig, clock: Callable[[], float]) -> Sender:
    """A sender whose connection is the only active one."""
    return Sender(rig.transport, rig.read_ahead, clock, lambda _since_ms: False)


def test_a_lone_reader_gets_the_cached_bytes_before_those_that_are_not(tmp_path: Path) -> None:
    """The rest is read in pieces as for others, and each is sent once."""
    rig = Rig(tmp_path, 9 * MIB)
    rig.file.pread(3 * MIB, 0)
    rig.sender = lone_sender(rig, lambda: 100.0)
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([rig.region()])
    assert rig.transport.by_sendfile == 2 * MIB
    rig.send()
    assert rig.transport.sent == rig.data
    assert rig.transport.by_sendfile == len(rig.data)  # nothing was read through the thread


def test_of_a_scan_a_lone_reader_gets_only_what_a_thread_has_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 12 * MIB)
    rig.sender = lone_sender(rig, lambda: 100.0)
    with rig.disk.blocking_forbidden():
        assert not rig.sender.send([rig.region()])
    rig.file.pread(10 * MIB, 2 * MIB)  # as another reader does; the kernel may read on when some of it is sent
    assert rig.sender.uncached is not None
    prefetched = rig.read_ahead.prefetch(rig.sender.uncached)
    prefetched.then(lambda done: rig.sender.resume_after_prefetch(done.value))
    rig.jobs.pop(0).finish()
    assert not rig.sender.resume()
    assert rig.transport.by_sendfile == PREFETCH_BYTES
    rig.finish_jobs()
    rig.send()
    assert rig.transport.sent == rig.data


def test_a_long_rest_of_a_piece_is_queried_completely_after_a_while(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 8 * MIB)
    rig.file.pread(8 * MIB, 0)
    rig.transport = SmallSocket()
    now_s = 100.0
    rig.sender = lone_sender(rig, lambda: now_s)
    assert not rig.sender.send([rig.region()])
    rig.file.drop_cache(MIB, MIB)
    assert not rig.sender.resume()
    assert rig.sender.uncached is None
    now_s += 0.02
    assert not rig.sender.resume()
    assert rig.sender.uncached is not None

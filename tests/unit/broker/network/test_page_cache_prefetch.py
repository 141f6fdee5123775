"""Rules of broker/network/page_cache_prefetch.py (seeds.md I5): what is not in the page cache leaves without anybody waiting for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.network.page_cache_prefetch import BEHIND_BYTES, STRETCH_BYTES, Scan, Warmer
from broker.network.sender import Sender
from protocol.records import FileRegion
from storage.io.disk import StorageError
from tests.support.cold_disk import ColdDisk

MIB = 1 << 20


class ColdWire:
    """Takes everything, as long as it need not wait for the disk."""

    def __init__(self) -> None:
        self.sent = b""
        self.by_sendfile = 0

    def send(self, buffer, *, more):
        self.sent += bytes(buffer)
        return len(buffer)

    def send_all(self, buffers, *, more):
        return self.send(b"".join(buffers), more=more)

    def send_file(self, region, skip, limit):
        count = min(limit, region.length - skip)
        data = region.file.pread(count, region.position + skip)
        self.by_sendfile += count
        return self.send(data, more=False)


class Rig:
    """A sender on a cold disk, and the thread that reads for it."""

    def __init__(self, path: Path, size: int, *, keeps: bool = True) -> None:
        self.disk = ColdDisk(keeps=keeps)
        (path / "t-0").mkdir()
        self.file = self.disk.open(str(path / "t-0" / "0.log"), write=True, create=True)
        self.data = os.urandom(size)
        self.file.pwrite(self.data, 0)
        self.wire = ColdWire()
        self.jobs: list = []
        self.failed: list[str] = []
        self.scan = Scan(Warmer(self, lambda directory, error: self.failed.append(directory)))
        self.sender = Sender(self.wire, self.scan)

    def read(self, directory, run, done):
        self.jobs.append((run, done))

    def work(self) -> None:
        """What the reader threads do."""
        while self.jobs:
            run, done = self.jobs.pop(0)
            run()
            done(None)

    def send(self, *parts) -> None:
        """All of an answer; while the disk is guarded."""
        with self.disk.guarded():
            is_sent = self.sender.send(list(parts))
        turns = 0
        while not is_sent:
            turns += 1
            assert turns < 5000, "no progress"
            if self.sender.cold is not None:
                self.scan.fetch(*self.sender.cold, lambda data, error: self.sender.thaw(data))
                self.work()
            with self.disk.guarded():
                is_sent = self.sender.resume()

    def region(self, position: int = 0, length: int | None = None) -> FileRegion:
        return FileRegion(self.file, position, len(self.data) - position if length is None else length)


def test_a_cold_region_leaves_by_sendfile_stretch_by_stretch(tmp_path):
    """Rules 1 and 2: Z1 holds for cold data too."""
    rig = Rig(tmp_path, 5 * MIB + 77)
    rig.send(b"header", rig.region(), b"trailer")
    assert rig.wire.sent == b"header" + rig.data + b"trailer"
    assert rig.wire.by_sendfile == len(rig.data)
    assert max(length for _, _, length in rig.disk.warmed) == STRETCH_BYTES


def test_the_next_stretch_is_read_while_one_is_sent(tmp_path):
    """Rule 2."""
    rig = Rig(tmp_path, 5 * MIB)
    with rig.disk.guarded():
        assert not rig.sender.send([rig.region()])
    rig.scan.fetch(*rig.sender.cold, lambda data, error: rig.sender.thaw(data))
    rig.work()
    assert [(position, length) for _, position, length in rig.disk.warmed] == [
        (0, STRETCH_BYTES),
        (STRETCH_BYTES, STRETCH_BYTES),
    ]


def test_what_is_warm_asks_no_thread(tmp_path):
    """Nearly all that is ever sent."""
    rig = Rig(tmp_path, 3 * MIB)
    rig.file.pread(len(rig.data), 0)
    rig.send(rig.region())
    assert (rig.wire.sent, rig.disk.warmed) == (rig.data, [])


def test_a_disk_that_keeps_nothing_is_read_through_the_thread(tmp_path):
    """Rule 3: direct I/O, or no memory."""
    rig = Rig(tmp_path, 3 * MIB + 5, keeps=False)
    rig.send(b"header", rig.region(7), b"trailer")
    assert rig.wire.sent == b"header" + rig.data[7:] + b"trailer"
    assert rig.wire.by_sendfile == 0


def test_a_scan_gives_back_what_it_brought_and_nothing_else(tmp_path):
    """I5, rule 4: hot pages in its way stay, and so does what lies just behind it."""
    rig = Rig(tmp_path, 24 * MIB)
    hot = 6 * MIB, 2 * MIB
    rig.file.pread(hot[1], hot[0])
    rig.send(rig.region())
    assert rig.wire.sent == rig.data
    assert rig.file.is_resident(*hot)
    assert rig.file.cached_bytes(0, 6 * MIB) == 0
    assert rig.file.cached_bytes(0, 24 * MIB) <= BEHIND_BYTES + hot[1]


def test_a_deleted_file_is_not_held_open_by_a_scan_that_is_over(tmp_path):
    """Its space on the disk is wanted back."""
    rig = Rig(tmp_path, 3 * MIB)
    rig.send(rig.region())
    open_files = rig.disk.open_files
    rig.file = rig.scan._last = None  # the last region is let go of by the next one
    assert rig.disk.open_files == open_files - 1


def test_a_failing_disk_is_told(tmp_path):
    """The directory goes offline, the connection ends."""
    rig = Rig(tmp_path, MIB)
    with rig.disk.guarded():
        rig.sender.send([rig.region()])
    told = []
    rig.scan.fetch(*rig.sender.cold, lambda data, error: told.append((data, str(error))))
    (_, done) = rig.jobs.pop(0)
    done(StorageError("read", "x"))
    assert rig.failed == [str(tmp_path)]
    assert told == [(None, "Cannot read x.")]


def test_a_disk_that_cannot_even_be_asked_is_left_to_the_thread(tmp_path, monkeypatch):
    """It meets the error too, and takes the directory offline."""
    rig = Rig(tmp_path, MIB)

    def fail(*_):
        raise StorageError("read", "x")

    monkeypatch.setattr(type(rig.file), "is_resident", fail)
    assert not rig.sender.send([rig.region()])
    assert rig.sender.cold is not None


@pytest.mark.parametrize("position", [0, 3 * MIB])
def test_nothing_more_is_sent_before_the_disk_has_answered(tmp_path, position):
    """Parts leave in order."""
    rig = Rig(tmp_path, 4 * MIB)
    with rig.disk.guarded():
        assert not rig.sender.send([rig.region(position)])
        assert not rig.sender.send([b"later"])
        assert not rig.sender.resume()
    assert rig.wire.sent == b""


class SmallSocket(ColdWire):
    """Takes a little at a time."""

    def send_file(self, region, skip, limit):
        return super().send_file(region, skip, min(limit, 100_000))


def test_a_piece_is_asked_for_once_however_small_the_socket(tmp_path):
    """Asking for megabytes costs as much as sending some: what the socket left of a piece is answered by one byte."""
    rig = Rig(tmp_path, 4 * MIB)
    rig.file.pread(4 * MIB, 0)
    rig.wire = SmallSocket()
    asked: list[int] = []

    class Asked(Scan):
        def is_at_hand(self, region, skip, limit):
            asked.append(limit)
            return super().is_at_hand(region, skip, limit)

    rig.sender = Sender(rig.wire, Asked(Warmer(rig, lambda directory, error: None)))
    rig.send(rig.region())
    assert rig.wire.sent == rig.data
    assert sum(asked) < 4 * MIB + 100

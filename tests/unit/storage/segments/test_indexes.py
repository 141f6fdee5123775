"""The indexes of one segment (storage/segments/indexes.py)."""

from __future__ import annotations

import mmap
import random
import struct
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path

import pytest

from storage.engine import AbortedTransaction
from storage.io.disk import Disk, Mapping, StorageError
from storage.io.disk_lookup import NotResident, read_resident
from storage.segments.indexes import (
    READER_ENTRIES,
    WARM_BYTES,
    WINDOW_ENTRIES,
    WINDOWS,
    CorruptIndex,
    OffsetIndex,
    SparseIndex,
    TimeIndex,
    TransactionIndex,
)
from tests.support.faulty_disk import FaultyDisk
from tests.support.segments import write_out

BASE = 5_000_000_000
PAGE = mmap.PAGESIZE
WARM_ENTRIES = WARM_BYTES // 8


def offset_index(path: Path, entries: int = 0, *, disk: Disk | None = None) -> OffsetIndex:
    """An index whose entry i is (BASE + 10 i + 9, 4096 (i + 1))."""
    return extended(OffsetIndex(disk or Disk(), f"{path}/i.index", BASE), entries)


def extended(index: OffsetIndex, entries: int) -> OffsetIndex:
    for i in range(index.entries, entries):
        index.append(BASE + 10 * i + 9, 4096 * (i + 1))
        if index.is_behind:
            write_out(index)
    return index


def test_offset_entries_are_last_offset_and_position(tmp_path: Path) -> None:
    index = offset_index(tmp_path, 2)
    assert (tmp_path / "i.index").read_bytes() == b""
    write_out(index)
    assert (tmp_path / "i.index").read_bytes() == struct.pack(">IIII", 9, 4096, 19, 8192)


def test_time_entries_are_timestamp_and_offset(tmp_path: Path) -> None:
    index = TimeIndex(Disk(), f"{tmp_path}/t", BASE)
    for timestamp, offset in ((-1, BASE), (1000, BASE + 3), (1000, BASE + 4), (999, BASE + 5), (1001, BASE + 6)):
        index.append(timestamp, offset)
    write_out(index)
    assert (tmp_path / "t").read_bytes() == struct.pack(">qIqI", 1000, 3, 1001, 6)
    assert index.last == (1001, BASE + 6)


def test_a_mapping_is_extended_when_the_index_grows(tmp_path: Path) -> None:
    index = offset_index(tmp_path, 2000)
    assert index.lookup(BASE + 9) == (BASE + 9, 4096)
    index = extended(index, 6000)
    for slot in (0, 1500, 1990, 2010, 3000, 4500):
        assert index.lookup(BASE + 10 * slot + 12) == (BASE + 10 * slot + 9, 4096 * (slot + 1))


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("keep", [0, 1, 5, WARM_ENTRIES, 2990, 2999, 3000])
def test_truncation_removes_entries_at_or_above_the_offset(tmp_path: Path, keep: int, *, written: bool) -> None:
    disk = Disk()
    index = offset_index(tmp_path, 3000, disk=disk)
    index.open_file()
    index.lookup(BASE + 9, read_resident)  # makes the mapping
    assert disk.open_files == 2  # the mapping has a descriptor of its own
    if written:
        write_out(index)
    index.truncate(BASE + 10 * keep + 9)
    assert index.entries == keep
    is_cut = keep < (3000 if written else 2944)  # the rest was in memory only
    assert disk.open_files == (0 if is_cut else 2)
    index.append(BASE + 10**6, 10**8)
    assert index.last == (BASE + 10**6, 10**8)
    assert index.lookup(BASE + 10 * keep + 9) == ((BASE + 10 * keep - 1, 4096 * keep) if keep else (BASE, 0))
    assert index.lookup(BASE + 9) == ((BASE + 9, 4096) if keep else (BASE, 0))
    write_out(index)
    assert Path(index.path).stat().st_size == 8 * (keep + 1)
    assert OffsetIndex(Disk(), index.path, BASE).last == index.last


def test_the_time_index_is_truncated_by_offset(tmp_path: Path) -> None:
    index = TimeIndex(Disk(), f"{tmp_path}/t", BASE)
    for i in range(2000):
        index.append(1000 + i, BASE + 10 * i)
    index.truncate(BASE + 15)
    assert index.entries == 2
    assert index.last == (1001, BASE + 10)
    index.truncate(BASE + 10)
    assert index.last == (1000, BASE)
    index.truncate(BASE)
    assert index.entries == 0


def test_an_invalid_index_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "i.index"
    path.write_bytes(b"\0" * 13)
    with pytest.raises(CorruptIndex, match="13 bytes"):
        offset_index(tmp_path)
    path.write_bytes(struct.pack(">II", 9, 4096) + bytes(16))
    with pytest.raises(CorruptIndex, match="ascend"):
        offset_index(tmp_path)


def test_a_failed_write_out_is_retried_by_the_next(tmp_path: Path) -> None:
    disk = FaultyDisk()
    index = offset_index(tmp_path, 5, disk=disk)
    disk.space_left = 12
    with pytest.raises(StorageError):
        write_out(index)
    assert index.lookup(BASE + 39) == (BASE + 39, 4 * 4096)
    disk.space_left = None
    write_out(index)
    assert OffsetIndex(Disk(), index.path, BASE).entries == 5


def test_only_lookups_that_must_not_wait_keep_a_descriptor(tmp_path: Path) -> None:
    disk = FaultyDisk()
    index = offset_index(tmp_path, 3000, disk=disk)
    assert index.lookup(BASE + 9) == (BASE + 9, 4096)
    assert disk.open_files == 0
    with pytest.raises(NotResident):
        index.lookup(BASE + 1009, read_resident)
    index.open_file()
    assert index.lookup(BASE + 1009, read_resident) == (BASE + 1009, 4096 * 101)
    assert disk.open_files == 2  # the mapping has a descriptor of its own
    index.close_file()
    assert disk.open_files == 0


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The targets that are searched in a file."""
    found: list[int] = []
    real = SparseIndex._cold_floor

    def recorded(self: SparseIndex, target: int, column: int, cold: Mapping | bytes) -> int:
        found.append(target)
        return real(self, target, column, cold)

    monkeypatch.setattr(SparseIndex, "_cold_floor", recorded)
    return found


def _read_entries(index: OffsetIndex, entries: Iterable[int]) -> None:
    for entry in entries:
        assert index.lookup(BASE + 10 * entry + 9, read_resident) == (BASE + 10 * entry + 9, 4096 * (entry + 1))


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_a_sequential_reader_searches_the_file_once_per_window(tmp_path: Path, searches: list[int]) -> None:
    write_out(offset_index(tmp_path, 4 * WINDOW_ENTRIES + WARM_ENTRIES))
    index = offset_index(tmp_path)
    index.open_file()
    _read_entries(index, range(4 * WINDOW_ENTRIES))
    assert len(searches) == 6  # the last entry of a window does not say where its range ends


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_readers_at_different_places_have_a_window_each(tmp_path: Path, searches: list[int]) -> None:
    distance = READER_ENTRIES + 2 * WINDOW_ENTRIES
    write_out(offset_index(tmp_path, WINDOWS * distance + WARM_ENTRIES))
    index = offset_index(tmp_path)
    index.open_file()
    for step in range(2 * WINDOW_ENTRIES):
        _read_entries(index, [reader * distance + step for reader in range(WINDOWS)])
    assert len(searches) == 3 * WINDOWS


class _ObservedColumn:
    """Reads a column of an index's mapping and records the pages."""

    def __init__(self, column: struct.Struct, touched: set[int]) -> None:
        self._column = column
        self._touched = touched

    def unpack_from(self, mapping: bytes, position: int) -> tuple[int]:
        self._touched.add(position // PAGE)
        return self._column.unpack_from(mapping, position)


def _observe_pages(index: SparseIndex, touched: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    kind, real = type(index), SparseIndex._cold_entry

    def observed(self: SparseIndex, slot: int, cold: Mapping | bytes) -> tuple[int, int]:
        if self is index:
            touched.add(slot * self.ENTRY.size // PAGE)
        return real(self, slot, cold)

    monkeypatch.setattr(SparseIndex, "_cold_entry", observed)
    monkeypatch.setattr(kind, "COLUMNS", tuple(_ObservedColumn(column, touched) for column in kind.COLUMNS))


LARGEST_INDEX_BYTES = 10 * 1024 * 1024  # segment.index.bytes


def written_index(path: Path, kind: type[OffsetIndex | TimeIndex], entries: int) -> str:
    """An index file whose entry i has the key 10 i and the value i."""
    per_entry = kind.ENTRY.size // 4
    words = array("I", bytes(entries * kind.ENTRY.size))
    words[per_entry - 2 :: per_entry] = array("I", range(0, 10 * entries, 10))
    words[per_entry - 1 :: per_entry] = array("I", range(entries))
    if sys.byteorder == "little":
        words.byteswap()
    file = path / "index"
    file.write_bytes(words.tobytes())
    return str(file)


# Small sizes end inside pages, so that the warm section begins and ends there too.
INDEX_BYTES = [*(page * PAGE + page % 5 * 12 for page in range(1, 41)), 1_024_000, 4 << 20, LARGEST_INDEX_BYTES]


@pytest.mark.pure_python("replaces a method of a compiled class")
@pytest.mark.parametrize("index_bytes", INDEX_BYTES)
@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
def test_lookups_near_the_end_touch_three_pages_at_most_whatever_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[OffsetIndex | TimeIndex], index_bytes: int
) -> None:
    size = kind.ENTRY.size
    entries = index_bytes // size
    path = written_index(tmp_path, kind, entries)
    disk = FaultyDisk()
    index = kind(disk, path, 0)
    touched: set[int] = set()
    _observe_pages(index, touched, monkeypatch)
    warm = min(entries, 8192 // size)
    rng = random.Random(index_bytes)
    for _ in range(3000):
        target = 10 * (entries - 1) - rng.randrange(10 * warm - 9)
        assert index.lookup(target) == (target // 10 * 10, target // 10)
    for _, position, length in disk.reads:
        touched.update(range(position // PAGE, (position + length - 1) // PAGE + 1))
    assert len(touched) <= 3, sorted(touched)
    touched.clear()
    assert index.lookup(15) == (10, 1)
    is_cold = entries * size > WARM_BYTES
    assert bool(touched) == is_cold
    assert len(touched) > 3 or index_bytes < 1_000_000


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_a_lookup_near_the_end_of_an_open_index_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    index = offset_index(tmp_path, 20_000, disk=disk)
    touched: set[int] = set()
    _observe_pages(index, touched, monkeypatch)
    disk.reset_counters()
    for back in range(1, WARM_ENTRIES):
        index.lookup(BASE + 10 * (20_000 - back) + 9)
    assert not touched
    assert not disk.reads
    index.lookup(BASE + 9)
    assert touched


ABORTED = [
    AbortedTransaction(7, 10, 20, 10),
    AbortedTransaction(8, 15, 30, 15),
    AbortedTransaction(7, 22, 40, 31),
    AbortedTransaction(9, 45, 50, 45),
]


def transaction_index(path: Path, count: int = 4) -> TransactionIndex:
    index = TransactionIndex(Disk(), f"{path}/x.txnindex", 5)
    for transaction in ABORTED[:count]:
        index.append(transaction)
    return index


def entries_of(index: TransactionIndex) -> list[AbortedTransaction]:
    return index.overlapping(0, 2**63 - 1)[0]


def test_transaction_entries_have_kafkas_format(tmp_path: Path) -> None:
    transaction_index(tmp_path, 0)
    assert not (tmp_path / "x.txnindex").exists()
    transaction_index(tmp_path, 2)
    packed = struct.pack(">hqqqqhqqqq", 0, 7, 10, 20, 10, 0, 8, 15, 30, 15)
    assert (tmp_path / "x.txnindex").read_bytes() == packed
    assert entries_of(TransactionIndex(Disk(), f"{tmp_path}/x.txnindex", 5)) == ABORTED[:2]


def test_overlapping_transactions_are_collected_up_to_the_last_stable_offset(tmp_path: Path) -> None:
    index = transaction_index(tmp_path)
    assert index.overlapping(0, 9) == ([], True)
    assert index.overlapping(0, 16) == ([ABORTED[0], ABORTED[1]], True)
    assert index.overlapping(21, 25) == ([ABORTED[1], ABORTED[2]], True)
    assert index.overlapping(31, 44) == ([ABORTED[2]], True)
    assert index.overlapping(41, 46) == ([ABORTED[3]], False)
    assert index.overlapping(51, 60) == ([], False)


def test_transactions_are_truncated_by_their_marker(tmp_path: Path) -> None:
    index = transaction_index(tmp_path)
    index.truncate(40)
    assert entries_of(index) == ABORTED[:2]
    assert (tmp_path / "x.txnindex").stat().st_size == 68
    index.append(ABORTED[3])
    assert entries_of(TransactionIndex(Disk(), index.path, 5)) == [*ABORTED[:2], ABORTED[3]]
    index.truncate(0)
    assert (entries_of(index), (tmp_path / "x.txnindex").stat().st_size) == ([], 0)


def test_a_torn_transaction_entry_is_ignored_and_overwritten(tmp_path: Path) -> None:
    transaction_index(tmp_path, 2)
    path = tmp_path / "x.txnindex"
    path.write_bytes(path.read_bytes()[:-1])
    index = TransactionIndex(Disk(), str(path), 5)
    assert entries_of(index) == ABORTED[:1]
    index.append(ABORTED[2])
    assert entries_of(TransactionIndex(Disk(), str(path), 5)) == [ABORTED[0], ABORTED[2]]
    with pytest.raises(StorageError, match="Cannot parse the index"):
        TransactionIndex(Disk(), str(path), 21)
    path.write_bytes(b"\0\1" + bytes(32))
    with pytest.raises(StorageError, match="Cannot parse the index"):
        TransactionIndex(Disk(), str(path), 0)

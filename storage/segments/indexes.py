"""The indexes of one segment: offset to position, timestamp to offset, and the aborted transactions.

FORMAT   all big-endian, entries ascending, no header:
         `.index`      8 bytes   0 u32 last offset of a batch, relative to the segment's base offset
                                 4 u32 position of that batch's first byte
         `.timeindex` 12 bytes   0 i64 greatest timestamp of the segment so far
                                 8 u32 last offset of the batch with it, likewise relative
         `.txnindex`  34 bytes   0 i16 version 0, 2 i64 producer id, 10 i64 first offset, 18 i64 last offset (the
                                 marker's), 26 i64 last stable offset when the marker was written
RULES    1. An entry points to a whole batch.
         2. An index may lack entries but has no wrong one; after a crash it is rebuilt.
         3. The last 8192 bytes (the warm section, as in Kafka) are in memory and searched first: most readers are
            near the end, and a binary search of the whole file would load cold pages. Only a target before the warm
            section is searched in the mapped file.
         4. `append` changes memory only; `take_write` returns the write of all new entries with one pwrite as work for a
            thread, at the latest when the segment is rolled or closed. Unwritten entries stay in memory.
         5. The file is open only for lookups before the warm section that must not wait. Such a lookup requires that section in
            the page cache, and maps it. A thread reads all of it, and is then followed by lookups that find it there. A
            thread uses no mapping: the file may be truncated meanwhile, and access beyond its end raises SIGBUS. A truncation
            drops the mapping before.
         6. A lookup of an offset before the warm section keeps the entries that follow in memory: a sequential reader asks for
            the page cache and searches the file once for `WINDOW_ENTRIES` entries. Up to `WINDOWS` readers at different
            places have such a window each.
NOT HERE When an entry is added, and the rebuild of an index (active_segment.py).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from struct import Struct, unpack
from typing import ClassVar, NamedTuple, Self

from protocol.records import NO_TIMESTAMP
from storage.engine import AbortedTransaction
from storage.io.deferred_file_ops import FileOp, Submit, run_now
from storage.io.disk import Disk, File, Mapping, StorageError
from storage.io.disk_lookup import NotResident, Read, read_waiting

WARM_BYTES = 8192
WINDOW_ENTRIES = 64
WINDOWS = 16
READER_ENTRIES = 512
"""A reader's window replaces those up to this many entries before it: this reader has gone on from there."""
_SURPLUS_ENTRIES = 256  # surplus entries in memory before the warm section shrinks
_PENDING_ENTRIES = 64  # unwritten entries before a write is due
_SUMMARY_ENTRIES = 8  # enough for a reader near the end; a summary is in memory until the log is used

_last_offset = attrgetter("last_offset")
_slot = attrgetter("slot")


class CorruptIndex(Exception):
    """The index file is invalid and must be rebuilt."""


class CorruptTransactionIndex(StorageError):
    """The transaction index is invalid. Rebuilding it needs the batches from earlier segments on."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__("parse the index", path, OSError(0, reason))


class _Window(NamedTuple):
    """Entries before the warm section that were read lately (rule 6)."""

    slot: int
    """Of the first entry; -1 is the segment's start, which no file contains."""
    keys: array[int]
    values: array[int]


class _Windows(NamedTuple):
    """It never changes, since threads use it; a new window makes a new object."""

    first_keys: tuple[int, ...]
    windows: tuple[_Window, ...]


_NO_WINDOWS = _Windows((), ())


class SparseIndex:
    """Entries of an ascending key and value; the last ones in memory, the others in a mapped file."""

    __slots__ = (
        "_collected", "_disk", "_is_comparing", "_keys", "_mapping", "_values", "_warm_start", "_windows", "_written",
        "base_offset", "entries", "file", "path",
    )  # fmt: skip

    ENTRY: ClassVar[Struct]
    COLUMNS: ClassVar[tuple[Struct, Struct]]
    """Structs of the key alone and the value alone."""
    OFFSET_COLUMN: ClassVar[int]
    """Whether the key (0) or the value (1) is an offset."""
    KEY_TYPE: ClassVar[str]

    def __init__(
        self, disk: Disk, path: str, base_offset: int, *, is_new: bool = False, summary: Sequence[int] = ()
    ) -> None:
        """Open the file; with `is_new` start empty: the existing file is compared with the new entries and corrected.

        `summary`: of the file when it was closed, and it is unchanged since; the file is not opened.
        """
        self._disk = disk
        self._mapping: Mapping | None = None
        self._windows = _NO_WINDOWS
        self.file: File | None = None
        """Open or not (rule 5)."""
        self._is_comparing = is_new
        self.path = path
        self.base_offset = base_offset
        if summary:
            self.entries = self._written = self._collected = summary[0]
            self._keys, self._values = array(self.KEY_TYPE, summary[1::2]), array("I", summary[2::2])
            self._warm_start = self.entries - len(self._keys)
            return
        if is_new:
            self.entries = self._written = self._collected = self._warm_start = 0
            self._keys, self._values = array(self.KEY_TYPE), array("I")
            return
        file = disk.open(path, write=True, create=True)
        size = file.size()
        if size % self.ENTRY.size:
            raise CorruptIndex(f"{path} has {size} bytes, which is not a multiple of {self.ENTRY.size}")
        self.entries = self._written = self._collected = size // self.ENTRY.size
        self._load_warm_section(file)
        keys, values = self._keys, self._values
        # A preallocated file that was never truncated ends with zeros.
        if len(keys) > 1 and (keys[-1] <= keys[-2] or values[-1] < values[-2]):
            raise CorruptIndex(f"{path} does not ascend at its end")

    def summary(self) -> list[int]:
        """The number of entries, and key and value of the last ones; all are written."""
        last = zip(self._keys[-_SUMMARY_ENTRIES:], self._values[-_SUMMARY_ENTRIES:], strict=True)
        return [self.entries, *[number for entry in last for number in entry]]

    @property
    def size(self) -> int:
        """The size of all entries in bytes."""
        return self.entries * self.ENTRY.size

    @property
    def is_behind(self) -> bool:
        """Whether enough entries are unwritten that a write is due."""
        return self.entries - self._collected >= _PENDING_ENTRIES

    @property
    def is_written(self) -> bool:
        """Whether the file has all entries."""
        return self._written == self.entries

    def take_write(self) -> FileOp | None:
        """The write of the new entries, as self-contained work; None if there are none."""
        begin, end = self._collected, self.entries
        data = self._pack_new_entries()
        if not data:
            return None

        def op() -> None:
            try:
                file = self._disk.open(self.path, write=True, create=True)
                try:
                    self._write_entries(file, data, begin * self.ENTRY.size)
                finally:
                    file.close()
            except StorageError:
                self._collected = begin
                raise
            self._written = end
            self._collected = max(self._collected, end)  # after a retry on a full disk

        return op

    def _pack_new_entries(self) -> bytes:
        """The new entries in file format."""
        self._shrink_warm_section()
        start = self._collected - self._warm_start
        self._collected = self.entries
        pack = self.ENTRY.pack
        return b"".join([pack(key, value) for key, value in zip(self._keys[start:], self._values[start:], strict=True)])

    def _shrink_warm_section(self) -> None:
        surplus = min(len(self._keys) - WARM_BYTES // self.ENTRY.size, self._written - self._warm_start)
        if surplus >= _SURPLUS_ENTRIES:
            del self._keys[:surplus], self._values[:surplus]
            self._warm_start += surplus

    def end_comparison(self) -> None:
        """Write the remaining entries of a rebuilt index and truncate what follows them."""
        begin, data = self._collected, self._pack_new_entries()
        file = self._disk.open(self.path, write=True, create=True)
        try:
            if data:
                self._write_entries(file, data, begin * self.ENTRY.size)
            if file.size() > self.entries * self.ENTRY.size:
                file.truncate(self.entries * self.ENTRY.size)
        finally:
            file.close()
        self._is_comparing = False
        self._written = self.entries

    @property
    def is_searchable(self) -> bool:
        """Whether a lookup needs no other file than the open one."""
        return not self._warm_start or self.file is not None

    def open_file(self) -> None:
        """Open the file if a lookup may need it."""
        if not self.is_searchable:
            self.file = self._disk.open(self.path, write=False)

    def close_file(self) -> None:
        """Close the file and forget what was read of it."""
        self.file = self._mapping = None
        self._windows = _NO_WINDOWS

    def copy(self) -> Self:
        """The current entries, for another thread; shares the open file, but no entries and no mapping."""
        copied = type(self)(self._disk, self.path, self.base_offset, is_new=True)
        copied._take(self)  # noqa: SLF001  # of the same class
        return copied

    def _take(self, source: Self) -> None:
        self.file = source.file
        self.entries, self._written, self._collected = source.entries, source._written, source._collected
        self._is_comparing, self._warm_start = source._is_comparing, source._warm_start
        self._keys, self._values = source._keys[:], source._values[:]

    def entry(self, slot: int, cold: Mapping | bytes = b"") -> tuple[int, int]:
        """Key and value of entry `slot`, as stored; `cold`: the entries before the warm section, if they were needed before."""
        warm = slot - self._warm_start
        if warm >= 0:
            return self._keys[warm], self._values[warm]
        return self._cold_entry(slot, cold or self._cold_entries(read_waiting))

    def _add(self, key: int, value: int) -> None:
        self._keys.append(key)
        self._values.append(value)
        self.entries += 1

    def _write_entries(self, file: File, data: bytes, position: int) -> None:
        # After a crash most indexes are correct; reading costs a tenth of writing.
        if self._is_comparing:
            found = file.pread(len(data), position)
            if found == data:
                return
            # The rest is overwritten, not truncated: ext4 flushes a file at its close if it was truncated to 0.
            self._is_comparing = False
            if data.startswith(found):  # the file ends there
                data, position = data[len(found) :], position + len(found)
        file.pwrite(data, position)

    def _floor(self, column: int, target: int, read: Read = read_waiting) -> tuple[int, Mapping | bytes]:
        """Slot of the last entry whose key (column 0) or value (1) is at most `target`, or -1; `cold` as in `entry`."""
        slot = bisect_right(self._values if column else self._keys, target) - 1
        if slot >= 0 or not self._warm_start:
            return slot + self._warm_start, b""
        cold = self._cold_entries(read)
        return self._cold_floor(target, column, cold), cold

    def _cold_floor(self, target: int, column: int, cold: Mapping | bytes) -> int:
        unpack_from, size = self.COLUMNS[column].unpack_from, self.ENTRY.size
        low, high = 0, len(cold) // size
        while low < high:
            middle = (low + high) // 2
            if unpack_from(cold, middle * size)[0] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _cold_entry(self, slot: int, cold: Mapping | bytes) -> tuple[int, int]:
        key, value = self.ENTRY.unpack_from(cold, slot * self.ENTRY.size)
        return key, value

    def _cold_entries(self, read: Read) -> Mapping | bytes:
        """The entries before the warm section (rule 5)."""
        file, length = self.file, self._warm_start * self.ENTRY.size
        if read is read_waiting:
            return (file or self._disk.open(self.path, write=False)).pread(length, 0)
        if file is None or not file.is_resident(0, length):
            raise NotResident
        mapping = self._mapping
        if mapping is None or len(mapping) < length:
            self._mapping = mapping = file.map(length)
        return mapping

    def truncate(self, offset: int) -> None:
        """Remove the entries with an offset at or above `offset`."""
        last = offset - self.base_offset - 1
        slot, _ = self._floor(self.OFFSET_COLUMN, last) if last >= 0 else (-1, b"")
        entries = slot + 1
        if entries >= self.entries:
            return
        self.entries = entries
        if entries > self._written:
            self._collected = min(self._collected, entries)
            warm = entries - self._warm_start
            del self._keys[warm:], self._values[warm:]
            return
        self.close_file()
        self._written = self._collected = entries
        file = self._disk.open(self.path, write=True, create=True)
        file.truncate(entries * self.ENTRY.size)
        self._load_warm_section(file)

    def _columns(self, data: bytes) -> tuple[array[int], array[int]]:
        layout = self.ENTRY.format.removeprefix(">") * (len(data) // self.ENTRY.size)
        flat = unpack(">" + layout, data)
        return array(self.KEY_TYPE, flat[0::2]), array("I", flat[1::2])

    def _load_warm_section(self, file: File) -> None:
        size = self.ENTRY.size
        count = min(self.entries, WARM_BYTES // size)
        self._warm_start = self.entries - count
        self._keys, self._values = self._columns(file.pread(count * size, self._warm_start * size))


class OffsetIndex(SparseIndex):
    """Maps an offset to the position of a batch at or before it."""

    __slots__ = ()

    ENTRY = Struct(">II")
    COLUMNS = (Struct(">I"), Struct(">4xI"))
    OFFSET_COLUMN = 0
    KEY_TYPE = "I"

    def _columns(self, data: bytes) -> tuple[array[int], array[int]]:
        words = array("I", data)  # eight times faster than unpack, for thousands of partitions
        if sys.byteorder == "little":
            words.byteswap()
        return words[0::2], words[1::2]

    def append(self, last_offset: int, position: int) -> None:
        """Add the batch with this last offset and position."""
        self._add(last_offset - self.base_offset, position)

    def lookup(self, offset: int, read: Read = read_waiting) -> tuple[int, int]:
        """The last entry at or below `offset` as (offset, position); the segment's start if there is none."""
        target = offset - self.base_offset
        first_keys, windows = self._windows
        place = bisect_right(first_keys, target)
        if place:
            _, keys, values = windows[place - 1]
            if target < keys[-1]:
                at = bisect_right(keys, target) - 1
                return self.base_offset + keys[at], values[at]
        slot, cold = self._floor(0, target, read) if target >= 0 else (-1, b"")
        if cold:
            _, keys, values = self._keep_window(slot, cold)
            return self.base_offset + keys[0], values[0]
        if slot < 0:
            return self.base_offset, 0
        return self.base_offset + self._keys[slot - self._warm_start], self._values[slot - self._warm_start]

    def _keep_window(self, slot: int, cold: Mapping | bytes) -> _Window:
        """The entries from `slot` on, kept for the next lookups (rule 6)."""
        size = self.ENTRY.size
        entries = cold[max(slot, 0) * size : (slot + WINDOW_ENTRIES) * size]
        window = _Window(slot, *self._columns(entries if slot >= 0 else bytes(size) + entries))
        others = [other for other in self._windows.windows if not 0 <= slot - other.slot <= READER_ENTRIES]
        windows = sorted([window, *others], key=_slot) if len(others) < WINDOWS else [window]
        self._windows = _Windows(tuple([keys[0] for _, keys, _ in windows]), tuple(windows))
        return window

    def offset_at_or_after(self, position: int, read: Read = read_waiting) -> int | None:
        """The offset of the first entry at or after a position, or None."""
        slot, cold = self._floor(1, position - 1, read)
        if slot + 1 >= self.entries:
            return None
        key, _ = self.entry(slot + 1, cold)
        return self.base_offset + key

    @property
    def last(self) -> tuple[int, int]:
        """The last entry as (offset, position); the segment's start if there is none."""
        if not self.entries:
            return self.base_offset, 0
        return self.base_offset + self._keys[-1], self._values[-1]


class TimeIndex(SparseIndex):
    """Maps a timestamp to an offset below which all timestamps are at most that."""

    __slots__ = ()

    ENTRY = Struct(">qI")
    COLUMNS = (Struct(">q"), Struct(">8xI"))
    OFFSET_COLUMN = 1
    KEY_TYPE = "q"

    @classmethod
    def read_last(cls, disk: Disk, path: str, base_offset: int) -> tuple[int, int] | None:
        """The last entry of a complete index file, as `last`; None if the whole index has to be opened."""
        file, entry = disk.open(path, write=False), cls.ENTRY.size
        size = file.size()
        if size < entry or size % entry:
            return None
        entries = list(cls.ENTRY.iter_unpack(file.pread(min(2 * entry, size), max(0, size - 2 * entry))))
        (before, relative_before), (timestamp, relative) = entries[0], entries[-1]
        ascends = len(entries) == 1 or (before < timestamp and relative_before <= relative)
        return (timestamp, base_offset + relative) if ascends else None

    def append(self, timestamp: int, offset: int) -> None:
        """Add the greatest timestamp so far, unless it is the last entry's or there is none."""
        if timestamp > (self._keys[-1] if self.entries else NO_TIMESTAMP):
            self._add(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry at or before `timestamp` as (timestamp, offset); (-1, base offset) if there is none."""
        slot, cold = self._floor(0, timestamp)
        if slot < 0:
            return NO_TIMESTAMP, self.base_offset
        key, value = self.entry(slot, cold)
        return key, self.base_offset + value

    @property
    def last(self) -> tuple[int, int]:
        """The last entry as (timestamp, offset); (-1, base offset) if there is none."""
        if not self.entries:
            return NO_TIMESTAMP, self.base_offset
        return self._keys[-1], self.base_offset + self._values[-1]


class TransactionIndex:
    """The aborted transactions with a marker in one segment; without any there is no file."""

    __slots__ = ("_disk", "_list", "_written", "base_offset", "path")

    ENTRY: ClassVar[Struct] = Struct(">hqqqq")

    def __init__(self, disk: Disk, path: str, base_offset: int, *, is_new: bool = False) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self._list: list[AbortedTransaction] = [] if is_new or not disk.exists(path) else self._read()
        self._written = len(self._list)

    @property
    def is_written(self) -> bool:
        """Whether the file has all entries."""
        return self._written == len(self._list)

    def append(self, transaction: AbortedTransaction, submit: Submit = run_now) -> None:
        """Add a transaction; marker offsets ascend."""
        assert not self._list or transaction.last_offset > self._list[-1].last_offset
        number = len(self._list)

        def op() -> None:
            file = self._disk.open(self.path, write=True, create=True)
            file.pwrite(self.ENTRY.pack(0, *transaction), number * self.ENTRY.size)
            self._written = number + 1

        submit(op)
        self._list.append(transaction)

    def overlapping(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions with records in the range, and whether later segments' indexes cannot have more."""
        found = []
        known = self._list
        for slot in range(bisect_left(known, start_offset, key=_last_offset), len(known)):
            transaction = known[slot]
            if transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate(self, offset: int) -> None:
        """Remove the transactions with a marker at or above `offset`."""
        keep = bisect_left(self._list, offset, key=_last_offset)
        if keep < len(self._list):
            self._disk.open(self.path, write=True).truncate(keep * self.ENTRY.size)
            self._list = self._list[:keep]  # a thread may still read the old one
            self._written = keep

    def _read(self) -> list[AbortedTransaction]:
        data = self._disk.read(self.path)
        whole = memoryview(data)[: len(data) - len(data) % self.ENTRY.size]
        transactions: list[AbortedTransaction] = []
        least = self.base_offset
        for version, *fields in self.ENTRY.iter_unpack(whole):
            transaction = AbortedTransaction(*fields)
            if version or transaction.last_offset < max(least, transaction.first_offset):
                raise CorruptTransactionIndex(self.path, f"it contains {transaction} of version {version}")
            least = transaction.last_offset + 1
            transactions.append(transaction)
        return transactions

"""Indexes of one segment: from an offset, or a time, to a place in its log; and its aborted transactions.

FORMAT   all big-endian, entries ascending, no header:
         `.index`      8 bytes   0 u32 last offset of a batch, counted from the segment's base offset
                                 4 u32 position of that batch's first byte
         `.timeindex` 12 bytes   0 i64 greatest timestamp of the segment so far
                                 8 u32 last offset of the batch that brought it, counted likewise
         `.txnindex`  34 bytes   0 i16 version 0, 2 i64 producer id, 10 i64 first offset, 18 i64 last offset (the
                                 marker's), 26 i64 last stable offset when the marker was written
RULES    1. An entry names a whole batch, never the inside of one.
         2. An index may be short but never wrong; after a crash it is rebuilt, not repaired.
         3. The last 8192 bytes (the warm section) are kept in memory and searched first: most readers stand near
            the end, and a search from the middle would pull cold pages in for them. Only a target before the warm
            section is looked up in the mapped file.
         4. `append` touches memory only; `write_out` brings the file up to date with one pwrite, now and then, and
            at the latest when the segment is rolled or closed. `collect` makes that closed work for a thread: what is
            not in the file yet stays in memory.
         5. No descriptor stays open but for the mapping, which is made by the first cold look-up and closed before the
            file is cut. A copy for a thread does not map: it reads the file, whatever becomes of it.
NOT HERE When an entry is worth adding, and where the log is scanned to build an index anew (segment.py).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from copy import copy
from struct import Struct, unpack
from typing import ClassVar, Self

from storage.engine import AbortedTransaction
from storage.io.deferred_file_ops import Change, Later, at_once
from storage.io.disk import Disk, File, Mapping, StorageError

WARM_BYTES = 8192
_SLACK_ENTRIES = 256  # the warm section may grow by so many before its head is dropped
_PENDING_ENTRIES = 64  # so many may wait to be written
NO_TIMESTAMP = -1


class CorruptIndex(Exception):
    """The file cannot be an index; it has to be built anew."""


class CorruptTransactionIndex(StorageError):
    """The file cannot be an index of transactions. Only what lies before its segment can tell what it should hold."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__("understand the index", path, OSError(0, reason))


class SparseIndex:
    """Entries of a key and a value, both ascending; the end in memory, the rest in a mapped file."""

    __slots__ = (
        "_collected",
        "_disk",
        "_file",
        "_is_compared",
        "_is_copy",
        "_keys",
        "_mapped",
        "_mapping",
        "_values",
        "_warm_start",
        "_written",
        "base_offset",
        "entries",
        "path",
    )

    ENTRY: ClassVar[Struct]
    COLUMNS: ClassVar[tuple[Struct, Struct]]
    """The key alone, and the value alone, of the entry at a position."""
    KEY_TYPE: ClassVar[str]

    def __init__(self, disk: Disk, path: str, base_offset: int, *, anew: bool = False) -> None:
        """Open, or with `anew` begin without an entry, the file being compared and put right by what is written."""
        self._disk = disk
        self._file: File | None = None  # while a mapping is wanted: tells what of it is in the page cache
        self._mapping: Mapping | bytes | None = None
        self._mapped = 0
        self._is_copy = False
        self._is_compared = anew
        self.path = path
        self.base_offset = base_offset
        if anew:
            self.entries = self._written = self._collected = self._warm_start = 0
            self._keys, self._values = array(self.KEY_TYPE), array("I")
            return
        file = disk.open(path, write=True, create=True)
        size = file.size()
        if size % self.ENTRY.size:
            raise CorruptIndex(f"{path} has {size} bytes, which is no multiple of {self.ENTRY.size}")
        self.entries = self._written = self._collected = size // self.ENTRY.size
        self._load_warm_section(file)
        keys, values = self._keys, self._values
        # A file that was preallocated and never cut back ends in zeros.
        if len(keys) > 1 and (keys[-1] <= keys[-2] or values[-1] < values[-2]):
            raise CorruptIndex(f"{path} does not ascend at its end")

    def is_full(self, max_bytes: int) -> bool:
        """Whether a file of at most `max_bytes` has no place for a further entry."""
        return self.entries >= max_bytes // self.ENTRY.size

    @property
    def is_behind(self) -> bool:
        """Whether so many entries wait in memory that they should be written."""
        return self.entries - self._collected >= _PENDING_ENTRIES

    @property
    def is_written(self) -> bool:
        """Whether the file has all entries."""
        return self._written == self.entries

    def write_out(self) -> None:
        """Bring the file up to date with what is in memory."""
        change = self.collect()
        if change is not None:
            change()
            self._drop_surplus()

    def collect(self) -> Change | None:
        """The same as closed work; None when nothing is new since the last time."""
        begin, end = self._collected, self.entries
        data = self._take()
        if not data:
            return None

        def change() -> None:
            try:
                file = self._disk.open(self.path, write=True, create=True)
                try:
                    self._put(file, data, begin * self.ENTRY.size)
                finally:
                    file.close()
            except StorageError:
                self._collected = begin
                raise
            self._written = end
            self._collected = max(self._collected, end)  # it may have failed before, for want of room

        return change

    def _take(self) -> bytes:
        """The entries that are new since the last time, as they stand in the file."""
        self._drop_surplus()
        start = self._collected - self._warm_start
        self._collected = self.entries
        pack = self.ENTRY.pack
        return b"".join([pack(key, value) for key, value in zip(self._keys[start:], self._values[start:], strict=True)])

    def _drop_surplus(self) -> None:
        surplus = min(len(self._keys) - WARM_BYTES // self.ENTRY.size, self._written - self._warm_start)
        if surplus >= _SLACK_ENTRIES:
            del self._keys[:surplus], self._values[:surplus]
            self._warm_start += surplus

    def end_comparison(self) -> None:
        """Bring the file of an index that was built anew up to date; what has not been confirmed is cut off."""
        begin, data = self._collected, self._take()
        file = self._disk.open(self.path, write=True, create=True)
        try:
            if data:
                self._put(file, data, begin * self.ENTRY.size)
            if self._is_compared and file.size() > self.entries * self.ENTRY.size:
                file.truncate(self.entries * self.ENTRY.size)
        finally:
            file.close()
        self._is_compared = False
        self._written = self.entries

    def unmap(self) -> None:
        """Let the mapping go; a further look-up of a cold entry maps again."""
        mapping, self._mapping, self._mapped, self._file = self._mapping, None, 0, None
        if isinstance(mapping, Mapping):
            mapping.close()

    def copy(self) -> Self:
        """The same entries for another thread (rule 5)."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Become what another thread may look things up in."""
        self._is_copy = True
        self._mapping, self._mapped = None, 0
        self._keys, self._values = self._keys[:], self._values[:]

    def attach(self) -> None:
        """Become the index itself, after the thread is done."""
        self._is_copy = False
        self._mapping, self._mapped = None, 0

    @property
    def file(self) -> File | None:
        """The file, while a mapping is wanted."""
        return self._file

    def learn(self, other: SparseIndex) -> None:
        """Use the file that a copy has opened."""
        if self._file is None:
            self._file = other.file

    def is_at_hand(self, key: int) -> bool:
        """Whether the entry at or before a key can be found without waiting for the disk."""
        start = self._warm_start
        if not start or self._keys[0] <= key:
            return True
        return self._file is not None and self._file.is_resident(0, start * self.ENTRY.size)

    def reset(self) -> None:
        """Forget everything."""
        self._keep(0)

    def entry(self, slot: int) -> tuple[int, int]:
        """Key and value number `slot`, as stored."""
        warm = slot - self._warm_start
        if warm >= 0:
            return self._keys[warm], self._values[warm]
        return self._cold_entry(slot)

    def _add(self, key: int, value: int) -> None:
        self._keys.append(key)
        self._values.append(value)
        self.entries += 1

    def _put(self, file: File, data: bytes, position: int) -> None:
        # After a crash most indexes are right: reading costs a tenth of writing, and of making files anew.
        if self._is_compared:
            found = file.pread(len(data), position)
            if found == data:
                return
            self._is_compared = False
            if data.startswith(
                found
            ):  # the file ends there; a file that is cut is written out when it is closed (ext4)
                data, position = data[len(found) :], position + len(found)
            else:
                file.truncate(position)
        file.pwrite(data, position)

    def _floor_by_key(self, key: int) -> int:
        """Slot of the last entry whose key is at most `key`; -1 when there is none."""
        slot = bisect_right(self._keys, key) - 1
        if slot >= 0 or not self._warm_start:
            return slot + self._warm_start
        return self._cold_floor(key, 0)

    def _floor_by_value(self, value: int) -> int:
        slot = bisect_right(self._values, value) - 1
        if slot >= 0 or not self._warm_start:
            return slot + self._warm_start
        return self._cold_floor(value, 1)

    def _cold_floor(self, target: int, column: int) -> int:
        mapping = self._mapping
        if mapping is None or self._warm_start > self._mapped:
            mapping = self._map()
        unpack_from, size = self.COLUMNS[column].unpack_from, self.ENTRY.size
        low, high = 0, self._warm_start
        while low < high:
            middle = (low + high) // 2
            if unpack_from(mapping, middle * size)[0] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _cold_entry(self, slot: int) -> tuple[int, int]:
        mapping = self._mapping
        if mapping is None or slot >= self._mapped:
            mapping = self._map()
        key, value = self.ENTRY.unpack_from(mapping, slot * self.ENTRY.size)
        return key, value

    def _map(self) -> Mapping | bytes:
        file = self._file or self._disk.open(self.path, write=False)
        self.unmap()
        self._file = file
        length = self._written * self.ENTRY.size
        self._mapping = mapping = file.pread(length, 0) if self._is_copy else file.map(length)
        self._mapped = len(mapping) // self.ENTRY.size
        return mapping

    def _keep(self, entries: int) -> None:
        """Cut everything behind the first `entries`."""
        if entries >= self.entries:
            return
        self.entries = entries
        if entries > self._written:
            self._collected = min(self._collected, entries)
            warm = entries - self._warm_start
            del self._keys[warm:], self._values[warm:]
            return
        self.unmap()
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
    """From an offset to the position of a batch at or before it."""

    __slots__ = ()

    ENTRY = Struct(">II")
    COLUMNS = (Struct(">I"), Struct(">4xI"))
    KEY_TYPE = "I"

    def _columns(self, data: bytes) -> tuple[array[int], array[int]]:
        words = array("I", data)  # thousands of partitions may be opened at once: eight times faster
        if sys.byteorder == "little":
            words.byteswap()
        return words[0::2], words[1::2]

    def append(self, last_offset: int, position: int) -> None:
        """Add the batch that ends with `last_offset` and starts at `position`."""
        self._add(last_offset - self.base_offset, position)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry at or before `offset` as (offset, position); the segment's start when there is none."""
        slot = self._floor_by_key(offset - self.base_offset) if offset >= self.base_offset else -1
        if slot < 0:
            return self.base_offset, 0
        key, position = self.entry(slot)
        return self.base_offset + key, position

    def offset_at_or_after(self, position: int) -> int | None:
        """The offset in the first entry whose batch starts at or after `position`, if there is one."""
        slot = self._floor_by_value(position - 1) + 1
        return self.base_offset + self.entry(slot)[0] if slot < self.entries else None

    @property
    def last(self) -> tuple[int, int]:
        """The last entry as (offset, position); the segment's start when there is none."""
        if not self.entries:
            return self.base_offset, 0
        return self.base_offset + self._keys[-1], self._values[-1]

    def truncate(self, offset: int) -> None:
        """Drop the entries at or behind `offset`."""
        self._keep(self._floor_by_key(offset - self.base_offset - 1) + 1 if offset > self.base_offset else 0)


class TimeIndex(SparseIndex):
    """From a time to an offset before which no record is as late."""

    __slots__ = ()

    ENTRY = Struct(">qI")
    COLUMNS = (Struct(">q"), Struct(">8xI"))
    KEY_TYPE = "q"

    @classmethod
    def read_last(cls, disk: Disk, path: str, base_offset: int) -> tuple[int, int] | None:
        """The last entry of an index that is complete, as `last` tells it; None where all of it has to be looked at."""
        file, entry = disk.open(path, write=False), cls.ENTRY.size
        size = file.size()
        if size < entry or size % entry:
            return None
        entries = list(cls.ENTRY.iter_unpack(file.pread(min(2 * entry, size), max(0, size - 2 * entry))))
        (before, relative_before), (timestamp, relative) = entries[0], entries[-1]
        ascends = len(entries) == 1 or (before < timestamp and relative_before <= relative)
        return (timestamp, base_offset + relative) if ascends else None

    def append(self, timestamp: int, offset: int) -> None:
        """Add the greatest timestamp so far, unless it stands there already or there is none yet."""
        if timestamp > (self._keys[-1] if self.entries else NO_TIMESTAMP):
            self._add(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry at or before `timestamp` as (timestamp, offset); (-1, base offset) when there is none."""
        slot = self._floor_by_key(timestamp)
        if slot < 0:
            return NO_TIMESTAMP, self.base_offset
        key, value = self.entry(slot)
        return key, self.base_offset + value

    @property
    def last(self) -> tuple[int, int]:
        """The last entry as (timestamp, offset); (-1, base offset) when there is none."""
        if not self.entries:
            return NO_TIMESTAMP, self.base_offset
        return self._keys[-1], self.base_offset + self._values[-1]

    def truncate(self, offset: int) -> None:
        """Drop the entries whose offset is at or behind `offset`."""
        self._keep(self._floor_by_value(offset - self.base_offset - 1) + 1 if offset > self.base_offset else 0)


class TransactionIndex:
    """The transactions whose abort marker lies in one segment; there is no file while there is none."""

    __slots__ = ("_disk", "_list", "_written", "base_offset", "path")

    ENTRY: ClassVar[Struct] = Struct(">hqqqq")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self._list: list[AbortedTransaction] = self._read() if disk.exists(path) else []
        self._written = len(self._list)

    @property
    def is_written(self) -> bool:
        """Whether the file has all of them."""
        return self._written == len(self._list)

    def append(self, transaction: AbortedTransaction, later: Later = at_once) -> None:
        """Add one; markers arrive in the order of their offsets."""
        assert not self._list or transaction.last_offset > self._list[-1].last_offset
        number = len(self._list)

        def change() -> None:
            file = self._disk.open(self.path, write=True, create=True)
            file.pwrite(self.ENTRY.pack(0, *transaction), number * self.ENTRY.size)
            self._written = number + 1

        later(change)
        self._list.append(transaction)

    def all(self) -> list[AbortedTransaction]:
        """Every aborted transaction, in the order of the markers."""
        return self._list.copy()

    def overlapping(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Those with records in the range, and whether no later segment's index can have more of them."""
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
        """Drop those whose marker lies at or behind `offset`."""
        keep = bisect_left(self._list, offset, key=_last_offset)
        if keep < len(self._list):
            self._disk.open(self.path, write=True).truncate(keep * self.ENTRY.size)
            del self._list[keep:]
            self._written = keep

    def reset(self) -> None:
        """Forget all."""
        if self._disk.exists(self.path):
            self._disk.open(self.path, write=True).truncate(0)
        self._list.clear()
        self._written = 0

    def _read(self) -> list[AbortedTransaction]:
        data = self._disk.read(self.path)
        whole = memoryview(data)[: len(data) - len(data) % self.ENTRY.size]
        transactions: list[AbortedTransaction] = []
        least = self.base_offset
        for version, *fields in self.ENTRY.iter_unpack(whole):
            transaction = AbortedTransaction(*fields)
            if version or transaction.last_offset < max(least, transaction.first_offset):
                raise CorruptTransactionIndex(self.path, f"it holds {transaction} of version {version}")
            least = transaction.last_offset + 1
            transactions.append(transaction)
        return transactions


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset

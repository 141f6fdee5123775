"""Queue entries: where each batch of a slot is in a log file; and the queue file of a sealed log file.

FORMAT   entry, 24 bytes: position in the log file 4, size 4, last offset 8, greatest timestamp 8
         queue file: header, 56 bytes: magic `BCLQ`, version 4, slots 4, entries 4, start 8 and end 8 of the log file, start 8
         of the first file that it replaces (its own start, but for a run), bytes 8 of the batches in the log file that have
         no entry, length of the states 4, CRC-32C of all other bytes 4; then
             rows, 32 bytes for each slot number: end offset 8, greatest timestamp 8, first entry 4, entries 4, bytes 8
             entries, by slot
             states: JSON, of the slots with frames in the file (slots.py)
RULES    1. Rows and entries are arrays: the row of a slot and each of its entries are found by their numbers.
         2. The row of a slot without frames in the file repeats its end offset, so the file with an offset is found by
            bisection.
         3. A queue file never changes. It is made from the log file alone, and from the end offsets before it.
NOT HERE Which entries are still valid after truncations (slot_reader.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from protocol.crc32c import crc32c
from protocol.primitives import Buffer
from storage.io.disk import File
from storage.io.disk_lookup import Read

ENTRY: Final = Struct(">IIqq")
ROW: Final = Struct(">qqIIq")
HEADER: Final = Struct(">4sIIIqqqqII")
_LAST_OFFSET: Final = Struct(">q")
_LAST_OFFSET_POSITION: Final = 8
_MAGIC: Final = b"BCLQ"
_VERSION: Final = 2


class Entry(NamedTuple):
    """A batch of a slot."""

    position: int
    """In the log file."""
    size: int
    last_offset: int
    max_timestamp: int


class Row(NamedTuple):
    """The entries of a slot in one queue file."""

    end_offset: int
    max_timestamp: int
    first: int
    entry_count: int
    size: int
    """The sum of the batch sizes."""


_NO_ROW: Final = Row(0, -1, 0, 0, 0)


class QueueHeader(NamedTuple):
    """What a queue file contains."""

    slot_count: int
    entry_count: int
    start: int
    end: int
    first: int
    """The start of the first file that it replaces (run_file.py)."""
    removed: int
    """The size of batches in the log file that have no entry: they were truncated or deleted before it was sealed."""
    states_length: int
    crc: int
    """Of all other bytes of the queue file."""

    @property
    def file_size(self) -> int:
        """The size of the queue file."""
        return HEADER.size + ROW.size * self.slot_count + ENTRY.size * self.entry_count + self.states_length

    @property
    def packed(self) -> bytes:
        """The first bytes of the queue file; those of other contents differ."""
        return HEADER.pack(_MAGIC, _VERSION, *self)


class QueueRun:
    """The entries of one slot in a queue file."""

    __slots__ = ("_file", "_position", "_read", "count")

    def __init__(self, file: File, position: int, count: int, read: Read) -> None:
        self._file = file
        self._position = position
        self._read = read
        self.count = count

    def get(self, first: int, count: int) -> Buffer:
        """Some neighbouring entries, packed."""
        return self._read(self._file, ENTRY.size * count, self._position + ENTRY.size * first)

    def last_offset(self, number: int) -> int:
        """The last offset of an entry."""
        return last_offset_in(self.get(number, 1), 0)

    def part_from(self, offset: int, loaded: int) -> QueuePart:
        """The entries that reach to `offset`; up to `loaded` are read at once."""
        begin, end = 0, self.count
        while end - begin > loaded // 2:
            middle = (begin + end) // 2
            if self.last_offset(middle) >= offset:
                end = middle
            else:
                begin = middle + 1
        data = self.get(begin, min(loaded, self.count - begin))
        first = bisect_left(range(end - begin), offset, key=lambda number: last_offset_in(data, ENTRY.size * number))
        return QueuePart(self, begin + first, data[ENTRY.size * first :])


class QueuePart:
    """The entries of a slot in a queue file from the first that reaches to an offset on; the first of them are in memory."""

    __slots__ = ("_data", "count", "first", "run")

    def __init__(self, run: QueueRun, first: int, data: Buffer) -> None:
        """`first`: the number of its first entry in the run; `data`: the entries that are in memory."""
        self.run = run
        self.first = first
        self._data = data
        self.count = run.count - first

    def get(self, first: int, count: int) -> Buffer:
        """Some neighbouring entries, packed."""
        data = self._data[ENTRY.size * first : ENTRY.size * (first + count)]
        return data if len(data) == ENTRY.size * count else self.run.get(self.first + first, count)


def unpack_entries(data: Buffer) -> list[Entry]:
    """The entries in packed bytes."""
    return [Entry(*values) for values in ENTRY.iter_unpack(data)]


def last_offset_in(data: Buffer, position: int) -> int:
    """The last offset of the packed entry at a position."""
    found: int = _LAST_OFFSET.unpack_from(data, position + _LAST_OFFSET_POSITION)[0]
    return found


def build_queue(
    start: int, end: int, rows: list[Row], entries: Sequence[bytes], states: bytes, *, first: int | None = None,
    removed: int = 0,
) -> bytes:  # fmt: skip
    """The contents of a queue file."""
    body = b"".join([*[ROW.pack(*row) for row in rows], *entries, states])
    count = sum(map(len, entries)) // ENTRY.size
    head = (_MAGIC, _VERSION, len(rows), count, start, end, start if first is None else first, removed, len(states))
    crc = crc32c(body, crc32c(HEADER.pack(*head, 0)))
    return HEADER.pack(*head, crc) + body


def parse_queue(data: bytes, start: int) -> tuple[QueueHeader, bytes] | None:
    """Header and states; None if the bytes are not the queue of the log file with this start."""
    if len(data) < HEADER.size:
        return None
    *head, crc = HEADER.unpack_from(data)
    magic, version, *_ = head
    header = header_of(data)
    if (magic, version, header.start) != (_MAGIC, _VERSION, start):
        return None
    if crc32c(memoryview(data)[HEADER.size :], crc32c(HEADER.pack(*head, 0))) != crc:
        return None
    states = data[len(data) - header.states_length :]
    return header, states


def header_of(packed: bytes) -> QueueHeader:
    """The header in the first bytes of a valid queue file."""
    _, _, *fields = HEADER.unpack_from(packed)
    return QueueHeader(*fields)


def read_row(file: File, number: int, slot_count: int, read: Read) -> Row:
    """The row of a slot; of one that is newer than the queue file, or whose first frame there was damaged, an empty one."""
    if number >= slot_count:
        return _NO_ROW
    return Row(*ROW.unpack(read(file, ROW.size, HEADER.size + ROW.size * number)))


def last_batch_end(file: File, header: QueueHeader) -> int:
    """The position after the batch of the last entry in the log file; 0 without entries. In a run no batch is after it."""
    if not header.entry_count:
        return 0
    at = HEADER.size + ROW.size * header.slot_count + ENTRY.size * (header.entry_count - 1)
    position, size, _, _ = ENTRY.unpack(file.pread(ENTRY.size, at))
    return int(position + size)


def read_rows(file: File, slot_count: int, read: Read) -> list[Row]:
    """The rows of all slots, by number."""
    return [Row(*values) for values in ROW.iter_unpack(read(file, ROW.size * slot_count, HEADER.size))]


def queue_run(file: File, slot_count: int, row: Row, read: Read) -> QueueRun:
    """The entries of a row."""
    position = HEADER.size + ROW.size * slot_count + ENTRY.size * row.first
    return QueueRun(file, position, row.entry_count, read)

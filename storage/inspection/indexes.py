"""Reads the entries of `.index`, `.timeindex` and `.txnindex` files.

FORMAT   segments/indexes.py
RULES    1. Read-only, one block at a time; an incomplete entry at the end is ignored.
NOT HERE Whether an entry is correct: that requires the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from storage.engine import AbortedTransaction
from storage.io.disk import File
from storage.segments.directory_recovery import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX
from storage.segments.indexes import OffsetIndex, TimeIndex, TransactionIndex

_ENTRIES_AT_ONCE = 8192

ENTRY_SIZES = {
    OFFSET_INDEX: OffsetIndex.ENTRY.size,
    TIME_INDEX: TimeIndex.ENTRY.size,
    TRANSACTION_INDEX: TransactionIndex.ENTRY.size,
}


def offset_entries(file: File, base_offset: int) -> Iterator[tuple[int, int]]:
    """(last offset of a batch, its position)."""
    for relative, position in _entries(file, OffsetIndex.ENTRY):
        yield base_offset + relative, position


def time_entries(file: File, base_offset: int) -> Iterator[tuple[int, int]]:
    """(timestamp, offset)."""
    for timestamp, relative in _entries(file, TimeIndex.ENTRY):
        yield timestamp, base_offset + relative


def transaction_entries(file: File) -> Iterator[tuple[int, AbortedTransaction]]:
    """(version, aborted transaction)."""
    for version, *fields in _entries(file, TransactionIndex.ENTRY):
        yield version, AbortedTransaction(*fields)


def _entries(file: File, entry: Struct) -> Iterator[tuple[int, ...]]:
    position, end = 0, file.size()
    while position < end:
        data = file.pread(min(_ENTRIES_AT_ONCE * entry.size, end - position), position)
        whole = len(data) - len(data) % entry.size
        if not whole:
            return
        yield from entry.iter_unpack(memoryview(data)[:whole])
        position += whole


__all__ = [
    "ENTRY_SIZES", "LOG", "OFFSET_INDEX", "TIME_INDEX", "TRANSACTION_INDEX", "offset_entries", "time_entries",
    "transaction_entries",
]  # fmt: skip

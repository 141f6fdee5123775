"""Reads the batches of a `.log` or `.checkpoint` file in any state.

RULES    1. Read-only; reads the file up to its initial size, because a broker may be appending to it.
         2. Memory is limited to one read, or one larger batch.
         3. A batch with a wrong CRC is returned as invalid. After an implausible length the rest of the file is the tail, with
            the reason.
NOT HERE Indexes (indexes.py); repair (the engine's `recover`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from protocol.errors import KafkaError
from protocol.records import BATCH_OVERHEAD, BatchHeader, Record, crc_is_valid, parse_header, records
from storage.io.disk import File
from storage.segments.segment_files import LARGEST_BATCH_BYTES

READ_BYTES: Final = 1 << 20


class StoredBatch(NamedTuple):
    """A batch with all its bytes."""

    position: int
    """In the file."""
    header: BatchHeader
    is_valid: bool
    """Whether the CRC matches."""
    buffer: bytes
    at: int
    """Position of the batch in `buffer`."""

    def records(self) -> list[Record]:
        """The records of the batch; raises KafkaError if they are invalid."""
        return records(self.buffer, self.at, self.header, max_bytes=LARGEST_BATCH_BYTES)


class Tail(NamedTuple):
    """Bytes at the end of a file that are not a whole batch."""

    position: int
    length: int
    reason: str | None
    """Why they are not a batch; None for a batch that is truncated or still being written."""


def read_stored_batches(file: File, *, end: int | None = None) -> Iterator[StoredBatch | Tail]:
    """Every batch, then the tail, if any."""
    size = file.size() if end is None else min(end, file.size())
    position = 0
    while position < size:
        data = file.pread(min(READ_BYTES, size - position), position)
        at = 0
        while True:
            found = _batch_at(data, at, position, size)
            if not isinstance(found, StoredBatch):
                break
            yield found
            at += found.header.size
        if isinstance(found, Tail):
            yield found._replace(length=size - found.position)
            return
        position += at
        if not at:
            large = _batch_at(file.pread(found, position), 0, position, size)
            if not isinstance(large, StoredBatch):  # the file was truncated
                yield Tail(position, size - position, None)
                return
            yield large
            position += large.header.size


def header_at(file: File, position: int) -> BatchHeader | None:
    """The header of the batch at a position; None if there is none."""
    try:
        return parse_header(file.pread(BATCH_OVERHEAD, position))
    except KafkaError:
        return None


def _batch_at(data: bytes, at: int, position: int, size: int) -> StoredBatch | Tail | int:
    """The batch, or the tail, or the number of bytes to read from `at` on."""
    there, left = len(data) - at, size - position - at
    if there < min(BATCH_OVERHEAD, left):
        return BATCH_OVERHEAD
    if not left:
        return 0
    if left < BATCH_OVERHEAD:
        return Tail(position + at, left, None)
    try:
        header = parse_header(data, at)
    except KafkaError as error:
        return Tail(position + at, left, error.message or error.code.name)
    if header.size > LARGEST_BATCH_BYTES:
        return Tail(position + at, left, f"a batch of {header.size} bytes is larger than any request")
    if header.size > left:
        return Tail(position + at, left, None)
    if header.size > there:
        return header.size
    return StoredBatch(position + at, header, crc_is_valid(data, at, header), data, at)

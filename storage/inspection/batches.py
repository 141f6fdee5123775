"""The batches of a `.log` or `.checkpoint` file, one by one, whatever state the file is in.

RULES    1. Only reads, and takes the file as long as it was at the beginning: a broker may be appending to it.
         2. Memory stays below one read, or one batch where that is larger.
         3. A batch whose bytes do not match its CRC is passed over and said to be broken. Where not even its length can be
            believed, everything from there on is the tail, with the reason.
NOT HERE Indexes (indexes.py); mending (the engine's `recover`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from protocol.errors import KafkaError
from protocol.records import BATCH_OVERHEAD, BatchHeader, Record, crc_is_valid, parse_header, records
from storage.io.disk import File

READ_BYTES: Final = 1 << 20
LARGEST_BATCH_BYTES: Final = 1 << 27
"""Above what any request may carry: a length beyond it is garbage."""


class FoundBatch(NamedTuple):
    """One batch whose bytes are all there."""

    position: int
    """In the file."""
    header: BatchHeader
    is_valid: bool
    """Whether the CRC fits."""
    buffer: bytes
    at: int
    """Where in `buffer` the batch begins."""

    def records(self) -> list[Record]:
        """The records inside.

        Raises:
            KafkaError: they cannot be read.
        """
        return records(self.buffer, self.at, self.header, max_bytes=LARGEST_BATCH_BYTES)


class Tail(NamedTuple):
    """Bytes at the end of a file that are no whole batch."""

    position: int
    length: int
    reason: str | None
    """Why they never can be one; None where a batch may just be cut off, or still being written."""


def walk(file: File, *, start: int = 0, end: int | None = None) -> Iterator[FoundBatch | Tail]:
    """Every batch from the position `start` on, and a tail where there is one."""
    size = file.size() if end is None else min(end, file.size())
    position = start
    while position < size:
        data = file.pread(min(READ_BYTES, size - position), position)
        at = 0
        while True:
            found = _batch_at(data, at, position, size)
            if not isinstance(found, FoundBatch):
                break
            yield found
            at += found.header.size
        if isinstance(found, Tail):
            yield found._replace(length=size - found.position)
            return
        position += at
        if not at:
            large = _batch_at(file.pread(found, position), 0, position, size)
            if not isinstance(large, FoundBatch):  # the file has become shorter
                yield Tail(position, size - position, None)
                return
            yield large
            position += large.header.size


def header_at(file: File, position: int) -> BatchHeader | None:
    """The header of the batch that begins at a position; None where none can."""
    try:
        return parse_header(file.pread(BATCH_OVERHEAD, position))
    except KafkaError:
        return None


def _batch_at(data: bytes, at: int, position: int, size: int) -> FoundBatch | Tail | int:
    """The batch, or a tail, or how many bytes from there on have to be read first."""
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
    return FoundBatch(position + at, header, crc_is_valid(data, at, header), data, at)

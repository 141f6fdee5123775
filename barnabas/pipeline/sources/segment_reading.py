"""Reads one segment file: its batch headers, or its records as Arrow batches.

RULES    1. The file is opened first and stays open: a deletion meanwhile has no effect.
         2. The broker may have renamed the file (`.deleted`), or compaction may have merged it into the previous segment.
            The file is missing only if neither exists.
         3. A position from an index is used after the CRC of the batch there is verified.
         4. A segment before the newest ends with a complete batch. The newest may be torn: invalid or missing bytes above the
            recovery point are the end of the log, as for a broker that starts on it.
         5. A topic of the same name that was created since the plan has another topic id: the planned file is missing then.
         6. If the broker has given the end offset, a shorter file is missing records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from barnabas.client.batch_header import MAGIC, OVERHEAD, BatchHeader, header_at
from barnabas.pipeline.sources.batches import Tail, corrupt_batches, last_offsets, read_headers, scan_batches
from barnabas.pipeline.sources.damage import DamagedBatch, DamagedLog, MissingFile, MissingRecords, WrongChecksum
from barnabas.pipeline.sources.decoding import Decoder, ReadRequest
from barnabas.pipeline.sources.segment_files import DELETED, bases_of, path_of, position_before, topic_id_in

CHUNK_BYTES = 16 << 20
HEADER_READ = 4096

log = logging.getLogger(__name__)


class SegmentRead(NamedTuple):
    """One segment that a task reads; the offsets are in its ReadRequest."""

    directory: str
    topic_id: str
    """In hexadecimal digits; empty if it is unknown."""
    base: int
    is_newest: bool
    recovery_point: int
    end_is_from_broker: bool
    fail_on_data_loss: bool


def scan_headers(file: BinaryIO, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each complete batch from a position on; reads little of the records between."""
    size = os.fstat(file.fileno()).st_size
    while position + OVERHEAD <= size:
        window = os.pread(file.fileno(), HEADER_READ, position)
        at = 0
        while at + OVERHEAD <= len(window):
            header = header_at(window, at)
            if header.magic != MAGIC or header.size < OVERHEAD or position + at + header.size > size:
                return
            yield position + at, header
            at += header.size
        if at == 0:
            return
        position += at


def read_segment(segment: SegmentRead, request: ReadRequest) -> Iterator[Any]:
    """Yields the records as Arrow batches. Raises DamagedLog, MissingRecords or MissingFile."""
    opened = _open(segment, request.start_offset)
    if opened is None:
        raise MissingFile(path_of(segment.directory, segment.base, ".log"))
    file, base = opened
    with file:
        if topic_id_in(segment.directory) not in (segment.topic_id, ""):
            raise MissingFile(file.name)
        start = request.start_offset
        position = position_before(segment.directory, base, start) if start > base else 0
        yield from _Reading(file, segment, request).run(verified_position(file, position, base, start))


def _open(segment: SegmentRead, start_offset: int) -> tuple[BinaryIO, int] | None:
    """The file that holds the records, and its base offset (rule 2)."""
    path = path_of(segment.directory, segment.base, ".log")
    for name in (path, path.with_name(path.name + DELETED)):
        try:
            return name.open("rb"), segment.base
        except FileNotFoundError:
            continue
    try:
        earlier = [base for base in bases_of(segment.directory) if base <= start_offset]
        return (path_of(segment.directory, earlier[-1], ".log").open("rb"), earlier[-1]) if earlier else None
    except FileNotFoundError:
        return None


def verified_position(file: BinaryIO, position: int, base: int, offset: int) -> int:
    """Returns the index position, or 0 if no valid batch at or below the offset starts there (rule 3)."""
    found = next(scan_headers(file, position), None) if position else None
    if found is None:
        return 0
    _, header = found
    if not base <= header.base_offset <= offset:
        return 0
    data = os.pread(file.fileno(), header.size, position)
    positions = np.zeros(1, np.int64)
    return 0 if len(corrupt_batches(data, positions, read_headers(data, positions))) else position


class _Reading:
    """Reads one file."""

    def __init__(self, file: BinaryIO, segment: SegmentRead, request: ReadRequest) -> None:
        self._file = file
        self._part = segment
        self._decoder = Decoder(request)
        self._next_offset, self._end_offset = request.start_offset, request.end_offset

    def run(self, position: int) -> Iterator[Any]:
        """Yields the requested records from a position on."""
        buffer = bytearray(CHUNK_BYTES)
        while True:
            size = os.preadv(self._file.fileno(), [buffer], position)
            found = scan_batches(buffer, 0, size)
            try:
                yield from self._decoded(buffer, found.positions)
            except WrongChecksum as damage:
                self._refuse_durable(position, str(damage), damage.offset)
                self._end(position, str(damage))
                return
            except DamagedBatch as damage:
                raise self._damaged(position, str(damage)) from damage
            position += found.end
            if self._next_offset >= self._end_offset:
                return
            if found.tail is Tail.NO_BATCH:
                self._refuse_durable(position, "there is no batch of format 2", self._next_offset)
                self._end(position, found.tail.value)
                return
            if size < len(buffer) or position + found.needed > os.fstat(self._file.fileno()).st_size:
                self._end(position, found.tail.value)
                return
            if found.needed > len(buffer):
                buffer = bytearray(found.needed)

    def _decoded(self, buffer: bytearray, positions: Any) -> Iterator[Any]:
        if not len(positions):
            return
        yield from self._decoder.batches(buffer, positions)
        last = read_headers(buffer, positions[-1:])
        self._next_offset = max(self._next_offset, int(last_offsets(last)[0]) + 1)

    def _refuse_durable(self, position: int, damage: str, offset: int) -> None:
        """Raises for damage below the recovery point."""
        if not self._part.is_newest or offset < self._part.recovery_point:
            raise self._damaged(position, damage)

    def _end(self, position: int, tail: str) -> None:
        """Handles the end of the file before the last requested offset (rules 4 and 6)."""
        segment = self._part
        if not segment.is_newest:
            if tail != Tail.NOTHING.value:
                raise self._damaged(position, tail)
            return  # compaction removed the records before the next segment
        message = f"{self._file.name} ends at position {position} with {tail}, before offset {self._end_offset}"
        if segment.end_is_from_broker and segment.fail_on_data_loss:
            raise MissingRecords(f"{message}, which the broker has; failOnDataLoss=false skips the rest.")
        log.warning("%s.", message)

    def _damaged(self, position: int, damage: str) -> DamagedLog:
        return DamagedLog(f"{self._file.name} is damaged behind position {position}: {damage}.")

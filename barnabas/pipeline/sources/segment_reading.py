"""One segment's file: its headers alone, or its records as batches of Arrow.

RULES    1. The file is opened before anything else and stays open: who deletes it meanwhile takes nothing away.
         2. A broker may have renamed it before that (retention waits a while with `.deleted` in the name), or compaction may
            have put its records into the segment before. Only when neither is there are the records missing.
         3. What an index says is believed after the batch at that place has shown its CRC.
         4. A segment with others behind it ends with a whole batch. The newest may be torn: what lies behind the recovery point
            and is no batch, or is not there at all, is where the log ends, as it is for a broker that starts on it.
         5. Where the broker itself has said how far the log goes, a shorter file is missing records, not a torn one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from barnabas.pipeline.batch_header import MAGIC, OVERHEAD, BatchHeader, header_at
from barnabas.pipeline.sources.batches import Tail, damaged, headers, last_offsets, walk
from barnabas.pipeline.sources.damage import DamagedBatch, DamagedLog, MissingRecords, WrongChecksum
from barnabas.pipeline.sources.decoding import Decoder, Wanted
from barnabas.pipeline.sources.segment_files import DELETED, bases_of, path_of, position_before

CHUNK_BYTES = 16 << 20
HEADER_READ = 4096

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """What one task reads: some offsets of one segment."""

    directory: str
    base: int
    start_offset: int
    end_offset: int
    is_newest: bool
    recovery_point: int
    end_is_certain: bool
    fail_on_data_loss: bool


def heads(file: BinaryIO, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """All whole batches from a position on: where each begins and its header, with little read of what lies between them."""
    size = os.fstat(file.fileno()).st_size
    while position + OVERHEAD <= size:
        window = os.pread(file.fileno(), HEADER_READ, position)
        at = 0
        while at + OVERHEAD <= len(window):
            head = header_at(window, at)
            if head.magic != MAGIC or head.size < OVERHEAD or position + at + head.size > size:
                return
            yield position + at, head
            at += head.size
        if at == 0:
            return
        position += at


def read_part(part: Part, wanted: Wanted) -> Iterator[Any]:
    """The records of a part, as batches of Arrow."""
    with ExitStack() as held:
        opened = _open(part)
        if opened is None:
            told = (
                f"{path_of(part.directory, part.base, '.log')} is gone, and with it offsets from {part.start_offset} on"
            )
            if part.fail_on_data_loss:
                raise MissingRecords(f"{told}; failOnDataLoss=false goes on without them.")
            log.warning("%s.", told)
            return
        file, base = opened
        held.enter_context(file)
        position = position_before(part.directory, base, part.start_offset) if part.start_offset > base else 0
        yield from _Reading(file, part, wanted).run(believed(file, position, base, part.start_offset))


def _open(part: Part) -> tuple[BinaryIO, int] | None:
    """The file that holds the part's records, and where it begins (rule 2)."""
    path = path_of(part.directory, part.base, ".log")
    for name in (path, path.with_name(path.name + DELETED)):
        try:
            return name.open("rb"), part.base
        except FileNotFoundError:
            continue
    try:
        earlier = [base for base in bases_of(part.directory) if base <= part.start_offset]
        return (path_of(part.directory, earlier[-1], ".log").open("rb"), earlier[-1]) if earlier else None
    except FileNotFoundError:
        return None


def believed(file: BinaryIO, position: int, base: int, offset: int) -> int:
    """A position that an index names for an offset, or 0 where no batch at or before that offset begins there (rule 3)."""
    found = next(heads(file, position), None) if position else None
    if found is None or not base <= found[1].base_offset <= offset:
        return 0
    data = os.pread(file.fileno(), found[1].size, position)
    places = np.zeros(1, np.int64)
    return 0 if len(damaged(data, places, headers(data, places))) else position


class _Reading:
    """The way through one file."""

    def __init__(self, file: BinaryIO, part: Part, wanted: Wanted) -> None:
        self._file = file
        self._part = part
        self._decoder = Decoder(wanted._replace(start_offset=part.start_offset, end_offset=part.end_offset))
        self._next_offset = part.start_offset

    def run(self, position: int) -> Iterator[Any]:
        """All that is wanted, from a position on."""
        buffer = bytearray(CHUNK_BYTES)
        while True:
            size = os.preadv(self._file.fileno(), [buffer], position)
            found = walk(buffer, 0, size)
            try:
                yield from self._decoded(buffer, found.places)
            except WrongChecksum as damage:
                self._refuse_durable(position, str(damage), damage.offset)
                self._end(position, str(damage))
                return
            except DamagedBatch as damage:
                raise self._damaged(position, str(damage)) from damage
            position += found.end
            if self._next_offset >= self._part.end_offset:
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

    def _decoded(self, buffer: bytearray, places: Any) -> Iterator[Any]:
        if not len(places):
            return
        yield from self._decoder.batches(buffer, places)
        last = headers(buffer, places[-1:])
        self._next_offset = max(self._next_offset, int(last_offsets(last)[0]) + 1)

    def _refuse_durable(self, position: int, damage: str, offset: int) -> None:
        """Damage where the broker knows that the disk had what it wrote."""
        if not self._part.is_newest or offset < self._part.recovery_point:
            raise self._damaged(position, damage)

    def _end(self, position: int, tail: str) -> None:
        """The file ends before the last wanted offset was seen (rules 4 and 5)."""
        part = self._part
        if not part.is_newest:
            if tail != Tail.NOTHING.value:
                raise self._damaged(position, tail)
            return  # what is missing before the next segment was compacted away
        told = f"{self._file.name} ends at position {position} with {tail}, before offset {part.end_offset}"
        if part.end_is_certain and part.fail_on_data_loss:
            raise MissingRecords(f"{told}, which the broker has; failOnDataLoss=false goes on without the rest.")
        log.warning("%s.", told)

    def _damaged(self, position: int, damage: str) -> DamagedLog:
        return DamagedLog(f"{self._file.name} is damaged behind position {position}: {damage}.")

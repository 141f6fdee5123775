"""Copies a log to its future replica, batch by batch: for a move of a running broker, and for an offline conversion.

RULES    1. The copy begins with the batch that contains the log start offset, or at that offset if compaction has removed that
            batch: a log start offset that rose would put the positions of consumers out of range.
         2. The segments of the copy begin where its settings say; with `keeps_segments` also where those of the log do: a chunk
            ends at the next segment, and the copy rolls there.
         3. Leader epochs without records, and producers whose batches were deleted, are handed over at the end; a recovery
            of the copy knows those producers only if it began with them (`begin_with_producers`).
NOT HERE The steps of a move (replication/partition/log_dir_moves.py) and of a conversion (conversion.py), the future replica on
         disk and the swap (future_replica.py).
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from operator import attrgetter
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import headers, parse_header
from storage.engine import EngineView, SegmentInfo
from storage.io.disk_lookup import DiskLookup
from storage.log.append_pipeline import PreparedAppend
from storage.log.log import Log
from storage.log.producer_state import ProducerState
from storage.log.recovery import restore_producers

CHUNK_BYTES: Final = 256 * 1024

_base_offset = attrgetter("base_offset")


def find_start(log: Log) -> int | DiskLookup:
    """The offset with which the copy of a log begins (rule 1)."""
    opened = log.opened or log.open_lookup()
    if isinstance(opened, DiskLookup):
        return opened
    return opened.engine.lookup("start of a copy", partial(_find_start, log.log_start_offset))


def begin_with_producers(log: Log, copy: Log) -> None:
    """Give an empty copy of an open log the producers at its start, also in a snapshot for a later recovery; blocks.

    Those whose batches are deleted are known only from the log's snapshot there; their transactions may be open.
    """
    source, target = log.open(), copy.open()
    start_offset, producers = target.engine.end_offset, ProducerState(log.name)
    restore_producers(source.engine, producers, source.snapshots, start_offset, is_clean=False)
    if producers.producers:
        target.snapshots.write(start_offset, producers.snapshot())
        target.producers.resume(producers.summary())


def chunk_bytes(copy: Log) -> int:
    """The greatest size of a chunk, unless it is one batch."""
    return min(CHUNK_BYTES, copy.config.segment_bytes)


def prepare_chunk(log: Log, copy: Log, wall_ms: int, *, keeps_segments: bool = False) -> PreparedAppend | DiskLookup:
    """The next batches of an open log, prepared as an append to its copy; the copy has no pending append.

    `keeps_segments`: see rule 2.

    Raises:
        KafkaError: the batches are damaged, or do not continue the copy.
    """
    source, target = log.open(), copy.open()
    # The first batch may start below the log start offset.
    start_offset = max(target.engine.end_offset, log.log_start_offset)
    records = source.reader.read_records(start_offset, chunk_bytes(copy))
    if isinstance(records, DiskLookup):
        return records
    if keeps_segments:
        segments = source.engine.segments()
        segment = segments[max(bisect_right(segments, parse_header(records).base_offset, key=_base_offset) - 1, 0)]
        _roll_at(copy, segment, wall_ms)
        if segment is not segments[-1]:
            records = _below(records, segment.end_offset)
    prepared = target.prepare_as_follower(records, wall_ms=wall_ms)
    if prepared is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
    return prepared


def complete_copy(log: Log, copy: Log, wall_ms: int, *, keeps_segments: bool = False) -> None:
    """Complete the state of a copy that has all records (rules 2 and 3), and trim it to the log start offset."""
    copy.high_watermark = log.high_watermark
    if copy.opened is None or log.opened is None:
        return
    if log.log_start_offset > copy.log_start_offset:
        copy.opened.trim(log.log_start_offset, wall_ms)
    if keeps_segments:
        _roll_at(copy, log.opened.engine.segments()[-1], wall_ms)
    copy.opened.take_over(log.opened)


def _roll_at(copy: Log, segment: SegmentInfo, wall_ms: int) -> None:
    """Start a segment of the copy if it has all records before this segment of the log, and none from it on."""
    engine = copy.open().engine
    if engine.segments()[-1].base_offset < segment.base_offset and engine.end_offset <= segment.base_offset:
        copy.open().roll(wall_ms)


def _below(records: Buffer, end_offset: int) -> Buffer:
    """The whole batches below an offset, at least one."""
    end = 0
    for position, header in headers(records):
        if header.base_offset >= end_offset:
            break
        end = position + header.size
    return memoryview(records)[:end]


def _find_start(log_start_offset: int, view: EngineView) -> int:
    """Rule 1, on the batches of the log; runs on a thread."""
    first = view.read_batches(log_start_offset, 1) if log_start_offset < view.end_offset else None
    return min(log_start_offset, parse_header(first).base_offset) if first else view.end_offset

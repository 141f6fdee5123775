"""Reads from an open log, their isolation levels and results.

RULES    1. The last stable offset is at most the high watermark, and no record of an open transaction is below it.
         2. A method that returns a DiskLookup does not wait for the disk (disk_lookup.py).
NOT HERE The layout on disk (engine.py), which offsets a client may see (partition.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.file_region import Region
from protocol.primitives import Buffer
from storage.engine import AbortedTransaction, Engine
from storage.io.disk_lookup import DiskLookup
from storage.log.log_offsets import LogOffsets
from storage.log.producer_state import ProducerState
from storage.log.timestamp_lookup import first_record, latest_record, timestamp_at

_new_tuple = tuple.__new__


class Isolation(IntEnum):
    """The upper bound of a read: log end offset, high watermark or last stable offset."""

    LOG_END = 0
    HIGH_WATERMARK = 1
    LAST_STABLE = 2


class ReadInfo(NamedTuple):
    """The result of a read."""

    regions: tuple[Region, ...]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: list[AbortedTransaction] | None
    """The aborted transactions in the returned range for a read up to the last stable offset; else None."""

    def limit(self, isolation: Isolation) -> int:
        """The first offset that a reader cannot see."""
        if isolation is Isolation.HIGH_WATERMARK:
            return self.high_watermark
        return self.log_end_offset if isolation is Isolation.LOG_END else self.last_stable_offset


LOG_END, HIGH_WATERMARK, LAST_STABLE = Isolation


class LogReader:
    """The reads of one open log."""

    __slots__ = ("_engine", "_name", "_offsets", "_producers")

    def __init__(self, name: str, engine: Engine, producers: ProducerState, offsets: LogOffsets) -> None:
        self._name = name
        self._engine = engine
        self._producers = producers
        self._offsets = offsets

    @property
    def last_stable_offset(self) -> int:
        """All transactions below this offset are decided."""
        high_watermark = self._offsets.high_watermark
        unstable = self._producers.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self._offsets.log_start_offset)

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_batch: bool = True
    ) -> ReadInfo | DiskLookup:
        """The location of the batches from `offset` on, up to the bound of the isolation level; empty at or above the bound.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE below the log start or above the log end.
        """
        engine, offsets = self._engine, self._offsets
        start_offset, end_offset, high_watermark = offsets.log_start_offset, engine.end_offset, offsets.high_watermark
        if not start_offset <= offset <= end_offset:
            raise self._out_of_range(offset, start_offset, end_offset)
        stable = self.last_stable_offset
        bound = end_offset if isolation == LOG_END else high_watermark if isolation == HIGH_WATERMARK else stable
        aborted: list[AbortedTransaction] | None = [] if isolation == LAST_STABLE else None
        regions: tuple[Region, ...] = ()
        size = 0
        if offset < bound and (max_bytes > 0 or min_one_batch):
            located = engine.locate(offset, max_bytes, bound, min_one_batch=min_one_batch)
            if isinstance(located, DiskLookup):
                return located
            regions, size, found_end = located
            if aborted is not None and size:
                found = engine.aborted(offset, found_end)
                if isinstance(found, DiskLookup):
                    return found
                aborted = found
        return _new_tuple(ReadInfo, (regions, size, high_watermark, stable, start_offset, end_offset, aborted))

    def read_records(self, offset: int, max_bytes: int) -> Buffer | DiskLookup:
        """Whole batches in memory, at least one, starting with the batch that contains `offset`; empty at the log end.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE.
        """
        start_offset, end_offset = self._offsets.log_start_offset, self._engine.end_offset
        if not start_offset <= offset <= end_offset:
            raise self._out_of_range(offset, start_offset, end_offset)
        return self._engine.lookup(("records", offset), lambda view: view.read_batches(offset, max_bytes))

    def offset_for_timestamp(self, target_ms: int) -> tuple[int, int, int] | DiskLookup | None:
        """(timestamp, offset, leader epoch) of the first record at or after `target_ms`; None if there is none."""
        start = self._offsets.log_start_offset
        return self._engine.lookup(("time", target_ms), lambda view: first_record(view, target_ms, start))

    def offset_of_max_timestamp(self) -> tuple[int, int, int] | DiskLookup | None:
        """(timestamp, offset, leader epoch) of the first record with the greatest timestamp; None for an empty log."""
        return self._engine.lookup("latest", latest_record)

    def timestamp_at(self, offset: int) -> int | DiskLookup:
        """The timestamp of the first record from `offset` on, which is within the log."""
        return self._engine.lookup(("timestamp", offset), lambda view: timestamp_at(view, offset))

    def _out_of_range(self, offset: int, start_offset: int, end_offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Received request for offset {offset} for partition {self._name}, but we only have log segments from "
            f"offset {start_offset} up to {end_offset}.",
        )

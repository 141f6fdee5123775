"""How much of a log wants to be compacted, whether that is enough, and the job that does it.

RULES    1. Dirty is what came after the last compaction; where none has been, all. A first dirty offset outside of the log
            (the log was cut, or its start moved) begins anew at the log's start.
         2. Nothing is compacted in or behind the active segment, the segment of the last stable offset, the first that is not
            durable, decisions of transactions included, or the first dirty one whose greatest timestamp lies less than
            `min.compaction.lag.ms` back. (A loss of power must not take a record after its predecessor was cleaned away.)
         3. A log is due when more than `min.cleanable.dirty.ratio` of what may be compacted is dirty, or when a dirty
            segment begins more than `max.compaction.lag.ms` ago.
         4. Whoever may not wait for the disk measures in a copy of the engine (Log.look); what needs no file is asked
            first (`may_be_due`).
NOT HERE Choosing between logs (replication/partition/compactor.py), doing it (cleaner.py).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.records import parse_header
from storage.compaction.cleaner_job import Job, LastRecord, Resources
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine, SegmentInfo
from storage.log.log import Log
from storage.log.producer_state import NO_OFFSET, ProducerState


class Bounds(NamedTuple):
    """What of a log is looked at."""

    config: LogConfig
    first_dirty_offset: int
    stable_offset: int
    """From here on something may be undecided, or not durable."""
    wall_ms: int


class Dirt(NamedTuple):
    """What one log has to be cleaned of."""

    first_dirty_offset: int
    end_offset: int
    """Of the last segment that may be cleaned."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """Share of what may be cleaned that is dirty."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Rule 3."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio)


def bounds_of(log: Log, wall_ms: int) -> Bounds:
    """What is to be looked at now in an open log."""
    start_offset = log.log_start_offset
    first_dirty_offset = log.first_dirty_offset
    if not start_offset <= first_dirty_offset <= log.log_end_offset:
        first_dirty_offset = start_offset
    return Bounds(log.config, first_dirty_offset, min(log.last_stable_offset, log.settled_end), wall_ms)


def wants_sync(log: Log) -> bool:
    """Whether a sync would let more of an open log be cleaned."""
    return log.settled_end < min(log.last_stable_offset, log.open().segments()[-1].base_offset)


def may_be_due(engine: Engine, bounds: Bounds) -> bool:
    """Whether it is worth measuring: what timestamps have to say is taken for the worst. Opens no file."""
    closed = _below(engine, bounds.stable_offset)
    dirt = _dirt(closed, bounds, is_overdue=bounds.config.max_compaction_lag_ms < MAX_LONG)
    return dirt.is_due(bounds.config) or (dirt.dirty_bytes > 0 and bounds.config.min_compaction_lag_ms > 0)


def is_spotless(engine: Engine, bounds: Bounds) -> bool:
    """Whether there is nothing that could become due as time passes, before anything is appended."""
    return not _dirt(engine.segments()[:-1], bounds, is_overdue=False).dirty_bytes


def measure(engine: Engine, bounds: Bounds) -> Dirt:
    """Everything about a log's dirt; may have to read index files and first batches."""
    config, wall_ms = bounds.config, bounds.wall_ms
    closed = _below(engine, bounds.stable_offset)
    dirty = [segment for segment in closed if segment.end_offset > bounds.first_dirty_offset]
    if config.min_compaction_lag_ms > 0:
        for segment in dirty:
            if engine.segment_max_timestamp(segment.base_offset) > wall_ms - config.min_compaction_lag_ms:
                closed = closed[: closed.index(segment)]
                break
    until_ms = wall_ms - config.max_compaction_lag_ms
    is_overdue = until_ms > 0 and any(0 < _first_timestamp(engine, segment) < until_ms for segment in dirty)
    return _dirt(closed, bounds, is_overdue=is_overdue)


def job_of(
    engine: Engine,
    log: Log,
    dirt: Dirt,
    last_records: dict[int, LastRecord],
    wall_ms: int,
    resources: Resources,
) -> Job:
    """What it takes to clean that away."""
    segments = tuple(segment for segment in engine.segments()[:-1] if segment.end_offset <= dirt.end_offset)
    config = log.config
    return Job(
        log.path,
        log.name,
        segments,
        dirt.first_dirty_offset,
        dirt.end_offset,
        tuple(engine.aborted(engine.start_offset, dirt.end_offset)),
        last_records,
        wall_ms,
        config.delete_retention_ms,
        config.segment_bytes,
        config.segment_index_bytes,
        config.index_interval_bytes,
        resources,
    )


def last_records(producers: ProducerState) -> dict[int, LastRecord]:
    """Where the producers that are still known have ended."""
    return {
        producer_id: LastRecord(producer.batches[-1][2] if producer.batches else NO_OFFSET, producer.epoch)
        for producer_id, producer in producers.producers.items()
    }


def _below(engine: Engine, stable_offset: int) -> list[SegmentInfo]:
    """The closed segments in which everything is decided."""
    return [segment for segment in engine.segments()[:-1] if segment.end_offset <= stable_offset]


def _dirt(closed: list[SegmentInfo], bounds: Bounds, *, is_overdue: bool) -> Dirt:
    first_dirty_offset = bounds.first_dirty_offset
    dirty_bytes = sum(segment.size for segment in closed if segment.end_offset > first_dirty_offset)
    clean_bytes = sum(segment.size for segment in closed) - dirty_bytes
    end_offset = closed[-1].end_offset if closed else first_dirty_offset
    return Dirt(first_dirty_offset, end_offset, clean_bytes, dirty_bytes, is_overdue)


def _first_timestamp(engine: Engine, segment: SegmentInfo) -> int:
    data = engine.read_batches(segment.base_offset, 1)
    return parse_header(data).max_timestamp if data else -1

"""The cleanable part of a log, whether it is due, and the cleaner job (Kafka: LogCleanerManager, LogToClean).

RULES    1. Dirty is everything after the last compaction. A first dirty offset outside the log (after a truncation or a
            new log start) is replaced by the log start.
         2. Not cleanable are the active segment, the segment of the last stable offset, the first one with records or
            transaction markers that are not durable, the first dirty one with a timestamp younger than
            `min.compaction.lag.ms`, and all after these. (A loss of power must not remove a record whose predecessor was
            compacted away.)
         3. A log is due if more than `min.cleanable.dirty.ratio` of its cleanable bytes is dirty, or a dirty
            segment starts more than `max.compaction.lag.ms` ago.
         4. On a thread that must not block, measuring runs on a view of the engine (Engine.lookup); `may_be_due` is called
            first and needs no file.
NOT HERE Choosing a log (replication/partition/compactor.py), the compaction (cleaner.py).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.records import parse_header
from storage.compaction.cleaner_job import CleanerJob, CleanerResources, LastRecord
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine, EngineView, PublishedBatches, SegmentInfo
from storage.log.log import Log
from storage.log.open_log import OpenLog
from storage.log.producer_state import NO_OFFSET, ProducerState


class CleaningBounds(NamedTuple):
    """The limits of a measurement."""

    config: LogConfig
    first_dirty_offset: int
    stable_offset: int
    """From here on records may be undecided or not durable."""
    wall_ms: int


class LogToClean(NamedTuple):
    """The cleanable part of a log."""

    first_dirty_offset: int
    end_offset: int
    """Of the last cleanable segment."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty share of the cleanable bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether compaction is due (rule 3)."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio)


def bounds_of(log: Log, wall_ms: int) -> CleaningBounds:
    """The current bounds of an open log."""
    start_offset = log.log_start_offset
    first_dirty_offset, opened = log.offsets.first_dirty_offset, log.open()
    if not start_offset <= first_dirty_offset <= log.log_end_offset:
        first_dirty_offset = start_offset
    stable_offset = min(opened.reader.last_stable_offset, opened.flush.decided_end_offset)
    return CleaningBounds(log.config, first_dirty_offset, stable_offset, wall_ms)


def needs_flush(opened: OpenLog) -> bool:
    """Whether a flush would make more of an open log cleanable."""
    active_base = opened.engine.segments()[-1].base_offset
    return opened.flush.decided_end_offset < min(opened.reader.last_stable_offset, active_base)


def may_be_due(engine: Engine, bounds: CleaningBounds) -> bool:
    """Whether measuring is worthwhile, with the worst case for timestamps. Opens no file."""
    closed = _below(engine, bounds.stable_offset)
    cleanable = _log_to_clean(closed, bounds, is_overdue=bounds.config.max_compaction_lag_ms < MAX_LONG)
    return cleanable.is_due(bounds.config) or (cleanable.dirty_bytes > 0 and bounds.config.min_compaction_lag_ms > 0)


def nothing_to_clean(engine: Engine, bounds: CleaningBounds) -> bool:
    """Whether nothing can become due before the next append."""
    return not _log_to_clean(engine.segments()[:-1], bounds, is_overdue=False).dirty_bytes


def measure(engine: EngineView, bounds: CleaningBounds) -> LogToClean:
    """Measure the cleanable part; may read index files and first batches."""
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
    return _log_to_clean(closed, bounds, is_overdue=is_overdue)


def make_job(
    engine: EngineView,
    log: Log,
    cleanable: LogToClean,
    last_records: dict[int, LastRecord],
    recovery_point: int,
    wall_ms: int,
    resources: CleanerResources,
) -> CleanerJob:
    """The job that cleans this part."""
    segments = tuple(segment for segment in engine.segments()[:-1] if segment.end_offset <= cleanable.end_offset)
    return CleanerJob(
        log.path,
        log.name,
        segments,
        cleanable.first_dirty_offset,
        cleanable.end_offset,
        tuple(engine.aborted(engine.start_offset, cleanable.end_offset)),
        last_records,
        recovery_point,
        wall_ms,
        log.config,
        resources,
    )


def last_records(producers: ProducerState) -> dict[int, LastRecord]:
    """The last record of each known producer."""
    return {
        producer_id: LastRecord(producer.batches[-1].last_offset if producer.batches else NO_OFFSET, producer.epoch)
        for producer_id, producer in producers.producers.items()
    }


def _below(engine: PublishedBatches, stable_offset: int) -> list[SegmentInfo]:
    """The closed segments below the stable offset."""
    return [segment for segment in engine.segments()[:-1] if segment.end_offset <= stable_offset]


def _log_to_clean(closed: list[SegmentInfo], bounds: CleaningBounds, *, is_overdue: bool) -> LogToClean:
    first_dirty_offset = bounds.first_dirty_offset
    dirty_bytes = sum(segment.size for segment in closed if segment.end_offset > first_dirty_offset)
    clean_bytes = sum(segment.size for segment in closed) - dirty_bytes
    end_offset = closed[-1].end_offset if closed else first_dirty_offset
    return LogToClean(first_dirty_offset, end_offset, clean_bytes, dirty_bytes, is_overdue)


def _first_timestamp(engine: EngineView, segment: SegmentInfo) -> int:
    data = engine.read_batches(segment.base_offset, 1)
    return parse_header(data).max_timestamp if data else -1

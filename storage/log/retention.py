"""Retention of one log: deletes the oldest segments.

RULES    1. Whole segments, oldest first; nothing at or above the high watermark.
         2. A segment expires when it ends at or below the log start offset, when its greatest timestamp is older than
            `retention.ms`, or when the remaining log still has `retention.bytes` or more.
         3. Without the policy `delete`, only segments below the log start offset expire.
         4. In a schedule topic no segment expires that ends above `keep_from`, where its leader's deliverer has not delivered
            all records. On other replicas only segments below the log start offset expire, which follows the leader's.
         5. A pass deletes at most MAX_SEGMENTS_PER_PASS segments, so that it does not block other work.
         6. The files are renamed, and deleted after `file.delete.delay.ms`.
         7. Nothing here waits for the disk: `retain` returns a DiskLookup (disk_lookup.py) before it changes anything.
NOT HERE Deletion of the files, and when to check (log_maintenance.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Log

MAX_SEGMENTS_PER_PASS: Final = 16


class Expired(NamedTuple):
    """The segments that retention deletes."""

    end_offset: int
    """The end of the last one; the engine's start offset without any."""
    due_ms: int
    """The time before which no other segment expires, if nothing is appended; 0 if that is not known."""


def is_retention_due(log: Log, wall_ms: int) -> bool:
    """Whether `retain` has work; a log that is not open stays closed while it is empty, or its oldest segment cannot expire."""
    if log.is_open:
        return True
    return "delete" in log.config.cleanup_policy and wall_ms > log.retention_due_ms and not log.is_unused


def retain(log: Log, wall_ms: int) -> bool | DiskLookup:
    """Delete the oldest segments by age, size and log start offset; True if a further pass may delete more.

    The active segment is rolled and deleted when all of it has expired, unless something is pending or the disk is full.
    Segments at or above the high watermark stay.
    """
    opened = log.opened or log.open_lookup()
    if isinstance(opened, DiskLookup):
        return opened
    engine, config, offsets, files = opened.engine, log.config, log.offsets, log.files
    may_roll = not (opened.appends.has_pending or files.has_pending_ops or files.disk_space.is_full)
    log.retention_due_ms = 0
    bases = [segment.base_offset for segment in engine.segments(MAX_SEGMENTS_PER_PASS + 1)]
    deletable_end = offsets.high_watermark
    if config.is_schedule:
        deletable_end = min(deletable_end, max(log.keep_from, offsets.log_start_offset))
    expired = find_expired(engine, config, offsets.log_start_offset, deletable_end, wall_ms)
    if isinstance(expired, DiskLookup):
        return expired
    end_offset, log.retention_due_ms = expired
    if not may_roll:
        end_offset, log.retention_due_ms = min(end_offset, engine.segments()[-1].base_offset), 0
    if end_offset > engine.start_offset:
        if end_offset == engine.end_offset and may_roll:  # else the last segment is empty; it waits for an append
            opened.roll(wall_ms)
        opened.trim(max(end_offset, offsets.log_start_offset), wall_ms)
    return bases[MAX_SEGMENTS_PER_PASS:] == [engine.start_offset]


def find_expired(
    engine: Engine, config: LogConfig, log_start_offset: int, deletable_end: int, wall_ms: int
) -> Expired | DiskLookup:
    """The expired segments (rule 5) up to `deletable_end`."""
    deletes = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if deletes else -1
    surplus = engine.size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else -1
    end_offset, published_end = engine.start_offset, engine.end_offset
    for base_offset, next_offset, size in engine.segments(MAX_SEGMENTS_PER_PASS):
        if base_offset >= published_end:  # it is empty, as are those of pending appends, which may have no files yet
            return Expired(end_offset, MAX_LONG)
        if next_offset > log_start_offset and surplus < size:
            if retention_ms < 0:
                return Expired(end_offset, MAX_LONG)
            timestamp = engine.timestamp_bound(base_offset, wall_ms - retention_ms)
            if isinstance(timestamp, DiskLookup):
                return timestamp
            if wall_ms - timestamp <= retention_ms:
                return Expired(end_offset, timestamp + retention_ms)
        surplus -= size
        if next_offset > deletable_end:
            break
        end_offset = next_offset
    return Expired(end_offset, MAX_LONG if end_offset == engine.end_offset else 0)

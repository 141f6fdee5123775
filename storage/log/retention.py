"""Retention of one log: deletes the oldest segments.

RULES    1. Whole segments, oldest first; nothing at or above the high watermark.
         2. A segment expires when it ends at or below the log start offset, when its greatest timestamp is older than
            `retention.ms`, or when the remaining log still has `retention.bytes` or more.
         3. Without the policy `delete`, only segments below the log start offset expire.
         4. In a schedule topic no segment expires that ends above `keep_from`, where its leader's deliverer has not delivered
            all records. On other replicas only segments below the log start offset expire, which follows the leader's.
         5. A pass deletes at most MAX_SEGMENTS_PER_PASS segments, so that it does not block other work.
         6. The files are renamed, and deleted after `file.delete.delay.ms`.
NOT HERE Deletion of the files, and when to check (log_manager.py).
"""

from __future__ import annotations

from typing import Final

from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine
from storage.log.log import Log

MAX_SEGMENTS_PER_PASS: Final = 16


def is_retention_due(log: Log, wall_ms: int) -> bool:
    """Whether `retain` has work; a log that is not open stays closed until its oldest segment can expire."""
    return log.is_open or ("delete" in log.config.cleanup_policy and wall_ms > log.retention_due_ms)


def retain(log: Log, wall_ms: int) -> bool:
    """Delete the oldest segments by age, size and log start offset; True if a further pass may delete more.

    The active segment is rolled and deleted when all of it has expired. Segments at or above the high watermark stay.
    Pending appends prevent deletion, except on a full disk, where they wait for it; no segment is rolled then.
    """
    opened, config, offsets, is_full = log.open(), log.config, log.offsets, log.files.disk_space.is_full
    engine = opened.engine
    log.retention_due_ms = 0
    if opened.appends.has_pending and not is_full:
        return False
    bases = [segment.base_offset for segment in engine.segments(MAX_SEGMENTS_PER_PASS + 1)]
    deletable_end = offsets.high_watermark
    if config.is_schedule:
        deletable_end = min(deletable_end, max(log.keep_from, offsets.log_start_offset))
    end_offset = expired_end_offset(engine, config, offsets.log_start_offset, deletable_end, wall_ms)
    if is_full:
        end_offset = min(end_offset, engine.segments()[-1].base_offset)
    if end_offset > engine.start_offset:
        if end_offset == engine.end_offset:
            opened.roll(wall_ms)
        opened.trim(max(end_offset, offsets.log_start_offset), wall_ms)
    log.retention_due_ms = next_expiry_ms(engine, config)
    return bases[MAX_SEGMENTS_PER_PASS:] == [engine.start_offset]


def expired_end_offset(
    engine: Engine, config: LogConfig, log_start_offset: int, deletable_end: int, wall_ms: int
) -> int:
    """The end offset of the last expired segment (rule 5) up to `deletable_end`; the engine's start offset if none has."""
    deletes = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if deletes else -1
    surplus = engine.size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else -1
    end_offset, view = engine.start_offset, engine.view()
    for base_offset, next_offset, size in engine.segments(MAX_SEGMENTS_PER_PASS):
        if next_offset > deletable_end or next_offset == base_offset:
            break
        if next_offset <= log_start_offset or surplus >= size:
            surplus -= size
        elif retention_ms < 0 or wall_ms - view.segment_max_timestamp(base_offset) <= retention_ms:
            break
        end_offset = next_offset
    return end_offset


def next_expiry_ms(engine: Engine, config: LogConfig) -> int:
    """The time before which no segment expires by age, if nothing is appended."""
    (oldest,) = engine.segments(1)
    if config.retention_ms < 0 or not oldest.size:
        return MAX_LONG
    return engine.view().segment_max_timestamp(oldest.base_offset) + config.retention_ms

"""Retention: how many of the oldest segments have expired.

RULES    1. Whole segments, oldest first; nothing at or above the high watermark.
         2. A segment expires when it ends at or below the log start offset, when its greatest timestamp is older than
            `retention.ms`, or when the remaining log still has `retention.bytes` or more.
         3. Without the policy `delete`, only segments below the log start offset expire.
         4. A pass deletes at most MAX_SEGMENTS_PER_PASS segments, so that it does not block other work.
NOT HERE Deletion (log.py); when to check (log_manager.py).
"""

from __future__ import annotations

from typing import Final

from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine

MAX_SEGMENTS_PER_PASS: Final = 16


def expired_end_offset(
    engine: Engine, config: LogConfig, log_start_offset: int, high_watermark: int, wall_ms: int
) -> int:
    """The end offset of the last expired segment (rule 4); the engine's start offset if none has expired."""
    deletes = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if deletes else -1
    surplus = engine.size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else -1
    end_offset = engine.start_offset
    for base_offset, next_offset, size in engine.segments(MAX_SEGMENTS_PER_PASS):
        if next_offset > high_watermark or next_offset == base_offset:
            break
        if next_offset <= log_start_offset or surplus >= size:
            surplus -= size
        elif retention_ms < 0 or wall_ms - engine.segment_max_timestamp(base_offset) <= retention_ms:
            break
        end_offset = next_offset
    return end_offset


def next_expiry_ms(engine: Engine, config: LogConfig) -> int:
    """The time before which no segment expires by age, if nothing is appended."""
    (oldest,) = engine.segments(1)
    if config.retention_ms < 0 or not oldest.size:
        return MAX_LONG
    return engine.segment_max_timestamp(oldest.base_offset) + config.retention_ms

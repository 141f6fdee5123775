"""How much of a log's old end has to go.

RULES    1. Oldest first, whole segments, and nothing at or above the high watermark.
         2. A segment goes when it lies before the log's start, when its greatest timestamp is older than
            `retention.ms`, or when what would be left without it is still `retention.bytes` or more.
         3. Without the policy `delete` only what lies before the log's start goes.
         4. At most AT_A_TIME segments go at once: the others have to wait for another look, so that nobody else has to.
NOT HERE Deleting (log.py); when to look (log_manager.py).
"""

from __future__ import annotations

from typing import Final

from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine

AT_A_TIME: Final = 16


def expired_end(engine: Engine, config: LogConfig, log_start_offset: int, high_watermark: int, wall_ms: int) -> int:
    """All segments before this offset have expired; the engine's start when none has, and no more than rule 4 says."""
    deletes = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if deletes else -1
    surplus = engine.size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else -1
    end_offset = engine.start_offset
    for base_offset, next_offset, size in engine.segments(AT_A_TIME):
        if next_offset > high_watermark or next_offset == base_offset:
            break
        if next_offset <= log_start_offset or surplus >= size:
            surplus -= size
        elif retention_ms < 0 or wall_ms - engine.segment_max_timestamp(base_offset) <= retention_ms:
            break
        end_offset = next_offset
    return end_offset


def next_expiry_ms(engine: Engine, config: LogConfig) -> int:
    """Until when nothing expires by time, if nothing is appended."""
    (oldest,) = engine.segments(1)
    if config.retention_ms < 0 or not oldest.size:
        return MAX_LONG
    return engine.segment_max_timestamp(oldest.base_offset) + config.retention_ms

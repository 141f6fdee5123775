"""Retention of one log: deletes the oldest segments.

RULES    1. Whole segments, oldest first; nothing at or above the high watermark.
         2. A segment expires when it ends at or below the log start offset, when its greatest timestamp is older than
            `retention.ms`, or when the remaining log still has `retention.bytes` or more.
         3. Without the policy `delete`, only segments below the log start offset expire.
         4. A pass deletes at most MAX_SEGMENTS_PER_PASS segments, so that it does not block other work.
         5. The files are renamed, and deleted after `file.delete.delay.ms`.
NOT HERE Deletion of the files, and when to check (log_manager.py).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import ErrorCode, KafkaError
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine
from storage.log.log_files import LogFiles
from storage.log.log_offsets import LogOffsets
from storage.log.open_log import OpenLog

MAX_SEGMENTS_PER_PASS: Final = 16


class Retention:
    """The retention of one log."""

    __slots__ = ("_due_ms", "_files", "_name", "_offsets")

    def __init__(self, name: str, files: LogFiles, offsets: LogOffsets) -> None:
        self._name = name
        self._files = files
        self._offsets = offsets
        self._due_ms = 0

    def on_config_changed(self) -> None:
        """The next check is due at once."""
        self._due_ms = 0

    def is_due(self, config: LogConfig, wall_ms: int) -> bool:
        """Whether a segment of a closed log may have expired."""
        return "delete" in config.cleanup_policy and wall_ms > self._due_ms

    def retain(self, log: OpenLog, config: LogConfig, wall_ms: int) -> bool:
        """Delete the segments that have expired; see `Log.retain`."""
        engine, offsets, is_full = log.engine, self._offsets, self._files.disk_space.is_full
        self._due_ms = 0
        if log.append_pipeline.has_pending and not is_full:
            return False
        bases = [segment.base_offset for segment in engine.segments(MAX_SEGMENTS_PER_PASS + 1)]
        end_offset = expired_end_offset(engine, config, offsets.log_start_offset, offsets.high_watermark, wall_ms)
        if is_full:
            end_offset = min(end_offset, engine.segments()[-1].base_offset)
        if end_offset > engine.start_offset:
            if end_offset == engine.end_offset:
                log.roll(wall_ms)
            self.trim(log, config, max(end_offset, offsets.log_start_offset), wall_ms)
        self._due_ms = next_expiry_ms(engine, config)
        return bases[MAX_SEGMENTS_PER_PASS:] == [engine.start_offset]

    def trim(self, log: OpenLog, config: LogConfig, log_start_offset: int, wall_ms: int) -> None:
        """Raise the log start offset, and delete the segments below it; see `Log.trim`."""
        engine, offsets = log.engine, self._offsets
        if log_start_offset > offsets.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {log_start_offset} of partition {self._name} since it is "
                f"larger than the high watermark {offsets.high_watermark}",
            )
        if log_start_offset > offsets.log_start_offset:
            offsets.log_start_offset = log_start_offset
            log.epochs.trim(log_start_offset)
        oldest = engine.start_offset
        submit_first = self._files.submit_first()
        deleted_files = engine.trim(offsets.log_start_offset, submit_first)
        log.snapshots.delete_before(engine.start_offset, submit_first)
        if engine.start_offset > oldest:
            self._files.deleted_files.append((wall_ms + config.file_delete_delay_ms, deleted_files))


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
        elif retention_ms < 0 or wall_ms - engine.view().segment_max_timestamp(base_offset) <= retention_ms:
            break
        end_offset = next_offset
    return end_offset


def next_expiry_ms(engine: Engine, config: LogConfig) -> int:
    """The time before which no segment expires by age, if nothing is appended."""
    (oldest,) = engine.segments(1)
    if config.retention_ms < 0 or not oldest.size:
        return MAX_LONG
    return engine.view().segment_max_timestamp(oldest.base_offset) + config.retention_ms

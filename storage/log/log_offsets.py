"""The offsets of a log that are known without opening it."""

from __future__ import annotations

from typing import Final, NamedTuple

NEVER_CLEANED: Final = -1


class Checkpoint(NamedTuple):
    """The checkpointed offsets of a log."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    first_dirty_offset: int = NEVER_CLEANED
    """The start of the next compaction."""


class LogOffsets:
    """The offsets of a log, shared by its parts."""

    __slots__ = ("first_dirty_offset", "high_watermark", "log_start_offset", "recovery_point", "truncation_count")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.recovery_point, self.log_start_offset, self.high_watermark, self.first_dirty_offset = checkpoint
        """`recovery_point`: while the log is closed; the engine of an open log has its own."""
        self.truncation_count = 0
        """Number of truncations; a full truncation counts."""

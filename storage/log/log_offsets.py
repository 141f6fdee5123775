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
    """The readable range of a log, shared by its parts."""

    __slots__ = ("high_watermark", "log_start_offset")

    def __init__(self, log_start_offset: int, high_watermark: int) -> None:
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark

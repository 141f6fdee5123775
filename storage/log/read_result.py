"""What a read of one log asks for and finds.

NOT HERE Finding it (log.py, engine.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.records import FileRegion
from storage.engine import AbortedTransaction


class Isolation(IntEnum):
    """Up to where a reader may see (seeds.md F2)."""

    LOG_END = 0
    HIGH_WATERMARK = 1
    LAST_STABLE = 2


class ReadInfo(NamedTuple):
    """What a read found."""

    regions: tuple[FileRegion, ...]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: list[AbortedTransaction] | None
    """Those in the returned range, for a read up to the last stable offset; None for any other."""


LOG_END, HIGH_WATERMARK, LAST_STABLE = Isolation


def out_of_range(name: str, offset: int, start_offset: int, end_offset: int) -> KafkaError:
    """The refusal of a read before the log's start or behind its end."""
    return KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"Received request for offset {offset} for partition {name}, but we only have log segments from "
        f"offset {start_offset} up to {end_offset}.",
    )

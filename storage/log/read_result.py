"""Isolation levels and the result of a log read.

NOT HERE Reading (log.py, engine.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.records import FileRegion
from storage.engine import AbortedTransaction


class Isolation(IntEnum):
    """The upper bound of a read: log end offset, high watermark or last stable offset."""

    LOG_END = 0
    HIGH_WATERMARK = 1
    LAST_STABLE = 2


class ReadInfo(NamedTuple):
    """The result of a read."""

    regions: tuple[FileRegion, ...]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: list[AbortedTransaction] | None
    """The aborted transactions in the returned range for a read up to the last stable offset; else None."""


LOG_END, HIGH_WATERMARK, LAST_STABLE = Isolation


def out_of_range(name: str, offset: int, start_offset: int, end_offset: int) -> KafkaError:
    """The error for an offset below the log start or above the log end."""
    return KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"Received request for offset {offset} for partition {name}, but we only have log segments from "
        f"offset {start_offset} up to {end_offset}.",
    )

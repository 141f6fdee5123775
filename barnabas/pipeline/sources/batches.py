"""Record batches in a buffer: where each begins, and all headers at once as one array.

RULES    1. Only whole batches are found; what lies behind the last one is said, never guessed.
         2. The formats before v2 are not read: Apache Kafka 4 has none of them either.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from barnabas.pipeline.batch_header import CODES, CRC_START, LENGTH_END, MAGIC, OVERHEAD, BatchHeader
from barnabas.pipeline.sources.checksums import checksums

HEADER = np.dtype([(name, f">{code}") for name, code in zip(BatchHeader._fields, CODES, strict=True)])

_LENGTH_AND_MAGIC = Struct(">i4xb")
_SHAPE = np.arange(OVERHEAD)


class Tail(Enum):
    """What lies behind the last whole batch."""

    NOTHING = "nothing"
    CUT = "a batch that is cut off"
    NO_BATCH = "bytes that are no batch"


class Walk(NamedTuple):
    """The whole batches of a buffer."""

    places: Any
    """Where each begins; an array."""
    end: int
    """Where the last one ends."""
    tail: Tail
    needed: int
    """How large the batch is that is cut off, as far as its length says."""


def walk(data: Any, begin: int = 0, end: int | None = None) -> Walk:
    """Find the whole batches of data[begin:end]."""
    stop = len(data) if end is None else end
    places: list[int] = []
    read = _LENGTH_AND_MAGIC.unpack_from
    at, last = begin, stop - OVERHEAD
    tail, needed = Tail.NOTHING if at == stop else Tail.CUT, OVERHEAD
    while at <= last:
        length, magic = read(data, at + 8)
        if length < OVERHEAD - LENGTH_END or magic != MAGIC:
            tail = Tail.NO_BATCH
            break
        following = at + LENGTH_END + length
        if following > stop:
            tail, needed = Tail.CUT, LENGTH_END + length
            break
        places.append(at)
        at = following
        tail = Tail.NOTHING if at == stop else Tail.CUT
    return Walk(np.array(places, np.int64), at, tail, needed)


def headers(data: Any, places: Any) -> Any:
    """The headers of the batches that begin at these places, as an array of HEADER."""
    array = np.frombuffer(data, np.uint8)
    return array[places[:, None] + _SHAPE].view(HEADER)[:, 0]


def last_offsets(heads: Any) -> Any:
    """The offset of each batch's last record."""
    return heads["base_offset"].astype(np.int64) + heads["last_offset_delta"]


def damaged(data: Any, places: Any, heads: Any) -> Any:
    """Which of these batches do not have the bytes that their CRC is of, as indexes."""
    ends = places + LENGTH_END + heads["length"]
    return np.flatnonzero(checksums(data, places + CRC_START, ends) != heads["crc"])

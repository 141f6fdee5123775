"""Finds record batches in a buffer and reads all headers into one array.

RULES    1. Only complete batches are returned; the bytes after the last one are classified.
         2. Only format v2 is read, as in Apache Kafka 4.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from barnabas.client.batch_header import CODES, CRC_START, LENGTH_END, MAGIC, OVERHEAD, BatchHeader
from barnabas.pipeline.spark.py_files import import_shipped

HEADER = np.dtype([(name, f">{code}") for name, code in zip(BatchHeader._fields, CODES, strict=True)])

_LENGTH_AND_MAGIC = Struct(">i4xb")
_SHAPE = np.arange(OVERHEAD)


class Tail(Enum):
    """The bytes after the last complete batch."""

    NOTHING = "nothing"
    CUT = "a batch that is cut off"
    NO_BATCH = "bytes that are no batch"


class BatchScan(NamedTuple):
    """The complete batches of a buffer."""

    positions: Any
    """The start of each batch; an array."""
    end: int
    """The end of the last batch."""
    tail: Tail
    needed: int
    """The size of the incomplete batch, from its length field."""


def scan_batches(data: Any, begin: int = 0, end: int | None = None) -> BatchScan:
    """Finds the complete batches of data[begin:end]."""
    stop = len(data) if end is None else end
    positions: list[int] = []
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
        positions.append(at)
        at = following
        tail = Tail.NOTHING if at == stop else Tail.CUT
    return BatchScan(np.array(positions, np.int64), at, tail, needed)


def read_headers(data: Any, positions: Any) -> Any:
    """Returns the headers of the batches at these positions, as an array of HEADER."""
    array = np.frombuffer(data, np.uint8)
    return array[positions[:, None] + _SHAPE].view(HEADER)[:, 0]


def last_offsets(headers_array: Any) -> Any:
    """Returns the last offset of each batch."""
    return headers_array["base_offset"].astype(np.int64) + headers_array["last_offset_delta"]


def corrupt_batches(data: Any, positions: Any, headers_array: Any) -> Any:
    """Returns the indexes of batches with a wrong CRC."""
    crc32c = import_shipped("crc32c").crc32c
    view = memoryview(data)
    ends = positions + LENGTH_END + headers_array["length"]
    ranges = zip((positions + CRC_START).tolist(), ends.tolist(), strict=True)
    found = np.fromiter((crc32c(view[start:end]) for start, end in ranges), np.uint32, len(positions))
    return np.flatnonzero(found != headers_array["crc"])

"""Batches of many small records that differ in a number and a due time, made with numpy so that the producer costs little.

FORMAT   key: the number as 9 decimal digits; header `deliver-at`, if wanted: 13 digits; the value is constant
RULES    1. One batch is built record by record, then its digits are overwritten: all batches have the same length.
NOT HERE Sending (`tests/support/loading.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from protocol.batch_builder import BatchBuilder
from storage.log.delivery_time import DELIVER_AT

_KEY_DIGITS: Final = 9
_DUE_DIGITS: Final = 13
_CRC_POSITION: Final = 17
_CRC_START: Final = 21


def key_of(number: int) -> bytes:
    """The key of a record."""
    return b"%0*d" % (_KEY_DIGITS, number)


class NumberedBatches:
    """Makes batches of a fixed number of records."""

    def __init__(self, records: int, value: bytes = b"v", *, scheduled: bool = False) -> None:
        """`scheduled`: with a header `deliver-at`."""
        self.records = records
        key, due = b"\1" * _KEY_DIGITS, b"\2" * _DUE_DIGITS
        builder = BatchBuilder()
        for _ in range(records):
            builder.append(time.time_ns() // 1_000_000, key, value, ((DELIVER_AT, due),) if scheduled else ())
        self._bytes = np.frombuffer(bytes(builder.build()), np.uint8).copy()
        self._keys = _positions(self._bytes, key, records)
        self._dues = _positions(self._bytes, due, records) if scheduled else None

    def make(self, first: int, due_ms: NDArray[np.int64] | None = None) -> bytes:
        """The records from a number on, due at these times."""
        self._bytes[self._keys] = _digits(np.arange(first, first + self.records), _KEY_DIGITS)
        if self._dues is not None:
            assert due_ms is not None, "scheduled records have due times"
            self._bytes[self._dues] = _digits(due_ms, _DUE_DIGITS)
        data = self._bytes.tobytes()
        return data[:_CRC_POSITION] + crc32c(data[_CRC_START:]).to_bytes(4, "big") + data[_CRC_START:]

    def upto(self, count: int) -> Iterator[bytes]:
        """The batches of records 0 to `count`, a multiple of the records of a batch."""
        return (self.make(first) for first in range(0, count, self.records))


def _positions(data: NDArray[np.uint8], pattern: bytes, count: int) -> NDArray[np.int64]:
    """The positions of all bytes of the occurrences of a pattern, a row for each."""
    found, at, whole = [], 0, data.tobytes()
    for _ in range(count):
        at = whole.index(pattern, at)
        found.append(at)
        at += len(pattern)
    return np.array(found)[:, None] + np.arange(len(pattern))


def _digits(numbers: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    powers = 10 ** np.arange(count - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)

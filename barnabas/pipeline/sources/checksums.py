"""CRC-32C of many ranges of one buffer.

RULES    1. With the package `crc32c` each range is one call of C. A worker may not have it: then numpy goes over all ranges
            at the same time, 64 bytes of each step by step, and joins the pieces by what a CRC is, a linear function.
         2. Both say the same, and both are tested.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

try:
    from crc32c import crc32c
except ImportError:  # a worker with nothing but numpy and pyarrow
    crc32c = None  # type: ignore[assignment]

POLYNOMIAL = 0x82F63B78
STRIPE = 64
"""Bytes that one lane of the vectors goes over."""


def checksums(data: Any, starts: Any, ends: Any) -> Any:
    """The CRC-32C of every data[start:end], each of four bytes at least, as an array."""
    if crc32c is None:
        return vectorised(np.frombuffer(data, np.uint8), starts, ends)
    view = memoryview(data)
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.fromiter((crc32c(view[start:end]) for start, end in places), np.uint32, len(starts))


def vectorised(data: Any, starts: Any, ends: Any) -> Any:
    """The same by numpy alone (rule 1)."""
    if not len(starts):
        return np.empty(0, np.uint32)
    sizes = ends - starts
    stripes = -(-sizes // STRIPE)
    first = np.cumsum(stripes) - stripes
    owner = np.repeat(np.arange(len(starts)), stripes)
    behind = first[owner] + stripes[owner] - 1 - np.arange(len(owner))  # how many stripes of its range follow one
    # The last stripe ends where its range does; the first may begin before its range, with zeros, which change nothing.
    at = ends[owner] - (behind + 1) * STRIPE
    states = np.zeros(len(owner), np.uint32)
    begin, end = starts[owner], (starts + 4)[owner]
    table = _table()
    for _ in range(STRIPE):
        byte = data[np.maximum(at, 0)]
        # A CRC starts with all bits set, which is the same as turning over the first four bytes; a batch has more.
        byte = np.where(at < begin, 0, np.where(at < end, ~byte, byte)).astype(np.uint8)
        states = table[(states ^ byte) & 0xFF] ^ (states >> 8)
        at += 1
    step = 0
    while (rows := np.flatnonzero(behind >> step)).size:
        rows = rows[(behind[rows] >> step) & 1 == 1]
        states[rows] = _shifted(states[rows], step)
        step += 1
    return ~np.bitwise_xor.reduceat(states, first)


@cache
def _table() -> Any:
    """What one byte does."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, (states >> 1) ^ np.uint32(POLYNOMIAL), states >> 1).astype(np.uint32)
    return states


@cache
def _shift_tables(step: int) -> Any:
    """What 2**step stripes of zeros do to each of the four bytes of a state."""
    states = (np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32))[:, None]).reshape(-1)
    if step == 0:
        table = _table()
        for _ in range(STRIPE):
            states = table[states & 0xFF] ^ (states >> 8)
    else:
        states = _shifted(_shifted(states, step - 1), step - 1)
    return states.reshape(4, 256)


def _shifted(states: Any, step: int) -> Any:
    """States after 2**step stripes of zeros."""
    tables = _shift_tables(step)
    moved = tables[0][states & 0xFF] ^ tables[1][(states >> 8) & 0xFF]
    return moved ^ tables[2][(states >> 16) & 0xFF] ^ tables[3][states >> 24]

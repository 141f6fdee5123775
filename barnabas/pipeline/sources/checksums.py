"""CRC-32C of many ranges of one buffer.

RULES    1. With the package `crc32c` each range is one C call. Workers may not have it: then numpy processes all ranges in
            parallel, in stripes of 64 bytes, and combines the stripes; a CRC is linear.
         2. Both implementations give the same result, and both are tested.
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
"""Bytes per lane."""
BLOCK = 4096
"""Lanes per step, small enough for the processor's cache."""


def checksums(data: Any, starts: Any, ends: Any) -> Any:
    """Returns the CRC-32C of every data[start:end], each of at least four bytes, as an array."""
    if crc32c is None:
        return vectorised(np.frombuffer(data, np.uint8), starts, ends)
    view = memoryview(data)
    positions = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.fromiter((crc32c(view[start:end]) for start, end in positions), np.uint32, len(starts))


def vectorised(data: Any, starts: Any, ends: Any) -> Any:
    """The numpy implementation (rule 1)."""
    if not len(starts):
        return np.empty(0, np.uint32)
    stripes = -(-(ends - starts) // STRIPE)
    first = np.cumsum(stripes) - stripes
    padded = np.zeros(int(stripes.sum()) * STRIPE, np.uint8)
    # Leading zeros do not change a CRC: padding makes each range a multiple of the stripe.
    for start, end, behind in zip(starts.tolist(), ends.tolist(), ((first + stripes) * STRIPE).tolist(), strict=True):
        begin = behind - (end - start)
        padded[begin:behind] = data[start:end]
        padded[begin : begin + 4] ^= (
            0xFF  # a CRC starts with all bits set: the same as turning over the first four bytes
        )
    words = padded.view("<u4").reshape(-1, STRIPE // 4)
    states = np.empty(len(words), np.uint32)
    low, high = _word_tables()
    for block in range(0, len(words), BLOCK):
        state = np.zeros(len(words[block : block + BLOCK]), np.uint32)
        for word in np.ascontiguousarray(words[block : block + BLOCK].T):
            state ^= word
            state = low[state & 0xFFFF] ^ high[state >> 16]
        states[block : block + BLOCK] = state
    owner = np.repeat(np.arange(len(starts)), stripes)
    following = (
        first[owner] + stripes[owner] - 1 - np.arange(len(owner))
    )  # how many stripes of its range come after one
    step = 0
    while (rows := np.flatnonzero(following >> step)).size:
        rows = rows[(following[rows] >> step) & 1 == 1]
        states[rows] = _shifted(states[rows], step)
        step += 1
    return ~np.bitwise_xor.reduceat(states, first)


@cache
def _word_tables() -> tuple[Any, Any]:
    """Tables for four bytes at once: by the lower and by the upper half of the state."""
    table = _table()

    def after_four(states: Any) -> Any:
        for _ in range(4):
            states = table[states & 0xFF] ^ (states >> 8)
        return states

    halves = np.arange(1 << 16, dtype=np.uint32)
    return after_four(halves), after_four(halves << 16)


@cache
def _table() -> Any:
    """The table for one byte."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, (states >> 1) ^ np.uint32(POLYNOMIAL), states >> 1).astype(np.uint32)
    return states


@cache
def _shift_tables(step: int) -> Any:
    """Tables that shift each byte of a state by 2**step stripes of zeros."""
    states = (np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32))[:, None]).reshape(-1)
    if step == 0:
        table = _table()
        for _ in range(STRIPE):
            states = table[states & 0xFF] ^ (states >> 8)
    else:
        states = _shifted(_shifted(states, step - 1), step - 1)
    return states.reshape(4, 256)


def _shifted(states: Any, step: int) -> Any:
    """Shifts states by 2**step stripes of zeros."""
    tables = _shift_tables(step)
    moved = tables[0][states & 0xFF] ^ tables[1][(states >> 8) & 0xFF]
    return moved ^ tables[2][(states >> 16) & 0xFF] ^ tables[3][states >> 24]

"""Parses the records of many batches at once into Arrow columns.

FORMAT   a record: varint length of the rest, i8 attributes (unused), varint timestamp delta, varint offset delta, varint
         key length (-1: null) and key, varint value length (-1: null) and value, varint number of headers, each a
         varint key length and key, varint value length (-1: null) and value. All varints are zigzag.
RULES    1. The position of a record follows from the length of the previous one. Many batches are therefore searched in
            parallel, one record of each per step; few batches in a Python loop. All other work is vectorised over all records.
         2. A record whose length does not match its content is damage. Headers are parsed only on request.
         3. Types are those of Spark's Kafka source; a record without headers has null headers.
         4. Arrow copies keys and values once; afterwards the buffer may be overwritten.
NOT HERE The choice of batches, batch headers (decoding.py).
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from barnabas.pipeline.sources.damage import DamagedBatch

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MIN_PARALLEL_BATCHES = 24
"""From this number of batches on, the parallel search is faster than the Python loop."""
_MOST_SHIFT = 63
_MOST_LENGTH_BYTES = 5
_ZIGZAG = np.array([byte >> 1 ^ -(byte & 1) for byte in range(256)], np.int64)
"""The value of a one-byte varint; unused for bytes with a continuation bit."""


class BatchRecords(NamedTuple):
    """The uncompressed records of some batches, in one buffer."""

    data: Any
    starts: list[int]
    ends: list[int]
    counts: list[int]


class Slices(NamedTuple):
    """The position and length of each value of a column; a negative length is null."""

    starts: Any
    lengths: Any


class Records(NamedTuple):
    """The records of some batches, one array per field."""

    data: Any
    batches: Any
    """The index of each record's batch."""
    offset_deltas: Any
    timestamp_deltas: Any
    keys: Slices
    values: Slices
    headers_at: Any
    header_counts: Any
    ends: Any

    def only(self, rows: Any) -> Records:
        """Returns the records of these rows."""
        return Records(
            self.data,
            self.batches[rows],
            self.offset_deltas[rows],
            self.timestamp_deltas[rows],
            Slices(self.keys.starts[rows], self.keys.lengths[rows]),
            Slices(self.values.starts[rows], self.values.lengths[rows]),
            self.headers_at[rows],
            self.header_counts[rows],
            self.ends[rows],
        )


def read_records(bodies: BatchRecords) -> Records:
    """Parses the records. Raises DamagedBatch if a length is wrong or a record extends beyond its batch."""
    data = np.frombuffer(bodies.data, np.uint8)
    try:
        begins, ends = _record_bounds(bodies)
        timestamps, at = _varints(data, begins + 1)
        offsets, at = _varints(data, at)
        key_lengths, at = _varints(data, at)
        keys = Slices(at, key_lengths)
        value_lengths, at = _varints(data, at + np.maximum(key_lengths, 0))
        values = Slices(at, value_lengths)
        counts, at = _varints(data, at + np.maximum(value_lengths, 0))
    except IndexError:
        raise DamagedBatch("a record reaches beyond its batch") from None
    if (counts < 0).any() or (at > ends).any() or (at[counts == 0] != ends[counts == 0]).any():
        raise DamagedBatch("the length of a record is wrong")
    batches = np.repeat(np.arange(len(bodies.counts)), bodies.counts)
    return Records(data, batches, offsets, timestamps, keys, values, at, counts, ends)


def _record_bounds(bodies: BatchRecords) -> tuple[Any, Any]:
    """The start of each record, after its length field, and its end (rule 1)."""
    counts = np.array(bodies.counts, np.int64)
    if (counts < 0).any() or counts.sum() > len(bodies.data):
        raise DamagedBatch("its number of records is negative or too large")
    first = np.cumsum(counts) - counts
    ends = _record_ends(bodies, counts, first)
    heads = np.empty(len(ends), np.int64)
    heads[1:] = ends[:-1]
    is_filled = counts > 0
    heads[first[is_filled]] = np.array(bodies.starts, np.int64)[is_filled]
    lengths, begins = _varints(np.frombuffer(bodies.data, np.uint8), heads)
    reached = np.array(bodies.starts, np.int64)
    reached[is_filled] = ends[(first + counts - 1)[is_filled]]
    if (reached != bodies.ends).any() or (lengths < 0).any() or (ends <= heads).any():
        raise DamagedBatch("its records do not fill it exactly")
    return begins, ends


def _record_ends(bodies: BatchRecords, counts: Any, first: Any) -> Any:
    """The end of each record (rule 1)."""
    order = np.argsort(-counts, kind="stable")
    at, left, row = np.array(bodies.starts, np.int64)[order], counts[order], first[order]
    ends = np.empty(counts.sum(), np.int64)
    data = np.frombuffer(bodies.data, np.uint8)
    step, going = 0, np.count_nonzero(left)
    while going >= MIN_PARALLEL_BATCHES:
        positions = at[:going]
        sizes = _RECORD_SIZES[data[positions], data[positions + 1]]
        if not sizes.all():
            rare = np.flatnonzero(sizes == 0)
            lengths, after = _varints(data, positions[rare])
            sizes[rare] = after + lengths - positions[rare]
        positions += sizes
        ends[row[:going] + step] = positions
        step += 1
        going = np.searchsorted(-left, -step)
    for number in range(going):
        rows = slice(row[number] + step, row[number] + left[number])
        ends[rows] = _record_ends_in_loop(bodies.data, int(at[number]), int(left[number]) - step)
    return ends


def _record_ends_in_loop(data: Any, at: int, count: int) -> Any:
    """The ends of `count` records of one batch that starts at `at`, found one after the other."""
    positions = array("q")
    put = positions.append
    table = _sizes_as_lists()
    for _ in range(count):
        at += table[data[at]][data[at + 1]] or _size_of_large_record(data, at)
        put(at)
    return np.frombuffer(positions, np.int64)


def _size_of_large_record(data: Any, at: int) -> int:
    """The size of a record with its length field, if the length field has three bytes or more."""
    length = 0
    for size in range(1, _MOST_LENGTH_BYTES + 1):
        byte: int = data[at + size - 1]
        length |= (byte & 0x7F) << 7 * (size - 1)
        if byte < 0x80:
            return size + (length >> 1)
    raise DamagedBatch("a record's length has more than five bytes")


def _sizes_by_first_bytes() -> Any:
    """The size of a record with its length field, by its first two bytes; 0 if they are not enough."""
    first, second = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    short, long = 1 + (first >> 1), 2 + ((first & 0x7F | second << 7) >> 1)
    return np.where(first < 0x80, short, np.where(second < 0x80, long, 0))


_RECORD_SIZES = _sizes_by_first_bytes()


@cache
def _sizes_as_lists() -> list[list[int]]:
    """_RECORD_SIZES as nested lists, which a Python loop reads faster."""
    found: list[list[int]] = _RECORD_SIZES.tolist()
    return found


def _varints(data: Any, at: Any) -> tuple[Any, Any]:
    """Decodes the zigzag varints at these positions; returns values and the following positions."""
    byte = data[at]
    found = _ZIGZAG[byte]
    after = at + 1
    more = np.flatnonzero(byte >= 0x80)
    if more.size:
        found[more], after[more] = _long_varints(data, byte[more] & 0x7F, after[more])
    return found, after


def _long_varints(data: Any, low: Any, at: Any) -> tuple[Any, Any]:
    """Decodes varints of two or more bytes."""
    number = low.astype(np.uint64)
    rows: Any = slice(None)
    shift = 7
    while True:
        if shift > _MOST_SHIFT:
            raise DamagedBatch("a number has more than ten bytes")
        byte = data[at[rows]]
        number[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[rows] += 1
        rows = np.arange(len(at))[rows][byte >= 0x80]
        if not rows.size:
            break
        shift += 7
    one = np.uint64(1)
    return (number >> one).view(np.int64) ^ -(number & one).view(np.int64), at


# ---- columns -----------------------------------------------------------------------------------------------


def binary_column(data: Any, slices: Slices) -> Any:
    """Copies slices into an Arrow column.

    Slices are in row order, so slices and the gaps between them already form a column over the buffer. Arrow then takes every
    second value of it.
    """
    count = len(slices.starts)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = slices.starts
    bounds[1::2] = slices.starts + np.maximum(slices.lengths, 0)
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    is_null = slices.lengths < 0
    wanted = pa.array(np.arange(0, 2 * count - 1, 2), mask=is_null if is_null.any() else None)
    return both.take(wanted)


def headers_column(records: Records) -> Any:
    """Returns the headers of each record, null if it has none (rule 3)."""
    counts = records.header_counts
    total = int(counts.sum())
    first = np.cumsum(counts) - counts
    keys = Slices(np.zeros(total, np.int64), np.zeros(total, np.int64))
    values = Slices(np.zeros(total, np.int64), np.zeros(total, np.int64))
    at = records.headers_at.copy()
    rows = np.flatnonzero(counts > 0)
    number = 0
    try:
        while rows.size:  # each step parses one header of every record that has it
            place = first[rows] + number
            for column in (keys, values):
                lengths, begins = _varints(records.data, at[rows])
                column.starts[place], column.lengths[place] = begins, lengths
                at[rows] = begins + np.maximum(lengths, 0)
            number += 1
            rows = rows[counts[rows] > number]
    except IndexError:
        raise DamagedBatch("a header reaches beyond its batch") from None
    if (keys.lengths < 0).any() or (at != records.ends).any():
        raise DamagedBatch("the length of a record's headers is wrong")
    pairs = pa.StructArray.from_arrays(
        [_as_text(binary_column(records.data, keys)), binary_column(records.data, values)], names=["key", "value"]
    )
    bounds = pa.array(np.append(first, total).astype(np.int32))
    return pa.ListArray.from_arrays(bounds, pairs, mask=pa.array(counts == 0)).cast(HEADERS_TYPE)


def _as_text(column: Any) -> Any:
    """Decodes UTF-8 as Java does: invalid bytes become the replacement character."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in column.to_pylist()], pa.string())

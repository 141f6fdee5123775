"""Decodes the bytes of a log into Arrow record batches; uses neither Spark nor files.

RULES    1. Columns and types are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
            timestampType, headers. Columns that are not requested are not computed.
         2. Control batches, records outside the requested offsets, and batches of the given aborted transactions are skipped.
         3. The CRC of each returned batch is checked. Batches before a wrong one are returned, then WrongChecksum is raised.
            Other invalid content raises DamagedBatch with its offset.
         4. An Arrow batch has about ROWS rows or BYTES bytes, independent of the file's size.
NOT HERE Reading files (segment_reading.py), finding aborted transactions (partition_logs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from barnabas.client.batch_header import CODEC_MASK, CONTROL, LENGTH_END, LOG_APPEND_TIME, OVERHEAD, TRANSACTIONAL
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.batches import Tail, corrupt_batches, last_offsets, read_headers, scan_batches
from barnabas.pipeline.sources.codecs import decompress
from barnabas.pipeline.sources.damage import DamagedBatch, WrongChecksum
from barnabas.pipeline.sources.records import (
    HEADERS_TYPE,
    BatchRecords,
    Records,
    binary_column,
    headers_column,
    read_records,
)

ROWS = 100_000
BYTES = 32 << 20
OFFSETS_END = (1 << 63) - 1

COLUMN_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
COLUMNS = tuple(name for name in COLUMN_TYPES if name != "headers")
"""The default columns, as in Spark's Kafka source."""


class Aborted(NamedTuple):
    """An aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""


class ReadRequest(NamedTuple):
    """The records to read from one partition."""

    tp: TopicPartition
    start_offset: int = 0
    end_offset: int = OFFSETS_END
    columns: tuple[str, ...] = COLUMNS
    aborted: tuple[Aborted, ...] = ()


def decode(data: Any, topic: str = "", partition: int = 0, **request: Any) -> Any:
    """Returns the table of all records in the bytes of a log; an incomplete last batch is ignored.

    The other arguments are the fields of `ReadRequest`. Raises DamagedBatch.
    """
    decoder = Decoder(ReadRequest(TopicPartition(topic, partition), **request))
    found = scan_batches(data)
    if found.tail is Tail.NO_BATCH:
        raise DamagedBatch(f"at position {found.end} there is no batch of format 2")
    return pa.Table.from_batches(decoder.batches(data, found.positions), decoder.schema)


class Decoder:
    """Decodes buffers of complete batches."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request
        self.schema = pa.schema([(name, COLUMN_TYPES[name]) for name in request.columns])
        self._aborted = _by_producer(request.aborted)
        self._topics: Any = pa.array([], pa.string())

    def batches(self, data: Any, positions: Any) -> Iterator[Any]:
        """Yields the requested records of the batches at these positions. The buffer may be overwritten afterwards."""
        headers = read_headers(data, positions)
        rows = self._selected(headers)
        positions, headers = positions[rows], headers[rows]
        bad = corrupt_batches(data, positions, headers)[:1]
        good = headers[: bad[0]] if len(bad) else headers
        for part in _parts(good["record_count"]):
            yield from self._decoded(data, positions[part], headers[part])
        if len(bad):
            raise WrongChecksum(int(headers["base_offset"][bad[0]]))

    def _selected(self, headers: Any) -> Any:
        """The batches to decode (rule 2)."""
        request = self._request
        is_wanted = (headers["attributes"] & CONTROL) == 0
        is_wanted &= (last_offsets(headers) >= request.start_offset) & (headers["base_offset"] < request.end_offset)
        if self._aborted:
            is_wanted &= ~_is_aborted(headers, self._aborted)
        return np.flatnonzero(is_wanted)

    def _decoded(self, data: Any, positions: Any, headers: Any) -> Iterator[Any]:
        starts = (positions + OVERHEAD).tolist()
        ends = (positions + LENGTH_END + headers["length"]).tolist()
        counts = headers["record_count"].tolist()
        codecs = (headers["attributes"] & CODEC_MASK).tolist()
        if not any(codecs):
            yield from self._rows(BatchRecords(data, starts, ends, counts), headers)
            return
        view = memoryview(data)
        parts: list[Any] = []
        size = first = 0
        for number, (codec, start, end) in enumerate(zip(codecs, starts, ends, strict=True)):
            try:
                parts.append(decompress(codec, view[start:end]))
            except DamagedBatch as damage:
                raise DamagedBatch(f"the batch of offset {headers['base_offset'][number]}: {damage}") from damage
            size += len(parts[-1])
            if size >= BYTES or number == len(codecs) - 1:
                yield from self._rows(_joined(parts, counts[first : number + 1]), headers[first : number + 1])
                parts, size, first = [], 0, number + 1

    def _rows(self, bodies: BatchRecords, headers: Any) -> Iterator[Any]:
        try:
            records = read_records(bodies)
            request = self._request
            offsets = headers["base_offset"].astype(np.int64)[records.batches] + records.offset_deltas
            if headers["base_offset"][0] < request.start_offset or last_offsets(headers)[-1] >= request.end_offset:
                inside = np.flatnonzero((offsets >= request.start_offset) & (offsets < request.end_offset))
                records, offsets = records.only(inside), offsets[inside]
            if len(offsets):
                columns = [self._column(name, records, offsets, headers) for name in request.columns]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
        except DamagedBatch as damage:
            first, last = headers["base_offset"][0], last_offsets(headers)[-1]
            raise DamagedBatch(f"in the batches of offsets {first} to {last}: {damage}") from damage

    def _column(self, name: str, records: Records, offsets: Any, headers: Any) -> Any:
        count = len(offsets)
        match name:
            case "key":
                return binary_column(records.data, records.keys)
            case "value":
                return binary_column(records.data, records.values)
            case "topic":
                if len(self._topics) < count:
                    self._topics = pa.array([self._request.tp.topic]).take(pa.array(np.zeros(count, np.int32)))
                return self._topics[:count]
            case "partition":
                return pa.array(np.full(count, self._request.tp.partition, np.int32))
            case "offset":
                return pa.array(offsets)
            case "timestamp":
                return _microseconds(records, headers)
            case "timestampType":
                is_append_time = (headers["attributes"] & LOG_APPEND_TIME) != 0
                return pa.array(is_append_time[records.batches].astype(np.int32))
            case "headers":
                return headers_column(records)
        raise AssertionError(name)


def _microseconds(records: Records, headers: Any) -> Any:
    is_append_time = (headers["attributes"] & LOG_APPEND_TIME) != 0
    base = np.where(is_append_time, headers["max_timestamp"], headers["base_timestamp"]).astype(np.int64)[
        records.batches
    ]
    deltas = records.timestamp_deltas
    if is_append_time.any():
        deltas = np.where(is_append_time[records.batches], 0, deltas)
    moments = (base + deltas) * 1000
    return pa.Array.from_buffers(COLUMN_TYPES["timestamp"], len(moments), [None, pa.py_buffer(moments)])


def _parts(counts: Any) -> Iterator[slice]:
    """Slices of batches with about ROWS records (rule 4)."""
    marks = np.cumsum(np.maximum(counts, 0), dtype=np.int64) // ROWS
    edges = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(counts)]
    yield from (slice(first, last) for first, last in pairwise(edges) if first < last)


def _joined(parts: Sequence[Any], counts: list[int]) -> BatchRecords:
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return BatchRecords(b"".join(parts), [0, *ends[:-1]], ends, counts)


def _by_producer(aborted: Iterable[Aborted]) -> Mapping[int, Any]:
    """First and last offsets of each producer's aborted transactions, which never overlap."""
    found: dict[int, list[tuple[int, int]]] = {}
    for transaction in aborted:
        found.setdefault(transaction.producer_id, []).append((transaction.first_offset, transaction.last_offset))
    return {producer: np.array(sorted(set(ranges)), np.int64) for producer, ranges in found.items()}


def _is_aborted(headers: Any, aborted: Mapping[int, Any]) -> Any:
    is_aborted = np.zeros(len(headers), bool)
    is_transactional = (headers["attributes"] & TRANSACTIONAL) != 0
    producers = headers["producer_id"].astype(np.int64)
    for producer in np.unique(producers[is_transactional]).tolist():
        if producer in aborted:
            ranges = aborted[producer]
            rows = np.flatnonzero(is_transactional & (producers == producer))
            offsets = headers["base_offset"][rows].astype(np.int64)
            place = np.searchsorted(ranges[:, 0], offsets, side="right") - 1
            is_aborted[rows] = (place >= 0) & (offsets <= ranges[np.maximum(place, 0), 1])
    return is_aborted

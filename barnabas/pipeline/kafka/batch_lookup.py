"""Reads batch headers of a partition from its leader; client libraries do not expose them.

FORMAT   Fetch v4 (Kafka 0.11 and later), no fetch session. Only batch headers are parsed, not records.
RULES    1. If the response cuts off the first batch, its header is enough; a later cut batch is fetched again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from barnabas.client.batch_header import OVERHEAD, BatchHeader, header_at
from barnabas.client.client_settings import Security
from barnabas.client.secure_stream import ask, connect
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span
from barnabas.pipeline.errors import JobError

FETCH_BYTES = 1 << 20
_FETCH_V4 = (1, 4)


class GapCounts(NamedTuple):
    """Missing offsets by cause: markers, records removed from their batch, offsets that no batch covers."""

    markers: int = 0
    removed: int = 0
    holes: int = 0


def count_gap(headers: Iterator[BatchHeader], gap: Span) -> GapCounts:
    """Counts the missing offsets of a gap by the batches that cover them."""
    markers = removed = 0
    for header in headers:
        if header.base_offset >= gap.end:
            break
        covered = min(header.last_offset + 1, gap.end) - max(header.base_offset, gap.start)
        if covered > 0:
            markers += covered if header.is_control else 0
            removed += 0 if header.is_control else covered
    return GapCounts(markers, removed, gap.end - gap.start - markers - removed)


class BatchHeaderReader:
    """A connection to the leader of some partitions."""

    def __init__(self, host: str, port: int, security: Security) -> None:
        self._stream = connect(host, port, security)

    def close(self) -> None:
        """Closes the connection."""
        self._stream.close()

    def read(self, tp: TopicPartition, span: Span) -> Iterator[BatchHeader]:
        """Yields the headers of the batches that overlap the span."""
        offset = span.start
        while offset < span.end:
            found = headers_in(self._fetch(tp, offset))
            if not found:
                return
            yield from found
            offset = found[-1].last_offset + 1

    def _fetch(self, tp: TopicPartition, offset: int) -> bytes:
        topic = tp.topic.encode()
        request_header = struct.pack(">hhih", *_FETCH_V4, 1, -1)
        fetch_fields = struct.pack(">iiiibi", -1, 0, 0, FETCH_BYTES, 0, 1)
        partition = struct.pack(">iiqi", 1, tp.partition, offset, FETCH_BYTES)
        request = request_header + fetch_fields + struct.pack(">h", len(topic)) + topic + partition
        try:
            return batches_in_response(ask(self._stream, request), tp)
        except OSError as failure:
            raise JobError(
                f"The broker stopped answering a fetch of batches ({failure}): run the job again."
            ) from failure


def batches_in_response(response: bytes, tp: TopicPartition) -> bytes:
    """Returns the batches in a Fetch v4 response for one partition. Raises JobError for an error code."""
    at = 4 + 4 + 4  # correlation id, throttle time, one topic
    (length,) = struct.unpack_from(">h", response, at)
    at += 2 + length + 4  # its name, one partition
    _partition, error, _high, _stable, aborted = struct.unpack_from(">ihqqi", response, at)
    if error:
        raise JobError(f"The broker refused to send batches of {tp} (error code {error}): run the job again.")
    at += 26 + 16 * max(0, aborted)
    (size,) = struct.unpack_from(">i", response, at)
    return response[at + 4 : at + 4 + max(0, size)]


def headers_in(records: bytes) -> list[BatchHeader]:
    """Returns the batch headers; an incomplete last batch is left out, unless it is the first."""
    found: list[BatchHeader] = []
    at = 0
    while at + OVERHEAD <= len(records):
        header = header_at(records, at)
        if at + header.size > len(records) and found:
            break
        found.append(header)
        at += header.size
    return found

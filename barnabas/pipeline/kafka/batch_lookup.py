"""What lies at some offsets of a partition: the heads of its batches, which no client library shows.

FORMAT   Fetch v4 (every Kafka from 0.11 on): no header of ours but the plain one, no session. Of a batch the
         header is read; the records are not opened.
RULES    1. A broker with TLS or SASL is not asked: the caller is told that nobody looked.
         2. Of a batch that the answer's size cuts the head is enough, when it is the first; else it is asked for again.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from barnabas.pipeline.batch_header import OVERHEAD, BatchHeader, header_at
from barnabas.pipeline.brokers import Place, Span
from barnabas.pipeline.errors import JobError

LIMIT_S = 30.0
FETCH_BYTES = 1 << 20
_FETCH_V4 = (1, 4)


class Explained(NamedTuple):
    """What missing offsets are: markers, records that were removed from their batch, or covered by no batch at all."""

    markers: int = 0
    removed: int = 0
    holes: int = 0


def explain(heads: Iterator[BatchHeader], gap: Span) -> Explained:
    """Count the missing offsets by what covers them."""
    markers = removed = 0
    for head in heads:
        if head.base_offset >= gap.end:
            break
        covered = min(head.last_offset + 1, gap.end) - max(head.base_offset, gap.start)
        if covered > 0:
            markers += covered if head.is_control else 0
            removed += 0 if head.is_control else covered
    return Explained(markers, removed, gap.end - gap.start - markers - removed)


class BatchHeads:
    """A connection to the leader of some partitions."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=LIMIT_S)
        except OSError as failure:
            raise JobError(f"The broker at {host}:{port} does not answer: {failure}.") from failure

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def read(self, place: Place, span: Span) -> Iterator[BatchHeader]:
        """The heads of the batches from the first that covers the span's start to the last that touches it."""
        offset = span.start
        while offset < span.end:
            found = heads_in(self._fetch(place, offset))
            if not found:
                return
            yield from found
            offset = found[-1].last_offset + 1

    def _fetch(self, place: Place, offset: int) -> bytes:
        topic = place.topic.encode()
        header = struct.pack(">hhih", *_FETCH_V4, 1, -1)
        asked = struct.pack(">iiiibi", -1, 0, 0, FETCH_BYTES, 0, 1)
        partition = struct.pack(">iiqi", 1, place.partition, offset, FETCH_BYTES)
        request = header + asked + struct.pack(">h", len(topic)) + topic + partition
        try:
            self._socket.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", self._receive(4))
            return records_of(self._receive(size), place)
        except OSError as failure:
            raise JobError(f"The broker stopped answering while it was asked for batches: {failure}.") from failure

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise JobError("The broker hung up while it was asked for batches.")
            parts += part
        return bytes(parts)


def records_of(answer: bytes, place: Place) -> bytes:
    """The batches in the answer to a Fetch v4 of one partition."""
    at = 4 + 4 + 4  # correlation id, throttle time, one topic
    (length,) = struct.unpack_from(">h", answer, at)
    at += 2 + length + 4  # its name, one partition
    _partition, error, _high, _stable, aborted = struct.unpack_from(">ihqqi", answer, at)
    if error:
        raise JobError(f"The broker does not show the batches of {place}: error {error}.")
    at += 26 + 16 * max(0, aborted)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(0, size)]


def heads_in(records: bytes) -> list[BatchHeader]:
    """The heads of the batches, a cut last one left out."""
    found: list[BatchHeader] = []
    at = 0
    while at + OVERHEAD <= len(records):
        head = header_at(records, at)
        if at + head.size > len(records) and found:
            break
        found.append(head)
        at += head.size
    return found

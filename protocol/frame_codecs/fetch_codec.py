"""Decodes a Fetch of several partitions directly from the frame, and encodes its response, without message objects.

FORMAT   As `messages/produce_fetch.py` declares it, from version 9 on. A partition of a request has always the same size.
RULES    1. `decode_request` returns None unless the request has the usual form: no new session, no replica, no tagged field,
            no rack, names of at most 126 bytes, and each partition once. The caller then uses the general codec.
         2. A response equals the general codec's byte for byte. Names and ids of topics are copied from the request.
NOT HERE A Fetch of one partition (`single_partition_codec.py`); serving the request (`broker/handlers/records`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple, Protocol

from protocol.codegen import MAX_REQUEST_ELEMENTS
from protocol.errors import MalformedRequest
from protocol.file_region import Region
from protocol.frame_codecs.topic_array import read_length, read_topic
from protocol.framing import Part
from protocol.primitives import uvarint

_MINUS_ONE: Final = b"\xff\xff\xff\xff"
_NEW_SESSION: Final = 0  # an epoch
_PREFIX_BYTES: Final = 4  # the length itself

PartitionFetch = tuple[int, int, int, int, int]
"""Partition index, current leader epoch, fetch offset, last fetched epoch (-1 if the version lacks it), max bytes."""


class TopicFetch(NamedTuple):
    """The partitions of one topic."""

    name: str
    """Empty from version 13 on."""
    topic_id: bytes
    """Empty before version 13."""
    partitions: list[PartitionFetch]
    echoed_bytes: bytearray
    """The bytes that the response copies: name or id."""


class TopicsFetch(NamedTuple):
    """The fields of the request; names as in the message."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[TopicFetch]


class FetchResult(Protocol):
    """What was read of a partition, without an error or aborted transactions."""

    @property
    def regions(self) -> tuple[Region, ...]:
        """The records."""
        ...

    @property
    def size(self) -> int:
        """Bytes of records."""
        ...

    @property
    def high_watermark(self) -> int:
        """As in the response."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """As in the response."""
        ...

    @property
    def log_start_offset(self) -> int:
        """As in the response."""
        ...


FetchedRecords = tuple[TopicFetch, int, FetchResult]
"""The result of one partition: its topic in the request, its index."""
_topic_of = itemgetter(0)


class FetchTopicsLayout:
    """One version of Fetch, as a consumer without a rack sends it."""

    __slots__ = (
        "_end", "_has_ids", "_head", "_is_flexible", "_null_list_count", "_partition", "_replica_id", "_response_head",
        "_response_partition", "_tag",
    )  # fmt: skip

    def __init__(self, version: int) -> None:
        self._has_ids = version >= 13
        self._is_flexible = is_flexible = version >= 12
        has_rack = version >= 11
        # Replica id, max wait, min bytes, max bytes, isolation level, session id and epoch.
        self._replica_id = _MINUS_ONE if version < 15 else b""
        self._head = Struct(f">{len(self._replica_id)}siiibii")
        # Index, leader epoch, fetch offset, last fetched epoch, (log start offset,) max bytes; no tags.
        self._partition = Struct(">iiqi8xix" if is_flexible else ">iiq8xi")
        self._tag = b"\0" if is_flexible else b""
        # No forgotten topics, no rack, no tags.
        self._end = b"\1\1\0" if is_flexible else bytes(6 if has_rack else 4)
        # Length, correlation id, (no tags, no throttle time, no error,) session id.
        self._response_head = Struct(">iix4x2xi" if is_flexible else ">ii4x2xi")
        # Index, (no error,) high watermark, last stable offset, log start offset, count of aborted transactions, preferred
        # replica.
        count = "B" if is_flexible else "i"
        self._response_partition = Struct(f">i2xqqq{count}{4 * has_rack}s")
        self._null_list_count = 0 if is_flexible else -1

    def decode_request(self, frame: bytearray, position: int) -> TopicsFetch | None:
        """Decodes the request at `position`; None if it does not have the usual form."""
        is_flexible, has_ids = self._is_flexible, self._has_ids
        topics: list[TopicFetch] = []
        try:
            replica, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = self._head.unpack_from(
                frame, position
            )
            if replica != self._replica_id or session_epoch == _NEW_SESSION:
                return None
            count, position = read_length(frame, position + self._head.size, 4, is_flexible=is_flexible)
            room = MAX_REQUEST_ELEMENTS - count
            for _ in range(count):
                start = position
                name, topic_id, name_end = read_topic(frame, start, has_id=has_ids, is_flexible=is_flexible)
                size, position = read_length(frame, name_end, 4, is_flexible=is_flexible)
                room -= size
                if size <= 0 or room < 0:
                    return None
                end = position + size * self._partition.size
                partitions = self._decode_partitions(frame, position, end)
                if partitions is None:
                    return None
                topics.append(TopicFetch(name, topic_id, partitions, frame[start:name_end]))
                position = end + is_flexible
        except (struct.error, MalformedRequest):  # it is cut short, or a name too long
            return None
        is_whole = topics and frame.startswith(self._end, position)
        if not is_whole or len({topic.name or topic.topic_id for topic in topics}) != len(topics):
            return None
        return TopicsFetch(max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics)

    def _decode_partitions(self, frame: bytearray, start: int, end: int) -> list[PartitionFetch] | None:
        """The partitions of a topic; None if they do not have the usual form."""
        size, tag = self._partition.size, self._tag
        if not frame.startswith(tag, end) or end > len(frame):
            return None
        found = list(self._partition.iter_unpack(memoryview(frame)[start:end]))
        if tag:
            if any(frame[start + size - 1 : end : size]):
                return None
        else:
            found = [(*fields[:3], -1, fields[3]) for fields in found]
        return found if len({fields[0] for fields in found}) == len(found) else None

    def encode_response(
        self, correlation_id: int, session_id: int, results: Sequence[FetchedRecords], *, has_empty_lists: bool
    ) -> list[Part]:
        """Encodes a response without errors.

        Args:
            correlation_id: of the request.
            session_id: of the request.
            results: of the partitions of the response, in its order.
            has_empty_lists: whether the lists of aborted transactions are empty instead of null.
        """
        is_flexible, pack, end = self._is_flexible, self._response_partition.pack, self._tag
        null_or_empty = self._null_list_count + has_empty_lists
        topics = [(topic, list(found)) for topic, found in groupby(results, _topic_of)]
        pending: list[bytes | bytearray] = [self._count(len(topics))]
        parts: list[Part] = []
        length = self._response_head.size - _PREFIX_BYTES
        for topic, found in topics:
            pending += topic.echoed_bytes, self._count(len(found))
            for _, index, read in found:
                size = read.size
                pending += (
                    pack(
                        index,
                        read.high_watermark,
                        read.last_stable_offset,
                        read.log_start_offset,
                        null_or_empty,
                        _MINUS_ONE,
                    ),
                    uvarint(size + 1) if is_flexible else size.to_bytes(4, "big"),
                )
                if size:
                    joined = b"".join(pending)
                    length += len(joined) + size
                    parts.append(joined)
                    parts += read.regions
                    pending = []
                pending.append(end)
            pending.append(end)
        pending.append(end)
        if last := b"".join(pending):
            length += len(last)
            parts.append(last)
        first = parts[0]
        assert isinstance(first, bytes)
        parts[0] = self._response_head.pack(length, correlation_id, session_id) + first
        return parts

    def _count(self, count: int) -> bytes:
        return uvarint(count + 1) if self._is_flexible else count.to_bytes(4, "big")

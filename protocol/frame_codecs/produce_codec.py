"""Decodes a Produce of several partitions directly from the frame, and encodes its response, without message objects.

FORMAT   As `messages/produce_fetch.py` declares it, from version 7 on.
RULES    1. `decode_request` returns None unless the request has the usual form: no transactional id, no tagged field, records
            for every partition, names of at most 126 bytes. The caller then uses the general codec.
         2. A response equals the general codec's byte for byte. Topics with their counts of partitions are copied from the
            request.
NOT HERE A Produce of one partition (`single_partition_codec.py`); serving the request (`broker/handlers/records/produce.py`).
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final, NamedTuple

from protocol.codegen import MAX_REQUEST_ELEMENTS
from protocol.errors import MalformedRequest
from protocol.frame_codecs.topic_array import read_length, read_topic
from protocol.framing import Part
from protocol.primitives import read_uvarint, uvarint

_I32: Final = Struct(">i")
_INDEX_AND_LENGTH: Final = Struct(">ii")
_RESPONSE_HEAD: Final = Struct(">ii")  # length, correlation id
_CORRELATION_ID_BYTES: Final = 4


class ProducedTopic(NamedTuple):
    """The batches for one topic."""

    name: str
    """Empty from version 13 on."""
    topic_id: bytes
    """Empty before version 13."""
    indexes: list[int]
    """Of the partitions."""
    records: "list[memoryview]"  # noqa: UP037  # mypyc looks other names up in the module
    """Of each partition."""
    echoed_bytes: bytearray
    """The bytes that the response copies: the topic and the number of its partitions."""


class ProducedTopics(NamedTuple):
    """The fields of the request; names as in the message."""

    acks: int
    timeout_ms: int
    topics: list[ProducedTopic]


PartitionResult = tuple[int, int, int]
"""The result of an append without error: base offset, log append time in milliseconds, log start offset."""


class ProduceTopicsLayout:
    """One version of Produce, as a producer without transactions sends it."""

    __slots__ = ("_has_ids", "_head", "_is_flexible", "_no_id", "_partition", "_partition_end")

    def __init__(self, version: int) -> None:
        self._has_ids = version >= 13
        self._is_flexible = is_flexible = version >= 9
        # Transactional id, acks, timeout; topic count.
        self._head = Struct(">BhiB" if is_flexible else ">hhii")
        self._no_id = 0 if is_flexible else -1
        # Index, no error, base offset, log append time, log start offset; no record errors, no error message, no tags.
        self._partition_end = b"\1\0\0" if is_flexible else b"\0\0\0\0\xff\xff" if version >= 8 else b""
        self._partition = Struct(f">i2xqqq{len(self._partition_end)}s")

    def decode_request(self, frame: bytearray, position: int) -> ProducedTopics | None:
        """Decodes the request at `position`; None if it does not have the usual form."""
        try:
            transactional_id, acks, timeout_ms, count = self._head.unpack_from(frame, position)
            if transactional_id != self._no_id or not self._is_flexible < count < 0x80:
                return None
            position += self._head.size
            topics: list[ProducedTopic] = []
            room = MAX_REQUEST_ELEMENTS
            for _ in range(count - self._is_flexible):
                topic, position = self._decode_topic(frame, position, room)
                if topic is None:
                    return None
                topics.append(topic)
                room -= 1 + len(topic.indexes)
        except (struct.error, MalformedRequest):  # it is cut short, or a name too long
            return None
        if self._is_flexible and not frame.startswith(b"\0", position):
            return None
        return ProducedTopics(acks, timeout_ms, topics)

    def _decode_topic(self, frame: bytearray, position: int, room: int) -> tuple[ProducedTopic | None, int]:
        """Decodes a topic with fewer partitions than `room`; None if it does not have the usual form."""
        start = position
        name, topic_id, position = read_topic(frame, start, has_id=self._has_ids, is_flexible=self._is_flexible)
        count, position = read_length(frame, position, 4, is_flexible=self._is_flexible)
        if count >= room:
            return None, position
        echoed_bytes = frame[start:position]
        indexes: list[int] = []
        records: list[memoryview] = []
        view, size, is_flexible = memoryview(frame), len(frame), self._is_flexible
        for _ in range(count):
            index, length = _INDEX_AND_LENGTH.unpack_from(frame, position)
            position += _INDEX_AND_LENGTH.size
            if is_flexible:
                length, position = read_uvarint(frame, position - 4)
                length -= 1
            end = position + length
            if length < 0 or end + is_flexible > size or (is_flexible and frame[end]):
                return None, position
            indexes.append(index)
            records.append(view[position:end])
            position = end + is_flexible
        if not indexes or (is_flexible and not frame.startswith(b"\0", position)):
            return None, position
        return ProducedTopic(name, topic_id, indexes, records, echoed_bytes), position + is_flexible

    def encode_response(
        self, correlation_id: int, topics: list[ProducedTopic], results: list[PartitionResult]
    ) -> list[Part]:
        """Encodes a response without errors; `results`: of all partitions, in the order of the request."""
        is_flexible, partition, partition_end = self._is_flexible, self._partition, self._partition_end
        # No tags of the header, topic count; at the end no throttle time, no tags.
        parts: list[bytes | bytearray] = [b"\0" + uvarint(len(topics) + 1) if is_flexible else _I32.pack(len(topics))]
        at = 0
        for topic in topics:
            parts.append(topic.echoed_bytes)
            for index in topic.indexes:
                base_offset, append_time_ms, log_start_offset = results[at]
                parts.append(partition.pack(index, base_offset, append_time_ms, log_start_offset, partition_end))
                at += 1
            if is_flexible:
                parts.append(b"\0")
        parts.append(bytes(5) if is_flexible else bytes(4))
        body = b"".join(parts)
        return [_RESPONSE_HEAD.pack(len(body) + _CORRELATION_ID_BYTES, correlation_id) + body]

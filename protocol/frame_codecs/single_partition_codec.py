"""Decodes a Fetch or Produce of one partition directly from the frame, and encodes its response, without message objects.

Nearly all Fetch and Produce requests name one partition, and decoding and encoding messages costs more than serving
them (docs/decisions/0015-fast-path-for-single-partition-requests.md).

FORMAT   As `messages/produce_fetch.py` declares it. One struct unpacks all fields after a name; a field that the version
         lacks has no bytes in it ("0s"); a compact count or length is stored plus one.
RULES    1. `decode_request` returns None unless the request has the usual form: one topic with one partition, no tagged
            field, a name of at most 126 bytes, and default values of the fields that plain clients do not set. The caller then
            uses the general codec.
         2. A response equals the general codec's byte for byte. The topic and the partition index, with their counts,
            are copied from the request.
NOT HERE Serving the request (`broker/handlers`); older versions, which no current client sends.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import MalformedRequest
from protocol.file_region import Region
from protocol.frame_codecs.topic_array import read_name
from protocol.framing import Part
from protocol.primitives import read_uvarint, uvarint

FIRST_FETCH_VERSION: Final = 9
FIRST_PRODUCE_VERSION: Final = 7
_MINUS_ONE: Final = b"\xff\xff\xff\xff"
NO_TAGS: Final = b"\0\0\0"  # of partition, topic and request
_PREFIX: Final = 4  # the length itself
_I32: Final = Struct(">i")

_new_tuple = tuple.__new__


class SinglePartitionFetch(NamedTuple):
    """The fields of the request; names as in the messages."""

    topic: str
    """Empty from version 13 on."""
    topic_id: bytes
    """Empty before version 13."""
    partition: int
    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    """-1 if the version lacks it, as in the message."""
    partition_max_bytes: int
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    isolation_level: int
    session_id: int
    session_epoch: int
    echoed_bytes: bytearray
    """The bytes that the response copies: topic and partition index, with their counts."""


class FetchLayout:
    """One version of Fetch, as a consumer without a rack sends it."""

    __slots__ = (
        "_count_of_one", "_end", "_has_ids", "_head", "_index_end", "_is_flexible", "_null_list_count", "_partition",
        "_replica_id", "_response_end", "_response_head", "_response_partition", "_topics_at",
    )  # fmt: skip

    def __init__(self, version: int) -> None:
        self._has_ids = version >= 13
        self._is_flexible = is_flexible = version >= 12
        has_rack = version >= 11
        self._count_of_one = 1 + is_flexible
        count, length = ("B", "16s" if self._has_ids else "B") if is_flexible else ("i", "h")
        # Replica id, max wait, min bytes, max bytes, isolation level, session id and epoch; topic count, topic id or
        # name length.
        self._replica_id = _MINUS_ONE if version < 15 else b""
        head = f">{len(self._replica_id)}siiibii"
        self._head = Struct(head + count + length)
        self._topics_at = struct.calcsize(head)
        # Partition count, index, leader epoch, fetch offset, last fetched epoch, (log start offset,) max bytes; no
        # forgotten topics, no rack.
        fetched_epoch = "i" if is_flexible else "0s"
        self._end = b"\0\0\1\1\0" if is_flexible else bytes(6 if has_rack else 4)
        self._partition = Struct(f">{count}iiq{fetched_epoch}8xi{len(self._end)}s")
        self._index_end = struct.calcsize(f">{count}i")
        # Length, correlation id, (no throttle time, no error,) session id.
        self._response_head = Struct(">iix4x2xi" if is_flexible else ">ii4x2xi")
        # (No error,) high watermark, last stable offset, log start offset, count of aborted transactions, preferred replica.
        self._response_partition = Struct(f">2xqqq{count}{4 * has_rack}s")
        self._null_list_count = 0 if is_flexible else -1
        self._response_end = NO_TAGS if is_flexible else b""

    def decode_request(self, frame: bytearray, position: int) -> SinglePartitionFetch | None:
        """Decodes the request at `position`; None if it does not have the usual form."""
        head = self._head
        try:
            replica, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, topic_id = (
                head.unpack_from(frame, position)
            )
            topic, name_end = "", position + head.size
            if not self._has_ids:
                topic, topic_id, name_end = read_name(frame, name_end, topic_id - self._is_flexible)
            partitions, index, leader_epoch, offset, fetched_epoch, partition_max_bytes, end = (
                self._partition.unpack_from(frame, name_end)
            )
        except struct.error:  # it is cut short
            return None
        if (
            topics != self._count_of_one
            or partitions != self._count_of_one
            or replica != self._replica_id
            or end != self._end
        ):
            return None
        if not self._is_flexible:
            fetched_epoch = -1
        echoed_bytes = frame[position + self._topics_at : name_end + self._index_end]
        request = (
            topic, topic_id, index, offset, leader_epoch, fetched_epoch, partition_max_bytes, max_bytes, min_bytes,
            max_wait_ms, isolation, session_id, session_epoch, echoed_bytes,
        )  # fmt: skip
        return _new_tuple(SinglePartitionFetch, request)

    def encode_response(
        self,
        correlation_id: int,
        request: SinglePartitionFetch,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        size: int,
        regions: tuple[Region, ...],
        *,
        has_empty_list: bool,
    ) -> list[Part]:
        """Encodes a response with records.

        Args:
            correlation_id: of the request.
            request: the decoded request.
            high_watermark: of the partition.
            last_stable_offset: of the partition.
            log_start_offset: of the partition.
            size: total size of the records.
            regions: file regions of the records.
            has_empty_list: whether the list of aborted transactions is empty instead of null.
        """
        partition = self._response_partition.pack(
            high_watermark, last_stable_offset, log_start_offset, self._null_list_count + has_empty_list, _MINUS_ONE
        )
        records = uvarint(size + 1) if self._is_flexible else size.to_bytes(4, "big")
        head, end, echoed_bytes = self._response_head, self._response_end, request.echoed_bytes
        length = head.size - _PREFIX + len(echoed_bytes) + len(partition) + len(records) + size + len(end)
        first = b"".join((head.pack(length, correlation_id, request.session_id), echoed_bytes, partition, records))
        return [first, *regions, end] if end else [first, *regions]


SinglePartitionProduce = tuple[str, bytes, int, int, int, memoryview, bytearray]
"""Topic name, topic id, partition index, acks, timeout in milliseconds, records; and the bytes that the response copies: topic
and partition index, with their counts."""


class ProduceLayout:
    """One version of Produce, as a producer without transactions sends it."""

    __slots__ = (
        "_count_of_one", "_end", "_has_ids", "_head", "_index", "_is_flexible", "_no_id", "_response_head",
        "_response_partition", "_topics_at", "_trailing_tags",
    )  # fmt: skip

    def __init__(self, version: int) -> None:
        self._has_ids = version >= 13
        self._is_flexible = is_flexible = version >= 9
        self._count_of_one = 1 + is_flexible
        self._no_id = 0 if is_flexible else -1
        count, length = ("B", "16s" if self._has_ids else "B") if is_flexible else ("i", "h")
        # Transactional id, acks, timeout; topic count, topic id or name length.
        head = ">Bhi" if is_flexible else ">hhi"
        self._head = Struct(head + count + length)
        self._topics_at = struct.calcsize(head)
        # Partition count, index; the records' length follows.
        self._index = Struct(f">{count}i")
        self._trailing_tags = NO_TAGS if is_flexible else b""
        # Length, correlation id.
        self._response_head = Struct(">iix" if is_flexible else ">ii")
        # (No error,) base offset, log append time, log start offset.
        self._response_partition = Struct(">2xqqq")
        # No record errors, no error message, (two tag sections,) no throttle time, (no tags).
        self._end = b"\1\0\0\0" + bytes(5) if is_flexible else (b"\0\0\0\0\xff\xff" if version >= 8 else b"") + bytes(4)

    def decode_request(self, frame: bytearray, position: int) -> SinglePartitionProduce | None:
        """Decodes the request at `position`; None if it does not have the usual form."""
        head, index_of = self._head, self._index
        try:
            transactional_id, acks, timeout_ms, topics, topic_id = head.unpack_from(frame, position)
            topic, name_end = "", position + head.size
            if not self._has_ids:
                topic, topic_id, name_end = read_name(frame, name_end, topic_id - self._is_flexible)
            partitions, index = index_of.unpack_from(frame, name_end)
            if topics != self._count_of_one or partitions != self._count_of_one or transactional_id != self._no_id:
                return None
            index_end = name_end + index_of.size
            if self._is_flexible:
                length, start = read_uvarint(frame, index_end)
                length -= 1
            else:
                (length,), start = _I32.unpack_from(frame, index_end), index_end + 4
        except (struct.error, MalformedRequest):  # it is cut short
            return None
        end = start + length
        if length < 0 or not frame.startswith(self._trailing_tags, end):  # false if the frame ends before
            return None
        records, echoed_bytes = memoryview(frame)[start:end], frame[position + self._topics_at : index_end]
        return topic, topic_id, index, acks, timeout_ms, records, echoed_bytes

    def encode_response(
        self, correlation_id: int, echoed_bytes: bytearray, base_offset: int, append_time_ms: int, log_start_offset: int
    ) -> list[Part]:
        """Encodes a response without error; `echoed_bytes` is the field of the decoded request."""
        head, end = self._response_head, self._end
        partition = self._response_partition.pack(base_offset, append_time_ms, log_start_offset)
        length = head.size - _PREFIX + len(echoed_bytes) + len(partition) + len(end)
        return [b"".join((head.pack(length, correlation_id), echoed_bytes, partition, end))]

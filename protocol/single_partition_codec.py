"""A Fetch and a Produce of one partition, read from the frame and answered without a message in between.

That is how nearly all of them look on the wire, and there the two steps through messages cost more than what is asked
for (docs/decisions/0015-a-short-cut-for-one-partition.md).

FORMAT   As the classes in `messages/produce_fetch.py` declare it. What follows a name is unpacked by one struct; a field that
         a version lacks has no bytes in it ("0s"); a compact count or length is one more than what it counts.
RULES    1. `read` gives None for anything but the usual shape: one topic with one partition, no tagged field, no name
            longer than 126 bytes, and of the fields that a plain client leaves alone the defaults. Then the codec decides.
         2. An answer is byte for byte the codec's. What it repeats of the request is copied from there: the topic and the
            partition's index, with the counts before them.
NOT HERE What is done between the two (`broker/handlers`), older versions: no client of these years sends them.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import MalformedRequest
from protocol.framing import Part
from protocol.primitives import read_uvarint, uvarint
from protocol.records import FileRegion

FIRST_FETCH_VERSION: Final = 9
FIRST_PRODUCE_VERSION: Final = 7
_LONGEST_NAME: Final = 126
_MINUS_ONE: Final = b"\xff\xff\xff\xff"
_NO_TAGS: Final = b"\0\0\0"  # of the partition, of the topic, of the whole
_PREFIX: Final = 4  # the length itself
_I32: Final = Struct(">i")

_new_tuple = tuple.__new__


class FetchOfOne(NamedTuple):
    """What is asked; the names are the messages'."""

    topic: str
    """Its name; empty from version 13 on."""
    topic_id: bytes
    """Empty before version 13."""
    partition: int
    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    """-1 where the version has none, as in the message."""
    partition_max_bytes: int
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    isolation_level: int
    session_id: int
    session_epoch: int
    repeated: bytearray
    """What the answer repeats."""


class FetchLayout:
    """One version of Fetch, as a consumer without a rack sends it."""

    __slots__ = (
        "_answer_end", "_answer_head", "_answer_partition", "_end", "_has_ids", "_head", "_index_end",
        "_is_flexible", "_no_list", "_one", "_partition", "_replica", "_topics_at",
    )  # fmt: skip

    def __init__(self, version: int) -> None:
        self._has_ids = version >= 13
        self._is_flexible = is_flexible = version >= 12
        has_rack = version >= 11
        self._one = 1 + is_flexible
        count, length = ("B", "16s" if self._has_ids else "B") if is_flexible else ("i", "h")
        # Replica, max wait, min bytes, max bytes, isolation, session id, session epoch; topics, id or length of the name.
        self._replica = _MINUS_ONE if version < 15 else b""
        head = f">{len(self._replica)}siiibii"
        self._head = Struct(head + count + length)
        self._topics_at = struct.calcsize(head)
        # Partitions, index, leader epoch, offset, last fetched epoch, (log start,) max bytes; nothing forgotten, no rack.
        fetched_epoch = "i" if is_flexible else "0s"
        self._end = b"\0\0\1\1\0" if is_flexible else bytes(6 if has_rack else 4)
        self._partition = Struct(f">{count}iiq{fetched_epoch}8xi{len(self._end)}s")
        self._index_end = struct.calcsize(f">{count}i")
        # Length, correlation id, (no throttling, no error,) session id.
        self._answer_head = Struct(">iix4x2xi" if is_flexible else ">ii4x2xi")
        # (No error,) high watermark, last stable offset, log start, count of aborted transactions, preferred replica.
        self._answer_partition = Struct(f">2xqqq{count}{4 * has_rack}s")
        self._no_list = 0 if is_flexible else -1
        self._answer_end = _NO_TAGS if is_flexible else b""

    def read(self, frame: bytearray, position: int) -> FetchOfOne | None:
        """The request that begins at `position`; None where it has another shape."""
        head = self._head
        try:
            replica, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, topic_id = (
                head.unpack_from(frame, position)
            )
            topic, name_end = "", position + head.size
            if not self._has_ids:
                topic, topic_id, name_end = _name(frame, name_end, topic_id - self._is_flexible)
            partitions, index, leader_epoch, offset, fetched_epoch, partition_max_bytes, end = (
                self._partition.unpack_from(frame, name_end)
            )
        except struct.error:  # it is cut short
            return None
        if topics != self._one or partitions != self._one or replica != self._replica or end != self._end:
            return None
        if not self._is_flexible:
            fetched_epoch = -1
        repeated = frame[position + self._topics_at : name_end + self._index_end]
        asked = (
            topic, topic_id, index, offset, leader_epoch, fetched_epoch, partition_max_bytes, max_bytes, min_bytes,
            max_wait_ms, isolation, session_id, session_epoch, repeated,
        )  # fmt: skip
        return _new_tuple(FetchOfOne, asked)

    def answer(
        self,
        correlation_id: int,
        asked: FetchOfOne,
        bounds: tuple[int, int, int],
        size: int,
        regions: tuple[FileRegion, ...],
        *,
        has_list: bool,
    ) -> list[Part]:
        """An answer with records.

        Args:
            correlation_id: of the request.
            asked: what `read` gave.
            bounds: high watermark, last stable offset, log start.
            size: bytes of the records.
            regions: where they lie.
            has_list: whether aborted transactions were asked for, of which there are none.
        """
        partition = self._answer_partition.pack(*bounds, self._no_list + has_list, _MINUS_ONE)
        records = uvarint(size + 1) if self._is_flexible else size.to_bytes(4, "big")
        head, end, repeated = self._answer_head, self._answer_end, asked.repeated
        length = head.size - _PREFIX + len(repeated) + len(partition) + len(records) + size + len(end)
        first = b"".join((head.pack(length, correlation_id, asked.session_id), repeated, partition, records))
        return [first, *regions, end] if end else [first, *regions]


class ProduceOfOne(NamedTuple):
    """What is to be appended."""

    topic: str
    topic_id: bytes
    partition: int
    acks: int
    timeout_ms: int
    records: memoryview
    repeated: bytearray
    """What the answer repeats."""


class ProduceLayout:
    """One version of Produce, as a producer without transactions sends it."""

    __slots__ = (
        "_answer_head", "_answer_partition", "_end", "_has_ids", "_head", "_index", "_is_flexible", "_no_id", "_one",
        "_rest", "_topics_at",
    )  # fmt: skip

    def __init__(self, version: int) -> None:
        self._has_ids = version >= 13
        self._is_flexible = is_flexible = version >= 9
        self._one = 1 + is_flexible
        self._no_id = 0 if is_flexible else -1
        count, length = ("B", "16s" if self._has_ids else "B") if is_flexible else ("i", "h")
        # Transactional id, acks, timeout; topics, id or length of the name.
        head = ">Bhi" if is_flexible else ">hhi"
        self._head = Struct(head + count + length)
        self._topics_at = struct.calcsize(head)
        # Partitions, index; the records' length stands behind.
        self._index = Struct(f">{count}i")
        self._rest = _NO_TAGS if is_flexible else b""
        # Length, correlation id.
        self._answer_head = Struct(">iix" if is_flexible else ">ii")
        # (No error,) base offset, time of the append, log start.
        self._answer_partition = Struct(">2xqqq")
        # No single records refused, no message, (no tags twice,) no throttling, (no tags).
        self._end = b"\1\0\0\0" + bytes(5) if is_flexible else (b"\0\0\0\0\xff\xff" if version >= 8 else b"") + bytes(4)

    def read(self, frame: bytearray, position: int) -> ProduceOfOne | None:
        """The request that begins at `position`; None where it has another shape."""
        head, index_of = self._head, self._index
        try:
            transactional_id, acks, timeout_ms, topics, topic_id = head.unpack_from(frame, position)
            topic, name_end = "", position + head.size
            if not self._has_ids:
                topic, topic_id, name_end = _name(frame, name_end, topic_id - self._is_flexible)
            partitions, index = index_of.unpack_from(frame, name_end)
            index_end = name_end + index_of.size
            if self._is_flexible:
                length, start = read_uvarint(frame, index_end)
                length -= 1
            else:
                (length,), start = _I32.unpack_from(frame, index_end), index_end + 4
        except (struct.error, MalformedRequest):  # it is cut short
            return None
        end = start + length
        if (
            topics != self._one
            or partitions != self._one
            or transactional_id != self._no_id
            or length < 0
            or not frame.startswith(self._rest, end)  # nor if the frame ends before
        ):
            return None
        records, repeated = memoryview(frame)[start:end], frame[position + self._topics_at : index_end]
        return _new_tuple(ProduceOfOne, (topic, topic_id, index, acks, timeout_ms, records, repeated))

    def answer(
        self, correlation_id: int, repeated: bytearray, base_offset: int, append_time_ms: int, log_start_offset: int
    ) -> list[Part]:
        """An answer that tells where the records went; it repeats of the request what `read` gave for that."""
        head, end = self._answer_head, self._end
        partition = self._answer_partition.pack(base_offset, append_time_ms, log_start_offset)
        length = head.size - _PREFIX + len(repeated) + len(partition) + len(end)
        return [b"".join((head.pack(length, correlation_id), repeated, partition, end))]


def _name(frame: bytearray, start: int, length: int) -> tuple[str, bytes, int]:
    """A topic's name instead of its id, and where it ends; empty, which no topic is called, where it is none or too long."""
    end = start + length
    if not 0 < length <= _LONGEST_NAME:
        return "", b"", start
    return frame[start:end].decode("utf-8", "replace"), b"", end

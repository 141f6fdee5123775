"""Decodes an OffsetCommit directly from the frame, without an object for each offset, and encodes its response.

FORMAT   As `messages/groups.py` declares it, from version 8 on. A *row* is a partition without metadata text:
             i32 partition index, i64 committed offset, i32 leader epoch, i8 metadata (0 null, 1 empty), i8 no tagged fields
RULES    1. `decode_request` returns None unless the request has the usual form: rows only, no tagged field, no empty list,
            names of at most 126 bytes. The caller then uses the general codec.
         2. A response equals the general codec's byte for byte.
         3. Rows are checked and copied column by column, as slices with a step: the loops over all rows run in C.
NOT HERE Serving the request (`broker/handlers/groups/offset_commit_fast_path.py`); older versions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from protocol.codegen import MAX_REQUEST_ELEMENTS
from protocol.errors import MalformedRequest
from protocol.framing import Part
from protocol.primitives import read_uvarint, uvarint

FIRST_VERSION: Final = 8
ROW_BYTES: Final = 18
INDEX_BYTES: Final = 4
_METADATA_AT: Final = 16
_TAGS_AT: Final = 17
_RESULT_BYTES: Final = 7
_SUCCESS: Final = b"\0\0\0"  # error code, no tagged fields
_LONGEST_NAME: Final = 126
FIRST_VERSION_WITH_IDS: Final = 10
_ID_BYTES: Final = 16

_I32 = Struct(">i")
_ROW = Struct(">i12s2x")
_RESPONSE_HEAD = Struct(">iix4x")  # length, correlation id, no tagged fields, no throttle time
_PREFIX: Final = 4  # the length itself
_new_tuple = tuple.__new__


class TopicRows(NamedTuple):
    """The commits of one topic."""

    name: str
    """Empty from version 10 on."""
    topic_id: bytes
    """Empty before version 10."""
    rows: bytes
    echoed_bytes: bytes
    """The bytes that the response copies: the topic and the number of its partitions."""


class OffsetCommitRows(NamedTuple):
    """The fields of the request; names as in the message."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    topics: list[TopicRows]


class _UnusualForm(Exception):
    """The request does not have the usual form."""


def decode_request(frame: bytearray, position: int, version: int) -> OffsetCommitRows | None:
    """Decodes the request at `position`; None if it does not have the usual form."""
    data = bytes(frame)
    try:
        group_id, at = _string(data, position)
        (generation,) = _I32.unpack_from(data, at)
        member_id, at = _string(data, at + _I32.size)
        instance_id, at = _string(data, at) if data[at] else (None, at + 1)
        count, at = _count(data, at)
        topics, room = [], MAX_REQUEST_ELEMENTS * ROW_BYTES
        for _ in range(count):
            topic, at = _topic(data, at, version)
            topics.append(topic)
            room -= ROW_BYTES + len(topic.rows)
            if room < 0:  # the general codec refuses it
                return None
    except (_UnusualForm, IndexError, UnicodeDecodeError, MalformedRequest, struct.error):
        return None
    if data[at:] != b"\0" or not topics:
        return None
    return _new_tuple(OffsetCommitRows, (group_id, generation, member_id, instance_id, topics))


def _topic(data: bytes, start: int, version: int) -> tuple[TopicRows, int]:
    """Reads the rows of one topic; returns them and the end position."""
    name, topic_id = "", b""
    if version >= FIRST_VERSION_WITH_IDS:
        at = start + _ID_BYTES
        topic_id = data[start:at]
    else:
        name, at = _string(data, start)
    count, at = _count(data, at)
    if count < 1:
        raise _UnusualForm
    end = at + count * ROW_BYTES
    rows = data[at:end]
    has_unusual_row = rows[_METADATA_AT::ROW_BYTES].strip(b"\0\1") or rows[_TAGS_AT::ROW_BYTES].strip(b"\0")
    if data[end] or has_unusual_row:  # `data[end]`: the tagged fields of the topic
        raise _UnusualForm
    return _new_tuple(TopicRows, (name, topic_id, rows, data[start:at])), end + 1


def _string(data: bytes, at: int) -> tuple[str, int]:
    """Reads a short string that is not null; returns it and the end position."""
    length = data[at]  # plus one
    if not 1 <= length <= _LONGEST_NAME + 1:
        raise _UnusualForm
    end = at + length
    return data[at + 1 : end].decode(), end


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Reads an array's count; returns it and the end position."""
    count = data[at]
    at += 1
    if count > 127:
        count, at = read_uvarint(data, at - 1)
    return count - 1, at


def unpack_rows(rows: bytes) -> Iterator[tuple[int, bytes]]:
    """The partition index of each row, and the bytes of its offset and leader epoch."""
    return _ROW.iter_unpack(rows)


def encode_response(correlation_id: int, topics: list[TopicRows]) -> list[Part]:
    """Encodes a response without error; `topics` are those of the decoded request."""
    parts = [uvarint(len(topics) + 1)]
    for topic in topics:
        parts += (topic.echoed_bytes, _results(topic.rows), b"\0")
    parts.append(b"\0")
    body = b"".join(parts)
    return [_RESPONSE_HEAD.pack(_RESPONSE_HEAD.size - _PREFIX + len(body), correlation_id) + body]


def _results(rows: bytes) -> bytes:
    """The results of all rows."""
    if len(rows) == ROW_BYTES:
        return rows[:INDEX_BYTES] + _SUCCESS
    results = bytearray(len(rows) // ROW_BYTES * _RESULT_BYTES)
    for column in range(INDEX_BYTES):
        results[column::_RESULT_BYTES] = rows[column::ROW_BYTES]
    return bytes(results)

"""The plain commits of one OffsetCommit (`group_records.py`, rule 4): encoded and applied without an object for each.

RULES    1. The records are those that `group_records.commit_records` encodes, byte for byte.
NOT HERE The request (`protocol/frame_codecs/offset_commit_codec.py`), validation (`group_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct, calcsize
from typing import Final, NamedTuple

from broker.coordinators.classic.group_records import encode_commit_key, encode_plain_commit
from protocol.frame_codecs.offset_commit_codec import unpack_rows
from protocol.primitives import varint

_DELTAS: Final = tuple(map(varint, range(8192)))
"""Offset deltas of one and two bytes."""
MAX_COMMITS: Final = len(_DELTAS)
_ONE_BYTE_DELTAS: Final = 64
_INDEX_BYTES: Final = 4
_VALUE_BYTES: Final = len(encode_plain_commit(0, 0, 0, bytes(16)))
_VALUE_LENGTH: Final = varint(_VALUE_BYTES)
_ROW_AT, _ROW_END = 2, 14  # where offset and leader epoch are in a value


class TopicCommits(NamedTuple):
    """The commits of one topic."""

    topic: str
    topic_id: bytes
    values: list[tuple[int, bytes]]
    """Partition index and the value of its record, which is also what is kept."""


def topic_commits(topic: str, topic_id: bytes, rows: bytes, wall_ms: int) -> TopicCommits:
    """The commits of a request's rows."""
    value = encode_plain_commit(0, 0, wall_ms, topic_id)
    start, end = value[:_ROW_AT], value[_ROW_END:]
    return TopicCommits(topic, topic_id, [(index, start + row + end) for index, row in unpack_rows(rows)])


class PlainCommits(NamedTuple):
    """The commits of a group."""

    group_id: str
    topics: list[TopicCommits]

    @property
    def size(self) -> int:
        """The number of offsets."""
        return sum([len(topic.values) for topic in self.topics])

    def encode(self) -> bytes:
        """The records of all commits, at most MAX_COMMITS."""
        encoded: list[bytes] = []
        for topic, _, values in self.topics:
            key = encode_commit_key(self.group_id, topic, 0)[:-_INDEX_BYTES]
            # One call encodes records whose deltas have the same number of bytes.
            split = max(0, _ONE_BYTE_DELTAS - len(encoded))
            for part in (values[:split], values[split:]):
                if part:
                    encoded += _encode(_DELTAS[len(encoded) : len(encoded) + len(part)], key, part)
        return b"".join(encoded)


def _encode(deltas: tuple[bytes, ...], key: bytes, values: list[tuple[int, bytes]]) -> list[bytes]:
    """Records of one topic; `key` lacks the partition index."""
    start, pack = _record_layout(len(key), len(deltas[0]))
    key = varint(len(key) + _INDEX_BYTES) + key
    return [
        pack(start, delta, key, index, _VALUE_LENGTH, value)
        for delta, (index, value) in zip(deltas, values, strict=True)
    ]


@lru_cache(maxsize=256)
def _record_layout(key_bytes: int, delta_bytes: int) -> tuple[bytes, Callable[..., bytes]]:
    """The first bytes of a record, up to its offset delta; and the function that packs these and the other parts."""
    key_length = len(varint(key_bytes + _INDEX_BYTES))
    rest = f"{delta_bytes}s{key_length + key_bytes}si{len(_VALUE_LENGTH)}s{_VALUE_BYTES}sx"  # x: no headers
    start = varint(2 + calcsize(f">{rest}")) + b"\0\0"  # length, attributes, timestamp delta
    return start, Struct(f">{len(start)}s{rest}").pack

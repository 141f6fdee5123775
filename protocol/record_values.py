"""Keys and values of the records that we keep: a message with its type and version before it.

FORMAT   See `messages/stored.py`.
RULES    1. A metadata record of an unknown frame version or type, or with bytes behind it, is a MalformedRequest:
            whoever skips it has another state than its neighbours.
         2. A coordinator or control record of an unknown type gives None: newer software wrote it, and it may be
            skipped.
NOT HERE The messages (`messages/stored.py`), the batches around them (`records.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocol.codec import decode, decoder, encode
from protocol.errors import MalformedRequest
from protocol.messages import stored
from protocol.primitives import Buffer, read_uvarint, uvarint
from protocol.schema import Message

_FRAME_VERSION = 1
_INT16 = Struct(">h")
_CONTROL_KEY = Struct(">hh")

METADATA_RECORDS: Final[dict[int, type[Message]]] = {
    message.API_KEY: message
    for message in (
        stored.RegisterBrokerRecord,
        stored.UnregisterBrokerRecord,
        stored.TopicRecord,
        stored.PartitionRecord,
        stored.ConfigRecord,
        stored.PartitionChangeRecord,
        stored.RemoveTopicRecord,
        stored.FeatureLevelRecord,
        stored.ProducerIdsRecord,
        stored.BrokerRegistrationChangeRecord,
        stored.NoOpRecord,
        stored.ZkMigrationStateRecord,
        stored.BeginTransactionRecord,
        stored.EndTransactionRecord,
        stored.AbortTransactionRecord,
        stored.RegisterControllerRecord,
        stored.ClearElrRecord,
    )
}

# Of a topic of coordinator records: type -> (key, value).
CoordinatorTable = dict[int, tuple[type[Message], type[Message]]]

GROUP_RECORDS: Final[CoordinatorTable] = {
    0: (stored.LegacyOffsetCommitKey, stored.LegacyOffsetCommitValue),
    1: (stored.OffsetCommitKey, stored.OffsetCommitValue),
    2: (stored.GroupMetadataKey, stored.GroupMetadataValue),
}

CONTROL_ABORT = 0
CONTROL_COMMIT = 1
_CONTROL_RECORDS: Final[dict[int, type[Message]]] = {
    CONTROL_ABORT: stored.EndTxnMarker,
    CONTROL_COMMIT: stored.EndTxnMarker,
    2: stored.LeaderChangeMessage,
    3: stored.SnapshotHeaderRecord,
    4: stored.SnapshotFooterRecord,
    5: stored.KRaftVersionRecord,
    6: stored.VotersRecord,
}
_CONTROL_TYPES: Final = {message: kind for kind, message in _CONTROL_RECORDS.items() if kind > CONTROL_COMMIT}


def encode_metadata_record(message: Message, version: int) -> bytes:
    """The value of a record of the metadata log."""
    return b"".join((uvarint(_FRAME_VERSION), uvarint(message.API_KEY), uvarint(version), encode(message, version)))


def decode_metadata_record(value: Buffer) -> tuple[Message, int]:
    """The message in a record of the metadata log, and its version."""
    frame_version, position = read_uvarint(value, 0)
    if frame_version != _FRAME_VERSION:
        raise MalformedRequest(f"a metadata record has frame version {frame_version}")
    kind, position = read_uvarint(value, position)
    cls = METADATA_RECORDS.get(kind)
    if cls is None:
        raise MalformedRequest(f"metadata record type {kind} is not known")
    version, position = read_uvarint(value, position)
    _check_version(cls, version)
    message, end = decoder(cls, version)(value, position)
    if end != len(value):
        raise MalformedRequest(f"{len(value) - end} bytes follow a {cls.__name__}")
    return message, version


def encode_coordinator_key(message: Message) -> bytes:
    """The key of a coordinator record: its type, then the message."""
    return _INT16.pack(message.API_KEY) + encode(message, 0)


def decode_coordinator_key(key: Buffer, table: CoordinatorTable = GROUP_RECORDS) -> Message | None:
    """The key of a coordinator record; None when its type is unknown."""
    kinds = table.get(_int16(key))
    return None if kinds is None else decode(kinds[0], 0, key, _INT16.size)


def encode_coordinator_value(message: Message, version: int) -> bytes:
    """The value of a coordinator record: its version, then the message."""
    return _INT16.pack(version) + encode(message, version)


def decode_coordinator_value(
    key: Message, value: Buffer, table: CoordinatorTable = GROUP_RECORDS
) -> tuple[Message, int]:
    """The value that belongs to a decoded key, and its version."""
    cls = table[key.API_KEY][1]
    version = _int16(value)
    _check_version(cls, version)
    return decode(cls, version, value, _INT16.size), version


def encode_control_record(message: Message) -> tuple[bytes, bytes]:
    """Key and value of a record of the metadata quorum, in the version that the message names."""
    version: int = message.version  # type: ignore[attr-defined]
    return _CONTROL_KEY.pack(0, _CONTROL_TYPES[type(message)]), encode(message, version)


def encode_end_txn_marker(message: stored.EndTxnMarker, kind: int) -> tuple[bytes, bytes]:
    """Key and value of a transaction's marker: CONTROL_ABORT or CONTROL_COMMIT."""
    return _CONTROL_KEY.pack(0, kind), _INT16.pack(0) + encode(message, 0)


def decode_control_record(key: Buffer, value: Buffer) -> tuple[int, Message] | None:
    """The type and the message of a control record; None when its type is unknown."""
    if len(key) < _CONTROL_KEY.size:
        raise MalformedRequest("the key of a control record is cut short")
    _, kind = _CONTROL_KEY.unpack_from(key)
    cls = _CONTROL_RECORDS.get(kind)
    if cls is None:
        return None
    if cls is stored.EndTxnMarker:
        return kind, decode(cls, 0, value, _INT16.size)
    # What a later version adds stands behind what we know.
    return kind, decode(cls, min(max(_int16(value), 0), cls.MAX_VERSION), value)


def _int16(buffer: Buffer) -> int:
    if len(buffer) < _INT16.size:
        raise MalformedRequest("a record is cut short")
    value: int = _INT16.unpack_from(buffer)[0]
    return value


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise MalformedRequest(f"version {version} of {cls.__name__} is not known")

"""Decodes the records of internal topics and control records to JSON.

RULES    1. A record that cannot be decoded becomes a sentence, and the dump continues.
         2. Secrets of the metadata log are not shown, unlike by kafka-dump-log: SCRAM keys, and settings of brokers that are
            passwords or unknown, as DescribeConfigs hides them.
NOT HERE User records: their bytes have no known format.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.ssl_definitions import IGNORED_AND_SSL
from broker.tools.message_json import message_json, type_name
from protocol.codec import decoder
from protocol.control_records import ControlType, control_type, coordinator_epoch_of
from protocol.errors import KafkaError, MalformedRequest
from protocol.messages import stored_records
from protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.primitives import read_uvarint
from protocol.records import Record
from protocol.schema import Message
from replication.metadata.metadata_records import CONTROL_MESSAGES, UnreadableMetadata, decode_record
from storage.config.config_def import Kind

DELETED = "<DELETE>"
HIDDEN = "[hidden]"
_BROKER = 4  # org.apache.kafka.common.config.ConfigResource.Type
_CONSUMER = "consumer"


class Decoded(NamedTuple):
    """Key and payload of a record: JSON, a sentence, or None."""

    key: Any
    payload: Any


Decoding = Callable[[Record], Decoded]


def cluster_metadata(record: Record) -> Decoded:
    """A record of the metadata log or of one of its snapshots."""
    try:
        message = decode_record(record.value)
    except UnreadableMetadata as error:
        return Decoded(None, f"Error at {record.offset}, skipping. {error}")
    assert record.value is not None
    _, position = read_uvarint(record.value, 0)
    _, position = read_uvarint(record.value, position)
    version, _ = read_uvarint(record.value, position)
    data = message_json(message, version)
    for name in _secret_fields(message):
        data[name] = HIDDEN
    return Decoded(None, {"type": type_name(message), "version": version, "data": data})


def _secret_fields(message: Message) -> tuple[str, ...]:
    """The names of the fields whose values are not shown."""
    if isinstance(message, stored_records.UserScramCredentialRecord):
        return "salt", "storedKey", "serverKey"
    if isinstance(message, stored_records.ConfigRecord) and message.resource_type == _BROKER:
        setting = BROKER_SETTINGS.get(message.name) or IGNORED_AND_SSL.get(message.name)
        if message.value is not None and (setting is None or setting.kind is Kind.PASSWORD):
            return ("value",)
    return ()


# ---- coordinators ----------------------------------------------------------------------------------------

_Classes = dict[int, tuple[type[Message], type[Message]]]
"""The classes of key and value by record type."""

_GROUP_RECORDS: _Classes = {
    0: (stored_records.LegacyOffsetCommitKey, stored_records.LegacyOffsetCommitValue),
    1: (stored_records.OffsetCommitKey, stored_records.OffsetCommitValue),
    2: (stored_records.GroupMetadataKey, stored_records.GroupMetadataValue),
    3: (stored_records.ConsumerGroupMetadataKey, stored_records.ConsumerGroupMetadataValue),
    5: (stored_records.ConsumerGroupMemberMetadataKey, stored_records.ConsumerGroupMemberMetadataValue),
    6: (
        stored_records.ConsumerGroupTargetAssignmentMetadataKey,
        stored_records.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    7: (
        stored_records.ConsumerGroupTargetAssignmentMemberKey,
        stored_records.ConsumerGroupTargetAssignmentMemberValue,
    ),
    8: (
        stored_records.ConsumerGroupCurrentMemberAssignmentKey,
        stored_records.ConsumerGroupCurrentMemberAssignmentValue,
    ),
    16: (stored_records.ConsumerGroupRegularExpressionKey, stored_records.ConsumerGroupRegularExpressionValue),
}
_TRANSACTION_RECORDS: _Classes = {0: (stored_records.TransactionLogKey, stored_records.TransactionLogValue)}


def coordinator_record(known: _Classes, record: Record) -> Decoded:
    """A record of `__consumer_offsets` or of `__transaction_state`, by the classes of its topic."""
    try:
        return _decoded(record, known)
    except MalformedRequest as error:
        return Decoded(f"Error at offset {record.offset}, skipping. {error}", None)


def _decoded(record: Record, known: _Classes) -> Decoded:
    key, value = record.key, record.value
    if key is None or len(key) < 2:
        return Decoded(f"Error at offset {record.offset}, skipping. The record has no key.", None)
    kind = int.from_bytes(key[:2], "big", signed=True)
    if kind not in known:
        return Decoded(f"Unknown record type {kind} at offset {record.offset}, skipping.", None)
    key_class, value_class = known[kind]
    message, _ = decoder(key_class, 0)(key, 2)
    shown = {"type": str(kind), "data": message_json(message, 0)}
    return Decoded(shown, DELETED if value is None else _value(value_class, value))


def _value(cls: type[Message], value: bytes) -> Any:
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        return f"Unknown version {version} of {cls.__name__}"
    message, _ = decoder(cls, version)(value, 2)
    data = message_json(message, version)
    if isinstance(message, stored_records.GroupMetadataValue) and message.protocol_type == _CONSUMER:
        for member, shown in zip(message.members, data["members"], strict=True):
            shown["subscription"] = _embedded(ConsumerProtocolSubscription, member.subscription, shown["subscription"])
            shown["assignment"] = _embedded(ConsumerProtocolAssignment, member.assignment, shown["assignment"])
    return {"version": str(version), "data": data}


def _embedded(cls: type[Message], data: bytes, otherwise: Any) -> Any:
    """The consumer protocol message in `data`; otherwise `otherwise`."""
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) >= 2 and cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        with suppress(MalformedRequest):
            return message_json(decoder(cls, version)(data, 2)[0], version)
    return otherwise


DECODINGS: dict[str, Decoding] = {
    "cluster-metadata": cluster_metadata,
    "offsets": partial(coordinator_record, _GROUP_RECORDS),
    "transaction-log": partial(coordinator_record, _TRANSACTION_RECORDS),
}


# ---- control records -------------------------------------------------------------------------------------

_CONTROL_NAMES = {
    ControlType.LEADER_CHANGE: "LeaderChange",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlType.KRAFT_VERSION: "KRaftVersion",
    ControlType.KRAFT_VOTERS: "KRaftVoters",
}


def control_record(record: Record) -> dict[str, Any]:
    """A control record: a transaction marker, or the name and fields of a message."""
    try:
        kind = control_type(record.key)
        if kind in {ControlType.ABORT, ControlType.COMMIT}:
            return {"endTxnMarker": ControlType(kind).name, "coordinatorEpoch": coordinator_epoch_of(record.value)}
        cls = CONTROL_MESSAGES.get(kind)
        if cls is None or record.value is None:
            return {"controlType": f"UNKNOWN({kind})"}
        version = min(int.from_bytes(record.value[:2], "big"), cls.MAX_VERSION)
        message, _ = decoder(cls, version)(record.value, 0)
    except (KafkaError, MalformedRequest) as error:
        return {"controlType": f"UNREADABLE({error})"}
    return {_CONTROL_NAMES[ControlType(kind)]: message_json(message, version)}

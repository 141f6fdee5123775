"""The records of `__transaction_state`, as Apache Kafka 4.3 writes them.

FORMAT   type 0  TransactionLog   transactional id -> value v1; v0 while transaction.version is 0
RULES    1. Values of all known versions are read. A value of an unknown version, written by a newer broker, is skipped.
         2. A tombstone deletes a transactional id.
         3. The partitions are null in state Empty and an empty list in the Complete states.
NOT HERE When a record is written (`transaction_coordinator.py`).
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Final

from broker.coordinators.runtime.stored_records import StoredRecord, version_of
from broker.coordinators.transactions.transaction import State, TopicPartition, TransactionMetadata
from protocol.codec import decode
from protocol.errors import MalformedRequest
from protocol.messages.stored_records import TransactionLogKey, TransactionLogValue, TransactionPartitions

TRANSACTION_LOG: Final = 0
FLEXIBLE_VALUE: Final = 1

_I16 = Struct(">h")


class TransactionRecord(StoredRecord):
    """A record with its decoded state; None for a tombstone."""

    transaction: TransactionMetadata | None


def transaction_record(transaction: TransactionMetadata, *, has_versions: bool) -> TransactionRecord:
    """The record of a state; `has_versions` selects value version 1."""
    partitions = None if transaction.state is State.EMPTY else _grouped(transaction.partitions)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.updated_wall_ms,
        transaction_start_timestamp_ms=transaction.started_wall_ms,
    )
    if has_versions:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
    key = TransactionLogKey(transactional_id=transaction.transactional_id)
    record = TransactionRecord(key, value, FLEXIBLE_VALUE if has_versions else 0)
    record.transaction = transaction
    return record


def transaction_tombstone(transactional_id: str) -> TransactionRecord:
    """The record that deletes a transactional id."""
    record = TransactionRecord(TransactionLogKey(transactional_id=transactional_id), None)
    record.transaction = None
    return record


def read_transactional_id(key: bytes) -> str:
    """The transactional id of a key of type 0."""
    return decode(TransactionLogKey, 0, key, _I16.size).transactional_id


def is_known_version(value: bytes) -> bool:
    """Whether the version is known (rule 1); for a truncated value `read_transaction` raises."""
    return len(value) < _I16.size or 0 <= _I16.unpack_from(value)[0] <= TransactionLogValue.MAX_VERSION


def read_transaction(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Decode a value; raises MalformedRequest: the value is truncated or unknown."""
    version = version_of(value, TransactionLogValue.MAX_VERSION)
    stored = decode(TransactionLogValue, version, value, _I16.size)
    try:
        state = State(stored.transaction_status)
    except ValueError:
        raise MalformedRequest(f"unknown transaction state {stored.transaction_status}") from None
    return TransactionMetadata(
        transactional_id,
        stored.producer_id,
        stored.producer_epoch,
        stored.transaction_timeout_ms,
        state,
        stored.transaction_last_update_timestamp_ms,
        stored.transaction_start_timestamp_ms,
        frozenset(
            (topic.topic, index) for topic in stored.transaction_partitions or () for index in topic.partition_ids
        ),
        stored.previous_producer_id,
        stored.next_producer_id,
        client_version=stored.client_transaction_version,
    )


def _grouped(partitions: frozenset[TopicPartition]) -> list[TransactionPartitions]:
    return [
        TransactionPartitions(topic=topic, partition_ids=[index for _, index in of_topic])
        for topic, of_topic in groupby(sorted(partitions), key=itemgetter(0))
    ]

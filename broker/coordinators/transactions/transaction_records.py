"""The records of `__transaction_state`, as Apache Kafka 4.3 writes them.

FORMAT   type 0  TransactionLog   transactional id -> value v1; v0 while transactions are of version 0
RULES    1. Values are read in every version. One of a later version is left over from a newer broker, and passed over.
         2. A tombstone ends a transactional id.
         3. A transaction that is empty has null for its partitions; one that is complete, an empty list.
NOT HERE When a record is written (`transaction_coordinator.py`).
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from broker.coordinators.runtime.coordinator_runtime import StoredRecord
from broker.coordinators.transactions.transaction import State, TopicPartition, Transaction
from protocol.codec import decode
from protocol.errors import MalformedRequest
from protocol.messages.stored_records import TransactionLogKey, TransactionLogValue, TransactionPartitions

TRANSACTION_LOG: Final = 0
FLEXIBLE_VALUE: Final = 1

_I16 = Struct(">h")


class TransactionRecord(StoredRecord):
    """A record together with what it stands for; None: it ends its transactional id."""

    transaction: Transaction | None


def transaction_record(transaction: Transaction, *, has_versions: bool) -> TransactionRecord:
    """How a transaction stands; `has_versions`: in the form that knows versions of transactions."""
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
    """The transactional id is forgotten."""
    record = TransactionRecord(TransactionLogKey(transactional_id=transactional_id), None)
    record.transaction = None
    return record


def read_transactional_id(key: bytes) -> str:
    """The transactional id of a key of type 0."""
    return decode(TransactionLogKey, 0, key, _I16.size).transactional_id


def is_known_version(value: bytes) -> bool:
    """Rule 1; of a value that is cut off `read_transaction` tells."""
    return len(value) < _I16.size or _is_known(*_I16.unpack_from(value))


def _is_known(version: int) -> bool:
    return TransactionLogValue.MIN_VERSION <= version <= TransactionLogValue.MAX_VERSION


def read_transaction(transactional_id: str, value: bytes) -> Transaction:
    """A transaction as some broker left it."""
    try:
        (version,) = _I16.unpack_from(value)
    except error:
        raise MalformedRequest("a transaction's value is cut off") from None
    if not _is_known(version):
        raise MalformedRequest(f"a transaction's value of version {version} is not known here")
    stored = decode(TransactionLogValue, version, value, _I16.size)
    try:
        state = State(stored.transaction_status)
    except ValueError:
        raise MalformedRequest(f"a transaction's state {stored.transaction_status} is not known here") from None
    return Transaction(
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
    topics: dict[str, TransactionPartitions] = {}
    for topic, index in sorted(partitions):
        if topic not in topics:
            topics[topic] = TransactionPartitions(topic=topic, partition_ids=[])
        topics[topic].partition_ids.append(index)
    return list(topics.values())

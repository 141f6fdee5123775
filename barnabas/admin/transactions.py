"""Transactions and producers: list, describe, find hanging ones, abort.

RULES    1. A hanging transaction is one that a partition has open and no coordinator has open there; its abort writes a
            marker to that partition only.
         2. An open transaction with a coordinator is ended by a new producer with its id, which fences the old one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.producer.transaction import InitProducerIdRequest, WriteTxnMarkersRequest

from barnabas.admin.client import TRANSACTION, Client
from barnabas.admin.errors import Refused, check
from barnabas.admin.topic_arrays import by_topic
from barnabas.client.topic_partition import TopicPartition

_SHORTEST_MS = 1
"""A transaction timeout that every cluster accepts; the producer that only fences begins no transaction."""


class TransactionRow(NamedTuple):
    """A transactional id in a list."""

    id: str
    state: str
    producer_id: int
    coordinator: int


class TransactionDescription(NamedTuple):
    """A transactional id; `started_ms` is -1 without an open transaction."""

    id: str
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: int
    timeout_ms: int
    started_ms: int
    partitions: list[TopicPartition]


class ProducerRow(NamedTuple):
    """A producer that a partition knows; `open_from` is the first offset of its open transaction, -1: none."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    open_from: int


def list_transactions(
    client: Client, states: Iterable[str] = (), longer_than_ms: int | None = None, producers: Iterable[int] = ()
) -> list[TransactionRow]:
    """Returns the transactional ids of all coordinators, sorted; of these states and producer ids if given. Raises Refused."""
    states, producers, found = list(states), list(producers), []
    for node in client.node_ids():
        limit = {} if longer_than_ms is None else {"duration_filter": longer_than_ms, "min_version": 1}
        response = client.ask_loaded(
            ListTransactionsRequest(state_filters=states, producer_id_filters=producers, **limit), node
        )
        check(response.error_code, None, "list transactions", "Describe on the cluster")
        found += [
            TransactionRow(transaction.transactional_id, transaction.transaction_state, transaction.producer_id, node)
            for transaction in response.transaction_states
        ]
    return sorted(found)


def describe_transaction(client: Client, name: str) -> TransactionDescription:
    """Returns a transactional id. Raises Refused if no coordinator knows it."""
    node = client.coordinator(name, TRANSACTION)
    response = client.ask_coordinator(DescribeTransactionsRequest(transactional_ids=[name]), name, TRANSACTION)
    found = response.transaction_states[0]
    check(found.error_code, None, f"describe transactional id {name}", f"Describe on transactional id {name}")
    partitions = [TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions]
    return TransactionDescription(
        name,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        node,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms,
        sorted(partitions),
    )


def describe_producers(client: Client, partitions: Iterable[TopicPartition]) -> list[ProducerRow]:
    """Returns the producers that the leaders of these partitions know. Raises Refused."""

    def request(partitions: list[TopicPartition]) -> Any:
        kind: Any = DescribeProducersRequest.TopicRequest
        return DescribeProducersRequest(
            topics=[kind(name=name, partition_indexes=indexes) for name, indexes in by_topic(partitions).items()]
        )

    rows = []
    for tp, part in client.ask_leaders(partitions, request):
        check(part.error_code, part.error_message, f"describe producers of {tp}", f"Read on topic {tp.topic}")
        rows += [
            ProducerRow(
                *tp,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.current_txn_start_offset,
            )
            for producer in part.active_producers
        ]
    return sorted(rows)


def find_hanging(client: Client, partitions: Iterable[TopicPartition]) -> list[ProducerRow]:
    """Returns the open transactions of these partitions that no coordinator has open there (rule 1). Raises Refused.

    A coordinator opens a transaction before a partition does, and ends it after. So one hangs if the partition has it open
    before and after the coordinator is asked, and the coordinator has not; others have begun or ended meanwhile.
    """
    before = _open_transactions(client, partitions)
    if not before:
        return []
    ids = {row.producer_id: row.id for row in list_transactions(client, producers={row.producer_id for row in before})}
    known = {name: _partitions_of(client, name) for name in ids.values()}
    suspects = {
        (*_place(row), row.producer_id, row.open_from)
        for row in before
        if _place(row) not in known.get(ids.get(row.producer_id, ""), ())
    }
    after = _open_transactions(client, {TopicPartition(topic, partition) for topic, partition, *_ in suspects})
    return [row for row in after if (*_place(row), row.producer_id, row.open_from) in suspects]


def _open_transactions(client: Client, partitions: Iterable[TopicPartition]) -> list[ProducerRow]:
    return [row for row in describe_producers(client, partitions) if row.open_from >= 0]


def _place(row: ProducerRow) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)


def _partitions_of(client: Client, name: str) -> list[TopicPartition]:
    """The partitions in the transaction of a transactional id; none if it has been deleted."""
    try:
        return describe_transaction(client, name).partitions
    except Refused as failure:
        if failure.name != "TRANSACTIONAL_ID_NOT_FOUND":
            raise
        return []


def abort_hanging(client: Client, row: ProducerRow) -> None:
    """Writes an abort marker for a hanging transaction into its partition (rule 1). Raises Refused."""
    kinds: Any = WriteTxnMarkersRequest.WritableTxnMarker
    marker = kinds(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        transaction_result=False,
        topics=[kinds.WritableTxnMarkerTopic(name=row.topic, partition_indexes=[row.partition])],
        coordinator_epoch=max(0, row.coordinator_epoch),
    )
    tp = _place(row)
    [node] = client.by_leader([tp])
    response = client.ask(WriteTxnMarkersRequest(markers=[marker]), node)
    part = response.markers[0].topics[0].partitions[0]
    check(part.error_code, None, f"abort the transaction of producer {row.producer_id} at {tp}", "Alter on the cluster")


def abort_open(client: Client, name: str) -> None:
    """Ends the open transaction of a transactional id with an abort, and fences its producer (rule 2). Raises Refused."""
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=_SHORTEST_MS, producer_id=-1, producer_epoch=-1, max_version=4
    )
    response = client.ask_coordinator(request, name, TRANSACTION)
    check(response.error_code, None, f"abort the transaction of {name}", f"Write on transactional id {name}")

"""Adds or verifies partitions at transaction coordinators on other brokers (KIP-890; Kafka: AddPartitionsToTxnManager).

RULES    1. One request in flight per coordinator; the next one contains all waiting transactions, each transactional id
            once, as in Kafka.
         2. A missing response counts as NOT_COORDINATOR; the client retries.
NOT HERE The coordinator of this broker (`transaction_coordinator.py`), the decision (`transaction_verification.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.transactions.transaction import ProducerIdAndEpoch, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.common import Topic
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
)
from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataImage

SendToBroker = Callable[[int, Message], Completion[Message | None]]
"""Sends a request to a broker, by its id; the callback gets the response, or None if there is none."""
PartitionResults = dict[TopicPartition, ErrorCode]

_NO_LEADER: Final = -1


class _Query(NamedTuple):
    """A transaction to add to or verify."""

    transaction: AddPartitionsToTxnTransaction
    partitions: list[TopicPartition]
    results: Completion[PartitionResults]


class RemoteVerification:
    """Sends AddPartitionsToTxn to coordinators on other brokers."""

    def __init__(self, broker_id: int, image: Callable[[], MetadataImage], send: SendToBroker) -> None:
        self._broker_id = broker_id
        self._image = image
        self._send_to_broker = send
        self._waiting: dict[int, deque[_Query]] = {}
        self._in_flight: set[int] = set()

    def coordinator_of(self, transactional_id: str) -> int:
        """The broker that coordinates a transactional id; -1 if there is none or it is this broker."""
        topic = self._image().topics_by_name.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return _NO_LEADER
        leader_id = topic.partitions[abs_hash(transactional_id) % len(topic.partitions)].leader
        return _NO_LEADER if leader_id == self._broker_id else leader_id

    def verify(
        self,
        coordinator_id: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Completion[PartitionResults]:
        """Add partitions to a transaction, or only verify them; returns the result of each."""
        keys = list(partitions)
        topics: dict[str, list[int]] = {}
        for topic, index in keys:
            topics.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=not adds,
            topics=[Topic(name=name, partitions=indexes) for name, indexes in topics.items()],
        )
        query = _Query(transaction, keys, Completion())
        self._waiting.setdefault(coordinator_id, deque()).append(query)
        self._send(coordinator_id)
        return query.results

    def _send(self, coordinator_id: int) -> None:
        waiting = self._waiting.get(coordinator_id)
        if not waiting or coordinator_id in self._in_flight:
            return
        batch: list[_Query] = []
        names: set[str] = set()
        while waiting and waiting[0].transaction.transactional_id not in names:
            batch.append(waiting.popleft())
            names.add(batch[-1].transaction.transactional_id)
        self._in_flight.add(coordinator_id)

        def on_response(response: Completion[Message | None]) -> None:
            self._in_flight.discard(coordinator_id)
            results = _results(response.result())
            for query in batch:
                result = results.get(query.transaction.transactional_id, {})
                query.results.complete({key: result.get(key, ErrorCode.NOT_COORDINATOR) for key in query.partitions})
            self._send(coordinator_id)

        request = AddPartitionsToTxnRequest(transactions=[query.transaction for query in batch])
        self._send_to_broker(coordinator_id, request).then(on_response)


def _results(response: Message | None) -> dict[str, PartitionResults]:
    if not isinstance(response, AddPartitionsToTxnResponse) or response.error_code != ErrorCode.NONE:
        return {}
    return {
        result.transactional_id: {
            (topic.name, one.partition_index): ErrorCode(one.partition_error_code)
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }

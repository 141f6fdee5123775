"""Asks the coordinator of a transaction on another broker whether partitions are, or shall be, part of it (KIP-890).

RULES    1. One request at a time for each coordinator, with all that came meanwhile; one transaction of a producer in each, as
            Apache Kafka does it.
         2. What is not answered is NOT_COORDINATOR: who asked tells the producer to try again.
NOT HERE The coordinator of this broker (`transaction_coordinator.py`), whom to let in (`transaction_verification.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.transactions.transaction import Expected, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from protocol.schema import Message
from replication.metadata.image import MetadataImage

Ask = Callable[[int, Message, Callable[[Message | None], None]], None]
Verdicts = dict[TopicPartition, ErrorCode]

_NOBODY: Final = -1


class _Wanted(NamedTuple):
    """What is to be asked about one transaction."""

    transaction: AddPartitionsToTxnTransaction
    partitions: list[TopicPartition]
    done: Callable[[Verdicts], None]


class TransactionLookup:
    """Asks coordinators on other brokers."""

    def __init__(self, own_id: int, image: Callable[[], MetadataImage], ask: Ask) -> None:
        self._own_id = own_id
        self._image = image
        self._ask_broker = ask
        self._waiting: dict[int, deque[_Wanted]] = {}
        self._is_asking: set[int] = set()

    def coordinator_of(self, transactional_id: str) -> int:
        """The broker whose coordinator has a transaction; -1: nobody, or this one, which says why it does not serve."""
        topic = self._image().topics_by_name.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return _NOBODY
        leader_id = topic.partitions[abs_hash(transactional_id) % len(topic.partitions)].leader
        return _NOBODY if leader_id == self._own_id else leader_id

    def ask(
        self,
        coordinator_id: int,
        transactional_id: str,
        producer: Expected,
        partitions: Iterable[TopicPartition],
        done: Callable[[Verdicts], None],
        *,
        is_added: bool,
    ) -> None:
        """Have partitions added to a transaction, or only looked for in it; `done` gets a verdict for each."""
        keys = list(partitions)
        topics: dict[str, list[int]] = {}
        for topic, index in keys:
            topics.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=not is_added,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
        )
        self._waiting.setdefault(coordinator_id, deque()).append(_Wanted(transaction, keys, done))
        self._send(coordinator_id)

    def _send(self, coordinator_id: int) -> None:
        waiting = self._waiting.get(coordinator_id)
        if not waiting or coordinator_id in self._is_asking:
            return
        batch: list[_Wanted] = []
        names: set[str] = set()
        while waiting and waiting[0].transaction.transactional_id not in names:
            batch.append(waiting.popleft())
            names.add(batch[-1].transaction.transactional_id)
        self._is_asking.add(coordinator_id)

        def answered(answer: Message | None) -> None:
            self._is_asking.discard(coordinator_id)
            results = _results(answer)
            for wanted in batch:
                found = results.get(wanted.transaction.transactional_id, {})
                wanted.done({key: found.get(key, ErrorCode.NOT_COORDINATOR) for key in wanted.partitions})
            self._send(coordinator_id)

        request = AddPartitionsToTxnRequest(transactions=[wanted.transaction for wanted in batch])
        self._ask_broker(coordinator_id, request, answered)


def _results(answer: Message | None) -> dict[str, Verdicts]:
    if not isinstance(answer, AddPartitionsToTxnResponse) or answer.error_code != ErrorCode.NONE:
        return {}
    return {
        result.transactional_id: {
            (topic.name, one.partition_index): ErrorCode(one.partition_error_code)
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        for result in answer.results_by_transaction
    }

"""A transactional producer, as in a client library: requests, retries and a record of its actions.

RULES    1. With transaction version 2, produce and offset commits add partitions implicitly; before, explicitly.
         2. Retriable errors are retried with identical bytes; the node may have been killed in between.
         3. Any other error raises `RequestRejected`: the producer was fenced, or its transaction timed out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from protocol.errors import ErrorCode
from protocol.messages import produce_fetch, transactions
from protocol.records import BatchBuilder
from protocol.schema import Message
from tests.exactly_once.anomalies import Event
from tests.simulation.transactions.node import TOPIC

NAME, GROUP = "tx", "g"
TIMEOUT_MS = 60_000
_RETRIABLE: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
}
_TRIES = 100


class RequestRejected(Exception):
    """The broker rejected a request."""


class Producer:
    """One instance of a transactional id."""

    def __init__(
        self,
        ask: Callable[[Callable[[], Message], int], Any],
        history: list[Event],
        incarnation: int,
        *,
        has_version_2: bool,
    ):
        """`ask` builds a request for each attempt and sends it to the current node."""
        self._ask = ask
        self._history = history
        self._name = f"life-{incarnation}"
        self._has_version_2 = has_version_2
        self._transaction_number = 0
        self._sequences: dict[int, int] = {}
        self._added: set[int] = set()
        answer = self._retry(
            lambda: transactions.InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS),
            5 if has_version_2 else 4,
            lambda answer: answer.error_code,
        )
        self._producer = answer.producer_id, answer.producer_epoch

    @property
    def transaction(self) -> str:
        """The name of the current or next transaction."""
        return f"{self._name}-{self._transaction_number}"

    def _retry(self, make: Callable[[], Message], version: int, code_of: Callable[[Any], int]) -> Any:
        """Send a request until the response is not retriable."""
        for _ in range(_TRIES):
            answer = self._ask(make, version)
            code = ErrorCode(code_of(answer))
            if code is ErrorCode.NONE:
                return answer
            if code not in _RETRIABLE:
                raise RequestRejected(f"{code.name}: {answer}")
        raise AssertionError(f"{make()} is rejected with {code.name} on each retry")

    def _record(self, what: str, partition: int = -1, offset: int = -1, value: str = "") -> None:
        self._history.append(
            Event(self._name, what, self.transaction, TOPIC if value else "", partition, offset, value)
        )

    # ---- a transaction

    def start_next_transaction(self) -> None:
        """Continue with the next transaction."""
        self._transaction_number += 1
        self._added.clear()

    def send(self, partition: int, value: str) -> None:
        producer_id, epoch = self._producer
        if not self._has_version_2 and partition not in self._added:
            self._add(partition)
        sequence = self._sequences.get(partition, 0)
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        builder.append(0, None, value.encode())
        batch = builder.build()

        def make() -> Message:
            data = produce_fetch.PartitionProduceData(
                index=partition, records=bytearray(batch)
            )  # the log modifies the batch
            topics = [produce_fetch.TopicProduceData(name=TOPIC, partition_data=[data])]
            return produce_fetch.ProduceRequest(transactional_id=NAME, acks=-1, timeout_ms=1000, topic_data=topics)

        self._record("sends", partition, -1, value)
        answer = self._retry(make, 12 if self._has_version_2 else 11, lambda answer: _produced(answer).error_code)
        self._sequences[partition] = sequence + 1
        self._record("sent", partition, _produced(answer).base_offset, value)

    def _add(self, partition: int) -> None:
        producer_id, epoch = self._producer
        topics = [transactions.AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])]
        self._retry(
            lambda: transactions.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=NAME,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            ),
            3,
            lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )
        self._added.add(partition)

    def commit_offset(self, offset: int) -> None:
        producer_id, epoch = self._producer
        if not self._has_version_2:
            self._retry(
                lambda: transactions.AddOffsetsToTxnRequest(
                    transactional_id=NAME, producer_id=producer_id, producer_epoch=epoch, group_id=GROUP
                ),
                3,
                lambda answer: answer.error_code,
            )
        partition_data = transactions.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        self._retry(
            lambda: transactions.TxnOffsetCommitRequest(
                transactional_id=NAME,
                group_id=GROUP,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[transactions.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition_data])],
            ),
            5 if self._has_version_2 else 3,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    def end(self, *, commit: bool) -> None:
        producer_id, epoch = self._producer
        if commit:
            self._record("commits")
        answer = self._retry(
            lambda: transactions.EndTxnRequest(
                transactional_id=NAME, producer_id=producer_id, producer_epoch=epoch, committed=commit
            ),
            5 if self._has_version_2 else 4,
            lambda answer: answer.error_code,
        )
        self._record("committed" if commit else "aborted")
        self.start_next_transaction()
        if self._has_version_2:
            self._producer = answer.producer_id, answer.producer_epoch
            self._sequences.clear()


def _produced(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]

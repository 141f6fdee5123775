"""A transactional producer, as in a client library: requests, retries and a record of its actions.

RULES    1. With transaction version 2, produce and offset commits add partitions implicitly; before, explicitly.
         2. Retriable errors are retried with identical bytes; the node may have been killed in between.
         3. Any other error raises `RequestRejected`: the producer was fenced, or its transaction timed out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import ProduceRequest
from protocol.schema import Message
from tests.exactly_once.anomalies import Event
from tests.simulation.transactions.node import TOPIC
from tests.support import group_requests
from tests.support.messages import message

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


def _error_code(answer: Any) -> int:
    code: int = answer.error_code
    return code


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
        answer = self._retry(lambda: group_requests.init_request(NAME, TIMEOUT_MS), 5, 4)
        self._producer = answer.producer_id, answer.producer_epoch

    @property
    def transaction(self) -> str:
        """The name of the current or next transaction."""
        return f"{self._name}-{self._transaction_number}"

    def _retry(
        self, make: Callable[[], Message], version: int, old_version: int, code_of: Callable[[Any], int] = _error_code
    ) -> Any:
        """Send a request, in the old version for transaction version 0, until the response is not retriable."""
        if not self._has_version_2:
            version = old_version
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

        def make() -> Message:  # each with its own records: the log modifies the batch
            topics = [{"name": TOPIC, "partition_data": [{"index": partition, "records": bytearray(batch)}]}]
            return message(ProduceRequest, transactional_id=NAME, acks=-1, timeout_ms=1000, topic_data=topics)

        self._record("sends", partition, -1, value)
        answer = self._retry(make, 12, 11, lambda answer: _produced(answer).error_code)
        self._sequences[partition] = sequence + 1
        self._record("sent", partition, _produced(answer).base_offset, value)

    def _add(self, partition: int) -> None:
        self._retry(
            lambda: group_requests.add_request_v3(NAME, self._producer, partition, topic=TOPIC), 3, 3,
            lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )  # fmt: skip
        self._added.add(partition)

    def commit_offset(self, offset: int) -> None:
        if not self._has_version_2:
            self._retry(lambda: group_requests.add_offsets_request(NAME, self._producer, GROUP), 3, 3)
        self._retry(
            lambda: group_requests.txn_commit_request(NAME, self._producer, offset, GROUP, topic=TOPIC), 5, 3,
            group_requests.error_of,
        )  # fmt: skip

    def end(self, *, commit: bool) -> None:
        if commit:
            self._record("commits")
        answer = self._retry(lambda: group_requests.end_request(NAME, self._producer, commit=commit), 5, 4)
        self._record("committed" if commit else "aborted")
        self.start_next_transaction()
        if self._has_version_2:
            self._producer = answer.producer_id, answer.producer_epoch
            self._sequences.clear()


def _produced(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]

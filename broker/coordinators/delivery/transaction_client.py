"""The transactions of one deliverer, with Kafka's own requests to the brokers of the cluster, this one included.

RULES    1. The transactional id fences: `initialize` ends a transaction of an earlier leader of the schedule partition and
            invalidates its epoch. The position is read afterwards.
         2. Transactions are of version 2 (KIP-890): Produce and TxnOffsetCommit add their partitions, EndTxn returns the next
            epoch, sequence numbers begin at 0.
         3. A request is repeated only while the coordinator completes the transaction before (CONCURRENT_TRANSACTIONS):
            nothing has happened then. After every other error the caller initializes again.
NOT HERE What is delivered (`deliverer.py`), connections (`broker/network/peer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from broker.coordinators.delivery.progress import Progress, read_progress
from broker.coordinators.delivery.routine import Steps
from broker.coordinators.schedule_groups import group_of, transactional_id_of
from broker.coordinators.transactions.remote_verification import SendToBroker
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.common import Topic
from protocol.messages.groups import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from protocol.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.produce_fetch import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
)
from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import TopicImage
from replication.partition.partition import ACKS_ALL

M = TypeVar("M", bound=Message)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_TIMEOUT_MS: Final = 60_000
"""The longest transaction: then the coordinator aborts it, and readers of committed records continue. Halved until the
coordinator accepts it (`transaction.max.timeout.ms`)."""
_REQUEST_TIMEOUT_MS: Final = 30_000
_REPEAT_AFTER_MS: Final = 10
_REPEATS: Final = 1_000


class _Exchange(NamedTuple):
    """A request to a node, and its response."""

    node_id: int
    make: Callable[[], Message]
    response: type[Message]
    code_of: Callable[[Any], int]
    """The error code of a response."""


class SchedulePartition(NamedTuple):
    """A partition of a schedule topic."""

    topic: str
    topic_id: bytes
    partition: int

    @property
    def name(self) -> str:
        """Topic and partition."""
        return f"{self.topic}-{self.partition}"


class TransactionClient:
    """The transactional producer of one schedule partition; its methods are steps of a routine."""

    def __init__(
        self, broker_id: int, partition: SchedulePartition, send: SendToBroker, sleep: Callable[[int], Completion[None]]
    ) -> None:
        """`sleep` completes after some milliseconds."""
        self._broker_id = broker_id
        self._partition = partition
        self._send = send
        self._sleep = sleep
        self._transactional_id = transactional_id_of(partition.topic, partition.partition)
        self._group = group_of(partition.topic)
        self._transaction_coordinator = self._group_coordinator = -1
        self._timeout_ms = _TIMEOUT_MS
        self.producer = (-1, -1)
        """Producer id and epoch."""
        self._is_open = False  # whether a transaction was begun and did not end

    def initialize(self) -> Steps[None]:
        """Finds the coordinators, ends any open transaction and gets an epoch (rule 1)."""
        self._transaction_coordinator = yield from self._find(_TRANSACTION, self._transactional_id)
        self._group_coordinator = yield from self._find(_GROUP, self._group)
        init = _Exchange(self._transaction_coordinator, self._init_request, InitProducerIdResponse, _error_code)
        response = None
        while response is None:
            try:
                response = yield from self._accepted(init, self._send(init.node_id, init.make()))
            except KafkaError as error:
                if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT or self._timeout_ms == 1:
                    raise
                self._timeout_ms //= 2
        self.producer, self._is_open = (response.producer_id, response.producer_epoch), False

    def progress(self) -> Steps[tuple[Progress, int]]:
        """The committed progress, and the leader epoch of the schedule partition when it was committed; -1 if unknown."""
        partition = self._partition
        topic = OffsetFetchRequestTopics(
            name=partition.topic, topic_id=partition.topic_id, partition_indexes=[partition.partition]
        )
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self._group, topics=[topic])], require_stable=True
        )
        response = _typed((yield self._send(self._group_coordinator, request)), OffsetFetchResponse)
        (group,) = response.groups
        _check(group.error_code, "OffsetFetch")
        ((found,),) = [topic.partitions for topic in group.topics]
        _check(found.error_code, "OffsetFetch")
        return read_progress(found.committed_offset, found.metadata), found.committed_leader_epoch

    def commit(
        self, progress: Progress, leader_epoch: int, target: TopicImage | None, batches: Mapping[int, bytearray]
    ) -> Steps[None]:
        """One transaction: the batches, by partition of the target, and the progress in the log of this leader epoch.

        Raises:
            KafkaError: it may be committed or not, unless the error is one of a refused batch.
        """
        exchanges = [
            _Exchange(
                self._group_coordinator,
                lambda: self._commit_request(progress, leader_epoch),
                TxnOffsetCommitResponse,
                _offset_code,
            )
        ]
        if target is not None:
            exchanges += self._produce_exchanges(target, batches)
        self._is_open = True
        sent = [self._send(exchange.node_id, exchange.make()) for exchange in exchanges]
        for exchange, response in zip(exchanges, sent, strict=True):
            yield from self._accepted(exchange, response)
        yield from self._end()

    def abort(self) -> Steps[None]:
        """Aborts the transaction that `commit` has begun, if it did not end; requests of it that arrive later are refused.

        Raises:
            KafkaError: another leader has fenced it, it is committed, or the coordinator does not answer.
        """
        if self._is_open:
            end = _Exchange(
                self._transaction_coordinator, partial(self._end_request, committed=False), EndTxnResponse, _error_code
            )
            yield from self._accepted(end, self._send(end.node_id, end.make()))

    def _init_request(self) -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=self._transactional_id, transaction_timeout_ms=self._timeout_ms)

    def _produce_exchanges(self, target: TopicImage, batches: Mapping[int, bytearray]) -> list[_Exchange]:
        """One request for each leader."""
        by_leader: dict[int, dict[int, bytearray]] = {}
        for index, batch in batches.items():
            leader = target.partitions[index].leader
            if leader < 0:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{target.name}-{index} has no leader")
            by_leader.setdefault(leader, {})[index] = batch
        return [
            _Exchange(leader, partial(self._produce_request, target, data), ProduceResponse, _produce_code)
            for leader, data in by_leader.items()
        ]

    def _produce_request(self, target: TopicImage, batches: Mapping[int, bytearray]) -> ProduceRequest:
        """With copies of the batches, which a handler of this broker changes in place."""
        data = [PartitionProduceData(index=index, records=bytearray(batch)) for index, batch in batches.items()]
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ACKS_ALL,
            timeout_ms=_REQUEST_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=target.name, topic_id=target.topic_id, partition_data=data)],
        )

    def _commit_request(self, progress: Progress, leader_epoch: int) -> TxnOffsetCommitRequest:
        producer_id, epoch = self.producer
        partition = TxnOffsetCommitRequestPartition(
            partition_index=self._partition.partition,
            committed_offset=progress.end_offset,
            committed_leader_epoch=leader_epoch,
            committed_metadata=progress.metadata(),
        )
        return TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=self._group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[Topic(name=self._partition.topic, partitions=[partition])],
        )

    def _end_request(self, *, committed: bool) -> EndTxnRequest:
        producer_id, epoch = self.producer
        return EndTxnRequest(
            transactional_id=self._transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )

    def _end(self) -> Steps[None]:
        request = self._end_request(committed=True)
        response = _typed((yield self._send(self._transaction_coordinator, request)), EndTxnResponse)
        _check(response.error_code, "EndTxn")
        self.producer, self._is_open = (response.producer_id, response.producer_epoch), False

    def _find(self, kind: int, key: str) -> Steps[int]:
        """The coordinator's broker id; creates the internal topic if it does not exist."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        response = _typed((yield self._send(self._broker_id, request)), FindCoordinatorResponse)
        (found,) = response.coordinators
        _check(found.error_code, "FindCoordinator")
        return found.node_id

    def _accepted(self, exchange: _Exchange, sent: Completion[Message | None]) -> Steps[Any]:
        """The response without error to a request that was sent; rule 3."""
        for _ in range(_REPEATS):
            response = _typed((yield sent), exchange.response)
            code = exchange.code_of(response)
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            yield self._sleep(_REPEAT_AFTER_MS)
            sent = self._send(exchange.node_id, exchange.make())
        _check(code, exchange.response.__name__.removesuffix("Response"))
        return response


def _error_code(response: InitProducerIdResponse | EndTxnResponse) -> int:
    return response.error_code


def _offset_code(response: TxnOffsetCommitResponse) -> int:
    ((result,),) = [topic.partitions for topic in response.topics]
    return result.error_code


def _produce_code(response: ProduceResponse) -> int:
    """The first error."""
    return next(
        (one.error_code for topic in response.responses for one in topic.partition_responses if one.error_code), 0
    )


def _typed(response: Message | None, kind: type[M]) -> M:
    if not isinstance(response, kind):
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"no {kind.__name__}")
    return response


def _check(code: int, api: str) -> None:
    if code:
        raise KafkaError(ErrorCode(code), f"{api} failed with {ErrorCode(code).name}")

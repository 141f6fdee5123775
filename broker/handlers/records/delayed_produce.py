"""A Produce in progress: appends the batch of every partition, waits for acks, and responds.

RULES    1. After the timeout a partition gets REQUEST_TIMED_OUT; the records may still be committed.
         2. Each transactional batch is appended after its transaction is verified
            (`coordinators/transactions/transaction_verification.py`).
NOT HERE The checks of a request (`produce.py`), validation of batches (`storage/log/log_validator.py`), acks
         (`replication/partition/partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from broker.coordinators.transactions.transaction import ProducerIdAndEpoch
from broker.coordinators.transactions.transaction_verification import PartitionErrors, TransactionSupport
from broker.handlers.records.leaders import current_leader, node_endpoints
from broker.handlers.records.produce_services import ProduceServices
from broker.handlers.router import RequestContext
from broker.network.exchange import CloseConnection
from protocol.errors import ErrorCode, KafkaError
from protocol.frame_codecs.produce_codec import PartitionResult
from protocol.messages.produce_fetch import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from protocol.primitives import ZERO_UUID, uuid_text
from protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    HEADER,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from replication.completion import Completion, failed
from replication.partition.partition import ACKS_NONE
from storage.log.append_pipeline import AppendInfo
from storage.log.log_validator import FIRST_PRODUCE_VERSION_WITH_ZSTD, AppendOrigin, RejectedRecords, refuse_zstd

T = TypeVar("T")

_FIRST_VERSION_WITH_LEADER: Final = 10
_FIRST_VERSION_WITH_ABORTABLE: Final = 11
_FIRST_VERSION_ADDING_PARTITIONS: Final = 12
_ERRORS_WITH_LOG_START: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Errors that return the log start offset: the producer's earlier records may have been deleted."""
_NO_RECORDS: Final = memoryview(b"")
_ATTRIBUTES_LOW_BYTE: Final = ATTRIBUTES_POSITION + 1


def is_transactional(records: Any) -> bool:
    """Whether the batch is transactional; clients send one batch per partition."""
    return (
        records is not None
        and len(records) >= BATCH_OVERHEAD
        and records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT != 0
        and records[MAGIC_POSITION] == MAGIC
    )


def _writable(records: Any) -> bytearray | memoryview:
    """The records, which the log changes in place; empty if there are none."""
    if records is None:
        return _NO_RECORDS
    assert isinstance(records, bytearray | memoryview), "decoded into the frame"
    return records


def header_of(records: Any) -> BatchHeader:
    """The header of a transactional batch, which is not validated yet."""
    return BatchHeader(*HEADER.unpack_from(records))


class RequestedTopic(NamedTuple):
    """One topic of a request."""

    requested_name: str
    topic_id: bytes
    name: str
    indexes: list[int]


class _TransactionalBatch(NamedTuple):
    """A batch that is appended after its transaction is verified."""

    topic: str
    data: PartitionProduceData
    append: Completion[AppendInfo]


class DelayedProduce:
    """A Produce request in progress (Kafka: DelayedProduce)."""

    __slots__ = ("_acks", "_appends", "_ctx", "_services", "_topics", "_transactional")

    def __init__(self, services: ProduceServices, ctx: RequestContext, acks: int) -> None:
        self._services = services
        self._ctx = ctx
        self._acks = acks
        self._topics: list[RequestedTopic] = []
        self._appends: list[Completion[AppendInfo]] = []  # of all partitions, in the order of the request
        self._transactional: list[_TransactionalBatch] = []

    # ------------------------------------------------------------ appending
    def append(self, topics: list[TopicProduceData], refusal: KafkaError | None, *, has_transactional: bool) -> None:
        """Append all batches but transactional ones; `refusal` is the error of the whole request."""
        checks_zstd = self._ctx.api_version < FIRST_PRODUCE_VERSION_WITH_ZSTD
        appends: list[Completion[AppendInfo] | None] = []
        batches: list[tuple[str, int, bytearray | memoryview]] = []
        for topic in topics:
            name, refused = self._open_topic(topic, refusal)
            for data in topic.partition_data:
                records = data.records
                error = self._zstd_refusal(records) if refused is None and checks_zstd else refused
                if error is not None:
                    appends.append(failed(error))
                elif has_transactional and is_transactional(records):
                    batch = _TransactionalBatch(name, data, Completion())
                    self._transactional.append(batch)
                    appends.append(batch.append)
                else:
                    batches.append((name, data.index, _writable(records)))
                    appends.append(None)
        started = iter(self._services.replicas.appender.append_all(batches, acks=self._acks, wall_ms=self._ctx.wall_ms))
        self._appends = [next(started) if append is None else append for append in appends]

    def append_plain(self, topics: list[RequestedTopic], batches: list[tuple[str, int, memoryview]]) -> None:
        """Append batches that are not transactional, to topics that the client may write to."""
        self._topics = topics
        self._appends = [
            *self._services.replicas.appender.append_all(batches, acks=self._acks, wall_ms=self._ctx.wall_ms)
        ]

    def _open_topic(self, topic: TopicProduceData, refusal: KafkaError | None) -> tuple[str, KafkaError | None]:
        """Add a topic to the response; returns its name, and the error of its partitions."""
        name = topic.name
        if refusal is None:
            try:
                name = self._services.topic_name(self._ctx, name, topic.topic_id)
            except KafkaError as error:
                refusal = error.with_traceback(None)  # its frames would keep the request until a garbage collection
        indexes = [data.index for data in topic.partition_data]
        self._topics.append(RequestedTopic(topic.name, topic.topic_id, name, indexes))
        return name, refusal

    def _zstd_refusal(self, records: Any) -> KafkaError | None:
        try:
            refuse_zstd(records, self._ctx.api_version)
        except KafkaError as error:
            return error
        return None

    def append_transactional(self, transactional_id: str) -> None:
        """Verify and append the transactional batches."""
        waiting = self._transactional
        if not waiting:
            return
        header = header_of(waiting[0].data.records)
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        replicas = self._services.replicas
        partitions = replicas.partitions
        first_sequences = {
            (topic, data.index): header_of(data.records).base_sequence
            for topic, data, _ in waiting
            if producer.producer_id >= 0
        }
        support = TransactionSupport.of_version(
            self._ctx.api_version,
            generic_error=_FIRST_VERSION_WITH_ABORTABLE,
            add_partition=_FIRST_VERSION_ADDING_PARTITIONS,
        )
        origin = AppendOrigin.CLIENT_FROM_0 if support is TransactionSupport.ADD_PARTITION else AppendOrigin.CLIENT

        def on_verified(verification: Completion[PartitionErrors]) -> None:
            errors, verified = verification.result(), []
            for batch in waiting:
                refusal = errors.get((batch.topic, batch.data.index))
                if refusal is None:
                    verified.append(batch)
                else:
                    batch.append.fail(refusal)
            batches = [(topic, data.index, _writable(data.records)) for topic, data, _ in verified]
            started = replicas.appender.append_all(batches, acks=self._acks, wall_ms=self._ctx.wall_ms, origin=origin)
            for batch, append in zip(verified, started, strict=True):
                batch.append.follow(append)

        self._services.verification.verify(
            transactional_id,
            producer,
            {key: first for key, first in first_sequences.items() if key in partitions and partitions[key].is_leader},
            support,
        ).then(on_verified)

    # ------------------------------------------------------------ responding
    def finish(self, timeout_ms: int, respond: Callable[[], T]) -> T | Completion[T]:
        """The response when all appends are done, or after the timeout (rule 1): what `respond` returns, now or later.

        Raises:
            CloseConnection: an append failed with acks=0.
        """
        waiting = [append for append in self._appends if not append.is_done]
        if not waiting:
            return respond()
        late: Completion[T] = Completion()
        if self._acks != ACKS_NONE:
            deadline_mono_ms = self._ctx.mono_ms + timeout_ms
            late.expire_at(self._services.timers, deadline_mono_ms, lambda: late.complete(respond()))
        remaining = len(waiting)

        def on_append(_: Completion[AppendInfo]) -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining and not late.is_done:  # it is done after the timeout, or if the connection is closed
                try:
                    late.complete(respond())
                except CloseConnection as error:
                    late.fail(error)

        for append in waiting:
            append.then(on_append)
        return late

    def result(self) -> ProduceResponse | None:
        """The response to a request whose appends are done, or have timed out; None with acks=0."""
        if self._acks != ACKS_NONE:
            return self.response()
        if any(append.error is not None for append in self._appends):
            raise CloseConnection(self._close_reason())
        return None

    def results(self) -> list[PartitionResult] | None:
        """The result of each partition; None if an append failed or has timed out."""
        found: list[PartitionResult] = []
        for append in self._appends:
            if not append.is_done or append.error is not None:
                return None
            info = append.value
            found.append((info.base_offset, info.log_append_time_ms, info.log_start_offset))
        return found

    def response(self) -> ProduceResponse:
        """The response; partitions without a result have timed out."""
        appends = iter(self._appends)
        response = ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=requested_name,
                    topic_id=topic_id,
                    partition_responses=[self._partition_response(name, index, next(appends)) for index in indexes],
                )
                for requested_name, topic_id, name, indexes in self._topics
            ]
        )
        if self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            leaders = [
                partition.current_leader
                for topic in response.responses
                for partition in topic.partition_responses
                if partition.current_leader is not None
            ]
            if leaders:
                image, listener = self._services.replicas.image, self._ctx.connection.listener_name
                response.node_endpoints = node_endpoints(image, leaders, listener)
        return response

    def _partition_response(self, topic: str, index: int, append: Completion[AppendInfo]) -> PartitionProduceResponse:
        if append.is_done and append.error is None:
            info = append.value
            return PartitionProduceResponse(
                index=index,
                error_code=ErrorCode.NONE,
                base_offset=info.base_offset,
                log_append_time_ms=info.log_append_time_ms,
                log_start_offset=info.log_start_offset,
            )
        return self._error_response(topic, index, append.error or KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    def _error_response(self, topic: str, index: int, error: Exception) -> PartitionProduceResponse:
        assert isinstance(error, KafkaError)
        code = error.code
        response = PartitionProduceResponse(index=index, error_code=code, base_offset=-1, error_message=error.message)
        self._services.replicas.counts.known(topic).count_failure(code)
        if isinstance(error, RejectedRecords):
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=position, batch_index_error_message=why)
                for position, why in error.record_errors
            ]
        if isinstance(error, RejectedRecords) or code in _ERRORS_WITH_LOG_START:
            partition = self._services.replicas.partitions.get((topic, index))
            if partition is not None:  # it may be deleted since
                response.log_start_offset = partition.log.checkpoint.log_start_offset  # the log may be closed
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            response.current_leader = current_leader(self._services.replicas.image, topic, index)
        return response

    def failure_response(self, topic: str, topic_id: bytes, index: int, error: Exception) -> ProduceResponse:
        """The response after the fast path's append failed."""
        self._topics.append(RequestedTopic(topic, topic_id or ZERO_UUID, topic, [index]))
        self._appends.append(failed(error))
        return self.response()

    def _close_reason(self) -> str:
        """Count the failures; returns the line for the log."""
        refused = []
        partitions = [(topic, index) for topic in self._topics for index in topic.indexes]
        for (topic, index), append in zip(partitions, self._appends, strict=True):
            if isinstance(append.error, KafkaError):
                code = append.error.code
                self._services.replicas.counts.known(topic.name).count_failure(code)
                refused.append(f"{topic.requested_name or uuid_text(topic.topic_id)}-{index}: {code.name}")
        return f"a Produce with acks=0 failed ({', '.join(refused[:10])})"

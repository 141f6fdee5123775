"""Produce: append the batch of every partition and wait for acks.

RULES    1. Partitions are appended in request order and independently. A repeated partition is appended and answered twice.
         2. acks is 0, 1 or -1; else nothing is appended. With acks=0 there is no response; an error closes the
            connection, so that the producer refreshes its metadata.
         3. After the timeout a partition gets REQUEST_TIMED_OUT; the records may
            still be committed.
         4. Transactional batches need an authorized transactional id, and all batches of a request the same producer
            id; otherwise nothing is appended. Each batch is appended after its transaction is verified
            (`coordinators/transactions/transaction_verification.py`).
         5. The fast path answers one batch for one partition without messages; the response is the same, byte for byte. It
            returns None before any change for any other request: another layout, acks=0, a transactional batch, an unknown or
            unauthorized topic (docs/decisions/0015-fast-path-for-single-partition-requests.md).
NOT HERE Validation of batches (`storage/log/log_validator.py`), acks (`replication/partition/partition.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from broker.coordinators.transactions.transaction import ProducerIdAndEpoch
from broker.coordinators.transactions.transaction_verification import (
    PartitionErrors,
    TransactionSupport,
    TransactionVerification,
)
from broker.handlers.records.leaders import current_leader, node_endpoints
from broker.handlers.router import CloseConnection, FastPath, RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey, response_header_version
from protocol.codec import encoder
from protocol.errors import ErrorCode, KafkaError
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from protocol.primitives import ZERO_UUID
from protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    HEADER,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from protocol.single_partition_codec import FIRST_PRODUCE_VERSION, ProduceLayout
from replication.completion import Completion, failed
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.partition import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import TimerQueue
from storage.log.log import AppendInfo
from storage.log.log_validator import FIRST_PRODUCE_VERSION_WITH_ZSTD, AppendOrigin, RejectedRecords, refuse_zstd

_ADMIN_CLIENT: Final = "__admin_client"  # the client id of Kafka's tools, which may write to internal topics
_FIRST_VERSION_WITH_LEADER: Final = 10
_FIRST_VERSION_WITH_ABORTABLE: Final = 11
_FIRST_VERSION_ADDING_PARTITIONS: Final = 12
_FIRST_VERSION_WITH_IDS: Final = 13
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


class ProduceHandler:
    """Handles Produce."""

    def __init__(
        self,
        replicas: ReplicaManager,
        timers: TimerQueue,
        verification: TransactionVerification,
        authorizer: Authorizer,
    ) -> None:
        self.replicas = replicas
        self.timers = timers
        self.verification = verification
        self.authorizer = authorizer

    def routes(self) -> list[Route]:
        """The routes of this module; advertised from version 0, supported from 3 (KAFKA-18659)."""
        return [
            Route(ApiKey.PRODUCE, 3, 13, self.handle, advertised_min=0, fast_path=self.fast_path, can_pipeline=True)
        ]

    def fast_path(self, version: int) -> FastPath | None:
        """The fast path of a version, if it has one."""
        return ProduceFastPath(self, version).answer if version >= FIRST_PRODUCE_VERSION else None

    def handle(
        self, ctx: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Completion[ProduceResponse | None] | None:
        """Append, and respond now or later."""
        produce = _Produce(self, ctx, request.acks)
        refusal = self._check_request(ctx, request)
        for topic in request.topic_data:
            produce.append_topic(topic, refusal)
        if request.transactional_id is not None:
            produce.append_transactional(request.transactional_id)
        return produce.finish(request.timeout_ms)

    def topic_name(self, ctx: RequestContext, name: str, topic_id: bytes) -> str:
        """The name of a topic that the client may write to; `topic_id` is used in versions that have it.

        Raises:
            KafkaError: the id is unknown, or the client may not write to the topic.
        """
        if ctx.api_version >= _FIRST_VERSION_WITH_IDS:
            topic_image = self.replicas.image.topics_by_id.get(topic_id)
            if topic_image is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = topic_image.name
        if not self.authorizer.authorize(ctx.connection.principal, Operation.WRITE, Resource.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if name in INTERNAL_TOPICS and ctx.client_id != _ADMIN_CLIENT:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}")
        return name

    def _check_request(self, ctx: RequestContext, request: ProduceRequest) -> KafkaError | None:
        """The error of the whole request, if any."""
        if request.acks not in (ACKS_LEADER, ACKS_ALL, ACKS_NONE):
            return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        producers = {
            _header_of(data.records).producer_id
            for topic in request.topic_data
            for data in topic.partition_data
            if _is_transactional(data.records)
        }
        if not producers:
            return None
        name = request.transactional_id
        if name is None or not self.authorizer.authorize(
            ctx.principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, name
        ):
            return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if len(producers) > 1:
            return KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        return None


def _is_transactional(records: Any) -> bool:
    """Whether the batch is transactional; clients send one batch per partition."""
    return (
        records is not None
        and len(records) >= BATCH_OVERHEAD
        and records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT != 0
        and records[MAGIC_POSITION] == MAGIC
    )


def _header_of(records: Any) -> BatchHeader:
    """The header of a transactional batch, which is not validated yet."""
    return BatchHeader(*HEADER.unpack_from(records))


class _TransactionalBatch(NamedTuple):
    """A batch that is appended after its transaction is verified."""

    topic: str
    data: PartitionProduceData
    answer: PartitionProduceResponse


class _Produce:
    """A Produce request in progress."""

    __slots__ = (
        "_acks", "_ctx", "_handler", "_has_error", "_late_response", "_remaining", "_response", "_transactional",
    )  # fmt: skip

    def __init__(self, handler: ProduceHandler, ctx: RequestContext, acks: int) -> None:
        self._handler = handler
        self._ctx = ctx
        self._acks = acks
        self._response = ProduceResponse(responses=[])
        self._transactional: list[_TransactionalBatch] = []
        self._remaining = 0
        self._has_error = False
        self._late_response: Completion[ProduceResponse | None] | None = None

    # ------------------------------------------------------------ appending
    def append_topic(self, topic: TopicProduceData, refusal: KafkaError | None) -> None:
        """Append the batches of one topic, or return the error of the whole request for each."""
        answers: list[PartitionProduceResponse] = []
        self._response.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
        name = topic.name
        if refusal is None:
            try:
                name = self._handler.topic_name(self._ctx, name, topic.topic_id)
            except KafkaError as error:
                refusal = error
        for data in topic.partition_data:
            # The initial error is the one returned after the timeout.
            answer = PartitionProduceResponse(index=data.index, error_code=ErrorCode.REQUEST_TIMED_OUT, base_offset=-1)
            answers.append(answer)
            self._remaining += 1
            if refusal is None:
                self._append(name, data, answer)
            else:
                self._on_append(name, answer, failed(refusal))

    def failure_response(self, topic: str, topic_id: bytes, index: int, error: Exception) -> ProduceResponse:
        """The response after the fast path's append failed."""
        answer = PartitionProduceResponse(index=index, error_code=ErrorCode.NONE, base_offset=-1)
        answers = TopicProduceResponse(name=topic, topic_id=topic_id or ZERO_UUID, partition_responses=[answer])
        self._response.responses.append(answers)
        self._set_error(topic, answer, error)
        return self._answer()

    def append_transactional(self, transactional_id: str) -> None:
        """Verify and append the transactional batches."""
        waiting = self._transactional
        if not waiting:
            return
        header = _header_of(waiting[0].data.records)
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        partitions = self._handler.replicas.partitions
        first_sequences = {
            (topic, data.index): _header_of(data.records).base_sequence
            for topic, data, _ in waiting
            if producer.producer_id >= 0
        }
        support = TransactionSupport.of_version(
            self._ctx.api_version,
            generic_error=_FIRST_VERSION_WITH_ABORTABLE,
            add_partition=_FIRST_VERSION_ADDING_PARTITIONS,
        )
        origin = AppendOrigin.CLIENT_FROM_0 if support is TransactionSupport.ADD_PARTITION else AppendOrigin.CLIENT

        def on_verified(errors: PartitionErrors) -> None:
            for topic, data, answer in waiting:
                refusal = errors.get((topic, data.index))
                if refusal is None:
                    self._append(topic, data, answer, origin)
                else:
                    self._on_append(topic, answer, failed(refusal))

        self._handler.verification.verify(
            transactional_id,
            producer,
            {key: first for key, first in first_sequences.items() if key in partitions and partitions[key].is_leader},
            support,
        ).then(lambda verified: on_verified(verified.result()))

    def _append(
        self,
        topic: str,
        data: PartitionProduceData,
        answer: PartitionProduceResponse,
        verified_origin: AppendOrigin | None = None,
    ) -> None:
        records = data.records
        assert records is None or isinstance(records, bytearray | memoryview), "decoded into the frame"
        version = self._ctx.api_version
        if version < FIRST_PRODUCE_VERSION_WITH_ZSTD:
            try:
                refuse_zstd(records, version)
            except KafkaError as error:
                self._on_append(topic, answer, failed(error))
                return
        if _is_transactional(records) and verified_origin is None:
            self._transactional.append(_TransactionalBatch(topic, data, answer))
            return
        append = self._handler.replicas.append(
            topic,
            data.index,
            _NO_RECORDS if records is None else records,
            acks=self._acks,
            wall_ms=self._ctx.wall_ms,
            origin=AppendOrigin.CLIENT if verified_origin is None else verified_origin,
        )
        append.then(partial(self._on_append, topic, answer))

    def _on_append(self, topic: str, answer: PartitionProduceResponse, append: Completion[AppendInfo]) -> None:
        """The append of one partition is done."""
        late = self._late_response
        if late is not None and late.is_done:  # after the timeout, or the connection is closed
            return
        if append.error is None:
            info = append.value
            answer.error_code = ErrorCode.NONE
            answer.base_offset = info.base_offset
            answer.log_append_time_ms = info.log_append_time_ms
            answer.log_start_offset = info.log_start_offset
        else:
            self._set_error(topic, answer, append.error)
        self._remaining -= 1
        if not self._remaining and late is not None:
            try:
                late.complete(self._result())
            except CloseConnection as error:
                late.fail(error)

    def _set_error(self, topic: str, answer: PartitionProduceResponse, error: Exception) -> None:
        assert isinstance(error, KafkaError)
        code = error.code
        self._has_error = True
        answer.error_code = code
        answer.error_message = error.message
        if isinstance(error, RejectedRecords):
            answer.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
                for index, why in error.record_errors
            ]
        if isinstance(error, RejectedRecords) or code in _ERRORS_WITH_LOG_START:
            partition = self._handler.replicas.partitions[topic, answer.index]
            answer.log_start_offset = partition.log.checkpoint.log_start_offset  # the log may be closed
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            answer.current_leader = current_leader(self._handler.replicas.image, topic, answer.index)

    # ------------------------------------------------------------ responding
    def finish(self, timeout_ms: int) -> ProduceResponse | Completion[ProduceResponse | None] | None:
        """All appends are started: the response, now or later.

        Raises:
            CloseConnection: an append failed with acks=0.
        """
        if not self._remaining:
            return self._result()
        late = self._late_response = Completion()
        if self._acks != ACKS_NONE:
            deadline_mono_ms = self._ctx.mono_ms + timeout_ms
            late.expire_at(self._handler.timers, deadline_mono_ms, lambda: late.complete(self._answer()))
        return late

    def _result(self) -> ProduceResponse | None:
        """The response to a request whose appends are done; rule 2."""
        if self._acks != ACKS_NONE:
            return self._answer()
        if self._has_error:
            raise CloseConnection(self._close_reason())
        return None

    def _answer(self) -> ProduceResponse:
        response = self._response
        if self._has_error and self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            leaders = (
                answer.current_leader
                for topic in response.responses
                for answer in topic.partition_responses
                if answer.current_leader is not None
            )
            image, listener = self._handler.replicas.image, self._ctx.connection.listener_name
            response.node_endpoints = node_endpoints(image, leaders, listener)
        return response

    def _close_reason(self) -> str:
        failed = [
            f"{topic.name or topic.topic_id.hex()}-{answer.index}: {ErrorCode(answer.error_code).name}"
            for topic in self._response.responses
            for answer in topic.partition_responses
            if answer.error_code
        ]
        return f"a Produce with acks=0 failed ({', '.join(failed[:10])})"


class ProduceFastPath:
    """The fast path of one version (rule 5)."""

    __slots__ = ("_encode", "_handler", "_has_flexible_header", "_layout")

    def __init__(self, handler: ProduceHandler, version: int) -> None:
        self._handler = handler
        self._layout = ProduceLayout(version)
        self._encode = encoder(ProduceResponse, version)
        self._has_flexible_header = response_header_version(ApiKey.PRODUCE, version) >= 1

    def answer(
        self, ctx: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | Completion[list[Part]] | None:
        """The response to the request at `position`, now or later, or None."""
        produce = self._layout.decode_request(frame, position)
        if produce is None:
            return None
        topic, topic_id, index, acks, timeout_ms, records, echoed_bytes = produce
        if acks not in (ACKS_LEADER, ACKS_ALL) or _is_transactional(records):
            return None
        handler = self._handler
        try:
            topic = handler.topic_name(ctx, topic, topic_id)
        except KafkaError:
            return None
        append = handler.replicas.append(topic, index, records, acks=acks, wall_ms=ctx.wall_ms)
        if append.is_done:
            return self._response(ctx, topic, topic_id, index, echoed_bytes, append)
        append.expire_at(handler.timers, ctx.mono_ms + timeout_ms, append.time_out)
        return append.handle(partial(self._response, ctx, topic, topic_id, index, echoed_bytes))

    def _response(
        self,
        ctx: RequestContext,
        topic: str,
        topic_id: bytes,
        index: int,
        echoed_bytes: bytearray,
        append: Completion[AppendInfo],
    ) -> list[Part]:
        if append.error is None:
            info = append.value
            return self._layout.encode_response(
                ctx.correlation_id, echoed_bytes, info.base_offset, info.log_append_time_ms, info.log_start_offset
            )
        response = _Produce(self._handler, ctx, ACKS_ALL).failure_response(topic, topic_id, index, append.error)
        return frame_response(ctx.correlation_id, self._encode(response), flexible_header=self._has_flexible_header)

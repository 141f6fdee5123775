"""Produce: append every partition's batch, answer when all are as safe as acks wants.

RULES    1. Partitions are appended in the order of the request, each by itself: the failure of one says nothing of the
            others. A partition that is named twice is appended and answered twice.
         2. acks is 0, 1 or -1; anything else appends nothing. With acks=0 nothing is answered, but an error ends the
            connection, so that the producer learns that something is wrong.
         3. What is not as safe as wanted when the request's time is over is REQUEST_TIMED_OUT; the records may
            still become safe.
         4. A transactional batch needs a transactional id, and the right to use it, and all of a request come from one
            producer; or nothing of the request is appended. Each is appended only where it may be part of its
            transaction (`coordinators/transactions/transaction_verification.py`).
NOT HERE Checking batches (`storage/log/log_validator.py`), acknowledgement (`replication/partition/partition.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from broker.coordinators.transactions.transaction import Expected
from broker.coordinators.transactions.transaction_verification import Admission, Refusals, Support
from broker.handlers.records.leaders import current_leader, node_endpoints
from broker.handlers.router import CloseConnection, Pending, RequestContext, Route, Shortcuts
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
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
from protocol.records import ATTRIBUTES_POSITION, BATCH_OVERHEAD, MAGIC, MAGIC_POSITION, TRANSACTIONAL_BIT
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.partition import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Deadline, Deadlines
from storage.log.log import AppendInfo
from storage.log.log_validator import FIRST_PRODUCE_VERSION_WITH_ZSTD, Origin, RejectedRecords, refuse_zstd

_ADMIN_CLIENT: Final = "__admin_client"  # who may write to internal topics: Kafka's own tools
_FIRST_VERSION_WITH_LEADER: Final = 10
_FIRST_VERSION_WITH_ABORTABLE: Final = 11
_FIRST_VERSION_THAT_ADDS: Final = 12
_FIRST_VERSION_WITH_IDS: Final = 13
_ABOUT_THE_LOG: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Refusals by which a producer wants to know where the log starts: what it has sent before may have been deleted."""
_EMPTY: Final = memoryview(b"")
ATTRIBUTES_LOW_BYTE: Final = ATTRIBUTES_POSITION + 1
_PRODUCER: Final = Struct(">43xqh")  # a batch's producer id and epoch
_SEQUENCE: Final = Struct(">53xi")


class ProduceHandler:
    """Answers Produce requests."""

    def __init__(
        self, replicas: ReplicaManager, deadlines: Deadlines, admission: Admission, authorizer: Authorizer
    ) -> None:
        self.replicas = replicas
        self.deadlines = deadlines
        self.admission = admission
        self.authorizer = authorizer

    def handle(self, ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | Pending | None:
        """Append, and answer now or later."""
        produce = _Produce(self, ctx, request.acks)
        refusal = self._refuse_all(ctx, request)
        if refusal is not None:
            produce.refuse_all(request, refusal)
        else:
            for topic in request.topic_data:
                produce.append_topic(topic)
            produce.append_transactional(request.transactional_id)
        return produce.settle(request.timeout_ms)

    def explain(
        self, ctx: RequestContext, topic: str, index: int, topic_id: bytes, code: ErrorCode, error: KafkaError | None
    ) -> ProduceResponse:
        """Say why the only append of a request has failed."""
        return _Produce(self, ctx, ACKS_ALL).explain(topic, index, topic_id, code, error)

    def _refuse_all(self, ctx: RequestContext, request: ProduceRequest) -> KafkaError | None:
        """What is wrong with the request as a whole."""
        if request.acks not in (ACKS_LEADER, ACKS_ALL, ACKS_NONE):
            return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        producers = {
            _producer_of(data.records).producer_id
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
    """Whether these are records of a transaction; a client sends one batch for a partition."""
    return (
        records is not None
        and len(records) >= BATCH_OVERHEAD
        and records[MAGIC_POSITION] == MAGIC
        and bool(records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT)
    )


def _producer_of(records: Any) -> Expected:
    """The producer that a batch names."""
    return Expected(*_PRODUCER.unpack_from(records))


def _first_sequence_of(records: Any) -> int:
    """The sequence that a batch begins with."""
    (first,) = _SEQUENCE.unpack_from(records)
    return int(first)


def _support(version: int) -> Support:
    if version >= _FIRST_VERSION_THAT_ADDS:
        return Support.IMPLICIT
    return Support.ABORTABLE if version >= _FIRST_VERSION_WITH_ABORTABLE else Support.OLD


class _Produce:
    """One request in work."""

    __slots__ = (
        "_acks", "_ctx", "_deadline", "_handler", "_has_error", "_pending", "_response", "_transactional", "_waiting",
    )  # fmt: skip

    def __init__(self, handler: ProduceHandler, ctx: RequestContext, acks: int) -> None:
        self._handler = handler
        self._ctx = ctx
        self._acks = acks
        self._response = ProduceResponse(responses=[])
        self._transactional: list[tuple[str, PartitionProduceData, PartitionProduceResponse]] = []
        self._waiting = 0
        self._has_error = False
        self._pending: Pending | None = None
        self._deadline: Deadline | None = None

    # ------------------------------------------------------------ appending
    def refuse_all(self, request: ProduceRequest, refusal: KafkaError) -> None:
        """Append nothing and say why, partition by partition."""
        self._has_error = True
        self._response.responses = [
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=data.index,
                        error_code=refusal.code,
                        base_offset=-1,
                        error_message=refusal.message,
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]

    def append_topic(self, topic: TopicProduceData) -> None:
        """Append the batches for one topic."""
        answers: list[PartitionProduceResponse] = []
        self._response.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
        name = topic.name
        refusal = None
        try:
            name = self._name_of(topic)
            self._authorize(name)
        except KafkaError as error:
            refusal = error
        for data in topic.partition_data:
            # Timed out until something else is known: that is what an answer at the deadline says.
            answer = PartitionProduceResponse(index=data.index, error_code=ErrorCode.REQUEST_TIMED_OUT, base_offset=-1)
            answers.append(answer)
            self._waiting += 1
            if refusal is None:
                self._append(name, data, answer)
            else:
                self._done(name, answer, refusal.code, None, refusal)

    def explain(
        self, topic: str, index: int, topic_id: bytes, code: ErrorCode, error: KafkaError | None
    ) -> ProduceResponse:
        """The answer where the only append was done elsewhere, and has failed."""
        answer = PartitionProduceResponse(index=index, error_code=code, base_offset=-1)
        answers = TopicProduceResponse(name=topic, topic_id=topic_id or ZERO_UUID, partition_responses=[answer])
        self._response.responses.append(answers)
        self._explain(topic, answer, code, error)
        return self._answer()

    def _name_of(self, topic: TopicProduceData) -> str:
        if self._ctx.api_version < _FIRST_VERSION_WITH_IDS:
            return topic.name
        known = self._handler.replicas.image.topics_by_id.get(topic.topic_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return known.name

    def _authorize(self, topic: str) -> None:
        ctx = self._ctx
        if not self._handler.authorizer.authorize(ctx.connection.principal, Operation.WRITE, Resource.TOPIC, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic in INTERNAL_TOPICS and ctx.client_id != _ADMIN_CLIENT:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")

    def append_transactional(self, transactional_id: str | None) -> None:
        """Append what was put aside because it is part of a transaction, where that is open."""
        waiting, self._transactional = self._transactional, []
        if not waiting:
            return
        assert transactional_id is not None
        producer = _producer_of(waiting[0][1].records)
        partitions = self._handler.replicas.partitions
        asked = {
            (topic, data.index): _first_sequence_of(data.records)
            for topic, data, _ in waiting
            if producer.producer_id >= 0
        }

        support = _support(self._ctx.api_version)
        origin = Origin.CLIENT_FROM_0 if support is Support.IMPLICIT else Origin.CLIENT

        def admitted(refusals: Refusals) -> None:
            for topic, data, answer in waiting:
                refusal = refusals.get((topic, data.index))
                if refusal is None:
                    self._append(topic, data, answer, origin)
                else:
                    self._done(topic, answer, refusal.code, None, refusal)

        self._handler.admission.admit(
            transactional_id,
            producer,
            {key: first for key, first in asked.items() if key in partitions and partitions[key].is_leader},
            support,
            admitted,
        )

    def _append(
        self,
        topic: str,
        data: PartitionProduceData,
        answer: PartitionProduceResponse,
        admitted_as: Origin | None = None,
    ) -> None:
        records = data.records
        assert records is None or isinstance(records, bytearray | memoryview), "decoded into the frame"
        version = self._ctx.api_version
        if version < FIRST_PRODUCE_VERSION_WITH_ZSTD:
            try:
                refuse_zstd(records, version)
            except KafkaError as error:
                self._done(topic, answer, error.code, None, error)
                return
        if _is_transactional(records) and admitted_as is None:
            self._transactional.append((topic, data, answer))
            return
        self._handler.replicas.append(
            topic,
            data.index,
            _EMPTY if records is None else records,
            acks=self._acks,
            wall_ms=self._ctx.wall_ms,
            done=lambda code, info, error: self._done(topic, answer, code, info, error),
            origin=Origin.CLIENT if admitted_as is None else admitted_as,
        )

    def _done(
        self,
        topic: str,
        answer: PartitionProduceResponse,
        code: ErrorCode,
        info: AppendInfo | None,
        error: KafkaError | None,
    ) -> None:
        """One partition's append has ended."""
        pending = self._pending
        if pending is not None and pending.is_done:
            return
        answer.error_code = code
        if info is not None:
            answer.base_offset = info.base_offset
            answer.log_append_time_ms = info.log_append_time_ms
            answer.log_start_offset = info.log_start_offset
        if code:
            self._explain(topic, answer, code, error)
        self._waiting -= 1
        if not self._waiting and pending is not None:
            self._complete(pending)

    def _explain(self, topic: str, answer: PartitionProduceResponse, code: ErrorCode, error: KafkaError | None) -> None:
        self._has_error = True
        if error is not None:
            answer.error_message = error.message
            if isinstance(error, RejectedRecords):
                answer.record_errors = [
                    BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
                    for index, why in error.record_errors
                ]
            if isinstance(error, RejectedRecords) or code in _ABOUT_THE_LOG:
                partition = self._handler.replicas.partitions[topic, answer.index]
                answer.log_start_offset = partition.log.checkpoint.log_start_offset  # a thread may be opening it
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            answer.current_leader = current_leader(self._handler.replicas.image, topic, answer.index)

    # ------------------------------------------------------------ answering
    def settle(self, timeout_ms: int) -> ProduceResponse | Pending | None:
        """Everything was handed in: the answer, or the promise of one.

        Raises:
            CloseConnection: something failed, and with acks=0 this is the only way to say so.
        """
        if not self._waiting:
            if self._acks == ACKS_NONE:
                if self._has_error:
                    raise CloseConnection(self._reason())
                return None
            return self._answer()
        self._pending = Pending(self._cancelled, lets_next_begin=True)  # the appends keep their order
        if self._acks != ACKS_NONE:
            deadline_mono_ms = self._ctx.mono_ms + max(0, timeout_ms)
            self._deadline = self._handler.deadlines.schedule(deadline_mono_ms, self._expire)
        return self._pending

    def _complete(self, pending: Pending) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._acks != ACKS_NONE:
            pending.complete(self._answer())
        elif self._has_error:
            pending.close(self._reason())
        else:
            pending.complete(None)

    def _expire(self) -> None:
        assert self._pending is not None
        self._pending.complete(self._answer())

    def _cancelled(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

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

    def _reason(self) -> str:
        failed = [
            f"{topic.name or topic.topic_id.hex()}-{answer.index}: {ErrorCode(answer.error_code).name}"
            for topic in self._response.responses
            for answer in topic.partition_responses
            if answer.error_code
        ]
        return f"a Produce with acks=0 failed ({', '.join(failed[:10])})"


def routes(handler: ProduceHandler, shortcut: Shortcuts | None = None) -> list[Route]:
    """The rows of the API table; advertised from 0, served from 3 (KAFKA-18659)."""
    return [Route(ApiKey.PRODUCE, 3, 13, handler.handle, advertised_min=0, shortcut=shortcut)]

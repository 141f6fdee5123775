"""Transaction APIs: authorization and checks here, decisions in the shard of the transactional id.

RULES    1. Checks that concern no single transaction are here: authorization, names, unknown partitions. The shard
            decides on the rest; the response is sent after its records are committed.
         2. In AddPartitionsToTxn one unknown or unauthorized partition prevents all others of the request. Only brokers
            add partitions of internal topics.
         3. A version that does not know PRODUCER_FENCED gets INVALID_PRODUCER_EPOCH.
         4. From version 4 on AddPartitionsToTxn is sent by brokers, with several transactions, and can only verify.
         5. InitProducerId without a transactional id always returns a new producer id with epoch 0. If the controller has
            returned an error, the client gets COORDINATOR_LOAD_IN_PROGRESS and retries, as in Kafka.
NOT HERE The decisions and producer ids (`coordinators/transactions/`), sequence checks (`storage/log/producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.transactions.producer_id_manager import ProducerIdManager
from broker.coordinators.transactions.transaction import (
    BY_LABEL,
    NO_PRODUCER_ID,
    TV_0,
    TV_2,
    ProducerIdAndEpoch,
    State,
    TopicPartition,
    TransactionMetadata,
)
from broker.coordinators.transactions.transaction_coordinator import ProducerIdResult, TransactionCoordinator
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.common import Topic, TopicPartitions
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from protocol.records import NO_PRODUCER_EPOCH
from protocol.schema import blank
from replication.completion import Completion, completed, gather
from replication.metadata.image import MetadataImage
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.re2_patterns import BadRegex, compile_regex

_NONE: Final = ErrorCode.NONE
_FIRST_INIT_VERSION_WITH_FENCED: Final = 4
_FIRST_VERSION_WITH_FENCED: Final = 2
_FIRST_BROKER_VERSION: Final = 4
_FIRST_END_VERSION_TV2: Final = 5


class TransactionHandlers(AuthorizingHandlers):
    """The handlers of the transaction APIs."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionCoordinator],
        groups: CoordinatorRuntime[GroupCoordinator],
        producer_ids: ProducerIdManager,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        offsets_partitions: int,
        max_timeout_ms: int = 900_000,
    ) -> None:
        """`offsets_partitions`: the partition count of `__consumer_offsets` before the topic exists."""
        self._runtime = runtime
        self._groups = groups
        self._producer_ids = producer_ids
        self._image = image
        super().__init__(authorizer)
        self._offsets_partitions = offsets_partitions
        self._max_timeout_ms = max_timeout_ms

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.INIT_PRODUCER_ID, 0, 5, self.init_producer_id),  # version 6 is unstable in Apache Kafka 4.3
            Route(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, self.add_partitions),
            Route(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, self.add_offsets),
            Route(ApiKey.END_TXN, 0, 5, self.end),
            Route(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, self.describe),
            Route(ApiKey.LIST_TRANSACTIONS, 0, 2, self.list_transactions),
        ]

    def _refusal(self, context: RequestContext, transactional_id: str) -> ErrorCode | None:
        """The error of a request with a transactional id that the client may not use."""
        if not self._is_authorized(context, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return None if transactional_id else ErrorCode.INVALID_REQUEST

    # ------------------------------------------------------------ InitProducerId
    def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> Completion[InitProducerIdResponse]:
        """Handle InitProducerId."""
        name = request.transactional_id
        refusal = self._init_refusal(context, request)
        if refusal:
            return completed(_init_producer_id_response(ProducerIdResult(refusal), context))
        if name is None:  # no transactions
            return self._producer_ids.generate_producer_id().handle(_new_producer_response)
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        timeout_ms = request.transaction_timeout_ms
        if not 0 < timeout_ms <= self._max_timeout_ms:  # checked first, as in Kafka
            invalid = ProducerIdResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            return completed(_init_producer_id_response(invalid, context))
        initialized = self._runtime.write(
            name, lambda coordinator: coordinator.initialize(name, timeout_ms, expected), ProducerIdResult
        )
        return initialized.map(lambda result: _init_producer_id_response(result, context))

    def _init_refusal(self, context: RequestContext, request: InitProducerIdRequest) -> ErrorCode:
        name = request.transactional_id
        if name is None:
            may_write = self._is_authorized(
                context, Operation.IDEMPOTENT_WRITE, log_denied=False
            ) or self._authorizer.authorize_any(context, Operation.WRITE, Resource.TOPIC)  # KIP-679
            denial = _NONE if may_write else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        else:
            denial = self._denial(context, Operation.WRITE, Resource.TRANSACTIONAL_ID, name)
        is_half = (request.producer_id == NO_PRODUCER_ID) is not (request.producer_epoch == NO_PRODUCER_EPOCH)
        return denial or (ErrorCode.INVALID_REQUEST if is_half or name == "" else _NONE)

    # ------------------------------------------------------------ AddPartitionsToTxn
    def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> Completion[AddPartitionsToTxnResponse]:
        """Handle AddPartitionsToTxn: add partitions to transactions, or verify them."""
        if context.api_version >= _FIRST_BROKER_VERSION:
            return self._add_for_brokers(context, request)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        refusal = self._refusal(context, transaction.transactional_id)
        if refusal is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            results = _same_error(transaction.topics, refusal)
            return completed(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))
        added = self._add(context, transaction, TV_0)
        return added.map(lambda results: AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))

    def _add_for_brokers(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> Completion[AddPartitionsToTxnResponse]:
        if not self._is_authorized(context, Operation.CLUSTER_ACTION):
            return completed(AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        writes = [self._add_for_broker(context, transaction) for transaction in request.transactions]
        return gather(writes, lambda results: AddPartitionsToTxnResponse(results_by_transaction=results))

    def _add_for_broker(
        self, context: RequestContext, transaction: AddPartitionsToTxnTransaction
    ) -> Completion[AddPartitionsToTxnResult]:
        name = transaction.transactional_id
        added = self._add(context, transaction, TV_2)
        return added.map(lambda results: AddPartitionsToTxnResult(transactional_id=name, topic_results=results))

    def _add(
        self, context: RequestContext, transaction: AddPartitionsToTxnTransaction, version: int
    ) -> Completion[list[AddPartitionsToTxnTopicResult]]:
        """Add or verify the partitions of one transaction."""
        name, topics = transaction.transactional_id, transaction.topics
        errors = self._partition_errors(context, topics)
        if errors:
            not_attempted = ErrorCode.OPERATION_NOT_ATTEMPTED
            return completed(_topic_results(topics, lambda at: errors.get(at, not_attempted)))
        if not name:
            return completed(_same_error(topics, ErrorCode.INVALID_REQUEST))
        producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
        if transaction.verify_only:
            verified = self._runtime.read(
                name,
                lambda coordinator: coordinator.verify(name, producer, partitions),
                lambda error: dict.fromkeys(partitions, error),
            )
            return verified.map(lambda results: _topic_results(topics, results.__getitem__))
        added = self._write_add(context, name, producer, partitions, version)
        return added.map(lambda error: _same_error(topics, error))

    def _write_add(
        self,
        context: RequestContext,
        name: str,
        producer: ProducerIdAndEpoch,
        partitions: list[TopicPartition],
        version: int,
    ) -> Completion[ErrorCode]:
        """Add partitions to a transaction; returns the error for the client."""
        added = self._runtime.write(
            name, lambda coordinator: coordinator.add(name, producer, partitions, version), ProducerIdResult
        )
        return added.map(lambda result: _map_fenced_error(result.error, context, _FIRST_VERSION_WITH_FENCED))

    def _partition_errors(
        self, context: RequestContext, topics: Iterable[Topic[int]]
    ) -> dict[TopicPartition, ErrorCode]:
        """The unknown and unauthorized partitions (rule 2)."""
        images = self._image().topics_by_name
        errors: dict[TopicPartition, ErrorCode] = {}
        for topic in topics:
            image = images.get(topic.name)
            is_denied = context.api_version < _FIRST_BROKER_VERSION and (
                topic.name in INTERNAL_TOPICS
                or not self._authorizer.authorize(
                    context, Operation.WRITE, Resource.TOPIC, topic.name, references=partial(len, topic.partitions)
                )
            )
            for index in topic.partitions:
                if is_denied:
                    errors[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif image is None or index not in image.partitions:
                    errors[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return errors

    # ------------------------------------------------------------ AddOffsetsToTxn
    def add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> Completion[AddOffsetsToTxnResponse]:
        """Handle AddOffsetsToTxn."""
        refusal = self._refusal(context, request.transactional_id)
        if refusal is None and not self._is_authorized(context, Operation.READ, Resource.GROUP, request.group_id):
            refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if refusal is not None:
            return completed(AddOffsetsToTxnResponse(error_code=refusal))
        count = self._groups.partition_count or self._offsets_partitions
        partition = (OFFSETS_TOPIC, abs_hash(request.group_id) % count)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        added = self._write_add(context, request.transactional_id, producer, [partition], TV_0)
        return added.map(lambda error: AddOffsetsToTxnResponse(error_code=error))

    # ------------------------------------------------------------ EndTxn
    def end(self, context: RequestContext, request: EndTxnRequest) -> Completion[EndTxnResponse]:
        """Handle EndTxn."""
        name = request.transactional_id
        refusal = self._refusal(context, name)
        if refusal is not None:
            return completed(EndTxnResponse(error_code=refusal))
        version = TV_2 if context.api_version >= _FIRST_END_VERSION_TV2 else TV_0
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        ended = self._runtime.write(
            name,
            lambda coordinator: coordinator.end(name, producer, version, is_commit=request.committed),
            ProducerIdResult,
        )
        return ended.map(lambda result: _end_txn_response(result, context))

    # ------------------------------------------------------------ administration
    def describe(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> Completion[DescribeTransactionsResponse]:
        """Handle DescribeTransactions."""
        reads = [self._describe(context, name) for name in request.transactional_ids]
        return gather(reads, lambda states: DescribeTransactionsResponse(transaction_states=states))

    def _describe(self, context: RequestContext, name: str) -> Completion[DescribedTransaction]:
        error: ErrorCode | None = None
        if not self._is_authorized(context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not name:
            error = ErrorCode.INVALID_REQUEST
        if error is not None:
            return completed(_describe_error(name, error))
        return self._runtime.read(
            name,
            lambda coordinator: self._describe_transaction(context, coordinator, name),
            partial(_describe_error, name),
        )

    def _describe_transaction(
        self, context: RequestContext, coordinator: TransactionCoordinator, name: str
    ) -> DescribedTransaction:
        transaction = coordinator.transactions.get(name)
        if transaction is None:
            return _describe_error(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, TopicPartitions[int]] = {}
        for topic, index in sorted(coordinator.remaining_partitions(transaction)):
            if topic not in topics:
                if not self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic):
                    continue
                topics[topic] = TopicPartitions(topic=topic, partitions=[])
            topics[topic].partitions.append(index)
        return DescribedTransaction(
            error_code=_NONE,
            transactional_id=name,
            transaction_state=transaction.state.label,
            transaction_timeout_ms=transaction.timeout_ms,
            transaction_start_time_ms=transaction.started_wall_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            topics=list(topics.values()),
        )

    def list_transactions(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> Completion[ListTransactionsResponse]:
        """Handle ListTransactions."""
        if self._runtime.is_loading:
            return completed(_list_response(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        pattern = request.transactional_id_pattern
        try:
            matches = compile_regex(pattern) if pattern else lambda _: True
        except BadRegex:
            return completed(_list_response(ErrorCode.INVALID_REGULAR_EXPRESSION))
        unknown = [name for name in request.state_filters if name not in BY_LABEL]
        states = {BY_LABEL[name] for name in request.state_filters if name in BY_LABEL}
        if request.state_filters and not states:
            return completed(_list_response(_NONE, unknown))

        def list_transactions(coordinator: TransactionCoordinator) -> list[ListedTransaction]:
            return [
                ListedTransaction(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.label,
                )
                for transaction in coordinator.transactions.values()
                if _matches_filters(transaction, request, states or set(State), context.wall_ms)
                and matches(transaction.transactional_id)
                and self._is_authorized(
                    context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transaction.transactional_id
                )
            ]

        return self._runtime.read_all(
            list_transactions, lambda listed: _list_response(_NONE, unknown, listed), _list_response
        )


# ---- responses


def _map_fenced_error(error: ErrorCode, context: RequestContext, since: int) -> ErrorCode:
    """Replace PRODUCER_FENCED in old versions (rule 3)."""
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _init_producer_id_response(result: ProducerIdResult, context: RequestContext) -> InitProducerIdResponse:
    error = _map_fenced_error(result.error, context, _FIRST_INIT_VERSION_WITH_FENCED)
    return InitProducerIdResponse(error_code=error, producer_id=result.producer_id, producer_epoch=result.epoch)


def _new_producer_response(generated: Completion[int]) -> InitProducerIdResponse:
    if isinstance(generated.error, KafkaError):
        return InitProducerIdResponse(error_code=generated.error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(error_code=_NONE, producer_id=generated.result(), producer_epoch=0)


def _end_txn_response(result: ProducerIdResult, context: RequestContext) -> EndTxnResponse:
    error = _map_fenced_error(result.error, context, _FIRST_VERSION_WITH_FENCED)
    if context.api_version < _FIRST_END_VERSION_TV2:
        return EndTxnResponse(error_code=error)
    return EndTxnResponse(error_code=error, producer_id=result.producer_id, producer_epoch=result.epoch)


def _topic_results(
    topics: Iterable[Topic[int]], result: Callable[[TopicPartition], ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=result((topic.name, index))
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _same_error(topics: Iterable[Topic[int]], error: ErrorCode) -> list[AddPartitionsToTxnTopicResult]:
    return _topic_results(topics, lambda _: error)


def _list_response(
    error: ErrorCode, unknown: Iterable[str] = (), listed: Iterable[ListedTransaction] = ()
) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        error_code=error, unknown_state_filters=list(unknown), transaction_states=list(listed)
    )


def _describe_error(name: str, error: ErrorCode) -> DescribedTransaction:
    return blank(DescribedTransaction, error_code=error, transactional_id=name)


def _matches_filters(
    transaction: TransactionMetadata, request: ListTransactionsRequest, states: set[State], wall_ms: int
) -> bool:
    """Whether a transaction matches all filters except the pattern."""
    return (
        transaction.state in states
        and (not request.producer_id_filters or transaction.producer_id in request.producer_id_filters)
        and (request.duration_filter < 0 or wall_ms - transaction.started_wall_ms > request.duration_filter)
    )

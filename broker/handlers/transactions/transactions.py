"""Transaction APIs: authorization and checks here, decisions in the shard of the transactional id.

RULES    1. Checks that concern no single transaction are here: authorization, names, unknown partitions. The shard
            decides on the rest; the response is sent after its records are committed.
         2. In AddPartitionsToTxn one unknown or unauthorized partition prevents all others of the request. Only brokers
            add partitions of internal topics.
         3. A version that does not know PRODUCER_FENCED gets INVALID_PRODUCER_EPOCH.
         4. From version 4 on AddPartitionsToTxn is sent by brokers, with several transactions, and can only verify.
NOT HERE The decisions (`coordinators/`), producers without transactions (`producer_ids.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import Commit, CoordinatorRuntime, Shard, coordinator_error
from broker.coordinators.runtime.java_compat import abs_hash
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
from broker.coordinators.transactions.transaction_coordinator import (
    GenerateProducerId,
    ProducerIdResult,
    TransactionCoordinator,
    TransactionDecision,
)
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.deferred import when_all, when_committed
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribedTransaction,
    DescribedTransactionTopic,
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
from protocol.schema import blank
from replication.completion import Completion
from replication.metadata.image import MetadataImage
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.re2_patterns import BadRegex, compile_regex

TransactionShard = Shard[TransactionCoordinator]

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
        image: Callable[[], MetadataImage],
        generate_producer_id: GenerateProducerId,
        authorizer: Authorizer,
        offsets_partitions: int,
        max_timeout_ms: int = 900_000,
    ) -> None:
        """`offsets_partitions`: the partition count of `__consumer_offsets` before the topic exists."""
        self._runtime = runtime
        self._groups = groups
        self._image = image
        self._generate_producer_id = generate_producer_id
        super().__init__(authorizer)
        self._offsets_partitions = offsets_partitions
        self._max_timeout_ms = max_timeout_ms

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, self.add_partitions),
            Route(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, self.add_offsets),
            Route(ApiKey.END_TXN, 0, 5, self.end),
            Route(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, self.describe),
            Route(ApiKey.LIST_TRANSACTIONS, 0, 2, self.list_transactions),
        ]

    def _find_shard(self, context: RequestContext, transactional_id: str) -> TransactionShard | ErrorCode:
        """The shard of a transactional id that the client may use, or the error of the request."""
        if not self._is_authorized(context, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return self._runtime.find(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST

    # ------------------------------------------------------------ InitProducerId
    def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Completion[InitProducerIdResponse]:
        """Handle InitProducerId with an authorized, non-empty transactional id."""
        name = request.transactional_id
        assert name
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        timeout_ms = request.transaction_timeout_ms
        if not 0 < timeout_ms <= self._max_timeout_ms:  # checked first, as in Kafka
            return _init_producer_id_response(ProducerIdResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT), context)
        shard = self._runtime.find(name)
        if not isinstance(shard, Shard):
            return _init_producer_id_response(ProducerIdResult(shard), context)
        if not shard.coordinator.needs_producer_id(name, expected):
            decision = shard.coordinator.initialize(name, timeout_ms, expected, NO_PRODUCER_ID)
            return when_committed(
                shard.execute(decision), lambda error: _init_producer_id_response(_result(decision, error), context)
            )
        pending: Completion[InitProducerIdResponse] = Completion()

        def decide(shard: TransactionShard, producer_id: int) -> TransactionDecision:
            return shard.coordinator.initialize(name, timeout_ms, expected, producer_id)

        self._with_producer_id(
            context, name, decide, lambda result: pending.complete(_init_producer_id_response(result, context))
        )
        return pending

    def _with_producer_id(
        self,
        context: RequestContext,
        transactional_id: str,
        decide: Callable[[TransactionShard, int], TransactionDecision],
        reply: Callable[[ProducerIdResult], None],
    ) -> None:
        """Generate a new producer id, possibly later, and decide with it."""

        def on_producer_id(producer_id: int | None) -> None:
            shard = self._runtime.find(transactional_id)
            if producer_id is None or not isinstance(shard, Shard):
                reply(ProducerIdResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if isinstance(shard, Shard) else shard))
                return
            decision = decide(shard, producer_id)
            shard.execute(decision).then(lambda error: reply(_result(decision, error)))

        self._generate_producer_id(context.wall_ms, on_producer_id)

    # ------------------------------------------------------------ AddPartitionsToTxn
    def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | Completion[AddPartitionsToTxnResponse]:
        """Handle AddPartitionsToTxn: add partitions to transactions, or verify them."""
        if context.api_version >= _FIRST_BROKER_VERSION:
            return self._add_for_brokers(context, request)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        shard = self._find_shard(context, transaction.transactional_id)
        if shard is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_same_error(transaction.topics, shard))
        results: list[AddPartitionsToTxnTopicResult] = []
        commit = self._add(context, transaction, TV_0, results)
        answer = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        return when_all([] if commit is None else [commit], lambda: answer)

    def _add_for_brokers(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | Completion[AddPartitionsToTxnResponse]:
        if not self._is_authorized(context, Operation.CLUSTER_ACTION):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        answer = AddPartitionsToTxnResponse(results_by_transaction=[])
        commits: list[Commit] = []
        for transaction in request.transactions:
            results: list[AddPartitionsToTxnTopicResult] = []
            commit = self._add(context, transaction, TV_2, results)
            answer.results_by_transaction.append(
                AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)
            )
            if commit is not None:
                commits.append(commit)
        return when_all(commits, lambda: answer)

    def _add(
        self,
        context: RequestContext,
        transaction: AddPartitionsToTxnTransaction,
        version: int,
        results: list[AddPartitionsToTxnTopicResult],
    ) -> Commit | None:
        """Add or verify the partitions of one transaction; `results` is complete when the commit has completed."""
        errors = self._partition_errors(context, transaction.topics)
        if errors:
            results += _topic_results(transaction.topics, lambda at: errors.get(at, ErrorCode.OPERATION_NOT_ATTEMPTED))
            return None
        name = transaction.transactional_id
        shard = self._runtime.find(name) if name else ErrorCode.INVALID_REQUEST
        if not isinstance(shard, Shard):
            results += _same_error(transaction.topics, shard)
            return None
        producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
        if transaction.verify_only:
            partition_results = shard.coordinator.verify(name, producer, partitions)
            results += _topic_results(transaction.topics, partition_results.__getitem__)
            return None
        decision = shard.coordinator.add(name, producer, partitions, version)
        commit = shard.execute(decision)

        def on_commit(error: ErrorCode) -> None:
            result = _map_fenced_error(_result(decision, error).error, context, _FIRST_VERSION_WITH_FENCED)
            results.extend(_same_error(transaction.topics, result))

        commit.then(on_commit)
        return commit

    def _partition_errors(
        self, context: RequestContext, topics: Iterable[AddPartitionsToTxnTopic]
    ) -> dict[TopicPartition, ErrorCode]:
        """The unknown and unauthorized partitions (rule 2)."""
        images = self._image().topics_by_name
        errors: dict[TopicPartition, ErrorCode] = {}
        for topic in topics:
            image = images.get(topic.name)
            is_denied = context.api_version < _FIRST_BROKER_VERSION and (
                topic.name in INTERNAL_TOPICS
                or not self._is_authorized(context, Operation.WRITE, Resource.TOPIC, topic.name)
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
    ) -> AddOffsetsToTxnResponse | Completion[AddOffsetsToTxnResponse]:
        """Handle AddOffsetsToTxn."""
        shard = self._find_shard(context, request.transactional_id)
        if isinstance(shard, Shard) and not self._is_authorized(
            context, Operation.READ, Resource.GROUP, request.group_id
        ):
            shard = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not isinstance(shard, Shard):
            return AddOffsetsToTxnResponse(error_code=shard)
        count = self._groups.partition_count or self._offsets_partitions
        partition = (OFFSETS_TOPIC, abs_hash(request.group_id) % count)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        decision = shard.coordinator.add(request.transactional_id, producer, [partition], TV_0)

        def answer(error: ErrorCode) -> AddOffsetsToTxnResponse:
            result = _map_fenced_error(_result(decision, error).error, context, _FIRST_VERSION_WITH_FENCED)
            return AddOffsetsToTxnResponse(error_code=result)

        return when_committed(shard.execute(decision), answer)

    # ------------------------------------------------------------ EndTxn
    def end(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse | Completion[EndTxnResponse]:
        """Handle EndTxn."""
        name = request.transactional_id
        shard = self._find_shard(context, name)
        if not isinstance(shard, Shard):
            return EndTxnResponse(error_code=shard)
        version = TV_2 if context.api_version >= _FIRST_END_VERSION_TV2 else TV_0
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

        def decide(shard: TransactionShard, producer_id: int) -> TransactionDecision:
            return shard.coordinator.end(name, producer, version, producer_id, is_commit=request.committed)

        if not shard.coordinator.end_needs_producer_id(name, version):
            decision = decide(shard, NO_PRODUCER_ID)
            return when_committed(
                shard.execute(decision), lambda error: _end_txn_response(_result(decision, error), context)
            )
        pending: Completion[EndTxnResponse] = Completion()
        self._with_producer_id(
            context, name, decide, lambda result: pending.complete(_end_txn_response(result, context))
        )
        return pending

    # ------------------------------------------------------------ administration
    def describe(self, context: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        """Handle DescribeTransactions."""
        states = [self._describe(context, name) for name in request.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=states)

    def _describe(self, context: RequestContext, name: str) -> DescribedTransaction:
        if not self._is_authorized(context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name):
            return _describe_error(name, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not name:
            return _describe_error(name, ErrorCode.INVALID_REQUEST)
        shard = self._runtime.find(name)
        if not isinstance(shard, Shard):
            return _describe_error(name, shard)
        transaction = shard.coordinator.transactions.get(name)
        if transaction is None:
            return _describe_error(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, DescribedTransactionTopic] = {}
        for topic, index in sorted(shard.coordinator.remaining_partitions(transaction)):
            if topic not in topics:
                if not self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic):
                    continue
                topics[topic] = DescribedTransactionTopic(topic=topic, partitions=[])
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

    def list_transactions(self, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """Handle ListTransactions."""
        answer = ListTransactionsResponse(error_code=_NONE, unknown_state_filters=[], transaction_states=[])
        if self._runtime.is_loading:
            answer.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return answer
        pattern = request.transactional_id_pattern
        try:
            matches = compile_regex(pattern) if pattern else lambda _: True
        except BadRegex:
            answer.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
            return answer
        answer.unknown_state_filters = [name for name in request.state_filters if name not in BY_LABEL]
        states = {BY_LABEL[name] for name in request.state_filters if name in BY_LABEL}
        if request.state_filters and not states:
            return answer
        for shard in self._runtime.active_shards:
            answer.transaction_states += [
                ListedTransaction(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.label,
                )
                for transaction in shard.coordinator.transactions.values()
                if _matches_filters(transaction, request, states or set(State), context.wall_ms)
                and matches(transaction.transactional_id)
                and self._is_authorized(
                    context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transaction.transactional_id
                )
            ]
        return answer


# ---- responses


def _result(decision: TransactionDecision, error: ErrorCode) -> ProducerIdResult:
    """The decision's reply, or the error of its commit."""
    return decision.reply if error is _NONE else ProducerIdResult(coordinator_error(error))


def _map_fenced_error(error: ErrorCode, context: RequestContext, since: int) -> ErrorCode:
    """Replace PRODUCER_FENCED in old versions (rule 3)."""
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _init_producer_id_response(result: ProducerIdResult, context: RequestContext) -> InitProducerIdResponse:
    error = _map_fenced_error(result.error, context, _FIRST_INIT_VERSION_WITH_FENCED)
    return InitProducerIdResponse(error_code=error, producer_id=result.producer_id, producer_epoch=result.epoch)


def _end_txn_response(result: ProducerIdResult, context: RequestContext) -> EndTxnResponse:
    error = _map_fenced_error(result.error, context, _FIRST_VERSION_WITH_FENCED)
    if context.api_version < _FIRST_END_VERSION_TV2:
        return EndTxnResponse(error_code=error)
    return EndTxnResponse(error_code=error, producer_id=result.producer_id, producer_epoch=result.epoch)


def _topic_results(
    topics: Iterable[AddPartitionsToTxnTopic], result: Callable[[TopicPartition], ErrorCode]
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


def _same_error(topics: Iterable[AddPartitionsToTxnTopic], error: ErrorCode) -> list[AddPartitionsToTxnTopicResult]:
    return _topic_results(topics, lambda _: error)


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

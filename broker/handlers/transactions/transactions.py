"""Transactional ids: from a request to the shard that coordinates them, and back.

RULES    1. What concerns no single transaction is answered here: rights, names, unknown partitions. All else is the shard's
            decision, and an answer goes out when its records are committed.
         2. Of partitions to add, one that is unknown or denied keeps all others of the request from being added. Those of
            the cluster's own topics are for brokers to add.
         3. Before the version that knows PRODUCER_FENCED a client is told INVALID_PRODUCER_EPOCH.
         4. From version 4 on AddPartitionsToTxn is spoken among brokers, about several transactions, and may only ask.
NOT HERE What becomes of a transaction (`coordinators/`), producers without transactions (`producer_ids.py`).
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
    WITH_BUMPS,
    WITHOUT_BUMPS,
    Expected,
    State,
    TopicPartition,
    Transaction,
)
from broker.coordinators.transactions.transaction_coordinator import (
    Decided,
    Identity,
    TakeProducerId,
    TransactionCoordinator,
)
from broker.handlers.deferred import when_all, when_committed
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
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
from replication.metadata.image import MetadataImage
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.re2_patterns import BadRegex, compile_regex

TransactionShard = Shard[TransactionCoordinator]

_NONE: Final = ErrorCode.NONE
_FIRST_INIT_WITH_FENCED: Final = 4
_FIRST_WITH_FENCED: Final = 2
_FIRST_AMONG_BROKERS: Final = 4
_FIRST_END_WITH_BUMPS: Final = 5


class TransactionHandlers:
    """The handlers of this module and what they need."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionCoordinator],
        groups: CoordinatorRuntime[GroupCoordinator],
        image: Callable[[], MetadataImage],
        take_producer_id: TakeProducerId,
        authorizer: Authorizer,
        offsets_partitions: int,
        max_timeout_ms: int = 900_000,
    ) -> None:
        """`offsets_partitions`: how many `__consumer_offsets` will have, for as long as it has none."""
        self._runtime = runtime
        self._groups = groups
        self._image = image
        self._take_producer_id = take_producer_id
        self._authorizer = authorizer
        self._offsets_partitions = offsets_partitions
        self._max_timeout_ms = max_timeout_ms

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, self.add_partitions),
            Route(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, self.add_offsets),
            Route(ApiKey.END_TXN, 0, 5, self.end),
            Route(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, self.describe),
            Route(ApiKey.LIST_TRANSACTIONS, 0, 2, self.list_transactions),
        ]

    def _may(self, context: RequestContext, operation: str, kind: str, name: str) -> bool:
        return self._authorizer.authorize(context.connection.principal, operation, kind, name)

    def _find(self, context: RequestContext, transactional_id: str) -> TransactionShard | ErrorCode:
        """The shard of a transactional id that the peer may use, or the error that answers the request."""
        if not self._may(context, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return self._runtime.find(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST

    # ------------------------------------------------------------ InitProducerId
    def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Pending:
        """A producer begins to use a transactional id, which is not empty and which it may use."""
        name = request.transactional_id
        assert name
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = Expected(request.producer_id, request.producer_epoch)
        timeout_ms = request.transaction_timeout_ms
        if not 0 < timeout_ms <= self._max_timeout_ms:  # whoever coordinates it
            return _initialized(Identity(ErrorCode.INVALID_TRANSACTION_TIMEOUT), context)
        shard = self._runtime.find(name)
        if not isinstance(shard, Shard):
            return _initialized(Identity(shard), context)
        if not shard.machine.needs_producer_id(name, expected):
            decision = shard.machine.initialize(name, timeout_ms, expected, NO_PRODUCER_ID)
            return when_committed(
                shard.execute(decision), lambda error: _initialized(_outcome(decision, error), context)
            )
        pending = Pending()

        def go_on(shard: TransactionShard, producer_id: int) -> Decided:
            return shard.machine.initialize(name, timeout_ms, expected, producer_id)

        self._with_producer_id(context, name, go_on, lambda identity: pending.complete(_initialized(identity, context)))
        return pending

    def _with_producer_id(
        self,
        context: RequestContext,
        transactional_id: str,
        decide: Callable[[TransactionShard, int], Decided],
        reply: Callable[[Identity], None],
    ) -> None:
        """Take a new producer id, which may take a while, and decide with it."""

        def given(producer_id: int | None) -> None:
            shard = self._runtime.find(transactional_id)
            if producer_id is None or not isinstance(shard, Shard):
                reply(Identity(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if isinstance(shard, Shard) else shard))
                return
            decision = decide(shard, producer_id)
            shard.execute(decision).then(lambda error: reply(_outcome(decision, error)))

        self._take_producer_id(context.wall_ms, given)

    # ------------------------------------------------------------ AddPartitionsToTxn
    def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | Pending:
        """Partitions become part of transactions, or are looked for in them."""
        if context.api_version >= _FIRST_AMONG_BROKERS:
            return self._add_for_brokers(context, request)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        shard = self._find(context, transaction.transactional_id)
        if shard is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_same(transaction.topics, shard))
        results: list[AddPartitionsToTxnTopicResult] = []
        commit = self._add(context, transaction, WITHOUT_BUMPS, results)
        answer = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        return when_all([] if commit is None else [commit], lambda: answer)

    def _add_for_brokers(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | Pending:
        if not self._may(context, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        answer = AddPartitionsToTxnResponse(results_by_transaction=[])
        commits: list[Commit] = []
        for transaction in request.transactions:
            results: list[AddPartitionsToTxnTopicResult] = []
            commit = self._add(context, transaction, WITH_BUMPS, results)
            answer.results_by_transaction.append(
                AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)
            )
            if commit is not None:
                commits.append(commit)
        return when_all(commits, lambda: answer)

    def _add(
        self,
        context: RequestContext,
        asked: AddPartitionsToTxnTransaction,
        version: int,
        results: list[AddPartitionsToTxnTopicResult],
    ) -> Commit | None:
        """Add or look for the partitions of one transaction; `results` holds the answer when the commit has ended."""
        refused = self._refused_partitions(context, asked.topics)
        if refused:
            results += _told(asked.topics, lambda at: refused.get(at, ErrorCode.OPERATION_NOT_ATTEMPTED))
            return None
        name = asked.transactional_id
        shard = self._runtime.find(name) if name else ErrorCode.INVALID_REQUEST
        if not isinstance(shard, Shard):
            results += _same(asked.topics, shard)
            return None
        producer = Expected(asked.producer_id, asked.producer_epoch)
        partitions = [(topic.name, index) for topic in asked.topics for index in topic.partitions]
        if asked.verify_only:
            verdicts = shard.machine.verify(name, producer, partitions)
            results += _told(asked.topics, verdicts.__getitem__)
            return None
        decision = shard.machine.add(name, producer, partitions, version)
        commit = shard.execute(decision)

        def ended(error: ErrorCode) -> None:
            verdict = _fenced(_outcome(decision, error).error, context, _FIRST_WITH_FENCED)
            results.extend(_same(asked.topics, verdict))

        commit.then(ended)
        return commit

    def _refused_partitions(
        self, context: RequestContext, topics: Iterable[AddPartitionsToTxnTopic]
    ) -> dict[TopicPartition, ErrorCode]:
        """Rule 2: the partitions that cannot be part of any transaction of this peer."""
        known = self._image().topics_by_name
        refused: dict[TopicPartition, ErrorCode] = {}
        for topic in topics:
            image = known.get(topic.name)
            is_denied = context.api_version < _FIRST_AMONG_BROKERS and (
                topic.name in INTERNAL_TOPICS or not self._may(context, Operation.WRITE, Resource.TOPIC, topic.name)
            )
            for index in topic.partitions:
                if is_denied:
                    refused[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif image is None or index not in image.partitions:
                    refused[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return refused

    # ------------------------------------------------------------ AddOffsetsToTxn
    def add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse | Pending:
        """The offsets of a group become part of a transaction."""
        shard = self._find(context, request.transactional_id)
        if isinstance(shard, Shard) and not self._may(context, Operation.READ, Resource.GROUP, request.group_id):
            shard = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not isinstance(shard, Shard):
            return AddOffsetsToTxnResponse(error_code=shard)
        count = self._groups.partition_count or self._offsets_partitions
        partition = (OFFSETS_TOPIC, abs_hash(request.group_id) % count)
        producer = Expected(request.producer_id, request.producer_epoch)
        decision = shard.machine.add(request.transactional_id, producer, [partition], WITHOUT_BUMPS)

        def answer(error: ErrorCode) -> AddOffsetsToTxnResponse:
            verdict = _fenced(_outcome(decision, error).error, context, _FIRST_WITH_FENCED)
            return AddOffsetsToTxnResponse(error_code=verdict)

        return when_committed(shard.execute(decision), answer)

    # ------------------------------------------------------------ EndTxn
    def end(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse | Pending:
        """Commit or abort."""
        name = request.transactional_id
        shard = self._find(context, name)
        if not isinstance(shard, Shard):
            return EndTxnResponse(error_code=shard)
        version = WITH_BUMPS if context.api_version >= _FIRST_END_WITH_BUMPS else WITHOUT_BUMPS
        producer = Expected(request.producer_id, request.producer_epoch)

        def decide(shard: TransactionShard, producer_id: int) -> Decided:
            return shard.machine.end(name, producer, version, producer_id, is_commit=request.committed)

        if not shard.machine.end_needs_producer_id(name, version):
            decision = decide(shard, NO_PRODUCER_ID)
            return when_committed(shard.execute(decision), lambda error: _ended(_outcome(decision, error), context))
        pending = Pending()
        self._with_producer_id(context, name, decide, lambda identity: pending.complete(_ended(identity, context)))
        return pending

    # ------------------------------------------------------------ administration
    def describe(self, context: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        """How some transactions stand."""
        states = [self._describe(context, name) for name in request.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=states)

    def _describe(self, context: RequestContext, name: str) -> DescribedTransaction:
        if not self._may(context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name):
            return _undescribed(name, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not name:
            return _undescribed(name, ErrorCode.INVALID_REQUEST)
        shard = self._runtime.find(name)
        if not isinstance(shard, Shard):
            return _undescribed(name, shard)
        known = shard.machine.transactions.get(name)
        if known is None:
            return _undescribed(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, DescribedTransactionTopic] = {}
        for topic, index in sorted(shard.machine.left(known)):
            if topic not in topics:
                if not self._may(context, Operation.DESCRIBE, Resource.TOPIC, topic):
                    continue
                topics[topic] = DescribedTransactionTopic(topic=topic, partitions=[])
            topics[topic].partitions.append(index)
        return DescribedTransaction(
            error_code=_NONE,
            transactional_id=name,
            transaction_state=known.state.label,
            transaction_timeout_ms=known.timeout_ms,
            transaction_start_time_ms=known.started_wall_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            topics=list(topics.values()),
        )

    def list_transactions(self, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """The transactional ids that are coordinated here, as far as the filters let them pass."""
        answer = ListTransactionsResponse(error_code=_NONE, unknown_state_filters=[], transaction_states=[])
        if self._runtime.is_loading:
            answer.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return answer
        pattern = request.transactional_id_pattern
        try:
            matches = compile_regex(pattern) if pattern else _everything
        except BadRegex:
            answer.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
            return answer
        answer.unknown_state_filters = [name for name in request.state_filters if name not in BY_LABEL]
        states = {BY_LABEL[name] for name in request.state_filters if name in BY_LABEL}
        if request.state_filters and not states:
            return answer
        for shard in self._runtime.serving:
            answer.transaction_states += [
                ListedTransaction(
                    transactional_id=known.transactional_id,
                    producer_id=known.producer_id,
                    transaction_state=known.state.label,
                )
                for known in shard.machine.transactions.values()
                if _passes(known, request, states or set(State), context.wall_ms)
                and matches(known.transactional_id)
                and self._may(context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, known.transactional_id)
            ]
        return answer


def _everything(_: str) -> bool:
    return True


# ---- answers


def _outcome(decision: Decided, error: ErrorCode) -> Identity:
    """What was decided, unless the log did not take it."""
    return decision.reply if error is _NONE else Identity(coordinator_error(error))


def _fenced(error: ErrorCode, context: RequestContext, since: int) -> ErrorCode:
    """Rule 3."""
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _initialized(identity: Identity, context: RequestContext) -> InitProducerIdResponse:
    error = _fenced(identity.error, context, _FIRST_INIT_WITH_FENCED)
    return InitProducerIdResponse(error_code=error, producer_id=identity.producer_id, producer_epoch=identity.epoch)


def _ended(identity: Identity, context: RequestContext) -> EndTxnResponse:
    error = _fenced(identity.error, context, _FIRST_WITH_FENCED)
    if context.api_version < _FIRST_END_WITH_BUMPS:
        return EndTxnResponse(error_code=error)
    return EndTxnResponse(error_code=error, producer_id=identity.producer_id, producer_epoch=identity.epoch)


def _told(
    topics: Iterable[AddPartitionsToTxnTopic], verdict: Callable[[TopicPartition], ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=verdict((topic.name, index))
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _same(topics: Iterable[AddPartitionsToTxnTopic], error: ErrorCode) -> list[AddPartitionsToTxnTopicResult]:
    return _told(topics, lambda _: error)


def _undescribed(name: str, error: ErrorCode) -> DescribedTransaction:
    return DescribedTransaction(
        error_code=error,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


def _passes(known: Transaction, request: ListTransactionsRequest, states: set[State], wall_ms: int) -> bool:
    """Whether the filters other than the pattern let a transaction pass."""
    return (
        known.state in states
        and (not request.producer_id_filters or known.producer_id in request.producer_id_filters)
        and (request.duration_filter < 0 or wall_ms - known.started_wall_ms > request.duration_filter)
    )

"""TxnOffsetCommit: offsets of a group that count when a producer's transaction is committed.

RULES    1. What is asked of topics that do not exist, or that the peer may not read, is refused topic by topic; the rest
            goes on.
         2. The offsets are records of `__consumer_offsets` like a producer's own, and are let in by the same door.
         3. The group decides as for any other commit, after that.
NOT HERE Committing without a transaction (`group_offsets.py`), the offsets themselves (`coordinators/offset_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator, refused_transactional_commit
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, Shard, coordinator_error
from broker.coordinators.transactions.transaction import Expected
from broker.coordinators.transactions.transaction_verification import Admission, Refusals, Support
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from protocol.records import NO_SEQUENCE
from replication.metadata.image import MetadataImage

_NONE: Final = ErrorCode.NONE
_FIRST_VERSION_WITH_ABORTABLE: Final = 4
_FIRST_VERSION_THAT_ADDS: Final = 5


class TransactionalOffsetsHandler:
    """Answers TxnOffsetCommit requests."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinator],
        admission: Admission,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
    ) -> None:
        self._runtime = runtime
        self._admission = admission
        self._image = image
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [Route(ApiKey.TXN_OFFSET_COMMIT, 0, 5, self.handle)]

    def handle(self, context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse | Pending:
        """Commit offsets of partitions that exist, as part of a transaction."""
        error = self._why_not(context, request)
        if error is not _NONE:
            return refused_transactional_commit(request, error)
        refused: list[TxnOffsetCommitResponseTopic] = []
        request.topics = [topic for topic in request.topics if self._may_commit(context, topic, refused)]
        if not request.topics:
            return TxnOffsetCommitResponse(topics=refused)
        shard = self._runtime.find(request.group_id)
        if not isinstance(shard, Shard):
            return _merged(refused, refused_transactional_commit(request, shard))
        pending = Pending()
        self._admission.admit(
            request.transactional_id,
            Expected(request.producer_id, request.producer_epoch),
            {(OFFSETS_TOPIC, shard.partition): NO_SEQUENCE},
            _support(context.api_version),
            lambda refusals: self._commit(
                context, request, refusals, lambda answer: pending.complete(_merged(refused, answer))
            ),
        )
        return pending

    def _why_not(self, context: RequestContext, request: TxnOffsetCommitRequest) -> ErrorCode:
        principal, may = context.connection.principal, self._authorizer.authorize
        if not may(principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not may(principal, Operation.READ, Resource.GROUP, request.group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        return _NONE if request.transactional_id else ErrorCode.INVALID_REQUEST

    def _may_commit(
        self,
        context: RequestContext,
        topic: TxnOffsetCommitRequestTopic,
        refused: list[TxnOffsetCommitResponseTopic],
    ) -> bool:
        """Whether there is something of a topic to commit; what is not goes to `refused`."""
        known = self._image().topics_by_name.get(topic.name)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not self._authorizer.authorize(context.connection.principal, Operation.READ, Resource.TOPIC, topic.name):
            known, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        exists = frozenset() if known is None else known.partitions.keys()
        missing = [one for one in topic.partitions if one.partition_index not in exists]
        topic.partitions = [one for one in topic.partitions if one.partition_index in exists]
        if missing:
            answers = [
                TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=error)
                for one in missing
            ]
            refused.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
        return bool(topic.partitions)

    def _commit(
        self,
        context: RequestContext,
        request: TxnOffsetCommitRequest,
        refusals: Refusals,
        reply: Callable[[TxnOffsetCommitResponse], None],
    ) -> None:
        """The transaction is known: let the group decide."""
        for refusal in refusals.values():
            reply(refused_transactional_commit(request, coordinator_error(refusal.code)))
            return
        shard = self._runtime.find(request.group_id)
        if not isinstance(shard, Shard):
            reply(refused_transactional_commit(request, shard))
            return
        topics = self._image().topics_by_name
        request.topics = [topic for topic in request.topics if topic.name in topics]  # one may be deleted by now
        topic_ids = {topic.name: topics[topic.name].topic_id for topic in request.topics}
        decision = shard.machine.commit_with_transaction(request, topic_ids, context.wall_ms)

        def ended(error: ErrorCode) -> None:
            failed = error is not _NONE
            told = refused_transactional_commit(request, coordinator_error(error)) if failed else decision.reply
            reply(told)

        shard.execute(decision).then(ended)


def _support(version: int) -> Support:
    if version >= _FIRST_VERSION_THAT_ADDS:
        return Support.IMPLICIT
    return Support.ABORTABLE if version >= _FIRST_VERSION_WITH_ABORTABLE else Support.OLD


def _merged(refused: list[TxnOffsetCommitResponseTopic], response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
    """What was refused first, then the rest; a topic that is in both stands once."""
    by_topic = {topic.name: topic for topic in refused}
    topics = list(refused)
    for topic in response.topics:
        known = by_topic.get(topic.name)
        if known is None:
            topics.append(topic)
        else:
            known.partitions += topic.partitions
    return TxnOffsetCommitResponse(topics=topics)

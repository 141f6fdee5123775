"""TxnOffsetCommit: offsets that become valid when the producer's transaction commits.

RULES    1. Unknown and unauthorized topics fail topic by topic; the rest continues.
         2. The offsets are transactional records in `__consumer_offsets` and need the same verification as produced records.
         3. After the verification the group decides as for OffsetCommit.
NOT HERE Commits without a transaction (`group_offsets.py`), storage of offsets (`coordinators/offset_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.offset_manager import txn_commit_response
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, CoordinatorRuntime
from broker.coordinators.transactions.transaction import ProducerIdAndEpoch
from broker.coordinators.transactions.transaction_verification import (
    PartitionErrors,
    TransactionSupport,
    TransactionVerification,
)
from broker.handlers.groups.offset_handlers import OffsetHandlers, with_failed_topics
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.groups import TxnOffsetCommitResponseTopic
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from protocol.records import NO_SEQUENCE
from replication.completion import Completion, completed
from replication.metadata.image import MetadataImage

_NONE: Final = ErrorCode.NONE
_FIRST_VERSION_WITH_ABORTABLE: Final = 4
_FIRST_VERSION_ADDING_PARTITIONS: Final = 5


class TxnOffsetCommitHandler(OffsetHandlers):
    """Handles TxnOffsetCommit."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinator],
        verification: TransactionVerification,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
    ) -> None:
        super().__init__(runtime, image, authorizer)
        self._verification = verification

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [Route(ApiKey.TXN_OFFSET_COMMIT, 0, 5, self.handle)]

    def handle(self, context: RequestContext, request: TxnOffsetCommitRequest) -> Completion[TxnOffsetCommitResponse]:
        """Handle TxnOffsetCommit."""
        error = self._request_error(context, request)
        if error is not _NONE:
            return completed(txn_commit_response(request, error))
        failed: list[TxnOffsetCommitResponseTopic] = []
        request.topics = [topic for topic in request.topics if self._keep_valid_partitions(context, topic, failed)]
        if not request.topics:
            return completed(TxnOffsetCommitResponse(topics=failed))
        committed = self._runtime.write_verified(
            request.group_id,
            lambda partition: self._verify(context, request, partition),
            lambda coordinator: self._commit(context, request, coordinator),
            partial(txn_commit_response, request),
        )
        if not failed:
            return committed
        return committed.map(
            lambda response: TxnOffsetCommitResponse(topics=with_failed_topics(failed, response.topics))
        )

    def _request_error(self, context: RequestContext, request: TxnOffsetCommitRequest) -> ErrorCode:
        denial = self._denial(
            context, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id
        ) or self._denial(context, Operation.READ, Resource.GROUP, request.group_id)
        if denial:
            return denial
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        return _NONE if request.transactional_id else ErrorCode.INVALID_REQUEST

    def _verify(self, context: RequestContext, request: TxnOffsetCommitRequest, partition: int) -> Completion[None]:
        """Verify the transaction for a partition of the offsets topic."""
        key = (OFFSETS_TOPIC, partition)
        support = TransactionSupport.of_version(
            context.api_version,
            generic_error=_FIRST_VERSION_WITH_ABORTABLE,
            add_partition=_FIRST_VERSION_ADDING_PARTITIONS,
        )
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

        def check(errors: PartitionErrors) -> None:
            if errors:
                raise errors[key]

        return self._verification.verify(request.transactional_id, producer, {key: NO_SEQUENCE}, support).map(check)

    def _commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest, coordinator: GroupCoordinator
    ) -> CoordinatorDecision[TxnOffsetCommitResponse]:
        topics = self._image().topics_by_name
        # A topic may have been deleted during the verification.
        request.topics = [topic for topic in request.topics if topic.name in topics]
        topic_ids = {topic.name: topics[topic.name].topic_id for topic in request.topics}
        return coordinator.commit_transactional(request, topic_ids, context.wall_ms)

"""The offset APIs of groups: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete.

RULES    1. Unknown and unauthorized topics fail here, topic by topic; the group's coordinator decides on the rest. In
            OffsetDelete an error of the group replaces all others.
         2. From version 10 on topics have ids, before that names; the other one is filled in from the image.
         3. Before version 8 a fetch has one group; before version 2 the response has no group error.
         4. The offsets of TxnOffsetCommit are transactional records in `__consumer_offsets` and become valid when the
            transaction commits. They need the same verification as produced records.
NOT HERE Members of groups (`classic_groups.py`), storage of offsets (`coordinators/offset_manager.py`), which offsets can be
         deleted (`coordinators/group_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final

from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.offset_manager import commit_response, partition_errors, txn_commit_response
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, CoordinatorRuntime
from broker.coordinators.transactions.transaction import ProducerIdAndEpoch
from broker.coordinators.transactions.transaction_verification import (
    PartitionErrors,
    TransactionSupport,
    TransactionVerification,
)
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.groups.offset_commit_fast_path import OffsetCommitFastPath
from broker.handlers.router import FastPath, RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.frame_codecs.offset_commit_codec import FIRST_VERSION
from protocol.messages.common import PartitionError, Topic
from protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetsTopic,
)
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from protocol.records import NO_SEQUENCE
from replication.completion import Completion, completed, gather
from replication.metadata.image import MetadataImage, TopicImage

_NONE: Final = ErrorCode.NONE
_FIRST_TXN_VERSION_WITH_ABORTABLE: Final = 4
_FIRST_TXN_VERSION_ADDING_PARTITIONS: Final = 5


class GroupOffsetsHandlers(AuthorizingHandlers):
    """The handlers of the offset APIs."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinator],
        verification: TransactionVerification,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
    ) -> None:
        self._runtime = runtime
        self._verification = verification
        self._image = image
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.OFFSET_COMMIT, 2, 10, self.offset_commit, fast_path=self._commit_fast_path),
            Route(ApiKey.TXN_OFFSET_COMMIT, 0, 5, self.txn_offset_commit),
            Route(ApiKey.OFFSET_FETCH, 1, 10, self.offset_fetch),
            Route(ApiKey.OFFSET_DELETE, 0, 0, self.offset_delete),
        ]

    # ------------------------------------------------------------ commit
    def _commit_fast_path(self, version: int) -> FastPath | None:
        if version < FIRST_VERSION:
            return None
        return OffsetCommitFastPath(version, self._runtime, self._image, self._authorizer).answer

    def offset_commit(self, context: RequestContext, request: OffsetCommitRequest) -> Completion[OffsetCommitResponse]:
        """Handle OffsetCommit."""
        if not self._is_authorized(context, Operation.READ, Resource.GROUP, request.group_id):
            return completed(commit_response(request, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        failed: list[OffsetsTopic[PartitionError]] = []
        request.topics = [topic for topic in request.topics if self._keep_valid_commits(context, topic, failed)]
        if not request.topics:
            return completed(OffsetCommitResponse(topics=failed))
        committed = self._runtime.write(
            request.group_id,
            lambda coordinator: coordinator.commit(request, context.api_version, context.mono_ms, context.wall_ms),
            partial(commit_response, request),
        )
        return committed.map(partial(_with_failed, failed)) if failed else committed

    def _keep_valid_commits(
        self,
        context: RequestContext,
        topic: OffsetsTopic[OffsetCommitRequestPartition],
        failed: list[OffsetsTopic[PartitionError]],
    ) -> bool:
        """Move invalid partitions of a topic to `failed`; returns whether valid ones are left. Sets name and id."""
        topic_image = self._resolve_topic(context, topic, self._image())
        if topic_image is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            error = self._denial(context, Operation.READ, Resource.TOPIC, topic.name)
        results = _take_invalid(topic, topic_image, error)
        if results is not None:
            failed.append(OffsetsTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
        return bool(topic.partitions)

    def _resolve_topic(
        self,
        context: RequestContext,
        topic: OffsetsTopic[OffsetCommitRequestPartition] | OffsetFetchRequestTopics,
        image: MetadataImage,
    ) -> TopicImage | None:
        """Set the missing name or id of a topic."""
        if context.api_version >= 10:
            topic_image = image.topics_by_id.get(topic.topic_id)
            if topic_image is not None:
                topic.name = topic_image.name
        else:
            topic_image = image.topics_by_name.get(topic.name)
            if topic_image is not None:
                topic.topic_id = topic_image.topic_id
        return topic_image

    # ------------------------------------------------------------ transactional commit
    def txn_offset_commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> Completion[TxnOffsetCommitResponse]:
        """Handle TxnOffsetCommit."""
        denial = self._denial(
            context, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id
        ) or self._denial(context, Operation.READ, Resource.GROUP, request.group_id)
        if denial:
            return completed(txn_commit_response(request, denial))
        failed: list[Topic[PartitionError]] = []
        request.topics = [topic for topic in request.topics if self._keep_valid_partitions(context, topic, failed)]
        if not request.topics:
            return completed(TxnOffsetCommitResponse(topics=failed))
        if not (request.group_id and request.transactional_id):
            error = ErrorCode.INVALID_REQUEST if request.group_id else ErrorCode.INVALID_GROUP_ID
            return completed(_with_failed(failed, txn_commit_response(request, error)))
        committed = self._runtime.write_verified(
            request.group_id,
            lambda partition: self._verify(context, request, partition),
            lambda coordinator: self._commit_verified(context, request, coordinator),
            partial(txn_commit_response, request),
        )
        return committed.map(partial(_with_failed, failed)) if failed else committed

    def _verify(self, context: RequestContext, request: TxnOffsetCommitRequest, partition: int) -> Completion[None]:
        """Verify the transaction for a partition of the offsets topic."""
        key = (OFFSETS_TOPIC, partition)
        support = TransactionSupport.of_version(
            context.api_version,
            generic_error=_FIRST_TXN_VERSION_WITH_ABORTABLE,
            add_partition=_FIRST_TXN_VERSION_ADDING_PARTITIONS,
        )
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

        def check(errors: PartitionErrors) -> None:
            if errors:
                raise errors[key]

        return self._verification.verify(request.transactional_id, producer, {key: NO_SEQUENCE}, support).map(check)

    def _commit_verified(
        self, context: RequestContext, request: TxnOffsetCommitRequest, coordinator: GroupCoordinator
    ) -> CoordinatorDecision[TxnOffsetCommitResponse]:
        topics = self._image().topics_by_name
        # A topic may have been deleted during the verification.
        request.topics = [topic for topic in request.topics if topic.name in topics]
        topic_ids = {topic.name: topics[topic.name].topic_id for topic in request.topics}
        return coordinator.commit_transactional(request, topic_ids, context.wall_ms)

    def _keep_valid_partitions(self, context: RequestContext, topic: Any, failed: list[Topic[PartitionError]]) -> bool:
        """Move invalid partitions of a topic to `failed`; returns whether valid ones are left."""
        topic_image = self._image().topics_by_name.get(topic.name)
        results = _take_invalid(topic, topic_image, self._denial(context, Operation.READ, Resource.TOPIC, topic.name))
        if results is not None:
            failed.append(Topic(name=topic.name, partitions=results))
        return bool(topic.partitions)

    # ------------------------------------------------------------ fetch
    def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> Completion[OffsetFetchResponse]:
        """Handle OffsetFetch."""
        version = context.api_version
        groups = request.groups if version >= 8 else [_as_group(request)]
        reads = [self._fetch_group(context, group, is_stable=request.require_stable) for group in groups]
        return gather(reads, lambda results: _offset_fetch_response(results, groups, version))

    def _fetch_group(
        self, context: RequestContext, group: OffsetFetchRequestGroup, *, is_stable: bool
    ) -> Completion[OffsetFetchResponseGroup]:
        """The offsets of one group."""

        def fetch(coordinator: GroupCoordinator) -> OffsetFetchResponseGroup:
            image = self._image()
            failed: list[OffsetsTopic[OffsetFetchResponsePartition]] = []
            if group.topics is not None:
                group.topics = [topic for topic in group.topics if self._can_fetch(context, topic, image, failed)]
            answer = coordinator.fetch(group, is_stable=is_stable)
            if group.topics is None:
                answer.topics = [
                    topic
                    for topic in answer.topics
                    if self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic.name, log_denied=False)
                ]
                if context.api_version >= 10:
                    answer.topics = [topic for topic in answer.topics if _set_topic_id(topic, image)]
            if not answer.error_code:
                answer.topics += failed
            return answer

        if not self._is_authorized(context, Operation.DESCRIBE, Resource.GROUP, group.group_id):
            return completed(_error_group(group.group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return self._runtime.read(group.group_id, fetch, partial(_error_group, group.group_id))

    def _can_fetch(
        self,
        context: RequestContext,
        topic: OffsetFetchRequestTopics,
        image: MetadataImage,
        failed: list[OffsetsTopic[OffsetFetchResponsePartition]],
    ) -> bool:
        topic_image = self._resolve_topic(context, topic, image)
        if topic_image is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            return True
        failed.append(_fetch_errors(topic, error))
        return False

    # ------------------------------------------------------------ delete
    def offset_delete(self, context: RequestContext, request: OffsetDeleteRequest) -> Completion[OffsetDeleteResponse]:
        """Handle OffsetDelete."""
        if not self._is_authorized(context, Operation.DELETE, Resource.GROUP, request.group_id):
            return completed(OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        failed: list[Topic[PartitionError]] = []
        request.topics = [topic for topic in request.topics if self._keep_valid_partitions(context, topic, failed)]
        if not request.group_id:
            return completed(OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        deleted = self._runtime.write(
            request.group_id,
            lambda coordinator: coordinator.delete_offsets(request),
            lambda error: OffsetDeleteResponse(error_code=error),
        )
        return deleted.map(lambda response: response if response.error_code else _with_failed(failed, response))


# ---- responses


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The group of a request before version 8."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _error_group(group_id: str, error: ErrorCode) -> OffsetFetchResponseGroup:
    if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:  # consumers before 3.9 know only NOT_COORDINATOR
        error = ErrorCode.NOT_COORDINATOR
    return OffsetFetchResponseGroup(group_id=group_id, topics=[], error_code=error)


def _fetch_errors(topic: OffsetFetchRequestTopics, error: int) -> OffsetsTopic[OffsetFetchResponsePartition]:
    """The same error for all partitions of a topic."""
    partitions = [
        OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, metadata="", error_code=error)
        for index in topic.partition_indexes
    ]
    return OffsetsTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _set_topic_id(topic: OffsetsTopic[OffsetFetchResponsePartition], image: MetadataImage) -> bool:
    """Set the topic id; False if the topic is deleted."""
    topic_image = image.topics_by_name.get(topic.name)
    if topic_image is None:
        return False
    topic.topic_id = topic_image.topic_id
    return True


def _offset_fetch_response(
    results: list[OffsetFetchResponseGroup], groups: list[OffsetFetchRequestGroup], version: int
) -> OffsetFetchResponse:
    """The response in the layout of its version: several groups from 8 on, a group error from 2 on.

    Version 1 has the error in every partition.
    """
    if version >= 8:
        return OffsetFetchResponse(groups=results)
    answer = results[0]
    if answer.error_code != _NONE and version < 2:
        answer.topics = [_fetch_errors(topic, answer.error_code) for topic in groups[0].topics or ()]
    topics = [
        Topic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=one.partition_index,
                    committed_offset=one.committed_offset,
                    committed_leader_epoch=one.committed_leader_epoch,
                    metadata=one.metadata,
                    error_code=one.error_code,
                )
                for one in topic.partitions
            ],
        )
        for topic in answer.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=answer.error_code)


def _take_invalid(topic: Any, image: TopicImage | None, error: ErrorCode) -> list[PartitionError] | None:
    """Remove the partitions that do not exist, or with an error all, and return their results.

    None: the topic is valid; one without partitions is not in the response then.
    """
    existing: Container[int] = () if image is None or error else image.partitions
    missing = [one for one in topic.partitions if one.partition_index not in existing]
    if image is not None and not error and not missing:
        return None
    topic.partitions = [one for one in topic.partitions if one.partition_index in existing]
    return partition_errors(missing, error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _with_failed(failed: list[Any], response: Any) -> Any:
    """The response with the failed topics first; the partitions of topics with the same name are merged, as in Kafka."""
    by_name = {topic.name: topic for topic in failed}
    topics = list(failed)
    for topic in response.topics:
        first = by_name.setdefault(topic.name, topic)
        if first is topic:
            topics.append(topic)
        else:
            first.partitions += topic.partitions
    response.topics = topics
    return response

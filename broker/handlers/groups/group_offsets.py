"""Committed offsets of groups: OffsetCommit and OffsetFetch.

RULES    1. What is asked of topics that do not exist, or that the peer may not read, is refused here, topic by topic; the
            rest is the group's coordinator's to decide.
         2. Topics are named by id since version 10 and by name before; here each gets both, where both are known.
         3. Before version 8 a fetch is about one group, before version 2 the answer has no error of its own.
NOT HERE Members and everything else about groups (`classic_groups.py`), the offsets themselves (`coordinators/offset_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.coordinators.group_coordinator import GroupCoordinator, refused_commit
from broker.coordinators.runtime.coordinator_runtime import (
    Commit,
    CoordinatorDecision,
    CoordinatorRuntime,
    Shard,
    coordinator_error,
)
from broker.handlers.deferred import when_all, when_committed
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from replication.metadata.image import MetadataImage, TopicImage

_NONE: Final = ErrorCode.NONE


class GroupOffsetsHandlers:
    """The handlers of this module and what they need."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinator],
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
    ) -> None:
        self._runtime = runtime
        self._image = image
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.OFFSET_COMMIT, 2, 10, self.offset_commit),
            Route(ApiKey.OFFSET_FETCH, 1, 10, self.offset_fetch),
        ]

    def _may(self, context: RequestContext, operation: str, group_id: str) -> bool:
        return self._authorizer.authorize(context.connection.principal, operation, Resource.GROUP, group_id)

    # ------------------------------------------------------------ commit
    def offset_commit(self, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse | Pending:
        """Commit offsets of partitions that exist."""
        if not self._may(context, Operation.READ, request.group_id):
            return refused_commit(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refused: list[OffsetCommitResponseTopic] = []
        request.topics = [topic for topic in request.topics if self._may_commit(context, topic, refused)]
        if not request.topics:
            return OffsetCommitResponse(topics=refused)
        shard = self._runtime.find(request.group_id)
        if not isinstance(shard, Shard):
            return _merged(refused, refused_commit(request, shard))
        decision = shard.machine.commit(request, context.api_version, context.mono_ms, context.wall_ms)
        commit = shard.execute(decision)
        if commit.error is _NONE and not refused:
            return decision.reply

        def answer(error: ErrorCode) -> OffsetCommitResponse:
            failed = error is not _NONE
            return _merged(refused, refused_commit(request, coordinator_error(error)) if failed else decision.reply)

        return when_committed(commit, answer)

    def _may_commit(
        self,
        context: RequestContext,
        topic: OffsetCommitRequestTopic,
        refused: list[OffsetCommitResponseTopic],
    ) -> bool:
        """Whether there is something of a topic to commit; what is not goes to `refused`. Completes name and id."""
        image = self._image()
        known = self._complete(context, topic, image)
        error = _NONE
        if known is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._may_read(context, Operation.READ, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif known is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known is not None and error is _NONE:
            partitions = known.partitions
            missing = [one for one in topic.partitions if one.partition_index not in partitions]
            if not missing:
                return bool(topic.partitions)  # a topic without partitions is not even answered
            topic.partitions = [one for one in topic.partitions if one.partition_index in partitions]
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            missing, topic.partitions = topic.partitions, []
        answers = [
            OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=error) for one in missing
        ]
        refused.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        return bool(topic.partitions)

    def _complete(
        self,
        context: RequestContext,
        topic: OffsetCommitRequestTopic | OffsetFetchRequestTopics,
        image: MetadataImage,
    ) -> TopicImage | None:
        """Give a topic that is named by id its name, or the other way round."""
        if context.api_version >= 10:
            known = image.topics_by_id.get(topic.topic_id)
            if known is not None:
                topic.name = known.name
        else:
            known = image.topics_by_name.get(topic.name)
            if known is not None:
                topic.topic_id = known.topic_id
        return known

    def _may_read(self, context: RequestContext, operation: str, topic: str) -> bool:
        return self._authorizer.authorize(context.connection.principal, operation, Resource.TOPIC, topic)

    # ------------------------------------------------------------ fetch
    def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse | Pending:
        """Committed offsets of one or more groups."""
        groups = request.groups if context.api_version >= 8 else [_as_group(request)]
        answers: list[OffsetFetchResponseGroup] = []
        commits: list[Commit] = []
        for group in groups:
            answer, commit = self._fetch_group(context, group, is_stable=request.require_stable)
            answers.append(answer)
            if commit is not None and commit.error is not _NONE:
                index = len(answers) - 1
                commits.append(commit)
                commit.then(lambda error, group=group, index=index: _fail(answers, index, group, error))  # type: ignore[misc]
        return when_all(commits, lambda: _fetched(answers, groups, context.api_version))

    def _fetch_group(
        self, context: RequestContext, group: OffsetFetchRequestGroup, *, is_stable: bool
    ) -> tuple[OffsetFetchResponseGroup, Commit | None]:
        """One group's answer, and what must be committed before it may go out."""
        group_id = group.group_id
        if not self._may(context, Operation.DESCRIBE, group_id):
            return _no_offsets(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED), None
        shard = self._runtime.find(group_id)
        if not isinstance(shard, Shard):
            return _no_offsets(group_id, shard), None
        image = self._image()
        has_ids = context.api_version >= 10
        refused: list[OffsetFetchResponseTopics] = []
        if group.topics is not None:
            group.topics = [topic for topic in group.topics if self._may_fetch(context, topic, image, refused)]
        answer = shard.machine.fetch(group, is_stable=is_stable)
        if group.topics is None:
            answer.topics = [
                topic for topic in answer.topics if self._may_read(context, Operation.DESCRIBE, topic.name)
            ]
            if has_ids:
                answer.topics = [topic for topic in answer.topics if _with_id(topic, image)]
        if not answer.error_code:
            answer.topics += refused
        return answer, shard.execute(CoordinatorDecision((), None))

    def _may_fetch(
        self,
        context: RequestContext,
        topic: OffsetFetchRequestTopics,
        image: MetadataImage,
        refused: list[OffsetFetchResponseTopics],
    ) -> bool:
        known = self._complete(context, topic, image)
        if known is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._may_read(context, Operation.DESCRIBE, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            return True
        refused.append(
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, metadata="", error_code=error
                    )
                    for index in topic.partition_indexes
                ],
            )
        )
        return False


# ---- answers


def _merged(refused: list[OffsetCommitResponseTopic], response: OffsetCommitResponse) -> OffsetCommitResponse:
    """What was refused first, then the rest; a topic that is in both stands once."""
    if not refused:
        return response
    by_topic = {topic.name: topic for topic in refused}
    topics = list(refused)
    for topic in response.topics:
        known = by_topic.get(topic.name)
        if known is None:
            topics.append(topic)
        else:
            known.partitions += topic.partitions
    return OffsetCommitResponse(topics=topics)


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The one group of a request before version 8."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _no_offsets(group_id: str, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group_id, topics=[], error_code=error)


def _fail(
    answers: list[OffsetFetchResponseGroup], index: int, group: OffsetFetchRequestGroup, error: ErrorCode
) -> None:
    """What is not committed is not told. Consumers before 3.9 know NOT_COORDINATOR only."""
    if error is not _NONE:
        told = coordinator_error(error)
        told = ErrorCode.NOT_COORDINATOR if told is ErrorCode.COORDINATOR_NOT_AVAILABLE else told
        answers[index] = _no_offsets(group.group_id, told)


def _with_id(topic: OffsetFetchResponseTopics, image: MetadataImage) -> bool:
    """Complete a topic's id; one that is no more has none and cannot be told of."""
    known = image.topics_by_name.get(topic.name)
    if known is None:
        return False
    topic.topic_id = known.topic_id
    return True


def _fetched(
    answers: list[OffsetFetchResponseGroup], groups: list[OffsetFetchRequestGroup], version: int
) -> OffsetFetchResponse:
    """The answer in the form of its version: several groups since 8, an error of its own since 2.

    The error stands in every partition too: to clients that look nowhere else a group without offsets is a new one.
    """
    if version >= 8:
        return OffsetFetchResponse(groups=answers)
    answer = answers[0]
    if answer.error_code != _NONE:
        answer.topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, metadata="", error_code=answer.error_code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in groups[0].topics or ()
        ]
    topics = [
        OffsetFetchResponseTopic(
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

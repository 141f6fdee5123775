"""OffsetCommit and OffsetFetch.

RULES    1. Unknown and unauthorized topics fail here, topic by topic; the group's coordinator
            decides on the rest.
         2. From version 10 on topics have ids, before that names; the other one is filled in from the image.
         3. Before version 8 a fetch has one group; before version 2 the response has no group error.
NOT HERE Members of groups (`classic_groups.py`), storage of offsets (`coordinators/offset_manager.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.offset_manager import commit_response, partition_errors
from broker.handlers.groups.offset_handlers import OffsetHandlers, with_failed_topics
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
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
from replication.completion import Completion, completed, gather
from replication.metadata.image import MetadataImage, TopicImage

_NONE: Final = ErrorCode.NONE


class GroupOffsetsHandlers(OffsetHandlers):
    """The handlers of OffsetCommit and OffsetFetch."""

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.OFFSET_COMMIT, 2, 10, self.offset_commit),
            Route(ApiKey.OFFSET_FETCH, 1, 10, self.offset_fetch),
        ]

    # ------------------------------------------------------------ commit
    def offset_commit(self, context: RequestContext, request: OffsetCommitRequest) -> Completion[OffsetCommitResponse]:
        """Handle OffsetCommit."""
        if not self._is_authorized(context, Operation.READ, Resource.GROUP, request.group_id):
            return completed(commit_response(request, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        failed: list[OffsetCommitResponseTopic] = []
        request.topics = [topic for topic in request.topics if self._keep_valid_commits(context, topic, failed)]
        if not request.topics:
            return completed(OffsetCommitResponse(topics=failed))
        committed = self._runtime.write(
            request.group_id,
            lambda coordinator: coordinator.commit(request, context.api_version, context.mono_ms, context.wall_ms),
            partial(commit_response, request),
        )
        if not failed:
            return committed
        return committed.map(lambda response: OffsetCommitResponse(topics=with_failed_topics(failed, response.topics)))

    def _keep_valid_commits(
        self, context: RequestContext, topic: OffsetCommitRequestTopic, failed: list[OffsetCommitResponseTopic]
    ) -> bool:
        """Move invalid partitions of a topic to `failed`; returns whether valid ones are left. Sets name and id."""
        image = self._image()
        topic_image = self._resolve_topic(context, topic, image)
        error = _NONE
        if topic_image is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._is_authorized(context, Operation.READ, Resource.TOPIC, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic_image is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic_image is not None and error is _NONE:
            partitions = topic_image.partitions
            missing = [one for one in topic.partitions if one.partition_index not in partitions]
            if not missing:
                return bool(topic.partitions)  # a topic without partitions is not in the response
            topic.partitions = [one for one in topic.partitions if one.partition_index in partitions]
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            missing, topic.partitions = topic.partitions, []
        results = partition_errors(missing, error)
        failed.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
        return bool(topic.partitions)

    def _resolve_topic(
        self, context: RequestContext, topic: OffsetCommitRequestTopic | OffsetFetchRequestTopics, image: MetadataImage
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
            failed: list[OffsetFetchResponseTopics] = []
            if group.topics is not None:
                group.topics = [topic for topic in group.topics if self._can_fetch(context, topic, image, failed)]
            answer = coordinator.fetch(group, is_stable=is_stable)
            if group.topics is None:
                answer.topics = [
                    topic
                    for topic in answer.topics
                    if self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic.name)
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
        failed: list[OffsetFetchResponseTopics],
    ) -> bool:
        topic_image = self._resolve_topic(context, topic, image)
        if topic_image is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            return True
        failed.append(
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


def _set_topic_id(topic: OffsetFetchResponseTopics, image: MetadataImage) -> bool:
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

    The error is also set in every partition: old clients look only there.
    """
    if version >= 8:
        return OffsetFetchResponse(groups=results)
    answer = results[0]
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

"""OffsetDelete: an administrator has committed offsets of a group forgotten.

RULES    1. Topics that do not exist, or that the peer may not read, are refused here, partition by partition; the rest is
            the group's coordinator's to decide, whose refusal overrules all of that.
NOT HERE Which offsets may go (`coordinators/group_coordinator.py`), deleting groups (`classic_groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, Shard, coordinator_error
from broker.handlers.deferred import when_committed
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from replication.metadata.image import MetadataImage

_NONE: Final = ErrorCode.NONE


class OffsetDeletionHandler:
    """The handler of this module and what it needs."""

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
        """The row of this module."""
        return [Route(ApiKey.OFFSET_DELETE, 0, 0, self.offset_delete)]

    def offset_delete(self, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse | Pending:
        """Forget offsets of topics that the group does not read."""
        principal = context.connection.principal
        if not self._authorizer.authorize(principal, Operation.DELETE, Resource.GROUP, request.group_id):
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refused: list[OffsetDeleteResponseTopic] = []
        request.topics = [topic for topic in request.topics if self._has_known(context, topic, refused)]
        shard = self._runtime.find(request.group_id) if request.group_id else ErrorCode.INVALID_GROUP_ID
        if not isinstance(shard, Shard):
            return OffsetDeleteResponse(error_code=shard)
        decision = shard.machine.delete_offsets(request)

        def answer(error: ErrorCode) -> OffsetDeleteResponse:
            if error is not _NONE:
                return OffsetDeleteResponse(error_code=coordinator_error(error))
            return _merged(refused, decision.reply)

        return when_committed(shard.execute(decision), answer)

    def _has_known(
        self, context: RequestContext, topic: OffsetDeleteRequestTopic, refused: list[OffsetDeleteResponseTopic]
    ) -> bool:
        """Whether something of a topic can be asked for; what cannot goes to `refused`."""
        known = self._image().topics_by_name.get(topic.name)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not self._authorizer.authorize(context.connection.principal, Operation.READ, Resource.TOPIC, topic.name):
            known, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        there = () if known is None else known.partitions
        answers = [
            OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=error)
            for one in topic.partitions
            if one.partition_index not in there
        ]
        if answers:
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
        topic.partitions = [one for one in topic.partitions if one.partition_index in there]
        return bool(topic.partitions)


def _merged(refused: list[OffsetDeleteResponseTopic], response: OffsetDeleteResponse) -> OffsetDeleteResponse:
    """What was refused and what was not; a topic that is in both stands once."""
    if response.error_code != _NONE:
        return response
    by_topic = {topic.name: topic for topic in refused}
    for topic in response.topics:
        known = by_topic.setdefault(topic.name, topic)
        if known is not topic:
            known.partitions += topic.partitions
    response.topics = list(by_topic.values())
    return response

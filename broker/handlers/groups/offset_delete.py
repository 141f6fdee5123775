"""OffsetDelete: delete committed offsets of a group.

RULES    1. Unknown and unauthorized partitions fail here; the group's coordinator decides on the rest. An error of the
            group replaces all partition errors.
NOT HERE Which offsets can be deleted (`coordinators/group_coordinator.py`), deleting groups (`classic_groups.py`).
"""

from __future__ import annotations

from typing import Final

from broker.handlers.groups.offset_handlers import OffsetHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.groups import OffsetDeleteRequest, OffsetDeleteResponse, TxnOffsetCommitResponseTopic
from replication.completion import Completion, completed

_NONE: Final = ErrorCode.NONE


class OffsetDeleteHandler(OffsetHandlers):
    """Handles OffsetDelete."""

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [Route(ApiKey.OFFSET_DELETE, 0, 0, self.offset_delete)]

    def offset_delete(self, context: RequestContext, request: OffsetDeleteRequest) -> Completion[OffsetDeleteResponse]:
        """Handle OffsetDelete."""
        if not self._is_authorized(context, Operation.DELETE, Resource.GROUP, request.group_id):
            return completed(OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        failed: list[TxnOffsetCommitResponseTopic] = []
        request.topics = [topic for topic in request.topics if self._keep_valid_partitions(context, topic, failed)]
        if not request.group_id:
            return completed(OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        deleted = self._runtime.write(
            request.group_id,
            lambda coordinator: coordinator.delete_offsets(request),
            lambda error: OffsetDeleteResponse(error_code=error),
        )
        return deleted.map(lambda response: _merge_failed(failed, response))


def _merge_failed(failed: list[TxnOffsetCommitResponseTopic], response: OffsetDeleteResponse) -> OffsetDeleteResponse:
    """The response with the failed topics first; the partitions of a topic in both are merged."""
    if response.error_code != _NONE:
        return response
    by_topic = {topic.name: topic for topic in failed}
    for topic in response.topics:
        first = by_topic.setdefault(topic.name, topic)
        if first is not topic:
            first.partitions += topic.partitions
    response.topics = list(by_topic.values())
    return response

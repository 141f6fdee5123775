"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): authorization here, decisions in the group's shard.

RULES    1. Without the finalized feature `group.version` both return UNSUPPORTED_VERSION.
         2. A heartbeat needs READ on the group and DESCRIBE on each subscribed topic; a description needs DESCRIBE on
            the group and on all its topics.
NOT HERE The decisions (`coordinators/consumer/consumer_group_heartbeat.py`), the classic protocol (`classic_groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.coordinators.consumer.consumer_group_heartbeat import HeartbeatClientInfo
from broker.coordinators.consumer.describe import describe_error, topics_in
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import Commit, CoordinatorRuntime, Shard, coordinator_error
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.deferred import set_describe_error, when_all, when_committed
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from replication.completion import Completion
from replication.metadata.image import MetadataImage

GROUP_VERSION: Final = "group.version"

_NONE: Final = ErrorCode.NONE


class ConsumerGroupHandlers(AuthorizingHandlers):
    """The handlers of the consumer group APIs."""

    def __init__(
        self, runtime: CoordinatorRuntime[GroupCoordinator], image: Callable[[], MetadataImage], authorizer: Authorizer
    ) -> None:
        self._runtime = runtime
        self._image = image
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, self.heartbeat),
            Route(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, self.describe),
        ]

    @property
    def _is_enabled(self) -> bool:
        return self._image().features.get(GROUP_VERSION, 0) >= 1

    # ---- heartbeat

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Completion[ConsumerGroupHeartbeatResponse]:
        """Handle ConsumerGroupHeartbeat."""

        def may_describe(topic: str) -> bool:
            return self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic)

        if not self._is_enabled:
            return _error_response(ErrorCode.UNSUPPORTED_VERSION)
        if not self._is_authorized(context, Operation.READ, Resource.GROUP, request.group_id):
            return _error_response(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not all(may_describe(topic) for topic in request.subscribed_topic_names or ()):
            return _error_response(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if not request.group_id.strip():
            return _error_response(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        shard = self._runtime.find(request.group_id)
        if not isinstance(shard, Shard):
            return _error_response(shard)
        client = HeartbeatClientInfo(
            context.client_id or "", f"/{context.connection.peer_host}", context.api_version, may_describe
        )
        decision = shard.coordinator.consumer_heartbeat(client, request)
        commit = shard.execute(decision)
        if commit.error is _NONE:
            return decision.reply

        def answer(error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
            return decision.reply if error is _NONE else _error_response(coordinator_error(error))

        return when_committed(commit, answer)

    # ---- describe

    def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse | Completion[ConsumerGroupDescribeResponse]:
        """Handle ConsumerGroupDescribe."""
        commits: list[Commit] = []
        groups = [
            self._describe(context, group_id, commits, with_operations=request.include_authorized_operations)
            for group_id in request.group_ids
        ]
        return when_all(commits, lambda: ConsumerGroupDescribeResponse(groups=groups))

    def _describe(
        self, context: RequestContext, group_id: str, commits: list[Commit], *, with_operations: bool
    ) -> ConsumerGroupDescribeResponseGroup:
        """Describe one group; the commit to wait for is added to `commits`."""
        if not self._is_enabled:
            return describe_error(group_id, ErrorCode.UNSUPPORTED_VERSION)
        if not self._is_authorized(context, Operation.DESCRIBE, Resource.GROUP, group_id):
            return describe_error(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        shard = self._runtime.find(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if not isinstance(shard, Shard):
            return describe_error(group_id, shard)
        described = shard.coordinator.describe_consumer_group(group_id)
        if not all(
            self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic) for topic in topics_in(described)
        ):
            return describe_error(
                group_id,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "The group has described topic(s) that the client is not authorized to describe.",
            )
        if with_operations and described.error_code == _NONE:
            described.authorized_operations = self._authorized_operations(context, Resource.GROUP, group_id)
        commits.append(shard.last_commit())
        commits[-1].then(partial(set_describe_error, described))
        return described


def _error_response(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)

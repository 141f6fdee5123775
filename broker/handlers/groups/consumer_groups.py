"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): rights here, decisions at the group's shard.

RULES    1. Where `group.version` is not finalized the protocol does not exist: UNSUPPORTED_VERSION.
         2. A heartbeat needs READ on the group and DESCRIBE on each topic that it names; a description DESCRIBE on
            the group and on all topics in it.
NOT HERE What becomes of a group (`coordinators/consumer/consumer_group_heartbeat.py`), the classic protocol (`classic_groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.coordinators.consumer.consumer_group_heartbeat import HeartbeatCaller
from broker.coordinators.consumer.describe import not_described, topics_in
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import Commit, CoordinatorRuntime, Shard, coordinator_error
from broker.handlers.deferred import when_all, when_committed
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from broker.security.operations import authorized_operations
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from replication.metadata.image import MetadataImage

GROUP_VERSION: Final = "group.version"

_NONE: Final = ErrorCode.NONE


class ConsumerGroupHandlers:
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
            Route(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, self.heartbeat),
            Route(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, self.describe),
        ]

    @property
    def _is_enabled(self) -> bool:
        return self._image().features.get(GROUP_VERSION, 0) >= 1

    def _may(self, context: RequestContext, operation: str, kind: str, name: str) -> bool:
        return self._authorizer.authorize(context.connection.principal, operation, kind, name)

    # ---- heartbeat

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Pending:
        """Join, stay or leave."""

        def may_describe(topic: str) -> bool:
            return self._may(context, Operation.DESCRIBE, Resource.TOPIC, topic)

        if not self._is_enabled:
            return _refused(ErrorCode.UNSUPPORTED_VERSION)
        if not self._may(context, Operation.READ, Resource.GROUP, request.group_id):
            return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not all(may_describe(topic) for topic in request.subscribed_topic_names or ()):
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if not request.group_id.strip():
            return _refused(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        shard = self._runtime.find(request.group_id)
        if not isinstance(shard, Shard):
            return _refused(shard)
        caller = HeartbeatCaller(
            context.client_id or "", f"/{context.connection.peer_host}", context.api_version, may_describe
        )
        decision = shard.machine.consumer_heartbeat(caller, request)
        commit = shard.execute(decision)
        if commit.error is _NONE:
            return decision.reply

        def answer(error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
            return decision.reply if error is _NONE else _refused(coordinator_error(error))

        return when_committed(commit, answer)

    # ---- describe

    def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse | Pending:
        """Groups with their members."""
        commits: list[Commit] = []
        groups = [
            self._describe(context, group_id, commits, with_operations=request.include_authorized_operations)
            for group_id in request.group_ids
        ]
        return when_all(commits, lambda: ConsumerGroupDescribeResponse(groups=groups))

    def _describe(
        self, context: RequestContext, group_id: str, commits: list[Commit], *, with_operations: bool
    ) -> ConsumerGroupDescribeResponseGroup:
        """One group; what must be committed before it may be told goes to `commits`."""
        if not self._is_enabled:
            return not_described(group_id, ErrorCode.UNSUPPORTED_VERSION)
        if not self._may(context, Operation.DESCRIBE, Resource.GROUP, group_id):
            return not_described(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        shard = self._runtime.find(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if not isinstance(shard, Shard):
            return not_described(group_id, shard)
        described = shard.machine.describe_consumer_group(group_id)
        if not all(self._may(context, Operation.DESCRIBE, Resource.TOPIC, topic) for topic in topics_in(described)):
            return not_described(
                group_id,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "The group has described topic(s) that the client is not authorized to describe.",
            )
        if with_operations and described.error_code == _NONE:
            described.authorized_operations = authorized_operations(
                self._authorizer, context.connection.principal, Resource.GROUP, group_id
            )
        commits.append(shard.known())
        commits[-1].then(partial(_not_committed, described))
        return described


def _not_committed(described: ConsumerGroupDescribeResponseGroup, error: ErrorCode) -> None:
    """What was to be told may be lost."""
    if error is not _NONE:
        described.error_code, described.members = coordinator_error(error), []


def _refused(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)

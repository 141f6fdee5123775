"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): authorization here, decisions in the group's shard.

RULES    1. Without the finalized feature `group.version`, or if the settings do not enable the protocol, both return
            UNSUPPORTED_VERSION.
         2. A heartbeat needs READ on the group and DESCRIBE on each subscribed topic; a description needs DESCRIBE on
            the group and on all its topics.
NOT HERE The decisions (`coordinators/consumer/consumer_group_heartbeat.py`), the classic protocol (`classic_groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.coordinators.classic.classic_protocol import ClientInfo
from broker.coordinators.consumer.consumer_requests import check_ids
from broker.coordinators.consumer.describe import describe_error, topics_in
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource, java_address
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from replication.completion import Completion, completed, gather
from replication.metadata.image import MetadataImage

GROUP_VERSION: Final = "group.version"

_NONE: Final = ErrorCode.NONE


class ConsumerGroupHandlers(AuthorizingHandlers):
    """The handlers of the consumer group APIs."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinator],
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        *,
        is_enabled: bool = True,
    ) -> None:
        """`is_enabled`: whether the settings enable the protocol."""
        self._runtime = runtime
        self._image = image
        self._is_protocol_enabled = is_enabled
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, self.heartbeat),
            Route(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, self.describe),
        ]

    @property
    def _is_enabled(self) -> bool:
        return self._is_protocol_enabled and self._image().features.get(GROUP_VERSION, 0) >= 1

    # ---- heartbeat

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> Completion[ConsumerGroupHeartbeatResponse]:
        """Handle ConsumerGroupHeartbeat."""

        def may_describe(topic: str) -> bool:
            return self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic, log_denied=False)

        if not self._is_enabled:
            return completed(_error_response(ErrorCode.UNSUPPORTED_VERSION))
        if not self._is_authorized(context, Operation.READ, Resource.GROUP, request.group_id):
            return completed(_error_response(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        subscribed = request.subscribed_topic_names or ()
        if not all(self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic) for topic in subscribed):
            return completed(_error_response(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        try:
            check_ids(request, context.api_version)
        except KafkaError as error:
            return completed(_error_response(error.code, error.message))
        client = ClientInfo(
            context.client_id or "", f"/{java_address(context.connection.peer_host)}", context.api_version
        )
        return self._runtime.write(
            request.group_id,
            lambda coordinator: coordinator.consumer_heartbeat(client, request, may_describe),
            _error_response,
        )

    # ---- describe

    def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> Completion[ConsumerGroupDescribeResponse]:
        """Handle ConsumerGroupDescribe."""
        with_operations = request.include_authorized_operations
        reads = [self._describe(context, group_id, with_operations=with_operations) for group_id in request.group_ids]
        return gather(reads, lambda groups: ConsumerGroupDescribeResponse(groups=groups))

    def _describe(
        self, context: RequestContext, group_id: str, *, with_operations: bool
    ) -> Completion[ConsumerGroupDescribeResponseGroup]:
        def describe(coordinator: GroupCoordinator) -> ConsumerGroupDescribeResponseGroup:
            described = coordinator.describe_consumer_group(group_id)
            if not all(
                self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic)
                for topic in topics_in(described)
            ):
                return describe_error(
                    group_id,
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    "The group has described topic(s) that the client is not authorized to describe.",
                )
            if with_operations and described.error_code == _NONE:
                described.authorized_operations = self._authorized_operations(context, Resource.GROUP, group_id)
            return described

        error: ErrorCode | None = None
        if not self._is_enabled:
            error = ErrorCode.UNSUPPORTED_VERSION
        elif not self._is_authorized(context, Operation.DESCRIBE, Resource.GROUP, group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif not group_id:
            error = ErrorCode.INVALID_GROUP_ID
        if error is not None:
            return completed(describe_error(group_id, error))
        return self._runtime.read(group_id, describe, partial(describe_error, group_id))


def _error_response(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)

"""FindCoordinator: the broker that coordinates a group or a transactional id.

RULES    1. The coordinator of a key is the leader of its partition in the internal topic.
         2. The first request creates the internal topic; requests wait for it. The topic is not created with fewer replicas
            than its replication factor setting: it could lose committed data.
         3. Clients ask again at once while it cannot be created: the reason is logged once a minute.
         4. Before version 4 a request has one key, and the error message is not nullable.
NOT HERE The coordinators (`coordinators/`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from broker.coordinators.runtime.java_compat import abs_hash
from broker.handlers.authorization import ForwardingHandlers
from broker.handlers.router import RequestContext, Route
from broker.network.repeated_lines import RepeatedLines
from broker.peers.endpoints import AdvertisedEndpoints
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from replication.completion import Completion
from replication.controller.controller_client import Controller

_log = logging.getLogger("barnabas.coordinators")

GROUP: Final = 0
TRANSACTION: Final = 1

_NONE: Final = ErrorCode.NONE
_NO_NODE: Final = -1
_CREATE_TIMEOUT_MS: Final = 30_000
_UNAVAILABLE: Final = "The coordinator is not available."
_FIRST_VERSION_WITH_KEYS: Final = 4
_AUTHORIZATION: Final = {
    GROUP: (Resource.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    TRANSACTION: (
        Resource.TRANSACTIONAL_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
}
_SETTINGS: Final = {GROUP: "offsets.topic.*", TRANSACTION: "transaction.state.log.*"}
"""The settings of the internal topics."""


class FindCoordinatorHandler(ForwardingHandlers):
    """Handles FindCoordinator."""

    def __init__(
        self,
        controller: Controller,
        addresses: AdvertisedEndpoints,
        authorizer: Authorizer,
        topics: Mapping[int, CreatableTopic],
    ) -> None:
        """`topics`: the internal topic of each key type."""
        super().__init__(controller, authorizer)
        self._addresses = addresses
        self._topics = topics
        self._creations: dict[int, Completion[str | None]] = {}
        self._failure_lines = RepeatedLines()

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [Route(ApiKey.FIND_COORDINATOR, 0, 6, self.handle)]

    def handle(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse | Completion[FindCoordinatorResponse]:
        """Handle FindCoordinator."""
        kind = request.key_type
        topic = self._topics.get(kind)
        if topic is None or topic.name in self._controller.image.topics_by_name:
            return self._coordinators(context, request, None)
        keys = request.coordinator_keys if context.api_version >= _FIRST_VERSION_WITH_KEYS else [request.key]
        if not any(self._is_key_authorized(context, kind, key, log_denied=False) for key in keys):
            return self._coordinators(context, request, None)
        created = self._creations.get(kind)
        if created is None or created.is_done:
            created = self._creations[kind] = self._create_topic(context, kind, topic)
        response: Completion[FindCoordinatorResponse] = Completion()
        created.then(lambda done: response.complete(self._coordinators(context, request, done.result())))
        return response

    def _is_key_authorized(self, context: RequestContext, kind: int, key: str, *, log_denied: bool = True) -> bool:
        return kind in _AUTHORIZATION and self._is_authorized(
            context, Operation.DESCRIBE, _AUTHORIZATION[kind][0], key, log_denied=log_denied
        )

    def _create_topic(self, context: RequestContext, kind: int, topic: CreatableTopic) -> Completion[str | None]:
        """Create a topic; returns None or the error message."""

        def failure(response: CreateTopicsResponse) -> str | None:
            for result in response.topics:
                if result.error_code not in {_NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                    reason = result.error_message or ErrorCode(result.error_code).name
                    failure = f"{topic.name} cannot be created: {reason}"
                    if self._failure_lines.count_if_due(failure, context.mono_ms / 1000) is not None:
                        _log.warning("%s (see the settings %s)", failure, _SETTINGS[kind])
                    return failure
            return None

        request = CreateTopicsRequest(topics=[topic], timeout_ms=_CREATE_TIMEOUT_MS)
        return self._controller.submit(request).map(failure)

    def _coordinators(
        self, context: RequestContext, request: FindCoordinatorRequest, failure: str | None
    ) -> FindCoordinatorResponse:
        if context.api_version >= _FIRST_VERSION_WITH_KEYS:
            found = [self._coordinator(context, request.key_type, key, failure) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self._coordinator(context, request.key_type, request.key, failure)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message or "NONE",
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(self, context: RequestContext, kind: int, key: str, failure: str | None) -> Coordinator:
        internal_topic = self._topics.get(kind)
        if internal_topic is None:
            return _error_coordinator(key, ErrorCode.INVALID_REQUEST, "There are no coordinators of this type here.")
        if not self._is_key_authorized(context, kind, key):
            _, denied, message = _AUTHORIZATION[kind]
            return _error_coordinator(key, denied, "" if context.api_version >= _FIRST_VERSION_WITH_KEYS else message)
        image = self._controller.image
        topic = image.topics_by_name.get(internal_topic.name)
        if topic is not None and topic.partitions:
            leader = topic.partitions[abs_hash(key) % len(topic.partitions)].leader
            address = self._addresses.node(image, leader, context.connection)
            if address is not None:
                return Coordinator(
                    key=key,
                    node_id=address.node_id,
                    host=address.host,
                    port=address.port,
                    error_code=_NONE,
                    error_message="",
                )
        return _error_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, failure or _UNAVAILABLE)


def _error_coordinator(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=_NO_NODE, host="", port=-1, error_code=error, error_message=message)

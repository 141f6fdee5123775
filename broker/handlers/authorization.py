"""Bases of handlers: authorization of requests, and forwarding of authorized ones to the controller.

NOT HERE Authorizers (`broker/security/authorizer.py`), timeouts (`deferred.py`).
"""

from __future__ import annotations

from typing import Final

from broker.handlers.router import RequestContext
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Resource
from broker.security.operations import authorized_operations
from protocol.errors import ErrorCode, KafkaError
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import Controller
from replication.controller.error_responses import error_response

_DENIALS: Final = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NOT_AUTHORIZED: Final = "Cluster authorization failed."


class AuthorizingHandlers:
    """Handlers that check what the client may do."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def _is_authorized(
        self, context: RequestContext, operation: str, resource_type: str = Resource.CLUSTER, name: str = CLUSTER_NAME
    ) -> bool:
        return self._authorizer.authorize(context.connection.principal, operation, resource_type, name)

    def _denial(self, context: RequestContext, operation: str, resource_type: str, name: str) -> ErrorCode:
        """NONE if the client is authorized, else the authorization error of the resource type."""
        is_allowed = self._authorizer.authorize(context.connection.principal, operation, resource_type, name)
        return ErrorCode.NONE if is_allowed else _DENIALS[resource_type]

    def _require(self, context: RequestContext, operation: str, resource_type: str, name: str) -> None:
        """Raises the authorization error of the resource type, as KafkaError, if the client is not authorized."""
        if not self._is_authorized(context, operation, resource_type, name):
            raise KafkaError(_DENIALS[resource_type])

    def _authorized_operations(
        self, context: RequestContext, resource_type: str = Resource.CLUSTER, name: str = CLUSTER_NAME
    ) -> int:
        """The bit field of the operations that the client may do on a resource."""
        return authorized_operations(self._authorizer, context.connection.principal, resource_type, name)


class ForwardingHandlers(AuthorizingHandlers):
    """Handlers that submit the requests of authorized clients to the controller."""

    def __init__(self, controller: Controller, authorizer: Authorizer) -> None:
        super().__init__(authorizer)
        self._controller = controller

    def _forward(
        self, context: RequestContext, request: Message, operation: str, denial: str | None = NOT_AUTHORIZED
    ) -> Message | Completion[Message]:
        """The controller's response if the client is authorized on the cluster, else an error with the text `denial`."""
        if not self._is_authorized(context, operation):
            return authorization_error(request, denial)
        return self._controller.submit(request)


def authorization_error(request: Message, message: str | None = NOT_AUTHORIZED) -> Message:
    """The response to a client that is not authorized on the cluster."""
    return error_response(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message)

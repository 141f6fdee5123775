"""Bases of handlers: authorization of requests, and forwarding of authorized ones to the controller.

NOT HERE Authorizers (`broker/security/authorizer.py`), decisions (`replication/controller/`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.handlers.router import RequestContext
from broker.security.authorizer import Authorizer, Resource
from broker.security.operations import authorized_operations
from protocol.errors import ErrorCode, KafkaError
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import Client, Controller
from replication.controller.error_responses import error_response
from replication.metadata.acls import CLUSTER_NAME
from replication.timer_queue import TimerQueue

_DENIALS: Final = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
DENIALS: Final = frozenset(_DENIALS.values())
"""The errors of clients without a right."""
NOT_AUTHORIZED: Final = "Cluster authorization failed."
_SENTENCES: Final = {
    Resource.TOPIC: "Topic authorization failed.",
    Resource.GROUP: "Group authorization failed.",
    Resource.CLUSTER: NOT_AUTHORIZED,
}


class AuthorizingHandlers:
    """Handlers that check what the client may do."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def _is_authorized(
        self,
        context: RequestContext,
        operation: str,
        resource_type: str = Resource.CLUSTER,
        name: str = CLUSTER_NAME,
        *,
        log_denied: bool = True,
    ) -> bool:
        """Whether the client is authorized.

        With `log_denied` false the audit log does not report a denial: it refuses nothing, or is decided and logged again.
        """
        return self._authorizer.authorize(context, operation, resource_type, name, log_denied=log_denied)

    def _denial(self, context: RequestContext, operation: str, resource_type: str, name: str) -> ErrorCode:
        """NONE if the client is authorized, else the authorization error of the resource type."""
        is_allowed = self._authorizer.authorize(context, operation, resource_type, name)
        return ErrorCode.NONE if is_allowed else _DENIALS[resource_type]

    def _require(self, context: RequestContext, operation: str, resource_type: str, name: str) -> None:
        """Raises the authorization error of the resource type, with a sentence, if the client is not authorized."""
        if not self._is_authorized(context, operation, resource_type, name):
            raise KafkaError(_DENIALS[resource_type], _SENTENCES[resource_type])

    def _authorized_operations(
        self, context: RequestContext, resource_type: str = Resource.CLUSTER, name: str = CLUSTER_NAME
    ) -> int:
        """The bit field of the operations that the client may do on a resource."""
        return authorized_operations(self._authorizer, context, resource_type, name)


class ForwardingHandlers(AuthorizingHandlers):
    """Handlers that submit the requests of authorized clients to the controller."""

    def __init__(self, controller: Controller, authorizer: Authorizer) -> None:
        super().__init__(authorizer)
        self._controller = controller

    def _forward(self, context: RequestContext, request: Message, operation: str) -> Message | Completion[Message]:
        """The controller's response if the client is authorized on the cluster, else an error."""
        if not self._is_authorized(context, operation):
            return authorization_error(request)
        return self._submit_for(context, request)

    def _submit_for(self, context: RequestContext, request: Message) -> Completion[Any]:
        """The controller's response to the client's request."""
        connection = context.connection
        version = context.api_version if context.api_key == request.API_KEY else None
        client = Client(
            connection.principal,
            connection.peer_host,
            context.client_id,
            version,
            is_token_authenticated=connection.is_token_authenticated,
        )
        return self._controller.submit(request, client)


class TimedForwardingHandlers(ForwardingHandlers):
    """Handlers of requests whose clients wait for the controller with a timeout."""

    def __init__(self, controller: Controller, authorizer: Authorizer, timers: TimerQueue) -> None:
        super().__init__(controller, authorizer)
        self._timers = timers

    def _submit_with_timeout(
        self, context: RequestContext, request: Any, make_error: Callable[[Any, ErrorCode, str], Message]
    ) -> Completion[Any]:
        """The controller's response, or REQUEST_TIMED_OUT after the request's `timeout_ms`: 0 or less is none.

        After a timeout the request still takes effect. `make_error` returns the response with an error.
        """
        timed_out = partial(make_error, request, ErrorCode.REQUEST_TIMED_OUT, "The request timed out.")
        response = self._submit_for(context, request)
        if request.timeout_ms > 0:
            at_mono_ms = context.mono_ms + request.timeout_ms
            response.expire_at(self._timers, at_mono_ms, lambda: response.complete(timed_out()))
        return response


def authorization_error(request: Message, message: str | None = NOT_AUTHORIZED) -> Message:
    """The response to a client that is not authorized on the cluster."""
    return error_response(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message)

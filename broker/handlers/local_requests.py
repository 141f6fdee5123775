"""Requests of this broker to itself, without a connection: the handlers of its own API table are called.

RULES    1. A request is handled as from a client with the newest version that the API table serves. Its principal is
            THIS_BROKER, which may do everything and which no client can have.
         2. There is no quota, and the fast paths are not used.
         3. A fault of a handler is logged with its traceback; the sender gets None, as after a broken connection.
NOT HERE Requests to other brokers (`broker/network/peer.py`).
"""

from __future__ import annotations

import logging
from typing import Any, Final

from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.router import RequestContext
from broker.network.exchange import ConnectionInfo
from broker.network.peer import Response, SendRequest
from broker.security.authorizer import THIS_BROKER
from protocol.api import ApiKey
from protocol.schema import Message
from replication.completion import Completion, completed
from replication.timer_queue import Clock

_log = logging.getLogger("barnabas.dispatch")

_LOCAL: Final = ("127.0.0.1", 0)


class LocalRequests:
    """Sends requests to this broker's handlers."""

    def __init__(self, dispatcher: Dispatcher, listener_name: str, client_id: str, clock: Clock) -> None:
        """`listener_name`: other brokers are named in responses by their endpoints of this listener."""
        self._dispatcher = dispatcher
        self._client_id = client_id
        self._clock = clock
        self._connection = ConnectionInfo(-1, listener_name, _LOCAL, _LOCAL, THIS_BROKER)

    def send_request(self, request: Message) -> Response:
        """Handles a request; the response arrives now or later."""
        route = self._dispatcher.route(request.API_KEY)
        times = self._clock.mono_ms(), self._clock.wall_ms()
        context = RequestContext(request.API_KEY, route.max_version, 0, self._client_id, self._connection, *times)
        try:
            answer = route.handler(context, request)
        except Exception:  # noqa: BLE001
            _log_fault(request.API_KEY)
            return completed(None)
        return (
            answer.handle(lambda done: _response(context, done))
            if isinstance(answer, Completion)
            else completed(answer)
        )


def to_all_brokers(broker_id: int, local: LocalRequests, send_to_others: SendRequest) -> SendRequest:
    """Sends a request to any broker of the cluster, this one included."""

    def send(node_id: int, request: Message) -> Response:
        return local.send_request(request) if node_id == broker_id else send_to_others(node_id, request)

    return send


def _response(context: RequestContext, done: Completion[Any]) -> Message | None:
    try:
        response: Message | None = done.result()
    except Exception:  # noqa: BLE001
        _log_fault(context.api_key)
        return None
    return response


def _log_fault(api_key: int) -> None:
    _log.exception("handler of %s failed for a request of this broker", ApiKey(api_key).name)

"""From a request frame to the parts of its response: header, version, decode, handle, encode.

RULES    1. An unknown API or version closes the connection, as in Apache Kafka. An unknown version of ApiVersions
            gets UNSUPPORTED_VERSION in the layout of version 0.
         2. Codec functions, header layout and handler of an (API key, version) are looked up once.
         3. A fault of a handler is logged with its traceback and counted; the client gets UNKNOWN_SERVER_ERROR if the
            response has an error code, else the connection is closed.
NOT HERE The table (`router.py`), sockets (`network/`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from broker.handlers.response_errors import FindErrors, error_finder
from broker.handlers.router import FastPath, Handler, RequestContext, Route, Router
from broker.handlers.throttling import Throttling
from broker.network.exchange import CloseConnection, ConnectionInfo, Response
from broker.process.watchdog import Watchdog
from broker.security.authorizer import NotLoaded
from broker.telemetry.request_metrics import ApiMetrics, RequestMetrics
from protocol.api import APIS, ApiKey, api_name, request_header_version, response_header_version
from protocol.codec import decoder, encoder, request_decoder
from protocol.errors import ErrorCode, MalformedRequest
from protocol.framing import Part, frame_response, parse_request_header
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import ApiVersionsRequest
from protocol.schema import Message, blank, carries
from replication.completion import Completion

_log = logging.getLogger("barnabas.dispatch")

_API_KEY_BYTES: Final = 2  # a frame begins with the API key
_WAITING: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
_new_tuple = tuple.__new__


class _Entry(NamedTuple):
    """Codec functions and handler of one (API key, version)."""

    api_key: ApiKey
    handler: Handler
    fast_path: FastPath | None
    decode: Callable[[bytearray, int], tuple[Message, int]]
    encode: Callable[[Message], list[Part]]
    response_class: type[Message]
    has_flexible_request_header: bool
    has_flexible_response_header: bool
    find_errors: FindErrors
    metrics: ApiMetrics


def _describe_unserved(api: ApiKey, version: int, route: Route) -> str:
    """Why a version of an API is not served."""
    age = "older than Apache Kafka 2.1 (KIP-896)" if version < route.min_version else "newer than this broker"
    served = f"{route.min_version} to {route.max_version}"
    return f"the client is {age}: it uses version {version} of {api.name}, and {served} are served"


class Dispatcher:
    """Handles the requests of one listener's connections."""

    def __init__(self, watchdog: Watchdog | None = None, metrics: RequestMetrics | None = None) -> None:
        self._watchdog = watchdog
        self.metrics = metrics or RequestMetrics()
        self._router = Router([])
        self._entries: dict[tuple[int, int], _Entry] = {}
        self.throttling: Throttling | None = None
        """Charges requests; None while there is no quota."""

    def serve(self, router: Router) -> None:
        """Use this table; the sockets are bound before it exists."""
        self._router = router
        self._entries.clear()

    def dispatch(self, frame: bytearray, connection: ConnectionInfo, mono_ms: int) -> list[Part] | Response | None:
        """Handle one request, now or later.

        Raises:
            MalformedRequest: the frame violates the protocol.
            CloseConnection: a handler closes the connection.
        """
        watchdog = self._watchdog
        if watchdog is not None and watchdog.is_parked:
            watchdog.wake()
        api_key, api_version, correlation_id, client_id, position = parse_request_header(frame)
        entry = self._entries.get((api_key, api_version)) or self._find(api_key, api_version)
        wall_ms = time.time_ns() // 1_000_000
        if entry is None:  # ApiVersions of an unknown version
            header = (api_key, api_version, correlation_id, client_id)
            return self._answer_unknown_api_versions(RequestContext(*header, connection, mono_ms, wall_ms))
        metrics = connection.metrics = entry.metrics
        metrics.count += 1
        values = (api_key, api_version, correlation_id, client_id, connection, mono_ms, wall_ms, None, metrics)
        context: RequestContext = _new_tuple(RequestContext, values)  # half the time of a call of the class
        if watchdog is not None:
            watchdog.last_request = entry.api_key
        if entry.has_flexible_request_header:
            position = _skip_tagged_fields(frame, position)
        if self.throttling is not None:
            metered = self.throttling.metered(entry.handler, context, len(frame))
            if metered is not None:
                entry = entry._replace(handler=metered, fast_path=None)
        try:
            if entry.fast_path is not None:
                parts = entry.fast_path(context, frame, position)
                if parts is not None:
                    return parts
            answer = entry.handler(context, entry.decode(frame, position)[0])
        except (CloseConnection, MalformedRequest):
            raise
        except Exception:  # noqa: BLE001
            answer = self._answer_fault(entry, context)
        if connection.metrics is not metrics:  # the request is a follower's, and so are its errors
            context = context._replace(metrics=connection.metrics)
        if isinstance(answer, Completion):
            if not answer.is_done or answer.error is not None:
                return answer.handle(partial(self._encode_late, entry, context))
            answer = answer.value
        return None if answer is None else self._encode(entry, context, answer)

    def handler(self, api_key: int) -> Handler:
        """The handler of an API."""
        return self._router.table[api_key].handler

    def route(self, api_key: int) -> Route:
        """The route of an API."""
        return self._router.table[api_key]

    def can_pipeline(self, frame: bytearray) -> bool:
        """Whether requests of the frame's API may start before the responses to earlier ones are complete."""
        route = self._router.table.get(int.from_bytes(frame[:_API_KEY_BYTES], "big"))
        return route is not None and route.can_pipeline

    def waits_for_clients(self, frame: bytearray) -> bool:
        """Whether requests of the frame's API wait for what other clients do."""
        return int.from_bytes(frame[:_API_KEY_BYTES], "big") in _WAITING

    def _find(self, api_key: int, api_version: int) -> _Entry | None:
        route = self._router.table.get(api_key)
        if route is None:
            raise MalformedRequest(f"API key {api_key} (version {api_version}) is not served")
        if not route.min_version <= api_version <= route.max_version:
            if api_key == ApiKey.API_VERSIONS:
                return None
            raise MalformedRequest(_describe_unserved(ApiKey(api_key), api_version, route))
        request_class, response_class = APIS[api_key]
        entry = _Entry(
            ApiKey(api_key),
            route.handler,
            None if route.fast_path is None else route.fast_path(api_version),
            request_decoder(request_class, api_version),
            encoder(response_class, api_version),
            response_class,
            request_header_version(api_key, api_version) >= 2,
            response_header_version(api_key, api_version) >= 1,
            error_finder(response_class),
            self.metrics.of(api_key, api_name(api_key), api_version, waits_for_clients=api_key in _WAITING),
        )
        self._entries[api_key, api_version] = entry
        return entry

    def _answer_unknown_api_versions(self, context: RequestContext) -> list[Part]:
        entry = self._entries.get((ApiKey.API_VERSIONS, 0)) or self._find(ApiKey.API_VERSIONS, 0)
        assert entry is not None
        context.connection.metrics = entry.metrics
        context = context._replace(metrics=entry.metrics)
        entry.metrics.count += 1
        answer = entry.handler(context, ApiVersionsRequest())
        assert isinstance(answer, Message)
        return self._encode(entry, context, answer)

    def _encode_late(self, entry: _Entry, context: RequestContext, answer: Completion[Any]) -> list[Part] | None:
        """Encode the result of a handler."""
        response: Message | None
        try:
            response = answer.result()
        except CloseConnection:
            raise
        except Exception:  # noqa: BLE001
            response = self._answer_fault(entry, context)
        return None if response is None else self._encode(entry, context, response)

    def _encode(self, entry: _Entry, context: RequestContext, answer: Message) -> list[Part]:
        """Encode a response; one that its version cannot represent is a fault (rule 3)."""
        try:
            encoded = entry.encode(answer)
        except Exception:  # noqa: BLE001
            answer = self._answer_fault(entry, context)
            encoded = entry.encode(answer)
        errors = entry.find_errors(answer)
        if errors:
            context.metrics.count_errors(errors)
        return frame_response(context.correlation_id, encoded, flexible_header=entry.has_flexible_response_header)

    def _answer_fault(self, entry: _Entry, context: RequestContext) -> Message:
        name = ApiKey(context.api_key).name
        if isinstance(sys.exception(), NotLoaded):
            _log.warning("%s of %s cannot be answered yet: ACLs are not loaded", name, context.connection.principal)
        else:
            _log.exception("handler of %s version %d failed", name, context.api_version)
        if not carries(entry.response_class, "error_code", context.api_version):
            raise CloseConnection(f"handler of {name} failed; see the traceback in the log") from None
        return blank(entry.response_class, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


def _skip_tagged_fields(frame: bytearray, position: int) -> int:
    """The position after a flexible header's tagged fields; clients send none."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    return decoder(RequestHeader, 2)(frame, 0)[1]

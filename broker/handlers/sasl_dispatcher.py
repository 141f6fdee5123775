"""Serves a connection of a SASL listener: authenticates its client, then passes its requests on.

RULES    1. Before authentication only ApiVersions, SaslHandshake and SaslAuthenticate are served. ApiVersions is answered as
            after authentication.
         2. A frame is limited by `sasl.server.max.receive.size` until the client is authenticated.
         3. The response to a failure is sent after `connection.failed.authentication.delay.ms`; then the connection closes.
            A request that is not allowed now closes it after the delay, without a response.
         4. The client's principal is User:name. It is set once.
NOT HERE What a client may send when (`broker/security/sasl/authenticator.py`), listeners without SASL (`authentication.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.config.sasl_configs import SaslListener
from broker.handlers.api_versions import NEWEST_API_VERSIONS
from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.router import RequestContext, Route, Router
from broker.network.exchange import CloseConnection, ConnectionInfo, Response
from broker.security.sasl.authenticator import SaslServerAuthenticator
from broker.security.sasl.mechanism import SaslServer
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, Part, parse_request_header
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest, SaslHandshakeResponse
from protocol.schema import Message
from replication.completion import Completion
from replication.timer_queue import TimerQueue

_LENGTH_BYTES: Final = 4


class SaslContext(NamedTuple):
    """What the connections of a SASL listener share."""

    config: SaslListener
    served: Dispatcher
    """Handles the requests of authenticated clients."""
    servers: Mapping[str, Callable[[], SaslServer]]
    """Creates the server of each enabled mechanism."""
    timers: TimerQueue


class SaslDispatcher:
    """The dispatcher of one connection."""

    def __init__(self, context: SaslContext, reader: FrameReader) -> None:
        self._context = context
        self._reader = reader
        self._served = context.served
        self._max_frame_bytes = reader.max_frame_bytes
        reader.max_frame_bytes = min(context.config.max_receive_bytes, reader.max_frame_bytes)
        self._login: Dispatcher | None = Dispatcher()
        self._login.serve(Router(self._routes()))
        self._authenticator = SaslServerAuthenticator(context.servers)

    def dispatch(self, frame: bytearray, connection: ConnectionInfo, mono_ms: int) -> list[Part] | Response | None:
        """The parts of the response, now or later; None: no response.

        Raises:
            MalformedRequest: the peer violated the protocol.
            CloseConnection: the connection must be closed without a response.
        """
        if self._login is None:
            return self._served.dispatch(frame, connection, mono_ms)
        authenticator = self._authenticator
        parts = self._answer(self._login, frame, connection, mono_ms)
        if authenticator.failure is not None:
            return self._close_later(parts, authenticator.failure, mono_ms)
        if authenticator.user is not None:
            connection.principal = f"User:{authenticator.user}"
            self._reader.max_frame_bytes = self._max_frame_bytes
            self._login = None
        return parts

    def can_pipeline(self, frame: bytearray) -> bool:
        """Whether requests of the frame's API may start before the responses to earlier ones are complete."""
        return self._login is None and self._served.can_pipeline(frame)

    def _answer(
        self, login: Dispatcher, frame: bytearray, connection: ConnectionInfo, mono_ms: int
    ) -> list[Part] | None:
        authenticator = self._authenticator
        if authenticator.expects_raw_token:
            answer = authenticator.authenticate_raw(bytes(frame))
            return None if answer is None else [len(answer).to_bytes(_LENGTH_BYTES, "big") + answer]
        api_key = parse_request_header(frame).api_key
        if api_key not in _ALLOWED:
            authenticator.fail_unexpected(ApiKey(api_key).name if api_key in set(ApiKey) else str(api_key))
            return None
        parts = login.dispatch(frame, connection, mono_ms)
        assert not isinstance(parts, Completion), "authentication does not wait"
        return parts

    def _close_later(self, parts: list[Part] | None, reason: str, mono_ms: int) -> Response:
        error = CloseConnection(f"failed authentication ({reason})")
        error.last_response = parts
        response: Response = Completion()
        at_mono_ms = mono_ms + self._context.config.failure_delay_ms
        response.expire_at(self._context.timers, at_mono_ms, lambda: response.fail(error))
        return response

    # ------------------------------------------------------------ the handlers before authentication
    def _routes(self) -> list[Route]:
        return [
            Route(ApiKey.API_VERSIONS, 0, NEWEST_API_VERSIONS, self._api_versions),
            Route(ApiKey.SASL_HANDSHAKE, 0, 1, self._handshake),
            Route(ApiKey.SASL_AUTHENTICATE, 0, 2, self._authenticate),
        ]

    def _api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> Message:
        authenticator = self._authenticator
        if authenticator.expects_token:
            authenticator.fail_unexpected(ApiKey.API_VERSIONS.name)
            return ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, api_keys=[])
        if not authenticator.may_ask_versions:
            raise CloseConnection("a second ApiVersions request before authentication")
        response = self._served.handler(ApiKey.API_VERSIONS)(context, request)
        assert isinstance(response, ApiVersionsResponse), "ApiVersions does not wait"
        authenticator.on_api_versions(is_accepted=response.error_code == ErrorCode.NONE)
        return response

    def _handshake(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        return self._authenticator.handshake(context.api_version, request.mechanism)

    def _authenticate(self, _: RequestContext, request: SaslAuthenticateRequest) -> Message | None:
        return self._authenticator.authenticate(bytes(request.auth_bytes))


_ALLOWED: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

"""Serves a connection of a SASL listener: authenticates its client, then passes its requests on.

RULES    1. Before authentication only ApiVersions, SaslHandshake and SaslAuthenticate are served. ApiVersions is answered as
            after authentication.
         2. A frame is limited by `sasl.server.max.receive.size` until the client is authenticated. Of its declared length only
            LOGIN_BYTES are allocated before they arrive, so that idle connections cost little memory.
         3. The response to a failure is sent after `connection.failed.authentication.delay.ms`; then the connection closes.
            A request that is not allowed now closes it after the delay, without a response.
         4. The client's principal is User:name. It never changes.
         5. If its session has a lifetime, SaslHandshake begins another authentication (KIP-368), at most once a second. After
            the lifetime every other request closes the connection.
NOT HERE What a client may send when (`broker/security/sasl/authenticator.py`), listeners without SASL (`authentication.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.config.sasl_configs import SaslListener
from broker.handlers.api_versions import NEWEST_API_VERSIONS
from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.router import RequestContext, Route, Router
from broker.network.exchange import CloseConnection, ConnectionInfo, Response
from broker.security.sasl.authenticator import SaslServerAuthenticator, Session
from broker.security.sasl.mechanism import SaslServer
from broker.telemetry.authentication_metrics import AuthenticationMetrics, Outcome
from broker.telemetry.request_metrics import UNCOUNTED
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, Part, parse_request_header
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.schema import Message
from replication.completion import Completion, completed
from replication.timer_queue import Clock, TimerQueue

LOGIN_BYTES: Final = 4096
_LENGTH_BYTES: Final = 4
_HANDSHAKE: Final = ApiKey.SASL_HANDSHAKE.to_bytes(2, "big")
_MIN_INTERVAL_MS: Final = 1000
"""Between two authentications of a connection."""


class SaslContext:
    """What the connections of a SASL listener share, and the APIs before authentication."""

    def __init__(
        self,
        config: SaslListener,
        served: Dispatcher,
        servers: Mapping[str, Callable[[], SaslServer]],
        timers: TimerQueue,
        clock: Clock,
        metrics: AuthenticationMetrics,
    ) -> None:
        """`served` handles the requests of authenticated clients; `servers` creates the server of each enabled mechanism."""
        self.config, self.served, self._servers = config, served, servers
        self.timers, self.clock, self.metrics = timers, clock, metrics
        self._login = Dispatcher(metrics=served.metrics)
        self._login.serve(
            Router(
                [
                    Route(ApiKey.API_VERSIONS, 0, NEWEST_API_VERSIONS, self._api_versions),
                    Route(ApiKey.SASL_HANDSHAKE, 0, 1, self._handshake),
                    Route(ApiKey.SASL_AUTHENTICATE, 0, 2, self._authenticate),
                ]
            )
        )
        self._authenticator = self.authenticator(None)

    def authenticator(self, previous: Session | None) -> SaslServerAuthenticator:
        """A new authentication; `previous` is the client's session."""
        return SaslServerAuthenticator(self._servers, self.config.max_reauth_ms, previous)

    def answer(
        self, authenticator: SaslServerAuthenticator, frame: bytearray, connection: ConnectionInfo, mono_ms: int
    ) -> list[Part] | Response | None:
        """The parts of the response before authentication, now or later; None: no response.

        Raises:
            MalformedRequest: the peer violated the protocol.
            CloseConnection: the connection must be closed without a response.
        """
        if authenticator.expects_raw_token:
            connection.metrics = UNCOUNTED  # it is no request: no API, and a secret where others have a header
            return authenticator.authenticate_raw(bytes(frame), self.clock.wall_ms).map(_raw_response)
        api_key = parse_request_header(frame).api_key
        if api_key not in _ALLOWED or authenticator.expects_nothing:
            authenticator.fail_unexpected(ApiKey(api_key).name if api_key in set(ApiKey) else str(api_key))
            return None
        self._authenticator = authenticator  # the handlers below are called before `dispatch` returns
        return self._login.dispatch(frame, connection, mono_ms)

    # ------------------------------------------------------------ the handlers before authentication
    def _api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> Message:
        authenticator = self._authenticator
        if authenticator.expects_token:
            authenticator.fail_unexpected(ApiKey.API_VERSIONS.name)
            return ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, api_keys=[])
        if not authenticator.may_ask_versions:
            raise CloseConnection("a second ApiVersions request before authentication")
        response = self.served.handler(ApiKey.API_VERSIONS)(context, request)
        assert isinstance(response, ApiVersionsResponse), "ApiVersions does not wait"
        authenticator.on_api_versions(is_accepted=response.error_code == ErrorCode.NONE)
        return response

    def _handshake(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        return self._authenticator.handshake(context.api_version, request.mechanism)

    def _authenticate(
        self, _: RequestContext, request: SaslAuthenticateRequest
    ) -> Completion[SaslAuthenticateResponse] | None:
        return self._authenticator.authenticate(bytes(request.auth_bytes), self.clock.wall_ms)


class SaslDispatcher:
    """The dispatcher of one connection."""

    def __init__(self, context: SaslContext, reader: FrameReader) -> None:
        self._context = context
        self._reader = reader
        self._served = context.served
        self._max_frame_bytes = reader.max_frame_bytes
        self._initial_bytes = reader.initial_bytes
        self._repeated_mono_ms: int | None = None  # when the last repeated authentication began
        self._session: Session | None = None
        self._expires_mono_ms: int | None = None
        self._authenticator: SaslServerAuthenticator | None = None
        self._begin()

    def dispatch(self, frame: bytearray, connection: ConnectionInfo, mono_ms: int) -> list[Part] | Response | None:
        """The parts of the response, now or later; None: no response.

        Raises:
            MalformedRequest: the peer violated the protocol.
            CloseConnection: the connection must be closed without a response.
        """
        if self._authenticator is None and self._expires_mono_ms is not None:
            self._check_session(frame, connection, mono_ms, self._expires_mono_ms)
        authenticator = self._authenticator
        if authenticator is None:
            return self._served.dispatch(frame, connection, mono_ms)
        parts = self._context.answer(authenticator, frame, connection, mono_ms)
        if not isinstance(parts, Completion):
            return self._on_answered(authenticator, connection, mono_ms, parts)
        if not parts.is_done:  # a callback decides in a thread
            return parts.compose(
                lambda later: _as_response(self._on_answered(authenticator, connection, self._mono_ms(), later))
            )
        return self._on_answered(authenticator, connection, mono_ms, parts.result())

    def _mono_ms(self) -> int:
        return self._context.clock.mono_ms()

    def _on_answered(
        self, authenticator: SaslServerAuthenticator, connection: ConnectionInfo, mono_ms: int, parts: list[Part] | None
    ) -> list[Part] | Response | None:
        """Continues after the answer to a message before authentication."""
        is_repeated = authenticator.is_repeated
        if authenticator.failure is not None:
            self._count(connection, Outcome.FAILED_AGAIN if is_repeated else Outcome.FAILED)
            return self._close_later(parts, authenticator.failure, mono_ms)
        if authenticator.session is not None:
            self._count(connection, Outcome.SUCCESSFUL_AGAIN if is_repeated else Outcome.SUCCESSFUL)
            self._end(authenticator.session, connection, mono_ms)
        return parts

    def can_pipeline(self, frame: bytearray) -> bool:
        """Whether requests of the frame's API may start before the responses to earlier ones are complete."""
        return self._authenticator is None and self._served.can_pipeline(frame)

    def waits_for_clients(self, frame: bytearray) -> bool:
        """Whether requests of the frame's API wait for what other clients do."""
        return self._authenticator is None and self._served.waits_for_clients(frame)

    def _begin(self) -> None:
        self._authenticator = self._context.authenticator(self._session)
        self._reader.max_frame_bytes = min(self._context.config.max_receive_bytes, self._max_frame_bytes)
        self._reader.initial_bytes = LOGIN_BYTES

    def _end(self, session: Session, connection: ConnectionInfo, mono_ms: int) -> None:
        connection.principal = f"User:{session.user}"
        connection.is_token_authenticated = session.is_token
        self._session = session
        self._expires_mono_ms = None if session.lifetime_ms is None else mono_ms + session.lifetime_ms
        self._reader.max_frame_bytes = self._max_frame_bytes
        self._reader.initial_bytes = self._initial_bytes
        connection.is_authenticated = True
        self._authenticator = None

    def _check_session(self, frame: bytearray, connection: ConnectionInfo, mono_ms: int, expires_mono_ms: int) -> None:
        """Begins another authentication, or closes the connection after the lifetime of its session."""
        last_mono_ms = self._repeated_mono_ms
        if frame.startswith(_HANDSHAKE) and (last_mono_ms is None or mono_ms - last_mono_ms >= _MIN_INTERVAL_MS):
            self._repeated_mono_ms = mono_ms
            self._begin()
        elif mono_ms >= expires_mono_ms:
            self._count(connection, Outcome.EXPIRED)
            raise CloseConnection("its session has expired and it did not authenticate again")

    def _count(self, connection: ConnectionInfo, outcome: Outcome) -> None:
        self._context.metrics.count(connection.listener_name, outcome)

    def _close_later(self, parts: list[Part] | None, reason: str, mono_ms: int) -> Response:
        error = CloseConnection(f"failed authentication ({reason})", parts)
        response: Response = Completion()
        at_mono_ms = mono_ms + self._context.config.failure_delay_ms
        response.expire_at(self._context.timers, at_mono_ms, lambda: response.fail(error))
        return response


def _raw_response(answer: bytes | None) -> list[Part] | None:
    return None if answer is None else [len(answer).to_bytes(_LENGTH_BYTES, "big") + answer]


def _as_response(parts: list[Part] | Response | None) -> Response:
    return parts if isinstance(parts, Completion) else completed(parts)


_ALLOWED: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

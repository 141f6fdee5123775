"""Authenticates one connection with SASL (Kafka: SaslServerAuthenticator).

RULES    1. Before authentication the client may send ApiVersions until one is accepted, SaslHandshake once, and tokens.
         2. After SaslHandshake version 0, tokens are frames of their own (raw), after version 1 they are in SaslAuthenticate.
         3. A failure is final: the connection closes after the response, if there is one. A failure of raw tokens has none.
         4. A client that authenticates again (KIP-368) keeps its mechanism and its user, and sends no ApiVersions.
         5. A session ends at the earlier of the credential's expiry and the limit of the mechanism.
         6. Error codes and messages are those of Apache Kafka 4.3. The messages for clients tell no more than its.
NOT HERE Frames, the delay after a failure (`broker/handlers/sasl_dispatcher.py`), mechanisms (`plain.py`, `scram.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from protocol.errors import ErrorCode
from protocol.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from replication.completion import Completion, completed, failed

_MAX_LIFETIME_MS: Final = ((1 << 63) - 1) // 1_000_000
"""292 years: clients count in nanoseconds."""
_NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})


class Session(NamedTuple):
    """An authenticated client."""

    user: str
    mechanism: str
    is_token: bool
    """Whether it authenticated with a delegation token."""
    lifetime_ms: int | None
    """The time until it must authenticate again; None: it need not."""


class _State(Enum):
    """What the client may send next."""

    HANDSHAKE_OR_VERSIONS = auto()
    HANDSHAKE = auto()
    TOKEN = auto()
    RAW_TOKEN = auto()
    NOTHING = auto()
    """The handshake named another mechanism than the session's: the next request closes the connection."""
    ENDED = auto()


class SaslServerAuthenticator:
    """One authentication; `servers` creates the server of each enabled mechanism.

    `max_lifetimes_ms` limits sessions by mechanism; 0 or no entry: unlimited. `previous` is the session of a client that
    authenticates again.
    """

    def __init__(
        self,
        servers: Mapping[str, Callable[[], SaslServer]],
        max_lifetimes_ms: Mapping[str, int] = _NO_LIMITS,
        previous: Session | None = None,
    ) -> None:
        self._servers = servers
        self._max_lifetimes_ms = max_lifetimes_ms
        self._previous = previous
        self._mechanism = ""
        self._server: SaslServer | None = None
        self._state = _State.HANDSHAKE_OR_VERSIONS if previous is None else _State.HANDSHAKE
        self.session: Session | None = None
        """The authenticated client."""
        self.failure: str | None = None
        """Why authentication failed, for the log."""

    @property
    def is_repeated(self) -> bool:
        """Whether the client was authenticated before."""
        return self._previous is not None

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token without a request around it."""
        return self._state is _State.RAW_TOKEN

    @property
    def expects_token(self) -> bool:
        """Whether the next request is SaslAuthenticate."""
        return self._state is _State.TOKEN

    @property
    def expects_nothing(self) -> bool:
        """Whether every request is refused now."""
        return self._state is _State.NOTHING

    @property
    def may_ask_versions(self) -> bool:
        """Whether ApiVersions is allowed now."""
        return self._state is _State.HANDSHAKE_OR_VERSIONS

    def on_api_versions(self, *, is_accepted: bool) -> None:
        """An ApiVersions request was answered: after an accepted one, no other is allowed."""
        if is_accepted:
            self._state = _State.HANDSHAKE

    def fail_unexpected(self, api_name: str) -> None:
        """Fails after a request that is not allowed now."""
        phase = "authentication" if self._state is _State.TOKEN else "handshake"
        self._fail(f"Unexpected Kafka request of type {api_name} during SASL {phase}.")

    def handshake(self, version: int, mechanism: str) -> SaslHandshakeResponse:
        """The answer to SaslHandshake."""
        if self._state not in (_State.HANDSHAKE_OR_VERSIONS, _State.HANDSHAKE):
            self.fail_unexpected("SASL_HANDSHAKE")
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        create = self._servers.get(mechanism)
        code = ErrorCode.NONE
        if create is None:
            self._fail("Unsupported SASL mechanism")  # the client's text stays out of the log
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        elif self._previous is not None and self._previous.mechanism != mechanism:
            self._state = _State.NOTHING
        else:
            self._mechanism, self._server = mechanism, create()
            self._state = _State.TOKEN if version >= 1 else _State.RAW_TOKEN
        return SaslHandshakeResponse(error_code=code, mechanisms=list(self._servers))

    def authenticate(self, token: bytes, wall_ms: Callable[[], int]) -> Completion[SaslAuthenticateResponse] | None:
        """The answer to SaslAuthenticate; None if it was not allowed."""
        if self._state is not _State.TOKEN:
            self.fail_unexpected("SASL_AUTHENTICATE")
            return None
        return self.authenticate_raw(token, wall_ms).map(self._response)

    def _response(self, answer: bytes | None) -> SaslAuthenticateResponse:
        if answer is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=self.failure, auth_bytes=b""
            )
        lifetime_ms = 0 if self.session is None else self.session.lifetime_ms or 0
        return SaslAuthenticateResponse(
            error_code=ErrorCode.NONE, error_message="", auth_bytes=answer, session_lifetime_ms=lifetime_ms
        )

    def authenticate_raw(self, token: bytes, wall_ms: Callable[[], int]) -> Completion[bytes | None]:
        """The server's answer to a token; None if authentication failed."""
        server = self._server
        assert server is not None, "a mechanism was chosen"
        try:
            answer = server.evaluate(token)
        except InvalidCredentials as error:
            answer = failed(error)
        evaluated = answer if isinstance(answer, Completion) else completed(answer)
        return evaluated.handle(partial(self._on_evaluated, server, wall_ms))

    def _on_evaluated(
        self, server: SaslServer, wall_ms: Callable[[], int], evaluated: Completion[bytes]
    ) -> bytes | None:
        try:
            answer = evaluated.result()
            if server.user is not None:
                self._check_user(server.user)
        except InvalidCredentials as error:
            phase = "re-authentication" if self.is_repeated else "authentication"
            self._fail(
                str(error)
                or f"Authentication failed during {phase} due to invalid credentials with SASL mechanism {self._mechanism}"
            )
            return None
        if server.user is not None:
            self._state = _State.ENDED
            self.session = Session(server.user, self._mechanism, server.is_token, self._lifetime_ms(server, wall_ms()))
        return answer

    def _check_user(self, user: str) -> None:
        """A client that authenticates again keeps its user."""
        if self._previous is not None and self._previous.user != user:
            raise InvalidCredentials(
                f"Cannot change principals during re-authentication from User.{self._previous.user}: User.{user}"
            )

    def _lifetime_ms(self, server: SaslServer, wall_ms: int) -> int | None:
        """The time until the earlier of the credential's expiry and the limit of the mechanism; None: unlimited."""
        limits_ms = [] if server.expires_wall_ms is None else [server.expires_wall_ms - wall_ms]
        limits_ms += [limit_ms] if (limit_ms := self._max_lifetimes_ms.get(self._mechanism, 0)) > 0 else []
        lifetime_ms = min(limits_ms, default=_MAX_LIFETIME_MS)
        return max(0, lifetime_ms) if lifetime_ms < _MAX_LIFETIME_MS else None

    def _fail(self, reason: str) -> None:
        self.failure, self._state = reason, _State.ENDED

"""Authenticates one connection with SASL (Kafka: SaslServerAuthenticator).

RULES    1. Before authentication the client may send ApiVersions until one is accepted, SaslHandshake once, and tokens.
         2. After SaslHandshake version 0, tokens are frames of their own (raw), after version 1 they are in SaslAuthenticate.
         3. A failure is final: the connection closes after the response, if there is one. A failure of raw tokens has none.
         4. Error codes and messages are those of Apache Kafka 4.3. The messages for clients tell no more than its.
NOT HERE Frames, the delay after a failure (`broker/handlers/sasl_dispatcher.py`), mechanisms (`plain.py`, `scram.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto

from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from protocol.errors import ErrorCode
from protocol.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse


class _State(Enum):
    """What the client may send next."""

    HANDSHAKE_OR_VERSIONS = auto()
    HANDSHAKE = auto()
    TOKEN = auto()
    RAW_TOKEN = auto()
    ENDED = auto()


class SaslServerAuthenticator:
    """The authentication of one connection; `servers` creates the server of each enabled mechanism."""

    def __init__(self, servers: Mapping[str, Callable[[], SaslServer]]) -> None:
        self._servers = servers
        self._mechanism = ""
        self._server: SaslServer | None = None
        self._state = _State.HANDSHAKE_OR_VERSIONS
        self.user: str | None = None
        """The authenticated user."""
        self.failure: str | None = None
        """Why authentication failed, for the log."""

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token without a request around it."""
        return self._state is _State.RAW_TOKEN

    @property
    def expects_token(self) -> bool:
        """Whether the next request is SaslAuthenticate."""
        return self._state is _State.TOKEN

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
        if create is None:
            self._fail("Unsupported SASL mechanism")  # the client's text stays out of the log
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        else:
            self._mechanism, self._server = mechanism, create()
            self._state = _State.TOKEN if version >= 1 else _State.RAW_TOKEN
            code = ErrorCode.NONE
        return SaslHandshakeResponse(error_code=code, mechanisms=list(self._servers))

    def authenticate(self, token: bytes) -> SaslAuthenticateResponse | None:
        """The answer to SaslAuthenticate; None if it was not allowed."""
        if self._state is not _State.TOKEN:
            self.fail_unexpected("SASL_AUTHENTICATE")
            return None
        answer = self._evaluate(token)
        if answer is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=self.failure, auth_bytes=b""
            )
        return SaslAuthenticateResponse(error_code=ErrorCode.NONE, error_message="", auth_bytes=answer)

    def authenticate_raw(self, token: bytes) -> bytes | None:
        """The answer to a raw token; None if authentication failed."""
        return self._evaluate(token)

    def _evaluate(self, token: bytes) -> bytes | None:
        server = self._server
        assert server is not None, "a mechanism was chosen"
        try:
            answer = server.evaluate(token)
        except InvalidCredentials as error:
            self._fail(
                str(error)
                or f"Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
            return None
        if server.user is not None:
            self.user, self._state = server.user, _State.ENDED
        return answer

    def _fail(self, reason: str) -> None:
        self.failure, self._state = reason, _State.ENDED

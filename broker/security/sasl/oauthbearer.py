"""SASL/OAUTHBEARER (RFC 7628, KIP-255; Kafka: OAuthBearerSaslServer).

FORMAT   client     n,[a=authorization id],^Aauth=Bearer token^A[extension=value^A…]^A
         server     nothing, or for an invalid token {"status":"invalid_token"}; after it
         client     ^A
RULES    1. The authorization id is empty or the user.
         2. Extensions are accepted and have no effect, as with Apache Kafka's own handlers.
         3. The session ends with the token.
NOT HERE What a valid token is (`unsecured_jwt.py`, `jwt_validator.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.config.broker_config import is_utf8
from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from replication.completion import Completion

_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIRS: Final = rb"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*"
_FIRST: Final = re.compile(rb"n,(?:a=(?P<authorization_id>%b))?,\x01(?P<pairs>%b)\x01" % (_NAME, _PAIRS))
_AUTHORIZATION: Final = re.compile(r"\w+ +[-_.~+/a-zA-Z0-9]+=*", re.ASCII)
_SEPARATOR: Final = b"\x01"


class InvalidToken(Exception):
    """The token is refused; `scope` is the missing one, None if something else is wrong."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


class ValidToken(NamedTuple):
    """What a token says."""

    user: str
    expires_wall_ms: int


Validate = Callable[[str], "ValidToken | Completion[ValidToken]"]
"""Validates a token, now or later; raises InvalidToken, which may also be the completion's error."""


class OAuthBearerServer(SaslServer):
    """The server of one authentication."""

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._refusal: str | None = None

    def evaluate(self, token: bytes) -> bytes | Completion[bytes]:
        """Validates the client's token; a refusal is sent first, and confirmed by the client.

        Raises:
            InvalidCredentials: the message is malformed, or the client confirmed the refusal.
        """
        if self._refusal is not None and token == _SEPARATOR:
            raise InvalidCredentials(self._refusal)
        authorization_id, bearer = _parse(token)
        try:
            valid = self._validate(bearer)
            if not isinstance(valid, Completion):
                return self._accept(authorization_id, valid)
        except InvalidToken as error:
            return self._refuse(error)
        return valid.handle(partial(self._on_validated, authorization_id))

    def _on_validated(self, authorization_id: str, validated: Completion[ValidToken]) -> bytes:
        try:
            return self._accept(authorization_id, validated.result())
        except InvalidToken as error:
            return self._refuse(error)

    def _refuse(self, error: InvalidToken) -> bytes:
        self._refusal = _refusal(error.scope)
        return self._refusal.encode()

    def _accept(self, authorization_id: str, valid: ValidToken) -> bytes:
        if not is_utf8(valid.user):  # JSON can name one half of a character
            raise InvalidToken("its user is no text in UTF-8")
        if authorization_id not in ("", valid.user):
            raise InvalidCredentials(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different from "
                f"the token's principal name ({valid.user})"
            )
        self.user, self.expires_wall_ms = valid.user, valid.expires_wall_ms
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    """The authorization id and the token of the client's first message."""
    first = _FIRST.fullmatch(message)
    if first is None:
        raise InvalidCredentials
    pairs = dict(pair.split(b"=", 1) for pair in first["pairs"].split(_SEPARATOR) if pair)
    authorization = pairs.get(b"auth", b"").decode("ascii")
    if not _AUTHORIZATION.fullmatch(authorization):
        raise InvalidCredentials
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise InvalidCredentials
    return (first["authorization_id"] or b"").decode("ascii"), token.strip(" ")


def _refusal(scope: str | None) -> str:
    return '{"status":"invalid_token"}' if scope is None else f'{{"status":"insufficient_scope", "scope":"{scope}"}}'

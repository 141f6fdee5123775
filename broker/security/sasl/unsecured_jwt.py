"""Validates JWTs without a signature, for development (Kafka: OAuthBearerUnsecuredValidatorCallbackHandler).

RULES    1. Every client can write such a token: it proves nothing. The settings must name the handler.
         2. `exp` and the claim of the principal are required. Times may differ by the allowed clock skew.
         3. A scope that is a string is one scope, as in Apache Kafka.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any, Final

from broker.config.oauth_configs import UnsecuredValidation
from broker.security.sasl.oauthbearer import InvalidToken, ValidToken

_PARTS: Final = 3


class UnsecuredValidator:
    """Validates the tokens of a listener; `wall_ms` is the time."""

    def __init__(self, settings: UnsecuredValidation, wall_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._wall_ms = wall_ms

    def __call__(self, token: str) -> ValidToken:
        """The user of a token.

        Raises:
            InvalidToken: it is malformed, expired, signed or lacks a scope.
        """
        settings, claims = self._settings, _claims(token)
        user = claims.get(settings.principal_claim)
        if not isinstance(user, str) or not user:
            raise InvalidToken(f"the claim {settings.principal_claim} is missing")
        issued_ms, expires_ms = _time_ms(claims, "iat"), _time_ms(claims, "exp")
        now_ms, skew_ms = self._wall_ms(), settings.clock_skew_ms
        if expires_ms is None or now_ms - skew_ms >= expires_ms:
            raise InvalidToken("it is expired")
        if issued_ms is not None and (issued_ms > now_ms + skew_ms or issued_ms >= expires_ms):
            raise InvalidToken("it is issued in the future, or after its expiry")
        self._check_scope(claims.get(settings.scope_claim))
        return ValidToken(user, expires_ms)

    def _check_scope(self, scope: Any) -> None:
        granted = [scope] if isinstance(scope, str) else scope if isinstance(scope, list) else []
        if not set(self._settings.required_scopes) <= {one for one in granted if isinstance(one, str)}:
            raise InvalidToken("a scope is missing", f"[{', '.join(self._settings.required_scopes)}]")


def _claims(token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != _PARTS or parts[2]:
        raise InvalidToken("it is no unsecured JWT")
    header, claims = (_object(part) for part in parts[:2])
    if header.get("alg") != "none":
        raise InvalidToken("its algorithm is not none")
    return claims


def _object(part: str) -> dict[str, Any]:
    try:
        value = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise InvalidToken("it is malformed") from None
    if not isinstance(value, dict):
        raise InvalidToken("it is malformed")
    return value


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """A time claim, which is in seconds."""
    seconds = claims.get(name)
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not abs(seconds) < 2**53:
        raise InvalidToken(f"the claim {name} is not a time")
    return int(seconds * 1000)

"""Validates signed JWTs (KIP-768; Kafka: BrokerJwtValidator).

RULES    1. The signature must be that of a key of the JWKS, with an asymmetric algorithm: neither `none` nor a shared secret.
         2. `exp`, `iat` and the claim of the user are required; issuer and audience must be the expected ones.
         3. PyJWT and cryptography are imported only where a listener needs them.
NOT HERE The keys (`jwks.py`).
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final

import jwt
from jwt.exceptions import PyJWTError

from broker.config.oauth_configs import JwksValidation
from broker.security.sasl.jwks import JwksFetcher
from broker.security.sasl.oauthbearer import InvalidToken, ValidToken

_log = logging.getLogger("barnabas.security")

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")


class JwtValidator:
    """Validates the tokens of a listener."""

    def __init__(self, settings: JwksValidation) -> None:
        self._settings = settings
        self._fetcher = JwksFetcher(settings, parse_keys)
        weakref.finalize(self, self._fetcher.close)
        self._fetcher.start()

    def __call__(self, token: str) -> ValidToken:
        """The user of a token.

        Raises:
            InvalidToken: it is malformed, expired, not signed by a known key, or for others.
        """
        try:
            claims = self._verified(token)
        except (PyJWTError, ValueError, TypeError, RecursionError) as error:
            _log.info("refused a token: %s", type(error).__name__)
            raise InvalidToken(str(error)) from None
        user = claims.get(self._settings.user_claim)
        if not isinstance(user, str) or not user.strip():
            raise InvalidToken(f"the claim {self._settings.user_claim} is missing")
        return ValidToken(user.strip(), int(claims["exp"]) * 1000)

    def _verified(self, token: str) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        for key in self._candidates(header.get("kid"), header.get("alg")):
            try:
                return self._decoded(token, key)
            except jwt.InvalidSignatureError:
                continue
        raise InvalidToken("no key has this signature")

    def _candidates(self, key_id: object, algorithm: object) -> list[jwt.PyJWK]:
        """The keys that a token may be signed with."""
        keys = [key for key in self._fetcher.keys if key_id is None or key.key_id == key_id]
        if not keys:
            self._fetcher.expedite()
        return [key for key in keys if key.algorithm_name == algorithm]

    def _decoded(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        settings = self._settings
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=list(settings.audiences),
            issuer=settings.issuer,
            leeway=settings.clock_skew_s,
            options={"require": ["exp", "iat", "aud", "iss"], "verify_sub": False, "verify_jti": False},
        )
        return claims


def parse_keys(jwks: dict[str, Any]) -> list[jwt.PyJWK]:
    """The keys of a JWKS that can verify signatures; a key without `alg` serves every algorithm of its type.

    Raises:
        ValueError: there is none.
    """
    found = []
    for entry in jwks.get("keys") or ():
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        for algorithm in [entry["alg"]] if entry.get("alg") else _algorithms_of(entry):
            if algorithm in ALGORITHMS:
                try:
                    found.append(jwt.PyJWK(entry, algorithm))
                except PyJWTError as error:
                    _log.warning("a key of the JWKS is not usable: %s", error)
    if not found:
        raise ValueError("it contains no key for signatures with RS, PS or ES")
    return found


def _algorithms_of(entry: dict[str, Any]) -> list[str]:
    if entry.get("kty") == "RSA":
        return [name for name in ALGORITHMS if not name.startswith("ES")]
    curves = {"P-256": ["ES256"], "P-384": ["ES384"], "P-521": ["ES512"]}
    return curves.get(str(entry.get("crv")), []) if entry.get("kty") == "EC" else []

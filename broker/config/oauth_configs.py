"""The settings of OAUTHBEARER on a listener: how its tokens are validated.

RULES    1. `sasl.server.callback.handler.class` of the mechanism names Apache Kafka's class: the validator of signed tokens,
            or the one of unsecured tokens, or an entry point. Without it the listener is refused; Apache Kafka would accept
            unsecured tokens.
         2. Signed tokens need the URL of the keys, which `barnabas.sasl.oauthbearer.allowed.urls` must contain, the expected
            issuer and the expected audience.
NOT HERE Validation (`broker/security/sasl/unsecured_jwt.py`, `jwt_validator.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Final, NamedTuple

from broker.config.broker_config import ConfigError
from broker.config.sasl_callbacks import HANDLER, is_callback
from storage.config.config_def import Value

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
JWKS_HANDLER: Final = f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"
UNSECURED_HANDLER: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
ALLOWED_URLS: Final = "barnabas.sasl.oauthbearer.allowed.urls"
_SETTINGS: Final = "sasl.oauthbearer."
_OPTIONS: Final = "unsecuredValidator"
_URL: Final = f"{_SETTINGS}jwks.endpoint.url"
_SCHEMES: Final = ("http://", "https://", "file:/")


class UnsecuredValidation(NamedTuple):
    """How tokens without a signature are validated."""

    principal_claim: str = "sub"
    scope_claim: str = "scope"
    required_scopes: tuple[str, ...] = ()
    clock_skew_ms: int = 0


class JwksValidation(NamedTuple):
    """How signed tokens are validated."""

    url: str
    issuer: str
    audiences: tuple[str, ...]
    user_claim: str = "sub"
    clock_skew_s: int = 30
    refresh_ms: int = 3_600_000
    backoff_ms: int = 100
    max_backoff_ms: int = 10_000


class CallbackValidation(NamedTuple):
    """An entry point validates tokens (`sasl_callbacks.py`)."""

    name: str


Validation = UnsecuredValidation | JwksValidation | CallbackValidation


def is_oauth_setting(name: str) -> bool:
    """Whether a setting, without prefixes, is one of OAUTHBEARER's validation."""
    return name in (HANDLER, "sasl.login.callback.handler.class") or name.startswith(_SETTINGS)


def oauth_validation(listener: str, value: Callable[[str], Value], options: Mapping[str, str]) -> Validation:
    """How a listener validates tokens; `value` returns a setting, `options` are those of its JAAS text.

    Raises:
        ConfigError: a setting is missing or invalid.
    """
    handler = str(value(HANDLER) or "")
    if handler == UNSECURED_HANDLER:
        return _unsecured(listener, options)
    if handler and is_callback(handler):
        return CallbackValidation(handler)
    if handler != JWKS_HANDLER:
        raise ConfigError(
            f"listener {listener} enables OAUTHBEARER: set listener.name.{listener.lower()}.oauthbearer.{HANDLER} to "
            f"{JWKS_HANDLER}, or to {UNSECURED_HANDLER} to accept tokens without a signature (docs/security.md)"
        )
    return _signed(listener, value)


def _unsecured(listener: str, options: Mapping[str, str]) -> UnsecuredValidation:
    skew = options.get(f"{_OPTIONS}AllowableClockSkewMs", "0")
    if not skew.isdecimal():
        raise ConfigError(f"listener {listener}: {_OPTIONS}AllowableClockSkewMs must be a number of milliseconds")
    return UnsecuredValidation(
        options.get(f"{_OPTIONS}PrincipalClaimName", "sub"),
        options.get(f"{_OPTIONS}ScopeClaimName", "scope"),
        tuple(options.get(f"{_OPTIONS}RequiredScope", "").split()),
        int(skew),
    )


def _signed(listener: str, value: Callable[[str], Value]) -> JwksValidation:
    url, issuer = str(value(_URL) or ""), str(value(f"{_SETTINGS}expected.issuer") or "")
    audiences = value(f"{_SETTINGS}expected.audience")
    for name, found in (
        (_URL, url),
        (f"{_SETTINGS}expected.issuer", issuer),
        (f"{_SETTINGS}expected.audience", audiences),
    ):
        if not found:
            raise ConfigError(f"listener {listener} validates tokens of OAUTHBEARER: set {name} (docs/security.md)")
    allowed = value(ALLOWED_URLS)
    if not url.startswith(_SCHEMES) or not isinstance(allowed, list) or url not in allowed:
        raise ConfigError(f"{_URL}: {url} is not a URL that {ALLOWED_URLS} contains (docs/security.md)")
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise ConfigError("OAUTHBEARER with signed tokens needs PyJWT and cryptography: pip install pyjwt cryptography")
    assert isinstance(audiences, list)
    return JwksValidation(
        url,
        issuer,
        tuple(audiences),
        str(value(f"{_SETTINGS}sub.claim.name")),
        *(
            int(str(value(_SETTINGS + name)))
            for name in (
                "clock.skew.seconds",
                "jwks.endpoint.refresh.ms",
                "jwks.endpoint.retry.backoff.ms",
                "jwks.endpoint.retry.backoff.max.ms",
            )
        ),
    )

"""The settings of OAUTHBEARER between nodes: where this node's own token is from.

RULES    1. With Apache Kafka's `OAuthBearerLoginCallbackHandler` the token is the text of a file, the URL `file:/…` of
            `sasl.oauthbearer.token.endpoint.url`; `barnabas.sasl.oauthbearer.allowed.urls` must contain it. A program that
            renews the token replaces the file. Token endpoints of http are not asked.
         2. Without a handler, or with the one of unsecured tokens, the JAAS options `unsecuredLogin…` are the claims of a token
            without a signature.
NOT HERE The token (`broker/security/sasl/oauth_login.py`), how other nodes validate it (`oauth_configs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from broker.config.broker_config import ConfigError
from broker.config.oauth_configs import ALLOWED_URLS
from storage.config.config_def import Value

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
LOGIN_SETTING: Final = "sasl.login.callback.handler.class"
FILE_HANDLER: Final = f"{_PACKAGE}.OAuthBearerLoginCallbackHandler"
UNSECURED_HANDLER: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_OPTION: Final = "unsecuredLogin"


class TokenFile(NamedTuple):
    """A file with the token; it is read at each login."""

    path: str


class UnsecuredLogin(NamedTuple):
    """The claims of a token without a signature, and its lifetime."""

    claims: Mapping[str, str | list[str]]
    lifetime_s: int = 3600


OAuthLogin = TokenFile | UnsecuredLogin


def oauth_login(where: str, value: Callable[[str], Value], options: Mapping[str, str]) -> OAuthLogin:
    """Where the token is from; `value` returns a setting, `options` are those of the JAAS text.

    Raises:
        ConfigError: a setting is missing or invalid.
    """
    handler = str(value(LOGIN_SETTING) or "")
    if handler == FILE_HANDLER:
        return _token_file(where, value)
    if handler not in ("", UNSECURED_HANDLER):
        raise ConfigError(f"{where}: {LOGIN_SETTING} must be {FILE_HANDLER} or {UNSECURED_HANDLER} (docs/security.md)")
    return _unsecured(where, options)


def _token_file(where: str, value: Callable[[str], Value]) -> TokenFile:
    url, allowed = str(value(_URL) or ""), value(ALLOWED_URLS)
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc or not parts.path:
        raise ConfigError(f"{where}: {_URL} must be the URL of a file, file:///PATH; token endpoints are not asked")
    if not isinstance(allowed, list) or url not in allowed:
        raise ConfigError(f"{_URL}: {url} is not a URL that {ALLOWED_URLS} contains (docs/security.md)")
    return TokenFile(unquote(parts.path))


def _unsecured(where: str, options: Mapping[str, str]) -> UnsecuredLogin:
    claims: dict[str, str | list[str]] = {}
    lifetime = "3600"
    for name, text in options.items():
        own = name.removeprefix(_OPTION)
        if own.startswith("StringClaim_"):
            claims[own.removeprefix("StringClaim_")] = text
        elif own.startswith("ListClaim_"):  # the first character separates
            claims[own.removeprefix("ListClaim_")] = text[1:].split(text[:1]) if len(text) > 1 else []
        elif own == "LifetimeSeconds":
            lifetime = text
        elif name.startswith(_OPTION):
            raise ConfigError(f"{where}: the JAAS option {name} is not known (docs/security.md)")
    if not claims or not lifetime.isdecimal() or not int(lifetime):
        raise ConfigError(
            f"{where}: the JAAS text needs {_OPTION}StringClaim_sub, the name with which this node authenticates to others, "
            f"and {_OPTION}LifetimeSeconds must be a positive number; or set {LOGIN_SETTING} to {FILE_HANDLER}"
        )
    return UnsecuredLogin(claims, int(lifetime))

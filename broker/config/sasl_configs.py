"""The SASL settings of listeners, and what is refused of them.

RULES    1. A setting with the prefix `listener.name.<listener>.` overrides the one without. JAAS texts count only with the
            prefix of listener and mechanism, as in Apache Kafka.
         2. Each enabled mechanism needs its JAAS text with the mechanism's login module; a JAAS file is not read.
         3. A setting without effect on a SASL listener is refused in a sentence, which contains no secret.
         4. On connections to other nodes this node is the user of the JAAS text's options `username` and `password`.
NOT HERE Which listeners have SASL (`security_configs.py`), authentication (`broker/security/sasl/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.gssapi_configs import GSSAPI, LOGIN_MODULE, RULES_SETTING, GssapiAcceptor, gssapi_acceptor
from broker.config.jaas import InvalidJaas, LoginModule, parse_jaas
from broker.config.oauth_configs import Validation, is_oauth_setting, oauth_validation
from broker.config.oauth_login_configs import LOGIN_SETTING, OAuthLogin, oauth_login
from broker.config.sasl_callbacks import HANDLER, is_callback
from storage.config.config_def import BadSetting, Value, parse

_MODULES: Final = "org.apache.kafka.common.security"
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
LOGIN_MODULES: Final[Mapping[str, str]] = {
    PLAIN: f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
    OAUTHBEARER: f"{_MODULES}.oauthbearer.OAuthBearerLoginModule",
    GSSAPI: LOGIN_MODULE,
}
"""The mechanisms, with their login modules."""
_ENABLED: Final = "sasl.enabled.mechanisms"
_MAX_RECEIVE: Final = "sasl.server.max.receive.size"
_MAX_REAUTH: Final = "connections.max.reauth.ms"
_FAILURE_DELAY: Final = "connection.failed.authentication.delay.ms"
_JAAS: Final = "sasl.jaas.config"
_USER: Final = "user_"
_PLAIN_HANDLER: Final = f"{_MODULES}.plain.internals.PlainServerCallbackHandler"
_REFUSED: Final[Mapping[str, frozenset[str]]] = {
    LOGIN_SETTING: frozenset({""}),
    "sasl.login.class": frozenset({"", f"{_MODULES}.authenticator.DefaultLogin"}),
    HANDLER: frozenset({""}),
}
"""Settings that change authentication in Apache Kafka but not here, with the values that change nothing."""


class ClientCredentials(NamedTuple):
    """How this node authenticates to other nodes on a listener."""

    mechanism: str
    user: str = ""
    password: str = ""
    oauth: OAuthLogin | None = None
    """Of OAUTHBEARER, which has neither user nor password."""

    def __repr__(self) -> str:
        """Without the password."""
        return f"ClientCredentials({self.mechanism}, {self.user})"


class SaslListener(NamedTuple):
    """The settings of a listener with SASL."""

    mechanisms: tuple[str, ...]
    """In the order of the setting."""
    plain_passwords: Mapping[str, str]
    """Of PLAIN, by user."""
    max_receive_bytes: int
    """Of a frame before authentication."""
    failure_delay_ms: int
    """Between a failure and its response."""
    max_reauth_ms: Mapping[str, int] = MappingProxyType({})
    """By mechanism: the longest session until the client must authenticate again; 0: unlimited."""
    validation: Validation | None = None
    """Of the tokens of OAUTHBEARER, if it is enabled."""
    plain_callback: str = ""
    """The entry point that checks PLAIN's passwords (`sasl_callbacks.py`); empty: `plain_passwords`."""
    gssapi: GssapiAcceptor | None = None
    """Of GSSAPI, if it is enabled."""

    def __repr__(self) -> str:
        """Without secrets."""
        return f"SaslListener({', '.join(self.mechanisms)})"


def is_listener_setting(name: str) -> bool:
    """Whether a name with the prefix of a listener is a setting of SASL listeners."""
    _, _, own_name = name.removeprefix("listener.name.").partition(".")
    _, _, of_mechanism = own_name.partition(".")
    if is_oauth_setting(own_name) or is_oauth_setting(of_mechanism):
        return name.startswith("listener.name.")
    return name.startswith("listener.name.") and (
        own_name in (_ENABLED, _MAX_RECEIVE, _MAX_REAUTH, RULES_SETTING) or of_mechanism in (_JAAS, _MAX_REAUTH)
    )


def is_setting_of(name: str, listener: str) -> bool:
    """Whether a setting has an effect on a listener with SASL: with its prefix, or without one."""
    if name.startswith("listener.name."):
        return name.startswith(_prefix(listener)) and is_listener_setting(name)
    return name.startswith("sasl.") and name in BROKER_SETTINGS


def sasl_listener(config: BrokerConfig, name: str) -> SaslListener:
    """The settings of a listener with SASL.

    Raises:
        ConfigError: a setting is invalid or not obeyed.
    """
    enabled = _value(config, name, _ENABLED)
    mechanisms = tuple(dict.fromkeys(enabled if isinstance(enabled, list) else ()))
    if not mechanisms:
        raise ConfigError(f"listener {name}: {_ENABLED} is empty")
    for mechanism in mechanisms:
        _require_known(mechanism, f"listener {name} enables", f"{_prefix(name)}{_ENABLED}")
    _refuse_unenforced(config, name, mechanisms)
    modules = {mechanism: _login_module(config, name, mechanism) for mechanism in mechanisms}
    max_receive, delay_ms = _value(config, name, _MAX_RECEIVE), config.number(_FAILURE_DELAY)
    assert isinstance(max_receive, int)
    max_reauth_ms = {mechanism: _max_reauth_ms(config, name, mechanism) for mechanism in mechanisms}
    validation, callback = None, str(_value(config, name, HANDLER, PLAIN) or "").replace(_PLAIN_HANDLER, "")
    if OAUTHBEARER in modules:
        options = modules[OAUTHBEARER].options
        validation = oauth_validation(name, lambda text: _value(config, name, text, OAUTHBEARER), options)
    gssapi = None
    if GSSAPI in modules:
        rules = _value(config, name, RULES_SETTING)
        assert isinstance(rules, list)
        gssapi = gssapi_acceptor(f"{_prefix(name)}gssapi.{_JAAS}", modules[GSSAPI].options, rules)
    return SaslListener(
        mechanisms, _plain_passwords(modules), max_receive, delay_ms, max_reauth_ms, validation, callback, gssapi
    )


def client_credentials(config: BrokerConfig, name: str, mechanism_setting: str) -> ClientCredentials:
    """How this node authenticates on a listener of other nodes; a setting names the mechanism.

    Raises:
        ConfigError: a setting is invalid or not obeyed.
    """
    mechanism = str(config.value(mechanism_setting))
    _require_known(mechanism, f"{mechanism_setting} names", mechanism_setting)
    if mechanism == GSSAPI:
        raise ConfigError(
            f"{mechanism_setting} names GSSAPI, which is for clients only: set another mechanism for nodes"
        )
    _refuse_unenforced(config, name, (mechanism,))
    options = _login_module(config, name, mechanism).options
    if mechanism == OAUTHBEARER:
        where = f"{mechanism_setting}={mechanism}, listener {name}"
        login = oauth_login(where, lambda text: _value(config, name, text, OAUTHBEARER), options)
        return ClientCredentials(mechanism, oauth=login)
    user, password = options.get("username"), options.get("password")
    if not user or not password:
        raise ConfigError(
            f"{_prefix(name)}{mechanism.lower()}.{_JAAS} needs username and password, with which this node authenticates to "
            f"others ({mechanism_setting})"
        )
    return ClientCredentials(mechanism, user, password)


def _require_known(mechanism: str, subject: str, setting: str) -> None:
    if mechanism == GSSAPI and find_spec("gssapi") is None:
        raise ConfigError(
            f"{subject} the SASL mechanism GSSAPI (the default), which needs the package gssapi: install barnabas[kerberos], "
            f"or set {setting} (docs/security.md)"
        )
    if mechanism not in LOGIN_MODULES:
        raise ConfigError(
            f"{subject} the SASL mechanism {mechanism}, but this broker has only {', '.join(LOGIN_MODULES)}: set "
            f"{setting} (docs/security.md)"
        )


def _prefix(listener: str) -> str:
    return f"listener.name.{listener.lower()}."


def _max_reauth_ms(config: BrokerConfig, listener: str, mechanism: str) -> int:
    limit_ms = _value(config, listener, _MAX_REAUTH, mechanism)
    assert isinstance(limit_ms, int)
    return limit_ms


def _value(config: BrokerConfig, listener: str, name: str, mechanism: str | None = None) -> Value:
    """A setting of a listener, or of a mechanism of a listener if one is named."""
    prefixed = _prefix(listener) + name
    of_mechanism = prefixed if mechanism is None else f"{_prefix(listener)}{mechanism.lower()}.{name}"
    if of_mechanism in config.given:
        prefixed = of_mechanism
    elif prefixed not in config.given:
        return config.value(name)
    try:
        return parse(BROKER_SETTINGS[name]._replace(name=prefixed), config.given[prefixed])
    except BadSetting as error:
        raise ConfigError(str(error)) from None


def _refuse_unenforced(config: BrokerConfig, listener: str, mechanisms: tuple[str, ...]) -> None:
    prefixes = ["", _prefix(listener), *(f"{_prefix(listener)}{mechanism.lower()}." for mechanism in mechanisms)]
    obeyed = {f"{_prefix(listener)}{OAUTHBEARER.lower()}.{setting}" for setting in (HANDLER, LOGIN_SETTING)}
    of_plain = f"{_prefix(listener)}{PLAIN.lower()}.{HANDLER}"
    if config.given.get(of_plain) == _PLAIN_HANDLER or is_callback(config.given.get(of_plain, "")):
        obeyed.add(of_plain)
    for name, harmless in _REFUSED.items():
        for prefix in prefixes:
            if prefix + name not in obeyed and config.given.get(prefix + name, "").strip() not in harmless:
                raise ConfigError(
                    f"{prefix}{name} is not enforced by this broker on the SASL listener {listener}: remove the setting "
                    "(docs/security.md)"
                )


def _login_module(config: BrokerConfig, listener: str, mechanism: str) -> LoginModule:
    setting = f"{_prefix(listener)}{mechanism.lower()}.{_JAAS}"
    if setting not in config.given:
        raise ConfigError(
            f"listener {listener} enables {mechanism}: set {setting}, since this broker reads no JAAS file "
            "(java.security.auth.login.config)"
        )
    try:
        module = parse_jaas(config.given[setting])
    except InvalidJaas as error:
        raise ConfigError(f"{setting}: {error}") from None
    if module.name != LOGIN_MODULES[mechanism]:
        raise ConfigError(f"{setting}: the login module of {mechanism} must be {LOGIN_MODULES[mechanism]}")
    return module


def _plain_passwords(modules: Mapping[str, LoginModule]) -> dict[str, str]:
    options = modules[PLAIN].options if PLAIN in modules else {}
    return {key.removeprefix(_USER): text for key, text in options.items() if key.startswith(_USER)}

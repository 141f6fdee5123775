"""The settings of SASL listeners (broker/config/sasl_configs.py)."""

from __future__ import annotations

import pytest

from broker.config import sasl_configs
from broker.config.broker_config import ConfigError
from broker.config.config_loader import load_config
from broker.config.gssapi_configs import GssapiAcceptor
from broker.config.oauth_configs import JWKS_HANDLER, UNSECURED_HANDLER, JwksValidation, UnsecuredValidation
from broker.config.oauth_login_configs import FILE_HANDLER, TokenFile, UnsecuredLogin
from broker.config.sasl_configs import ClientCredentials, sasl_listener
from broker.config.security_configs import controller_credentials, inter_broker_credentials, security_protocol
from tests.support.sasl import MECHANISMS, MODULE, SCRAM_JAAS, jaas

PREFIX = "listener.name.sasl_plaintext"
GSSAPI_JAAS = f"{PREFIX}.gssapi.sasl.jaas.config"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
PLAIN = f"{PREFIX}.plain.sasl.jaas.config"
MAP = "listener.security.protocol.map"
PLAIN_CONTROLLERS = "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
NODE_USER = f'{MODULE}.plain.PlainLoginModule required username="n" password="p" user_n="p";'
NODE = {"listeners": "SASL_PLAINTEXT://:9092", "sasl.enabled.mechanisms": ",".join(MECHANISMS), **jaas()}


def test_a_listener_has_its_mechanisms_and_users() -> None:
    listener = sasl_listener(load_config(None, NODE), "SASL_PLAINTEXT")
    assert listener == (
        MECHANISMS,
        {"alice": "alice-secret", "b=,ob": 'bob"s'},
        524_288,
        100,
        dict.fromkeys(MECHANISMS, 0),
        None,
        "",
        None,
    )
    assert "secret" not in repr(listener)


def test_settings_with_the_prefix_of_the_listener_are_preferred() -> None:
    config = load_config(
        None,
        {
            "listeners": "Out://:9092",
            MAP: "out:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI",
            "listener.name.out.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.out.sasl.server.max.receive.size": "1000",
            "listener.name.out.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
        },
    )
    assert security_protocol(config, "OUT") == "SASL_PLAINTEXT"
    assert sasl_listener(config, "OUT") == (("SCRAM-SHA-512",), {}, 1000, 100, {"SCRAM-SHA-512": 0}, None, "", None)


def test_sessions_are_limited_by_mechanism_listener_or_node() -> None:
    name = "connections.max.reauth.ms"
    for settings, expected in (
        ({name: "1"}, (1, 1, 1)),
        ({name: "1", f"{PREFIX}.{name}": "2"}, (2, 2, 2)),
        ({f"{PREFIX}.{name}": "2", f"{PREFIX}.scram-sha-256.{name}": "3"}, (2, 3, 2)),
    ):
        listener = sasl_listener(load_config(None, NODE | settings), "SASL_PLAINTEXT")
        assert tuple(listener.max_reauth_ms[mechanism] for mechanism in MECHANISMS) == expected
    with pytest.raises(ConfigError, match=r"plain\.connections\.max\.reauth\.ms"):
        load_config(None, NODE | {f"{PREFIX}.plain.{name}": "soon"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sasl.enabled.mechanisms": "PLAIN,X"}, "enables the SASL mechanism X, but this broker has only PLAIN, SCRAM-SHA-256"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "which needs the package gssapi: install barnabas[kerberos], or set"),
        ({f"{PREFIX}.sasl.enabled.mechanisms": "plain"}, "enables the SASL mechanism plain"),
        ({"sasl.enabled.mechanisms": ""}, "is empty"),
        ({PLAIN: "hunter2"}, f"{PLAIN}: Login module control flag not specified"),
        ({PLAIN: "com.sun.security.auth.module.JndiLoginModule required a=hunter2;"}, "the login module of PLAIN must be"),
        ({PLAIN: f"{MODULE}.scram.ScramLoginModule required;"}, "the login module of PLAIN must be"),
        ({f"{PREFIX}.plain.sasl.server.callback.handler.class": "x.Y"}, "sasl.server.callback.handler.class is not enforced"),
        ({f"{PREFIX}.scram-sha-256.sasl.login.class": "x.Y"}, "sasl.login.class is not enforced"),
        ({f"{PREFIX}.sasl.server.max.receive.size": "x"}, f"configuration {PREFIX}.sasl.server.max.receive.size"),
        ({"connections.max.idle.ms": "100"}, "should always be less than connections.max.idle.ms"),
        (
            {"security.inter.broker.protocol": "SASL_PLAINTEXT", "inter.broker.listener.name": "SASL_PLAINTEXT"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
        ),
        (
            {"listeners": f"{NODE['listeners']},C://:9093", "controller.listener.names": "C", MAP: "C:SASL_PLAINTEXT"},
            "listener C enables PLAIN: set listener.name.c.plain.sasl.jaas.config",
        ),
        (
            {"process.roles": "broker", "controller.quorum.bootstrap.servers": "a:9093", MAP: PLAIN_CONTROLLERS},
            "sasl.mechanism.inter.broker.protocol names the SASL mechanism GSSAPI",
        ),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, f"{PLAIN} needs username and password"),
        (
            {"sasl.mechanism.inter.broker.protocol": "PLAIN", PLAIN: NODE_USER, "sasl.enabled.mechanisms": "SCRAM-SHA-256"},
            "sasl.mechanism.inter.broker.protocol must be included in sasl.enabled.mechanisms",
        ),
        ({MAP: "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"}, "sasl.mechanism.controller.protocol names"),
    ],
)  # fmt: skip
def test_what_is_not_obeyed_is_refused(change: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_configs, "find_spec", lambda _: None)  # the package gssapi may be installed
    with pytest.raises(ConfigError) as refusal:
        load_config(None, NODE | change)
    assert words in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_mechanism_without_a_jaas_text_is_refused() -> None:
    without = {name: text for name, text in NODE.items() if name != PLAIN} | {"sasl.jaas.config": SCRAM_JAAS}
    with pytest.raises(ConfigError, match=r"set listener\.name\.sasl_plaintext\.plain\.sasl\.jaas\.config, since"):
        load_config(None, without)


def test_brokers_may_use_a_plaintext_listener_beside() -> None:
    roles = {"process.roles": "broker", "controller.quorum.bootstrap.servers": "a:9093"}
    listeners = {"listeners": f"{NODE['listeners']},PLAINTEXT://:9094", MAP: f"{PLAIN_CONTROLLERS},PLAINTEXT:PLAINTEXT"}
    config = load_config(None, NODE | roles | listeners)
    assert config.inter_broker_listener == "PLAINTEXT"


def test_nodes_authenticate_as_the_user_of_the_jaas_text() -> None:
    mechanisms = ("inter.broker", "controller")
    config = load_config(
        None,
        NODE
        | {MAP: "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT", PLAIN: NODE_USER}
        | {f"sasl.mechanism.{name}.protocol": "PLAIN" for name in mechanisms}
        | {"listener.name.controller.plain.sasl.jaas.config": NODE_USER.replace('"p"', '"q"')},
    )
    assert inter_broker_credentials(config) == ClientCredentials("PLAIN", "n", "p")
    assert controller_credentials(config) == ClientCredentials("PLAIN", "n", "q")


def test_a_single_node_may_have_only_a_sasl_listener() -> None:
    config = load_config(None, NODE | {"security.inter.broker.protocol": "SASL_PLAINTEXT"})
    assert config.inter_broker_listener == "SASL_PLAINTEXT"


# ------------------------------------------------------------ OAUTHBEARER
OAUTH = f"{PREFIX}.oauthbearer"
URL = "https://issuer/keys"
OAUTH_NODE = {
    "listeners": "SASL_PLAINTEXT://:9092",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    f"{OAUTH}.sasl.jaas.config": f'{MODULE}.oauthbearer.OAuthBearerLoginModule required unsecuredValidatorRequiredScope="a b";',
}
SIGNED = {
    f"{OAUTH}.sasl.server.callback.handler.class": JWKS_HANDLER,
    "sasl.oauthbearer.jwks.endpoint.url": URL,
    "sasl.oauthbearer.expected.issuer": "https://issuer",
    f"{OAUTH}.sasl.oauthbearer.expected.audience": "kafka,other",
    f"{PREFIX}.sasl.oauthbearer.clock.skew.seconds": "7",
    "barnabas.sasl.oauthbearer.allowed.urls": f"https://other,{URL}",
}


def test_signed_tokens_are_validated_with_the_settings_of_the_mechanism() -> None:
    listener = sasl_listener(load_config(None, OAUTH_NODE | SIGNED), "SASL_PLAINTEXT")
    assert listener.validation == JwksValidation(URL, "https://issuer", ("kafka", "other"), clock_skew_s=7)


def test_unsecured_tokens_are_accepted_if_their_handler_is_named() -> None:
    named = {f"{OAUTH}.sasl.server.callback.handler.class": UNSECURED_HANDLER}
    listener = sasl_listener(load_config(None, OAUTH_NODE | named), "SASL_PLAINTEXT")
    assert listener.validation == UnsecuredValidation(required_scopes=("a", "b"))


BETWEEN = {"security.inter.broker.protocol": "SASL_PLAINTEXT", "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}
FILE = {
    f"{OAUTH}.sasl.login.callback.handler.class": FILE_HANDLER,
    "sasl.oauthbearer.token.endpoint.url": "file:///token",
}


def test_a_nodes_own_token_is_from_a_file_or_from_options() -> None:
    allowed = {"barnabas.sasl.oauthbearer.allowed.urls": f"{URL},file:///token"}
    config = load_config(None, OAUTH_NODE | SIGNED | BETWEEN | FILE | allowed)
    assert inter_broker_credentials(config) == ClientCredentials("OAUTHBEARER", oauth=TokenFile("/token"))
    options = (
        'unsecuredLoginStringClaim_sub="n" unsecuredLoginListClaim_scope=",a,b" unsecuredLoginLifetimeSeconds="60"'
    )
    text = f"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {options};"
    config = load_config(None, OAUTH_NODE | SIGNED | BETWEEN | {f"{OAUTH}.sasl.jaas.config": text})
    login = UnsecuredLogin({"sub": "n", "scope": ["a", "b"]}, 60)
    assert inter_broker_credentials(config) == ClientCredentials("OAUTHBEARER", oauth=login)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({f"{OAUTH}.sasl.server.callback.handler.class": ""}, f"set {OAUTH}.sasl.server.callback.handler.class to"),
        ({f"{OAUTH}.sasl.server.callback.handler.class": "x.Y"}, f"set {OAUTH}.sasl.server.callback.handler.class to"),
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "set sasl.oauthbearer.jwks.endpoint.url"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "set sasl.oauthbearer.expected.issuer"),
        ({f"{OAUTH}.sasl.oauthbearer.expected.audience": ""}, "set sasl.oauthbearer.expected.audience"),
        ({"barnabas.sasl.oauthbearer.allowed.urls": "https://issuer"}, f"{URL} is not a URL that"),
        (
            {"sasl.oauthbearer.jwks.endpoint.url": "ftp://x", "barnabas.sasl.oauthbearer.allowed.urls": "ftp://x"},
            "ftp://x",
        ),
        ({f"{PREFIX}.sasl.server.callback.handler.class": JWKS_HANDLER}, "is not enforced"),
        (BETWEEN, "the JAAS text needs unsecuredLoginStringClaim_sub"),
        (BETWEEN | {f"{OAUTH}.sasl.login.callback.handler.class": "x.Y"}, "sasl.login.callback.handler.class must be"),
        (BETWEEN | FILE | {"sasl.oauthbearer.token.endpoint.url": "https://issuer"}, "must be the URL of a file"),
        (BETWEEN | FILE, "file:///token is not a URL that barnabas.sasl.oauthbearer.allowed.urls contains"),
    ],
)
def test_oauthbearer_without_a_safe_validation_is_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(None, OAUTH_NODE | SIGNED | change)
    assert words in str(refusal.value)


def test_classes_that_are_apache_kafkas_defaults_are_accepted() -> None:
    settings = {
        f"{PREFIX}.plain.sasl.server.callback.handler.class": f"{MODULE}.plain.internals.PlainServerCallbackHandler",
        f"{PREFIX}.plain.sasl.login.class": f"{MODULE}.authenticator.DefaultLogin",
    }
    listener = sasl_listener(load_config(None, NODE | settings), "SASL_PLAINTEXT")
    assert (listener.plain_callback, "alice" in listener.plain_passwords) == ("", True)


def gssapi_settings(jaas_text: str) -> dict[str, str]:
    return {
        "listeners": NODE["listeners"],
        "sasl.enabled.mechanisms": "GSSAPI",
        GSSAPI_JAAS: jaas_text,
        "sasl.kerberos.principal.to.local.rules": "DEFAULT",
        f"{PREFIX}.sasl.kerberos.principal.to.local.rules": "RULE:[1:$1],DEFAULT",
    }


def test_gssapi_takes_the_key_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_configs, "find_spec", lambda _: True)
    text = f'{KERBEROS} required useKeyTab=true storeKey=true keyTab="/k" principal="kafka/h@R";'
    listener = sasl_listener(load_config(None, gssapi_settings(text)), "SASL_PLAINTEXT")
    assert listener.gssapi == GssapiAcceptor("/k", "kafka/h@R", ("RULE:[1:$1]", "DEFAULT"))
    for missing in ("useKeyTab=true", 'keyTab="/k"', 'principal="kafka/h@R"'):
        with pytest.raises(ConfigError, match="needs useKeyTab=true, keyTab and principal"):
            load_config(None, gssapi_settings(text.replace(missing, "")))
    with pytest.raises(ConfigError, match=r"names GSSAPI, which is for clients only"):
        load_config(None, {**gssapi_settings(text), "sasl.mechanism.inter.broker.protocol": "GSSAPI"})

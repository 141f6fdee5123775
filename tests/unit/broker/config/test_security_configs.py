"""Security settings without an effect are refused (broker/config/security_configs.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.config import sasl_configs
from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.config_loader import load_config
from broker.config.dynamic_configs import DynamicBrokerConfig, apply_dynamic_configs
from broker.config.security_configs import controller_credentials, find_unenforced_value
from broker.config.ssl_configs import find_ssl_error, ssl_settings
from broker.config.ssl_definitions import IGNORED_AND_SSL
from broker.peers.endpoints import protocol_id

MAP = "listener.security.protocol.map"
CLIENTS = "PLAINTEXT://:9092"
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
LOOPBACK = {"listeners": CLIENTS}
INTER = "security.inter.broker.protocol"


PEM = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/k"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listeners": "SSL://:9093"}, "listener SSL: TLS needs ssl.keystore.location or ssl.keystore.certificate.chain"),
        ({"listeners": f"{CLIENTS},sasl_ssl://:9093"}, "listener SASL_SSL: TLS needs ssl.keystore.location"),
        ({**PEM, "listeners": f"{CLIENTS},sasl_ssl://:9093"}, "listener SASL_SSL enables the SASL mechanism GSSAPI"),
        (
            {"listeners": f"{CLIENTS},CONTROLLER://:9093", MAP: "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT"},
            "listener CONTROLLER: TLS needs ssl.keystore.location",
        ),
        (
            {
                "process.roles": "broker", "controller.quorum.bootstrap.servers": "a:9093", "listeners": CLIENTS,
                MAP: "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
            },
            "sasl.mechanism.controller.protocol names the SASL mechanism GSSAPI",
        ),
        ({"listeners": f"{CLIENTS},OUT://:9093", MAP: "PLAINTEXT:PLAINTEXT,OTU:SSL"}, "No security protocol defined for"),
        ({"listeners": f"{CLIENTS},OUT://:9093"}, "No security protocol defined for listener OUT"),
        ({"listeners": "SSL://:1,CONTROLLER://:2", **PEM}, "No security protocol defined for listener CONTROLLER"),
        ({"early.start.listeners": "X"}, "early.start.listeners contains listener X, but this is not"),
        ({"listeners": CLIENTS, MAP: "PLAINTEXT:TLS"}, "'PLAINTEXT:TLS' is not of the form LISTENER:PROTOCOL"),
        ({INTER: "SASL_SSL"}, "inter.broker.listener.name must be a listener name defined in advertised.listeners"),
        ({INTER: "SSL", "inter.broker.listener.name": "PLAINTEXT"}, "Only one of inter.broker.listener.name and security."),
        ({INTER: "SSL", "listeners": "SSL://:9093", MAP: "SSL:PLAINTEXT"}, "is mapped to another protocol"),
        ({INTER: "SSL"}, "inter.broker.listener.name must be a listener name defined in advertised.listeners"),
        ({"authorizer.class.name": "org.example.Own"}, "authorizer.class.name is not enforced"),
        ({**AUTHORIZER, "super.users": "User:a; b"}, "expected a string in format principalType:principalName but got b"),
        ({**AUTHORIZER, "early.start.listeners": "X"}, "early.start.listeners contains listener X, but this is not"),
        ({"principal.builder.class": "org.example.Own"}, "principal.builder.class is not enforced"),
        ({"listener.name.plaintext.principal.builder.class": "org.example.Own"}, "listener.name.plaintext.principal."),
        ({"client.quota.callback.class": "org.example.Own"}, "client.quota.callback.class is not enforced"),
        ({"create.topic.policy.class.name": "org.example.Own"}, "create.topic.policy.class.name is not enforced"),
        ({"alter.config.policy.class.name": "org.example.Own"}, "alter.config.policy.class.name is not enforced"),
        ({"security.providers": "org.example.Own"}, "security.providers is not enforced"),
    ],
)  # fmt: skip
def test_what_is_not_enforced_is_refused(settings: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_configs, "find_spec", lambda _: None)  # the package gssapi may be installed
    with pytest.raises(ConfigError) as refusal:
        load_config(None, LOOPBACK | settings)
    assert words in str(refusal.value)


def test_a_refusal_shows_no_secret() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(None, LOOPBACK | {"security.providers": "hunter2"})
    assert "hunter2" not in str(refusal.value)


TLS = {"listeners": f"{CLIENTS},OUT://:9093", MAP: "PLAINTEXT:PLAINTEXT,OUT:SSL"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "listener OUT: TLS needs ssl.keystore.location or ssl.keystore.certificate.chain and ssl.keystore.key"),
        ({"ssl.keystore.location": "/k"}, "SSL key store is specified, but ssl.keystore.password is not specified"),
        ({**PEM, "listener.name.out.ssl.keystore.type": "JCEKS"}, "ssl.keystore.type=JCEKS is not supported"),
        ({"ssl.keystore.key": "hunter2"}, "can be specified only for PEM, but ssl.keystore.type is JKS"),
        ({**PEM, "ssl.keystore.password": "hunter2"}, "SSL keystore password cannot be specified with PEM format"),
        ({**PEM, "ssl.keystore.key": "hunter2"}, "set either ssl.keystore.location or ssl.keystore.key, not both"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.key": "hunter2"}, "ssl.keystore.key must be set together"),
        ({**PEM, "ssl.client.auth": "required"}, "TLS needs ssl.truststore.location or ssl.truststore.certificates"),
        ({**PEM, "listener.name.out.ssl.client.auth": "yes"}, "ssl.client.auth must be one of none, requested, required"),
        ({**PEM, "ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols must be a list of TLSv1.2 and TLSv1.3"),
        ({**PEM, "ssl.engine.factory.class": "org.example.Own"}, "ssl.engine.factory.class=org.example.Own is not supported"),
    ],
)  # fmt: skip
def test_what_a_tls_listener_does_not_enforce_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(None, TLS | settings)
    assert words in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_file_has_the_escapes_of_java(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("ssl.principal.mapping.rules=RULE:^CN=(\\\\w+)$/$1/\nssl.key.password=a\\u00e4\\n\\:b\n")
    given = load_config(str(file), LOOPBACK).given
    assert (given["ssl.principal.mapping.rules"], given["ssl.key.password"]) == (r"RULE:^CN=(\w+)$/$1/", "aä\n:b")


def test_brokers_may_talk_to_each_other_over_the_tls_listener() -> None:
    config = load_config(None, PEM | {"listeners": f"{CLIENTS},SSL://:9093", INTER: "SSL"})
    assert config.inter_broker_listener == "SSL"
    assert find_ssl_error({}, "CONTROLLER", is_served=False) is None


def test_the_settings_of_a_tls_listener_override_the_general_ones() -> None:
    settings = {**PEM, "ssl.client.auth": "required", "listener.name.out.ssl.client.auth": "none"}
    listener = ssl_settings(load_config(None, TLS | settings).given, "OUT")
    assert (listener.client_auth, listener.truststore, listener.keystore) == ("none", None, ("/k", "", "PEM", ""))


def test_client_auth_counts_on_a_sasl_listener_only_with_its_prefix() -> None:
    for settings, expected in (({}, "none"), ({"listener.name.out.ssl.client.auth": "required"}, "required")):
        given = {**PEM, "ssl.client.auth": "required", **settings}
        assert ssl_settings(given, "OUT", has_sasl=True).client_auth == expected
        error = find_ssl_error(given, "OUT", is_served=True, has_sasl=True)
        assert (error is not None and "TLS needs ssl.truststore.location" in error) == (expected == "required")


@pytest.mark.parametrize("name", ["ssl.client.auth", "listener.name.out.ssl.client.auth"])
def test_tls_settings_cannot_be_changed_at_run_time(name: str) -> None:
    for settings, is_refused in ((TLS | PEM, True), (LOOPBACK, False)):
        error = DynamicBrokerConfig(load_config(None, settings)).validation_error({}, {name: "none"})
        assert (error is not None and f"{name} cannot be changed at run time" in error) == is_refused


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("sasl.enabled.mechanisms", True),
        ("sasl.mechanism.inter.broker.protocol", True),
        ("listener.name.sasl_plaintext.sasl.enabled.mechanisms", True),
        ("listener.name.sasl_plaintext.plain.sasl.jaas.config", True),
        ("listener.name.sasl_plaintext.connections.max.reauth.ms", True),
        ("listener.name.sasl_plaintext.max.connections", False),
        ("listener.name.plaintext.connections.max.reauth.ms", False),
        ("sasl.jaas.config", False),
        ("num.io.threads", False),
    ],
)
def test_sasl_settings_with_an_effect_cannot_be_changed_at_run_time(name: str, *, is_refused: bool) -> None:
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required user_a=b;"
    sasl = {
        "listeners": f"{CLIENTS},SASL_PLAINTEXT://:9093",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
    }
    for settings, has_sasl in ((sasl, True), (LOOPBACK, False)):
        error = DynamicBrokerConfig(load_config(None, settings)).validation_error({}, {name: "9"})
        assert (error is not None and f"{name} cannot be changed at run time" in error) == (is_refused and has_sasl)


@pytest.mark.parametrize(
    "settings",
    [
        {MAP: "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"},
        {"listeners": "SSL://:9092", MAP: "SSL:PLAINTEXT"},
        {"listeners": f"{CLIENTS},CONTROLLER://:9093"},
        {"listeners": f"{CLIENTS},external://:9093", MAP: "PLAINTEXT:PLAINTEXT,External:PLAINTEXT"},
        {
            "ssl.keystore.location": "/k",
            "ssl.client.auth": "required",
            "listener.name.external.ssl.client.auth": "required",
        },
        {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": "x",
            "sasl.jaas.config": "x",
        },
        {"super.users": "User:admin", "allow.everyone.if.no.acl.found": "false", "early.start.listeners": ""},
        {**AUTHORIZER, "super.users": "User:a;User:CN=b,O=c; ", "early.start.listeners": "plaintext"},
        {"password.encoder.secret": "x"},
        {"authorizer.class.name": "", "security.inter.broker.protocol": "PLAINTEXT", "client.quota.callback.class": ""},
    ],
)
def test_settings_that_restrict_no_client_in_kafka_are_accepted(settings: dict[str, str]) -> None:
    load_config(None, LOOPBACK | settings)


def test_no_default_is_refused() -> None:
    defaults = {name: setting.default for name, setting in IGNORED_AND_SSL.items() if setting.default is not None}
    assert find_unenforced_value(defaults) is None


def test_a_dynamic_setting_that_is_not_enforced_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, LOOPBACK)
    changed = apply_dynamic_configs(config, {"principal.builder.class": "org.example.Own", "max.connections": "7"})
    assert (changed.given.get("principal.builder.class"), changed.number("max.connections")) == (None, 7)
    assert "principal.builder.class" in caplog.text


@pytest.mark.parametrize(
    ("protocol", "number"), [("PLAINTEXT", 0), ("SSL", 1), ("SASL_PLAINTEXT", 2), ("SASL_SSL", 3), ("sasl_ssl", 3)]
)
def test_protocols_are_registered_by_kafkas_ids(protocol: str, number: int) -> None:
    assert protocol_id(BrokerConfig({"listeners": "OUT://:1", MAP: f"OUT:{protocol}"}), "OUT") == number


@pytest.mark.parametrize("name", ["broker", "combined", "controller", "server"])
def test_the_commented_security_settings_of_the_examples_are_accepted(tmp_path: Path, name: str) -> None:
    text = (Path(__file__).parents[4] / "config" / f"{name}.properties").read_text()
    served, _, security = text.partition("# --- security ---")
    file = tmp_path / "server.properties"
    file.write_text(served + re.sub(r"^#(?! TLS)", "", security.partition("\n")[2], flags=re.MULTILINE))
    config = load_config(str(file), {})
    listeners = [*(endpoint.name for endpoint in config.listeners), *config.controller_listener_names]
    assert {protocol_id(config, listener) for listener in listeners} == {3}
    credentials = controller_credentials(config)
    assert credentials is not None
    assert credentials.user == "node"

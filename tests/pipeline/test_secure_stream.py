"""Our own connections to a broker, on every security profile."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka")

from barnabas.client.client_settings import security_of
from barnabas.client.errors import ClientError
from barnabas.client.first_contact import check_answers
from barnabas.client.secure_stream import ask, connect
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.settings import BrokerSettings
from tests.support.security_profiles import PROFILES, Login, SecuredNode

DAILY = {"SSL", "SASL_PLAINTEXT/SCRAM-SHA-256", "SASL_SSL/PLAIN"}
API_VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)


@pytest.fixture(
    scope="module",
    params=[name if name in DAILY else pytest.param(name, marks=pytest.mark.long) for name in PROFILES],
)
def node(request: pytest.FixtureRequest) -> Iterator[SecuredNode]:
    with SecuredNode(PROFILES[request.param]) as made:
        yield made


def check(node: SecuredNode, login: Login) -> None:
    check_answers([("127.0.0.1", 1), address(node)], security_of(login.java()))


def test_a_connection_is_ready_for_requests(node: SecuredNode) -> None:
    stream = connect(*address(node), security_of(node.login("bob").java()))
    assert ask(stream, API_VERSIONS)[:6] == struct.pack(">ih", 7, 0)
    stream.close()
    check(node, node.login("bob"))


def address(node: SecuredNode) -> tuple[str, int]:
    host, _, port = node.bootstrap.partition(":")
    return host, int(port)


def test_a_wrong_password_is_one_sentence(node: SecuredNode) -> None:
    if not node.profile.mechanism:
        pytest.skip("no password")
    with pytest.raises(ClientError, match=r"The broker refused the login: Authentication failed.*"):
        check(node, node.login("bob", "wrong"))


def test_another_authority_is_one_sentence(node: SecuredNode) -> None:
    if not node.profile.has_tls:
        pytest.skip("no TLS")
    with pytest.raises(ClientError, match=r"CERTIFICATE_VERIFY_FAILED"):
        check(node, node.login("bob", trusts_node=False))


def test_a_job_with_a_wrong_password_fails_before_its_clients_retry(node: SecuredNode) -> None:
    if not node.profile.mechanism:
        pytest.skip("no password")
    lines = tuple(f"{name}={value}" for name, value in node.login("bob", "wrong").java().items())
    with pytest.raises(ClientError, match="refused the login"):
        Brokers(BrokerSettings(bootstrap=node.bootstrap, kafka=lines))


def test_settings_of_security_that_are_missing_end_a_job_at_once(node: SecuredNode) -> None:
    """A certificate, a login, or both; librdkafka would retry."""
    settings = BrokerSettings(bootstrap=node.bootstrap)
    with pytest.raises(ClientError, match=r"\(--kafka or --command-config\)"):
        Brokers(settings)
    if node.login("bob").java()["security.protocol"] == "SSL":
        tls = {name: text for name, text in node.login("bob").java().items() if "keystore" not in name}
        with pytest.raises(ClientError, match="does it want a certificate of the client"):
            Brokers(BrokerSettings(bootstrap=node.bootstrap, kafka=tuple(f"{name}={tls[name]}" for name in tls)))

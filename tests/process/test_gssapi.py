"""Clients log in with Kerberos (SASL/GSSAPI): a KDC, a node with a key, and a raw client or Apache Kafka's tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaProducer

from barnabas import Broker
from barnabas.embedded import BrokerError
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest
from tests.support.kafka import needs_kafka, run_tool
from tests.support.kerberos import REALM, Realm, why_no_realm
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import handshake, sasl_node, send_token

pytestmark = pytest.mark.skipif(why_no_realm() is not None, reason=str(why_no_realm()))

GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:ALICE",
}


class Node(NamedTuple):
    """A node with the key kafka/localhost, which makes users of principals with one part, in upper case."""

    address: str
    realm: Realm
    broker: Broker


def settings_with(keytab: Path, principal: str = f"kafka/localhost@{REALM}") -> tuple[dict[str, str], str]:
    module = "com.sun.security.auth.module.Krb5LoginModule"
    return sasl_node(
        {
            "sasl.enabled.mechanisms": "GSSAPI",
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": (
                f'{module} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}";'
            ),
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]/U",
            **AUTHORIZER,
        }
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with pytest.MonkeyPatch.context() as patch, Realm(tmp_path_factory.mktemp("realm")) as realm:
        for name, text in realm.environment.items():
            patch.setenv(name, text)
        settings, address = settings_with(realm.key("kafka/localhost"))
        for client in ("alice", "bob", "service/host"):
            realm.key(client)
        with Broker(settings=settings) as broker:
            yield Node(address, realm, broker)


class Login(NamedTuple):
    """What the server answered last, and the client's connection."""

    answer: Any
    client: RawClient


def login(node: Node, user: str, *, layer: int = 1, authorization_id: bytes = b"") -> Login:
    """Logs in as a principal with its key file; the context decides how many tokens there are."""
    import gssapi

    keytab = str(node.realm.config.parent / f"{user.replace('/', '-')}.keytab")
    name = gssapi.Name(f"{user}@{REALM}", gssapi.NameType.kerberos_principal)
    credentials = gssapi.Credentials(
        name=name, usage="initiate", store={"client_keytab": keytab, "ccache": "MEMORY:" + user}
    )
    target = gssapi.Name(f"kafka/localhost@{REALM}", gssapi.NameType.kerberos_principal)
    context = gssapi.SecurityContext(name=target, creds=credentials, usage="initiate")
    client = RawClient(node.address)
    assert handshake(client, "GSSAPI").error_code == ErrorCode.NONE
    token = context.step()
    while True:
        answer = send_token(client, token or b"")
        if answer.error_code != ErrorCode.NONE:
            return Login(answer, client)
        if context.complete:
            break
        token = context.step(bytes(answer.auth_bytes))
    assert context.unwrap(bytes(answer.auth_bytes)).message[0] == 1
    chosen = context.wrap(bytes((layer, 0, 0, 0)) + authorization_id, False).message
    return Login(send_token(client, chosen), client)


@pytest.mark.parametrize("authorization_id", [b"", b"bob"])
def test_a_client_with_a_ticket_is_the_user_of_its_principal(node: Node, authorization_id: bytes) -> None:
    """ALICE is a super user and may list all topics; the authorization id changes nothing."""
    answer, client = login(node, "alice", authorization_id=authorization_id)
    assert (answer.error_code, answer.error_message, bytes(answer.auth_bytes)) == (ErrorCode.NONE, "", b"")
    with client:
        topics = message(MetadataRequest, topics=[{"name": "created"}], allow_auto_topic_creation=True)
        assert client.ask(topics, 12).topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_another_user_has_no_rights(node: Node) -> None:
    answer, client = login(node, "bob")
    assert answer.error_code == ErrorCode.NONE
    with client:
        topics = message(MetadataRequest, topics=[{"name": "created"}], allow_auto_topic_creation=True)
        assert client.ask(topics, 12).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(("user", "layer"), [("service/host", 1), ("alice", 4)])
def test_a_principal_without_a_rule_and_an_encrypting_layer_are_refused(node: Node, user: str, layer: int) -> None:
    answer, client = login(node, user, layer=layer)
    with client:
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, GENERAL)


@pytest.mark.parametrize("token", [b"", b"\x60", b"garbage" * 100])
def test_tokens_that_are_none_are_refused(node: Node, token: bytes) -> None:
    with RawClient(node.address) as client:
        handshake(client, "GSSAPI")
        answer = send_token(client, token)
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, GENERAL)


def test_a_key_file_without_the_key_is_refused_at_the_start(node: Node) -> None:
    settings, _ = settings_with(node.realm.config.parent / "alice.keytab")
    with pytest.raises(BrokerError, match=re.escape("alice.keytab has no usable key of kafka/localhost@")):
        Broker(settings=settings).start()


def test_kafka_python_produces(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(node.realm.config.parent / "alice.keytab"))
    producer = KafkaProducer(
        bootstrap_servers=node.address.replace("127.0.0.1", "localhost"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_domain_name="localhost",
    )
    assert producer.send("of-kerberos-too", b"x").get(timeout=30).offset == 0
    producer.close()


@needs_kafka
def test_kafkas_tools_log_in(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keytab = node.realm.config.parent / "alice.keytab"
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Djava.security.krb5.conf={node.realm.config}")
    (tmp_path / "client.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="alice@{REALM}";\n'
    )
    address = node.address.replace("127.0.0.1", "localhost")
    done = run_tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", address, "--create", "--topic", "of-kerberos",
        "--command-config", tmp_path / "client.properties",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

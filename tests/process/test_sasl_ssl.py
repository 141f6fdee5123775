"""SASL_SSL listeners: clients, peers with another protocol, certificates, and a cluster that uses nothing else."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from barnabas import Broker, Cluster
from barnabas.cluster import free_ports
from broker.config.security_configs import STANDARD_AUTHORIZER
from protocol.messages.metadata import ApiVersionsRequest
from tests.support.certificates import Certificates
from tests.support.raw_client import RawClient
from tests.support.sasl import (
    MECHANISMS,
    MODULE,
    SCRAM_PASSWORD,
    SCRAM_USER,
    add_scram_user,
    jaas,
    listener_address,
    sasl_node,
)
from tests.support.waiting import until

VALUES = [bytes([number % 251]) * size for number, size in enumerate([1, 1000, 60_000, 900_000] * 5)]
LOST = (EOFError, ConnectionResetError)


class Node:
    """A node with a SASL_SSL listener, one that also wants certificates, and the listeners of `sasl_node`."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "ca")
        settings, self.sasl_plaintext = sasl_node()
        self.plaintext = listener_address(settings, "PLAINTEXT")
        self.encrypted, self.mutual = (f"127.0.0.1:{port}" for port in free_ports(2))
        listeners = f"{settings['listeners']},SASL_SSL://{self.encrypted},MUTUAL://{self.mutual}"
        names = f"{settings['listener.security.protocol.map']},SASL_SSL:SASL_SSL,MUTUAL:SASL_SSL"
        del settings["advertised.listeners"]
        settings |= {
            "listeners": listeners,
            "listener.security.protocol.map": names,
            **jaas("sasl_ssl"),
            **jaas("mutual"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.create("node", "/CN=node")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca),
            "ssl.client.auth": "required",  # counts on no listener of this node
            "listener.name.mutual.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^nobody$/x/",  # would close connections with a certificate
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "group.initial.rebalance.delay.ms": "0",
            "super.users": f"User:ANONYMOUS;User:{SCRAM_USER}",
        }
        self.broker = Broker(data_dir=folder / "data", settings=settings)
        self.broker.start()
        add_scram_user(self.plaintext)

    def client(self, user: str, password: str, certificate: Path | None = None) -> dict[str, Any]:
        """Settings of a librdkafka client."""
        given = {
            **librdkafka(self.certificates, "PLAIN" if user == "alice" else "SCRAM-SHA-512"),
            "sasl.username": user, "sasl.password": password,
        }  # fmt: skip
        if certificate is not None:
            given |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
        return given


def librdkafka(certificates: Certificates, mechanism: str) -> dict[str, Any]:
    return {"security.protocol": "SASL_SSL", "ssl.ca.location": str(certificates.ca), "sasl.mechanism": mechanism}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("sasl_ssl"))
    yield node
    node.broker.close()


def metadata(address: str, settings: dict[str, str], timeout_s: float = 10) -> int:
    """The number of brokers that a client of librdkafka sees; raises KafkaException."""
    client = AdminClient({"bootstrap.servers": address, "log_level": 0, **settings})
    return len(client.list_topics(timeout=timeout_s).brokers)


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
def test_kafka_python_and_librdkafka_exchange_records(node: Node, mechanism: str) -> None:
    python = {
        "bootstrap_servers": node.encrypted, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism,
        "sasl_plain_username": SCRAM_USER, "sasl_plain_password": SCRAM_PASSWORD,
        "ssl_cafile": str(node.certificates.ca),
    }  # fmt: skip
    topic = f"records-{mechanism}"
    producer = KafkaProducer(**python)
    for value in VALUES:
        producer.send(topic, value, partition=0).get(20)
    producer.close()
    consumer = KafkaConsumer(**python, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
    consumer.assign([TopicPartition(topic, 0)])
    received = [next(consumer).value for _ in VALUES]
    consumer.close()
    c_settings = librdkafka(node.certificates, mechanism) | {
        "bootstrap.servers": node.encrypted, "sasl.username": SCRAM_USER, "sasl.password": SCRAM_PASSWORD,
        "group.id": mechanism, "auto.offset.reset": "earliest",
    }  # fmt: skip
    with_c = read_all(c_settings, topic, len(VALUES))
    assert [received == VALUES, with_c == VALUES] == [True, True]


def read_all(settings: dict[str, str], topic: str, count: int) -> list[bytes]:
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    received: list[bytes] = []

    def has_all() -> bool:
        received.extend(message.value() or b"" for message in consumer.consume(50, 1))
        return len(received) >= count

    until(has_all, "the consumer receives all records")
    consumer.close()
    return received


def test_a_wrong_password_is_refused_over_tls(node: Node) -> None:
    errors: list[str] = []
    wrong = node.client("alice", "wrong") | {"error_cb": lambda error: errors.append(error.str()), "log_level": 0}
    client = AdminClient({"bootstrap.servers": node.encrypted, **wrong})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)
    client.poll(0.1)
    assert any("Authentication failed: Invalid username or password" in text for text in errors), errors


def test_certificates_are_wanted_by_the_listeners_own_setting_and_the_name_is_that_of_sasl(node: Node) -> None:
    certificate = node.certificates.create("client", "/CN=client")
    stranger = Certificates(node.certificates.ca.parent / "other").create("stranger", "/CN=client")
    assert metadata(node.mutual, node.client("alice", "alice-secret", certificate)) == 1
    for refused in (None, stranger):
        with pytest.raises(KafkaException):
            metadata(node.mutual, node.client("alice", "alice-secret", refused), timeout_s=2)
    client = AdminClient({"bootstrap.servers": node.mutual, **node.client("alice", "alice-secret", certificate)})
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        client.create_topics([NewTopic("denied", 1, 1)])["denied"].result(20)
    assert "Principal = User:alice is Denied operation = CREATE" in node.broker.log()
    assert "ssl.client.auth without the prefix listener.name.sasl_ssl. does not count" in node.broker.log()


def test_a_client_without_tls_costs_one_log_line(node: Node) -> None:
    before = node.broker.log().count("(does the client use TLS?)")
    with RawClient(node.encrypted) as client:
        client.send(ApiVersionsRequest(), 0)
        with pytest.raises((*LOST, ValueError)):  # the alert is no frame
            client.receive_frame()
    until(lambda: node.broker.log().count("(does the client use TLS?)") == before + 1, "one line")


def test_a_tls_client_on_a_port_without_tls_costs_one_log_line(node: Node) -> None:
    host, port = node.sasl_plaintext.split(":")
    with pytest.raises(OSError), socket.create_connection((host, int(port))) as client:
        ssl.create_default_context(cafile=node.certificates.ca).wrap_socket(client, server_hostname="localhost")
    assert node.broker.log().count("the client uses TLS, but this listener does not") == 1


def cluster_settings(certificates: Certificates) -> dict[str, str]:
    users = 'username="node" password="node-secret" user_node="node-secret" user_alice="alice-secret";'
    plain = f"{MODULE}.plain.PlainLoginModule required {users}"
    return {
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,PLAINTEXT:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": plain,
        "listener.name.controller.plain.sasl.jaas.config": plain,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.create("node", "/CN=node")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:node;User:alice",
    }


@pytest.mark.long
def test_three_nodes_talk_sasl_ssl_on_all_listeners(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "ca")
    with Cluster(3, data_dir=tmp_path / "data", settings=cluster_settings(certificates)) as cluster:
        client = librdkafka(certificates, "PLAIN") | {
            "bootstrap.servers": cluster.bootstrap, "sasl.username": "alice", "sasl.password": "alice-secret",
        }  # fmt: skip
        new_topic = NewTopic("t", num_partitions=3, replication_factor=3, config={"min.insync.replicas": "3"})
        administrator = AdminClient(client)
        administrator.create_topics([new_topic], operation_timeout=20)["t"].result(20)
        producer = Producer({**client, "acks": "all"})
        values = [b"%d" % number * 1000 for number in range(300)]
        for number, value in enumerate(values):
            producer.produce("t", value, partition=number % 3)
        assert producer.flush(30) == 0
        received = read_all({**client, "group.id": "g", "auto.offset.reset": "earliest"}, "t", len(values))
        assert sorted(received) == sorted(values)
        for broker in cluster.nodes.values():
            assert "TLS handshake failed" not in broker.log()
            assert "-secret" not in broker.log()

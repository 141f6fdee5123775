"""Clients over TLS: with and without certificates, and peers that do not speak it."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from barnabas import Broker
from barnabas.cluster import free_ports
from broker.config.security_configs import STANDARD_AUTHORIZER
from tests.support.certificates import PASSWORD, Certificates
from tests.support.librdkafka import error_of
from tests.support.waiting import until

pytestmark = pytest.mark.smoke

VALUES = [bytes([number % 251]) * size for number, size in enumerate([1, 1000, 60_000, 900_000] * 10)]
SUBJECT = "/C=DE/O=Example, Inc./CN=client"
ANYTHING: Any = None
ANY_ACL = AclBindingFilter(
    ResourceType.ANY, ANYTHING, ResourcePatternType.ANY, ANYTHING, ANYTHING, AclOperation.ANY, AclPermissionType.ANY
)
PRINCIPAL = "User:client@Example"


class Node:
    """A node with one plaintext listener, one that encrypts, one that also wants certificates."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "ca")
        key = self.certificates.create("node", "/CN=node", password=PASSWORD)
        self.client = self.certificates.create("client", SUBJECT)
        self.stranger = Certificates(folder / "other").create("stranger", SUBJECT)
        plain, self._metrics_port, *ports = free_ports(4)
        self.encrypted, self.mutual = (f"127.0.0.1:{port}" for port in ports)
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://{self.encrypted},MUTUAL://{self.mutual}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT",
            "barnabas.metrics.listener": f"HTTP://127.0.0.1:{self._metrics_port}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key),
            "ssl.key.password": PASSWORD,
            "ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.truststore.certificates": self.certificates.ca.read_text().replace("\n", "\\n"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*),O=(\\w+).*$/$1@$2/,DEFAULT",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:ANONYMOUS;{PRINCIPAL}",
        }
        self.broker = Broker(data_dir=folder / "data", settings=settings)
        self.broker.start()

    def ssl(self, certificate: Path | None = None) -> dict[str, str]:
        """Settings of a librdkafka client."""
        settings = {"security.protocol": "SSL", "ssl.ca.location": str(self.certificates.ca)}
        if certificate is not None:
            settings |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
        return settings

    def authentications(self, outcome: str) -> float:
        """How many were successful, or failed, on the listener that encrypts."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        found = re.search(rf'^{outcome}_authentication_total{{listener="SSL"}} (\S+)$', page, re.MULTILINE)
        assert found is not None, page
        return float(found[1])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("tls"))
    yield node
    node.broker.close()


def metadata(address: str, settings: dict[str, str]) -> int:
    """The number of brokers that a client of librdkafka sees; raises KafkaException."""
    client = AdminClient({"bootstrap.servers": address, "log_level": 0, **settings})
    return len(client.list_topics(timeout=4).brokers)


def test_three_clients_read_what_one_wrote(node: Node) -> None:
    producer = Producer({"bootstrap.servers": node.encrypted, "compression.type": "none", **node.ssl()})
    for value in VALUES:
        producer.produce("t", value, partition=0)
    assert producer.flush(20) == 0
    python = KafkaProducer(
        bootstrap_servers=node.encrypted, security_protocol="SSL", ssl_cafile=str(node.certificates.ca)
    )
    python.send("t", b"last", partition=0).get(20)
    python.close()
    expected = [*VALUES, b"last"]

    consumer = Consumer(
        {"bootstrap.servers": node.encrypted, "group.id": "g", "auto.offset.reset": "earliest", **node.ssl()}
    )
    consumer.subscribe(["t"])
    received: list[bytes | None] = []

    def has_all() -> bool:
        received.extend(message.value() for message in consumer.consume(50, 1))
        return len(received) >= len(expected)

    until(has_all, "all records are received")
    consumer.close()
    with_python = KafkaConsumer(
        bootstrap_servers=node.encrypted, security_protocol="SSL", ssl_cafile=str(node.certificates.ca),
        auto_offset_reset="earliest", consumer_timeout_ms=20_000,
    )  # fmt: skip
    with_python.assign([TopicPartition("t", 0)])
    also = [next(with_python).value for _ in expected]
    with_python.close()
    third = asyncio.run(read_with_aiokafka(node, len(expected)))
    assert [received == expected, also == expected, third == expected] == [True, True, True]


async def read_with_aiokafka(node: Node, count: int) -> list[bytes]:
    context = ssl.create_default_context(cafile=node.certificates.ca)
    async with AIOKafkaConsumer(
        "t",
        bootstrap_servers=node.encrypted,
        security_protocol="SSL",
        ssl_context=context,
        auto_offset_reset="earliest",
    ) as consumer:
        return [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(count)]


def test_a_listener_that_requires_certificates_serves_only_their_owners(node: Node) -> None:
    assert metadata(node.mutual, node.ssl(node.client)) == 1
    for certificate in (None, node.stranger):
        assert error_of({"bootstrap.servers": node.mutual, **node.ssl(certificate)})
    assert len(re.findall("the TLS handshake failed: peer did not return a certificate", node.broker.log())) >= 1
    assert "the TLS handshake failed: unable to get local issuer certificate" in node.broker.log()


def test_the_principal_is_the_mapped_subject(node: Node) -> None:
    assert metadata(node.mutual, node.ssl(node.client)) == 1
    other = node.certificates.create("other", "/CN=other")
    client = AdminClient({"bootstrap.servers": node.mutual, **node.ssl(other)})
    assert client.describe_acls(ANY_ACL).result(10) == []  # librdkafka passes over the error code
    assert "Principal = User:CN=other is Denied operation = DESCRIBE" in node.broker.log()


def test_handshakes_are_counted_as_authentications(node: Node) -> None:
    before = [node.authentications(outcome) for outcome in ("successful", "failed")]
    assert metadata(node.encrypted, node.ssl()) == 1
    host, _, port = node.encrypted.partition(":")
    with socket.create_connection((host, int(port)), timeout=10):
        pass  # it goes away, which is no failure
    for _ in range(2):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(100) == b""
    until(lambda: node.authentications("failed") == before[1] + 2, "both failures are counted")
    assert node.authentications("successful") >= before[0] + 1


def test_a_plaintext_client_costs_one_log_line_and_others_are_served(node: Node) -> None:
    before = node.broker.log().count("the TLS handshake failed")
    host, _, port = node.encrypted.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        while client.recv(100):
            pass
    until(lambda: node.broker.log().count("the TLS handshake failed") == before + 1, "one line")
    assert "(does the client use TLS?)" in node.broker.log()
    assert metadata(node.encrypted, node.ssl()) == 1


def test_half_open_handshakes_do_not_delay_other_clients(node: Node) -> None:
    host, _, port = node.encrypted.partition(":")
    silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(200)]
    for client in silent[:100]:
        client.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
    assert metadata(node.encrypted, node.ssl()) == 1
    for client in silent:
        client.close()


def test_a_tls_client_on_a_plaintext_port_costs_one_log_line(node: Node) -> None:
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", node.broker.port)) as client:
        ssl.create_default_context(cafile=node.certificates.ca).wrap_socket(client, server_hostname="localhost")
    assert node.broker.log().count("the client uses TLS, but this listener does not") == 1

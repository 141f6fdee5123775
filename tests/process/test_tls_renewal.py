"""Certificates whose files change while a node runs: new connections get them, present ones stay."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from barnabas import Broker, Cluster
from barnabas.cluster import free_ports
from tests.support.certificates import Certificates
from tests.support.waiting import until

INTERVAL = {"barnabas.ssl.reload.interval.ms": "100"}


class Node:
    """A node that wants certificates, with its stores in two files."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "ca")
        self.key, self.trusted = folder / "key.pem", folder / "trusted.pem"
        replace(self.key, self.certificates.create("node", "/CN=node").read_text())
        replace(self.trusted, self.certificates.ca.read_text())
        plain, tls = free_ports(2)
        self.address = "127.0.0.1", tls
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.key),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
            "ssl.client.auth": "required",
            **INTERVAL,
        }
        self.broker = Broker(data_dir=folder / "data", settings=settings).start()

    def connect(self, certificates: Certificates | None = None) -> ssl.SSLSocket:
        """A connection with a client certificate of an authority; raises OSError."""
        certificates = certificates or self.certificates
        context = ssl.create_default_context(cafile=self.certificates.ca)
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # a refusal is a part of the handshake
        context.load_cert_chain(certificates.create("client", "/CN=client"))
        return context.wrap_socket(socket.create_connection(self.address, timeout=10), server_hostname="localhost")

    def served(self) -> bytes | None:
        with self.connect() as connection:
            return connection.getpeercert(binary_form=True)


def replace(path: Path, text: str) -> None:
    """In one step, as tools that renew certificates do it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.broker.close()


def assert_answers(connection: ssl.SSLSocket) -> None:
    connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))  # ApiVersions, version 0
    assert connection.recv(100)


def test_a_renewed_certificate_serves_new_connections(node: Node) -> None:
    before = node.served()
    with node.connect() as connection:
        replace(node.key, node.certificates.create("renewed", "/CN=node").read_text())
        until(lambda: node.served() != before, "the new certificate")
        assert_answers(connection)
    assert "listener SSL uses new certificates for new connections" in node.broker.log()


def test_an_unusable_file_costs_one_line_and_the_certificate_stays(node: Node) -> None:
    before = node.served()
    for text, words in (
        ("damaged", "has no usable key and certificate"),
        (node.certificates.create("other", "/CN=other").read_text(), "existing={alias=kafka, DN=CN=node}, new={alias"),
    ):
        replace(node.key, text)
        until(lambda words=words: words in node.broker.log(), "the warning")  # type: ignore[misc]
        assert node.served() == before
    assert node.broker.log().count("keeps its certificates") == 2
    replace(node.key, node.certificates.create("node", "/CN=node").read_text())
    until(lambda: node.served() != before, "the new certificate")


def test_a_replaced_truststore_refuses_the_certificates_of_the_old_authority(node: Node, tmp_path: Path) -> None:
    new = Certificates(tmp_path / "new")
    with pytest.raises(OSError):
        node.connect(new)
    with node.connect() as connection:
        replace(node.trusted, new.ca.read_text())
        until(lambda: "uses new certificates" in node.broker.log(), "the new truststore")
        with node.connect(new) as accepted:
            assert_answers(accepted)
        with pytest.raises(OSError):
            node.connect()
        assert_answers(connection)


def test_nodes_renew_the_certificates_with_which_they_connect(tmp_path: Path) -> None:
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")
    key, trusted = tmp_path / "key.pem", tmp_path / "trusted.pem"
    replace(key, old.create("node", "/CN=node").read_text())
    replace(trusted, old.ca.read_text() + new.ca.read_text())
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(key),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted),
        "ssl.client.auth": "required", **INTERVAL,
    }  # fmt: skip
    with Cluster(2, 1, data_dir=tmp_path / "data", settings=settings) as cluster:
        for path, text in ((key, new.create("node", "/CN=node").read_text()), (trusted, new.ca.read_text())):
            counts = [node.log().count("uses new certificates") for node in cluster.nodes.values()]
            replace(path, text)

            def have_all(counts: list[int] = counts) -> bool:
                now = [node.log().count("uses new certificates") for node in cluster.nodes.values()]
                return all(after >= before + 2 for before, after in zip(counts, now, strict=True))

            until(have_all, "all nodes use the new certificates on their listeners")
        follower = cluster.nodes[2]
        follower.stop()
        follower.start()  # the others reconnect to it, and it to them
        client = str(new.create("client", "/CN=client"))
        admin = AdminClient({
            "bootstrap.servers": cluster.bootstrap, "security.protocol": "SSL", "ssl.ca.location": str(new.ca),
            "ssl.certificate.location": client, "ssl.key.location": client,
        })  # fmt: skip
        assert len(admin.list_topics(timeout=20).brokers) == 2

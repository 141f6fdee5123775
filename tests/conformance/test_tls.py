"""Certificates, mapping rules, protocols and wrong ports: clients get what Apache Kafka gives them.

RULES    1. A case is a listener and a client; its answer is the operations on the cluster that the client's principal may do,
            which tell principals apart, or that the connection was closed.
         2. `make goldens` records the answers of Apache Kafka.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas import Broker
from barnabas.cluster import free_ports
from broker.config.security_configs import STANDARD_AUTHORIZER
from protocol.messages.acls import AclCreation, CreateAclsRequest
from protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tests.conformance.brokers import KAFKA, RECORDED
from tests.support.certificates import Certificates
from tests.support.goldens import as_json, check_golden, golden
from tests.support.kafka import ApacheKafka
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import MODULE, handshake, plain_token, send_token

LISTENERS: Final = ("NONE", "REQUESTED", "REQUIRED", "RULES", "OLDER", "SUITE", "SASL", "SASLCERT")
RULES: Final = "RULE:^CN=([a-z]+),O=([^,]+)$/$1@$2/L, RULE:^(.*),OU=([a-z]+)$/$2/U"
ACLS: Final = {
    "User:CN=client,O=Example": [7], "User:CN=\\ client\\,\\=,O=Example": [7, 5], "User:client@example": [10],
    "User:OPS": [11], "User:alice": [12],
}  # fmt: skip
"""Operations by principal: Alter 7, Create 5, DescribeConfigs 10, AlterConfigs 11, IdempotentWrite 12."""
DESCRIBE, ALLOW, CLUSTER, LITERAL = 8, 3, 4, 3
SUBJECTS: Final = {
    "client": "/O=Example/CN=client",
    "special": "/O=Example/CN= client,=",
    "ops": "/OU=ops/O=Example/CN=client",
    "unmapped": "/C=DE/O=Example/CN=unmapped",
}
CLOSED: Final = "closed"


class Node:
    """A node of either kind with a plaintext listener and many with TLS."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.certificates = Certificates(folder / "ca")
        self.keys = {name: self.certificates.create(name, subject) for name, subject in SUBJECTS.items()}
        self.keys["stranger"] = Certificates(folder / "other").create("stranger", SUBJECTS["client"])
        plain, controller, *ports = free_ports(2 + len(LISTENERS))
        self.ports = dict(zip(("PLAINTEXT", *LISTENERS), (plain, *ports), strict=True))
        protocols = {name: "SASL_SSL" if name.startswith("SASL") else "SSL" for name in LISTENERS}
        protocols |= {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        advertised = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        plain_jaas = f'{MODULE}.plain.PlainLoginModule required user_alice="alice-secret";'
        settings = {
            "listeners": f"{advertised},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": advertised,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.create("node", "/CN=node")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca),
            "ssl.client.auth": "required",
            "listener.name.none.ssl.client.auth": "none",
            "listener.name.requested.ssl.client.auth": "requested",
            "listener.name.rules.ssl.principal.mapping.rules": RULES,
            "listener.name.older.ssl.enabled.protocols": "TLSv1.2",
            "listener.name.suite.ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": plain_jaas,
            "listener.name.saslcert.plain.sasl.jaas.config": plain_jaas,
            "listener.name.saslcert.ssl.client.auth": "required",
            "listener.name.saslcert.ssl.principal.mapping.rules": "RULE:^nothing$/x/",
        }
        if kind == KAFKA:
            kafka = ApacheKafka(settings, address=("127.0.0.1", plain))
            kafka.controller_port = controller
            self.broker: Any = kafka
        else:
            self.broker = Broker(settings=settings)

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def grant(self) -> None:
        rows = [
            AclCreation(
                resource_type=CLUSTER, resource_name="kafka-cluster", resource_pattern_type=LITERAL, principal=principal,
                host="*", operation=operation, permission_type=ALLOW,
            )
            for principal, operations in ACLS.items() for operation in (DESCRIBE, *operations)
        ]  # fmt: skip
        with RawClient(self.address("PLAINTEXT")) as client:
            answer = client.ask(CreateAclsRequest(creations=rows), 3)
        assert {result.error_code for result in answer.results} == {0}

    def context(self, certificate: str, version: ssl.TLSVersion) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.certificates.ca)
        context.minimum_version = context.maximum_version = version
        if version < ssl.TLSVersion.TLSv1_2:
            context.set_ciphers("ALL:@SECLEVEL=0")
        if certificate:
            context.load_cert_chain(self.keys[certificate])
        return context

    def ask(self, listener: str, certificate: str, version: ssl.TLSVersion, user: str = "") -> Any:
        """The protocol, the suite of TLS 1.2, and the operations; or that the connection was closed."""
        try:
            with RawClient(self.address(listener), timeout_s=20) as client:
                client.socket = tls = self.context(certificate, version).wrap_socket(
                    client.socket, server_hostname="localhost"
                )
                if user:
                    handshake(client, "PLAIN")
                    if send_token(client, plain_token(user, "alice-secret")).error_code:
                        return "refused"
                request = message(MetadataRequest, topics=[], include_cluster_authorized_operations=True)
                operations = client.ask(request, 10).cluster_authorized_operations
                suite = tls.cipher()
                assert suite is not None
                return [tls.version(), suite[0] if version == ssl.TLSVersion.TLSv1_2 else "", f"{operations:b}"]
        except (EOFError, OSError):
            return CLOSED


def wrong_ports(node: Node) -> dict[str, Any]:
    """Peers with another protocol than the listener."""
    answers = {}
    for listener in ("NONE", "SASL"):
        with RawClient(node.address(listener), timeout_s=20) as client:
            client.send(ApiVersionsRequest(), 0)
            try:
                received = client.socket.recv(1)
            except ConnectionError:
                received = b""
            answers[f"plaintext on {listener}"] = "an answer" if received == b"\0" else CLOSED
    with socket.create_connection(("127.0.0.1", node.ports["PLAINTEXT"]), timeout=20) as plain:
        try:
            node.context("", ssl.TLSVersion.TLSv1_3).wrap_socket(plain, server_hostname="localhost")
        except OSError:
            answers["TLS on PLAINTEXT"] = CLOSED
    return answers


def cases(node: Node) -> dict[str, Callable[[], Any]]:
    newest, older, oldest = ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1
    found: dict[str, Callable[[], Any]] = {}
    for listener in ("NONE", "REQUESTED", "REQUIRED", "RULES"):
        for certificate in ("", *node.keys):
            for version in (newest, older):
                ask = partial(node.ask, listener, certificate, version)
                found[f"{listener} {certificate} {version.name}"] = ask
    for listener in ("NONE", "OLDER", "SUITE"):
        for version in (newest, older, oldest):
            found[f"{listener} {version.name}"] = partial(node.ask, listener, "client", version)
    for listener in ("SASL", "SASLCERT"):
        for certificate in ("", "client", "unmapped", "stranger"):
            for user in ("alice", "eve"):
                found[f"{listener} {certificate} {user}"] = partial(node.ask, listener, certificate, older, user)
    return found


@pytest.mark.parametrize("kind", RECORDED)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_clients_get_what_is_recorded(kind: str, tmp_path: Path) -> None:
    node = Node(tmp_path, kind)
    with node.broker:
        node.grant()
        answers = {name: case() for name, case in cases(node).items()} | wrong_ports(node)
    if kind == KAFKA:
        check_golden("tls", answers)
    else:
        ours, theirs = as_json(answers), golden("tls")
        assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}

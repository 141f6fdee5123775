"""Security profiles: a protocol and a mechanism, a node that is closed with them, and the settings of its clients.

RULES    1. The node's clients use its secured listener. A second listener without security is the tests' own way in: its
            clients are `User:ANONYMOUS`, a super user, and create users and ACLs.
         2. No other user has a right that `allow` has not granted.
         3. A profile's name is PROTOCOL or PROTOCOL/MECHANISM.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from barnabas import Broker
from barnabas.cluster import free_ports
from broker.config.security_configs import STANDARD_AUTHORIZER
from protocol.errors import ErrorCode
from protocol.messages.acls import AclCreation, AclFilter, CreateAclsRequest, DeleteAclsRequest
from protocol.schema import Message
from replication.metadata.acls import CLUSTER_NAME, OperationCode, PatternCode, PermissionCode, ResourceCode
from tests.support.certificates import Certificates
from tests.support.kafka import ApacheKafka
from tests.support.raw_client import RawClient
from tests.support.sasl import MODULE, SCRAM_JAAS, add_scram_user

USERS = ("alice", "bob")


class Profile(NamedTuple):
    """How clients connect; the mechanism is empty without SASL."""

    protocol: str
    mechanism: str = ""

    @property
    def name(self) -> str:
        return f"{self.protocol}/{self.mechanism}" if self.mechanism else self.protocol

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def principal(self, user: str) -> str:
        """The principal of a user: the name of SASL, or the subject of the certificate."""
        return f"User:{user}" if self.mechanism else f"User:CN={user}"


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("SSL"),
        *(
            Profile(protocol, mechanism)
            for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
            for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        ),
    )
}


class Login(NamedTuple):
    """How one client connects. `ca` and `certificate` are PEM files; the second contains the key too."""

    protocol: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    ca: str = ""
    certificate: str = ""

    def librdkafka(self) -> dict[str, str]:
        """The settings of librdkafka."""
        return _given({
            "security.protocol": self.protocol, "sasl.mechanism": self.mechanism, "sasl.username": self.user,
            "sasl.password": self.password, "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate, "ssl.key.location": self.certificate,
        })  # fmt: skip

    def java(self) -> dict[str, str]:
        """The settings of Java's clients and tools."""
        module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
        jaas = f'{MODULE}.{module} required username="{self.user}" password="{self.password}";'
        return _given({
            "security.protocol": self.protocol, "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": jaas if self.mechanism else "",
            "ssl.truststore.type": "PEM" if self.ca else "", "ssl.truststore.location": self.ca,
            "ssl.keystore.type": "PEM" if self.certificate else "", "ssl.keystore.location": self.certificate,
        })  # fmt: skip


def _given(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in settings.items() if text}


class SecuredNode:
    """One node of Barnabas, or of Apache Kafka with `kafka`, during a `with` block."""

    def __init__(self, profile: Profile, settings: Mapping[str, object] | None = None, *, kafka: bool = False) -> None:
        self.profile = profile
        self._temporary = tempfile.TemporaryDirectory(prefix="secured-node-")
        self._certificates = Certificates(Path(self._temporary.name) / "ca")
        self._other_authority = Certificates(Path(self._temporary.name) / "other")
        client, inside, controller = free_ports(3)
        self.bootstrap = f"127.0.0.1:{client}"
        """The address of the secured listener."""
        self.inside = f"127.0.0.1:{inside}"
        """The address of the tests' own listener."""
        own: Any = {**self._settings(f"127.0.0.1:{controller}"), **(settings or {})}
        if kafka:
            node = ApacheKafka(own, address=("127.0.0.1", inside))
            node.controller_port = controller
            self.broker: Any = node
        else:
            self.broker = Broker(settings=own)

    def __enter__(self) -> Self:
        self.broker.__enter__()
        if self.profile.mechanism.startswith("SCRAM"):
            for user in USERS:
                add_scram_user(self.inside, user, password_of(user))
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.__exit__(None, None, None)
        self._temporary.cleanup()

    def login(self, user: str, password: str | None = None, *, trusts_node: bool = True) -> Login:
        """How a user connects: with its own password or another one, or with another authority than the node's."""
        mechanism, has_tls = self.profile.mechanism, self.profile.has_tls
        ca = self._certificates.ca if trusts_node else self._other_authority.ca
        return Login(
            self.profile.protocol,
            mechanism,
            user if mechanism else "",
            (password or password_of(user)) if mechanism else "",
            str(ca) if has_tls else "",
            "" if mechanism else str(self._certificates.create(user, f"/CN={user}")),
        )

    def allow(
        self, user: str, operations: str, resource: str, name: str = CLUSTER_NAME, pattern: str = "literal"
    ) -> None:
        """Grants operations, separated by spaces, on a resource: topic, group, transactional_id or cluster."""
        creations = [
            AclCreation(
                resource_type=getattr(ResourceCode, resource.upper()),
                resource_name=name,
                resource_pattern_type=getattr(PatternCode, pattern.upper()),
                principal=self.profile.principal(user),
                host="*",
                operation=getattr(OperationCode, operation.upper()),
                permission_type=PermissionCode.ALLOW,
            )
            for operation in operations.split()
        ]
        results = self._ask(CreateAclsRequest(creations=creations), 3).results
        assert {result.error_code for result in results} == {ErrorCode.NONE}, results

    def clear(self, user: str) -> None:
        """Deletes all ACLs of a user."""
        every = AclFilter(
            resource_type_filter=ResourceCode.ANY,
            resource_name_filter=None,
            pattern_type_filter=PatternCode.ANY,
            principal_filter=self.profile.principal(user),
            host_filter=None,
            operation=OperationCode.ANY,
            permission_type=PermissionCode.ANY,
        )
        (result,) = self._ask(DeleteAclsRequest(filters=[every]), 3).filter_results
        assert result.error_code == ErrorCode.NONE, result

    def _ask(self, request: Message, version: int) -> Any:
        with RawClient(self.inside) as client:
            return client.ask(request, version)

    def _settings(self, controller: str) -> dict[str, str]:
        """The settings of the node; rule 1."""
        listeners = f"SECURED://{self.bootstrap},INSIDE://{self.inside},CONTROLLER://{controller}"
        return {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "INSIDE",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,SECURED:{self.profile.protocol}",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            **(self._tls_settings() if self.profile.has_tls else {}),
            **(self._sasl_settings() if self.profile.mechanism else {}),
        }

    def _tls_settings(self) -> dict[str, str]:
        prefix = "listener.name.secured.ssl"
        return {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(self._certificates.create("node", "/CN=node")),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(self._certificates.ca),
            f"{prefix}.client.auth": "none" if self.profile.mechanism else "required",
        }

    def _sasl_settings(self) -> dict[str, str]:
        users = " ".join(f'user_{user}="{password_of(user)}"' for user in USERS)
        plain = f"{MODULE}.plain.PlainLoginModule required {users};"
        mechanism = self.profile.mechanism
        jaas = plain if mechanism == "PLAIN" else SCRAM_JAAS
        return {
            "sasl.enabled.mechanisms": mechanism,
            f"listener.name.secured.{mechanism.lower()}.sasl.jaas.config": jaas,
        }


def password_of(user: str) -> str:
    return f"{user}-secret"

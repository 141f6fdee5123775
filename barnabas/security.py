"""A closed embedded broker: its certificate authority, its users, and the settings of clients that may connect.

    with barnabas.Broker(security=barnabas.Security()) as broker:
        producer = KafkaProducer(**broker.client_settings("kafka-python"))

RULES    1. Each broker has its own authority. Its files are in the broker's temporary folder, and deleted with it.
         2. Passwords are random unless they are given. Those of PLAIN are in the broker's command line, which the users of this
            machine can see; those of SCRAM are in a file with mode 0600.
         3. With the protocol SSL, clients send certificates: a user is the principal User:CN=name instead of User:name.
NOT HERE Certificates (`certificates.py`), the process (`embedded.py`), what each library calls a setting
         (`client/client_settings.py`).
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.client.client_settings import for_kafka_python, for_librdkafka
from barnabas.client.scram import HASHES, salted_password

if TYPE_CHECKING:
    from barnabas.certificates import CertificateAuthority

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN = "PLAIN"
_MODULES = "org.apache.kafka.common.security"
_ITERATIONS = 4096
_SCRAM_NAME = re.compile(r"[ -+\--~]+")
"""ASCII, as in RFC 5802 as Apache Kafka has it; a comma would end the name in the argument that creates the user."""


class SecurityError(ValueError):
    """A protocol, mechanism, user or library does not exist, or a package is missing."""


def _one_user() -> dict[str, str]:
    return {"user": secrets.token_urlsafe(12)}


@dataclass(frozen=True, kw_only=True)
class Security:
    """Which clients may connect to an embedded broker.

    With `has_acls`, the first user is a super user, and all others have no rights until ACLs are created.
    """

    protocol: str = "SASL_SSL"
    """SASL_SSL, SSL or SASL_PLAINTEXT."""
    mechanism: str = "SCRAM-SHA-512"
    """SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN; not for the protocol SSL."""
    users: Mapping[str, str] = field(default_factory=_one_user, repr=False)
    """Passwords by user. SCRAM's are stored when the data directory is created: later changes have no effect there."""
    has_acls: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SecurityError(f"protocol {self.protocol!r} is not one of {', '.join(PROTOCOLS)}")
        if self.mechanism not in (*HASHES, PLAIN):
            raise SecurityError(f"mechanism {self.mechanism!r} is not one of {', '.join((*HASHES, PLAIN))}")
        if not self.users:
            raise SecurityError("users is empty: name one at least")
        if self.uses_sasl:
            for user, password in self.users.items():
                self._check_user(user, password)

    def _check_user(self, user: str, password: str) -> None:
        """Refuses a user with which no client could log in with SASL."""
        if not user or not password:
            raise SecurityError(f"user {user!r} needs a name and a password")
        if self.mechanism != PLAIN and _SCRAM_NAME.fullmatch(user) is None:
            raise SecurityError(
                f"user {user!r} cannot be one of SCRAM: use ASCII without commas, or the mechanism PLAIN"
            )

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol != "SASL_PLAINTEXT"

    @property
    def uses_sasl(self) -> bool:
        """Whether users have passwords."""
        return self.protocol != "SSL"


class _Files(NamedTuple):
    """PEM files."""

    authority: Path
    node: Path
    clients: Mapping[str, Path]
    """By user; only for the protocol SSL."""


class BrokerSecurity:
    """The security of one broker."""

    def __init__(self, security: Security, folder: Path, host: str) -> None:
        """Creates authority and certificates in the folder.

        Raises:
            SecurityError: a package is missing.
        """
        self._security = security
        self._users_path = folder / "users.scram"
        self._files = _issue(security, folder, host) if security.uses_tls else None

    def broker_settings(self, address: str) -> dict[str, str]:
        """The settings of the broker, which listens on this address."""
        security = self._security
        protocol = security.protocol
        settings = {"listeners": f"{protocol}://{address}", "security.inter.broker.protocol": protocol}
        if security.uses_sasl:
            prefix = f"listener.name.{protocol.lower()}.{security.mechanism.lower()}"
            settings["sasl.enabled.mechanisms"] = security.mechanism
            settings[f"{prefix}.sasl.jaas.config"] = self._broker_jaas()
        if self._files is not None:
            settings |= _java_store("keystore", self._files.node) | _java_store("truststore", self._files.authority)
        if not security.uses_sasl:
            settings["ssl.client.auth"] = "required"
        if security.has_acls:
            settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            settings["super.users"] = self.principal(next(iter(security.users)))
        return settings

    def arguments(self) -> list[str]:
        """The arguments of the broker's command line that create the users of SCRAM; writes the file that they name."""
        security = self._security
        if not security.uses_sasl or security.mechanism == PLAIN:
            return []
        lines = []
        for user, password in security.users.items():
            salt = secrets.token_bytes(20)
            salted = salted_password(security.mechanism, password, salt, _ITERATIONS)
            values = f'salt="{_base64(salt)}",saltedpassword="{_base64(salted)}",iterations={_ITERATIONS}'
            lines.append(f'{security.mechanism}=[name="{user}",{values}]\n')
        self._users_path.parent.mkdir(mode=0o700, exist_ok=True)
        write_secret(self._users_path, "".join(lines))
        return ["--add-scram", f"@{self._users_path}"]

    def principal(self, user: str) -> str:
        """The name of a user in ACLs and in `super.users`."""
        return f"User:{user}" if self._security.uses_sasl else f"User:CN={user}"

    def client_settings(self, library: str, bootstrap: str, user: str | None) -> dict[str, Any]:
        """The settings of a library's clients that connect as a user; None: the first one.

        Raises:
            SecurityError: the library or the user is unknown.
        """
        user = next(iter(self._security.users)) if user is None else user
        if user not in self._security.users:
            raise SecurityError(f"user {user!r} is not one of {', '.join(self._security.users)}")
        translations: dict[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
            "kafka-python": _for_python,
            "aiokafka": _for_python,
            "confluent-kafka": for_librdkafka,
            "java": dict,
        }
        if library not in translations:
            raise SecurityError(f"library {library!r} is not one of {', '.join(translations)}")
        return translations[library]({"bootstrap.servers": bootstrap, **self._java(user)})

    def _broker_jaas(self) -> str:
        if self._security.mechanism != PLAIN:
            return f"{_MODULES}.scram.ScramLoginModule required;"
        return plain_jaas(self._security.users)

    def _java(self, user: str) -> dict[str, str]:
        """The settings of TLS and SASL of Java's clients."""
        security = self._security
        settings = {"security.protocol": security.protocol}
        if security.uses_sasl:
            module = "plain.PlainLoginModule" if security.mechanism == PLAIN else "scram.ScramLoginModule"
            login = f"username={_quoted(user)} password={_quoted(security.users[user])}"
            settings["sasl.mechanism"] = security.mechanism
            settings["sasl.jaas.config"] = f"{_MODULES}.{module} required {login};"
        if self._files is not None:
            settings |= _java_store("truststore", self._files.authority)
            if user in self._files.clients:
                settings |= _java_store("keystore", self._files.clients[user])
        return settings


def _for_python(settings: Mapping[str, str]) -> dict[str, Any]:
    """The keyword arguments of kafka-python's and aiokafka's clients."""
    return {"bootstrap_servers": settings["bootstrap.servers"], **for_kafka_python(settings)}


def _issue(security: Security, folder: Path, host: str) -> _Files:
    authority = _new_authority(folder)
    node = authority.issue_node("node", [*dict.fromkeys((host, "localhost", "127.0.0.1"))])
    users = () if security.uses_sasl else security.users
    if node.path.stem in users:
        raise SecurityError(f"user {node.path.stem} has the name of the broker's certificate: choose another")
    clients = {user: authority.issue_client(user).path for user in users}
    return _Files(authority.certificate_path, node.path, clients)


def _new_authority(folder: Path) -> CertificateAuthority:
    try:
        from barnabas.certificates import CertificateAuthority
    except ImportError as error:
        raise SecurityError(f"TLS needs the package {error.name}: pip install {error.name}") from None
    return CertificateAuthority.open_or_create(folder)


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def plain_jaas(users: Mapping[str, str]) -> str:
    """The JAAS text of a listener with these users of PLAIN."""
    listed = " ".join(f"{_quoted(f'user_{user}')}={_quoted(text)}" for user, text in users.items())
    return f"{_MODULES}.plain.PlainLoginModule required {listed};"


def with_login(jaas: str, user: str, password: str) -> str:
    """The JAAS text of a listener to which its node also connects, as this user."""
    return f"{jaas.removesuffix(';')} username={_quoted(user)} password={_quoted(password)};"


def _java_store(kind: str, path: Path) -> dict[str, str]:
    return {f"ssl.{kind}.type": "PEM", f"ssl.{kind}.location": str(path)}


def _quoted(text: str) -> str:
    """A value in a JAAS text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _base64(data: bytes) -> str:
    return b64encode(data).decode()

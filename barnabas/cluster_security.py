"""The security of an embedded cluster: what `security.py` does for one broker, and how its nodes trust each other.

    with barnabas.Cluster(3, security=barnabas.Security()) as cluster:
        producer = KafkaProducer(**cluster.client_settings("kafka-python"))

FORMAT   DIR/certs/              the authority, the node's and the users' certificates
         DIR/certs/nodes.secret  the password of the nodes' own user
         DIR/nodes.properties    the settings that all nodes share
RULES    1. Brokers connect to each other through the clients' listener: with SASL as a user of their own, otherwise with the
            nodes' certificate. Controllers use mutual TLS, or PLAIN if the protocol has no TLS.
         2. The nodes' user and certificate are super users.
         3. The nodes' password is in files with mode 0600 only, and stays when the cluster is opened again.
NOT HERE Authority, users and the settings of clients (`security.py`).
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from barnabas.security import PLAIN, BrokerSecurity, Security, SecurityError, plain_jaas, with_login, write_secret

_NODE = "barnabas-node"
_CONTROLLER = "listener.name.controller"


class ClusterSecurity:
    """The security of one cluster."""

    def __init__(self, security: Security, folder: Path, host: str) -> None:
        """Creates what does not exist in the folder.

        Raises:
            SecurityError: a package is missing, or a user has the name of the nodes' user.
        """
        if _NODE in security.users:
            raise SecurityError(f"user {_NODE} is the cluster's own: choose another name")
        self._protocol, self._mechanism = security.protocol, security.mechanism
        self._has_acls, self._uses_sasl, self._uses_tls = security.has_acls, security.uses_sasl, security.uses_tls
        self._folder = folder
        self._password = _kept_password(folder / "certs" / "nodes.secret")
        if self._uses_sasl:
            security = replace(security, users={**security.users, _NODE: self._password})
        self._clients = BrokerSecurity(security, folder / "certs", host)

    def arguments(self) -> list[str]:
        """The arguments of every node's command line; writes the files that they name."""
        path = self._folder / "nodes.properties"
        lines = (f"{name}={text.replace(chr(92), chr(92) * 2)}\n" for name, text in self._settings().items())
        write_secret(path, "".join(lines))
        return ["--config", str(path), *self._clients.arguments()]

    def node_settings(self, settings: dict[str, str]) -> dict[str, str]:
        """The settings of one node, whose clients' listener gets the protocol."""
        listeners = settings["listeners"].replace("PLAINTEXT://", f"{self._protocol}://")
        return {**settings, "listeners": listeners}

    def client_settings(self, library: str, bootstrap: str, user: str | None) -> dict[str, Any]:
        """As `BrokerSecurity.client_settings`."""
        return self._clients.client_settings(library, bootstrap, user)

    def _settings(self) -> dict[str, str]:
        settings = self._clients.broker_settings("")
        del settings["listeners"]
        controllers = "SSL" if self._uses_tls else "SASL_PLAINTEXT"
        settings["controller.listener.names"] = "CONTROLLER"
        settings["listener.security.protocol.map"] = f"{self._protocol}:{self._protocol},CONTROLLER:{controllers}"
        if self._uses_sasl:
            settings["sasl.mechanism.inter.broker.protocol"] = self._mechanism
            jaas = f"listener.name.{self._protocol.lower()}.{self._mechanism.lower()}.sasl.jaas.config"
            settings[jaas] = with_login(settings[jaas], _NODE, self._password)
        if self._uses_tls:
            settings[f"{_CONTROLLER}.ssl.client.auth"] = "required"
        else:
            settings["sasl.mechanism.controller.protocol"] = PLAIN
            settings[f"{_CONTROLLER}.sasl.enabled.mechanisms"] = PLAIN
            settings[f"{_CONTROLLER}.plain.sasl.jaas.config"] = with_login(
                plain_jaas({_NODE: self._password}), _NODE, self._password
            )
        if self._has_acls:
            settings["super.users"] += f";User:{_NODE};User:CN=node"
        return settings


def _kept_password(path: Path) -> str:
    """The nodes' password; a random one is created the first time."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(path, secrets.token_urlsafe(24))
    return path.read_text()

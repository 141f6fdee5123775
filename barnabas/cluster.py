"""A cluster for tests and development: several daemons on this machine, each in its own process.

    with barnabas.Cluster(3) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)

FORMAT   DIR/cluster.json     the cluster's id, its initial voters, and each node's settings
         DIR/node-N/          the data of node N
         DIR/node-N.log       the log of node N
         DIR/certs/, DIR/nodes.properties   with security: see cluster_security.py
RULES    1. A cluster in an existing folder keeps its ids, ports and settings; new settings override the old ones.
         2. All nodes start at the same time, since one alone would wait for the others. If one fails, all are stopped.
         3. All nodes stop at the same time, without moving leaders to a node that is about to stop.
         4. The folder and cluster.json are created only after the addresses were bound for a test. A request for another
            cluster in the folder is refused.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from barnabas.cluster_security import ClusterSecurity
from barnabas.embedded import Broker, BrokerError, Service, remove_folder
from barnabas.security import Security, SecurityError

PLAN = "cluster.json"
CONTROLLER_PORT_OFFSET = 100
"""The controllers' ports are this far above the clients'; with more brokers, directly after them."""
_LAST_PORT = 65535
_PER_NODE_SETTINGS = (
    *("node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "log.dir", "log.dirs"),
    *("metadata.log.dir", "controller.quorum.voters", "controller.quorum.bootstrap.servers"),
)
"""Settings that differ between nodes or define the cluster."""


class Cluster(Service):
    """Several brokers and their controllers.

    With `controllers=0` each node has both roles; otherwise `controllers` controller-only nodes are added. Without
    `data_dir` the data are in a temporary directory, which `close()` or the end of the `with` block deletes. The first broker
    listens on `port`, the next ones on the following ports; port 0 takes free ones, or those of the cluster in `data_dir`.
    The default host is that cluster's, or 127.0.0.1. `settings` have Kafka's names and apply to all nodes.
    With `security`, clients connect with the settings that `client_settings` returns; a cluster in `data_dir` keeps the
    users of SCRAM with which it was created, so name them.
    """

    def __init__(
        self,
        nodes: int = 3,
        controllers: int = 0,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        host: str | None = None,
        settings: Mapping[str, object] | None = None,
        security: Security | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        _check_arguments(nodes, controllers, settings or {})
        self._is_temporary, self._owner = data_dir is None, os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="barnabas-cluster-") if data_dir is None else data_dir).absolute()
        if self._is_temporary:
            weakref.finalize(self, remove_folder, self.folder, self._owner)
        try:
            plan = _load_or_create_plan(self.folder, nodes, controllers, host, port)
        except FileExistsError as error:
            raise BrokerError(f"{self.folder} is a file, not a folder: choose another one.") from error
        except OSError as error:
            raise BrokerError(f"{self.folder} cannot hold a cluster: {error.strerror}.") from error
        self.nodes: dict[int, Broker] = {}
        """By id; controller-only nodes are last."""
        bind_host = plan["bootstrap"][0].rpartition(":")[0].strip("[]")
        self._security = None if security is None else ClusterSecurity(security, self.folder, bind_host)
        arguments = ["--cluster-id", plan["cluster_id"], "--initial-controllers", plan["initial_controllers"]]
        if self._security is not None:
            arguments += self._security.arguments()
        for number, planned in plan["nodes"].items():
            node_settings = planned if self._security is None else self._security.node_settings(planned)
            node = self.nodes[int(number)] = Broker(
                self.folder / f"node-{number}",
                settings={**_defaults(len(plan["nodes"]) - plan["controllers"]), **(settings or {}), **node_settings},
                host=bind_host,
                arguments=arguments,
                start_timeout_s=start_timeout_s,
            )
            node.log_path = self.folder / f"node-{number}.log"
        self._bootstrap: list[str] = plan["bootstrap"]

    def _ensure_started(self) -> None:
        self.start()

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients: all brokers, running or not."""
        return ",".join(self._bootstrap)

    def client_settings(self, library: str, user: str | None = None) -> dict[str, Any]:
        """What a client needs to connect, as `Broker.client_settings`.

        Raises:
            SecurityError: the library or the user is unknown, or the cluster has no security.
        """
        if self._security is None:
            raise SecurityError("the cluster has no security: clients need only its bootstrap servers")
        return self._security.client_settings(library, self.bootstrap, user)

    def start(self) -> Self:
        """Starts all stopped nodes, and waits until they accept requests (rule 2)."""
        started = [node for node in self.nodes.values() if not node.is_running]
        try:
            for node in started:
                node.kill()  # cleans up after a node that died
                node.launch()
            for node in started:
                node.wait_until_ready()
        except BaseException:
            for node in started:
                node.kill()
            raise
        return self

    def stop(self) -> None:
        """Stops all nodes cleanly (rule 3); the data remain, and `start` uses them again."""
        running = [node for node in self.nodes.values() if node.is_running]
        for number in (signal.SIGTERM, signal.SIGINT):  # the second signal skips the controlled shutdown
            for node in running:
                node.signal(number)
        failed = []
        for node in running:
            try:
                node.stop()
            except BrokerError as error:
                failed.append(str(error))
        if failed:
            raise BrokerError("\n".join(failed))

    def close(self) -> None:
        """Stops all nodes, and deletes a temporary directory. May be called twice."""
        try:
            with contextlib.suppress(BrokerError):  # the logs are deleted too
                self.stop()
        finally:
            for node in self.nodes.values():
                node.close()
            if self._is_temporary:
                remove_folder(self.folder, self._owner)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Free ports that the kernel assigns to no other socket for a minute, unless it binds them explicitly.

    An accepted and closed connection has that effect: its port is in TIME_WAIT.
    """
    ports = []
    for _ in range(count):
        with _new_socket(host) as listening, _new_socket(host) as caller:
            # The later owner of the port sets this option too.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(listening, host, 0)
            listening.listen(1)
            caller.connect(listening.getsockname())
            accepted, _ = listening.accept()
            accepted.close()  # the side that closes first enters TIME_WAIT
            caller.recv(1)
            ports.append(listening.getsockname()[1])
    return ports


def new_id() -> str:
    """A random id in Kafka's base64 format."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


def _check_arguments(nodes: int, controllers: int, settings: Mapping[str, object]) -> None:
    if nodes < 1:
        raise BrokerError("A cluster needs at least one broker.")
    if controllers < 0:
        raise BrokerError("The number of controllers is 0 (all nodes have both roles) or more.")
    for name in _PER_NODE_SETTINGS:
        if name in settings:
            raise BrokerError(f"{name} cannot be set for all nodes of a cluster: each has its own.")


def _load_or_create_plan(folder: Path, nodes: int, controllers: int, host: str | None, port: int) -> dict[str, Any]:
    """The contents of cluster.json (rule 1)."""
    path = folder / PLAN
    if folder.exists() and not folder.is_dir():
        raise FileExistsError
    if path.exists():
        plan = _read_plan(path)
        existing = (len(plan["nodes"]) - plan["controllers"], plan["controllers"])
        if existing != (nodes, controllers):
            raise BrokerError(
                f"{folder} holds a cluster of {existing[0]} brokers and {existing[1]} nodes that are controllers only, not of "
                f"{nodes} and {controllers}: choose another folder, or the same numbers."
            )
        old_host, _, old_port = plan["bootstrap"][0].rpartition(":")
        if (port or int(old_port), host or old_host) != (int(old_port), old_host.strip("[]")):
            raise BrokerError(
                f"{folder} holds a cluster on {','.join(plan['bootstrap'])}, and its addresses cannot change: choose another "
                "folder, or name no host and no port."
            )
        return plan
    plan = _new_plan(nodes, controllers, host or "127.0.0.1", port)
    folder.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(plan, indent=2) + "\n")
    new.replace(path)
    return plan


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(path.read_text())
        missing = {"cluster_id", "initial_controllers", "controllers", "bootstrap", "nodes"} - plan.keys()
    except (ValueError, AttributeError) as error:
        raise BrokerError(f"{path} is unreadable ({error}): restore it, or choose another folder.") from error
    if missing:
        raise BrokerError(f"{path} lacks {', '.join(sorted(missing))}: restore it, or choose another folder.")
    return plan


def _ports(count: int, voters: int, host: str, port: int) -> list[int]:
    """The clients' ports, then the controllers'; all are free (rule 4)."""
    if not port:
        return free_ports(count + voters, host)
    above = port + max(CONTROLLER_PORT_OFFSET, count)
    ports = [*range(port, port + count), *range(above, above + voters)]
    if not 0 < port <= ports[-1] <= _LAST_PORT:
        raise BrokerError(f"The nodes would need the ports {port} to {ports[-1]}, and there are 1 to {_LAST_PORT}.")
    for checked in ports:
        with _new_socket(host) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT does not count as in use
            _bind(probe, host, checked)
    return ports


def _new_socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _bind(to: socket.socket, host: str, port: int) -> None:
    try:
        to.bind((host, port))
    except OSError as error:
        address = f"{host}:{port}" if port else host
        raise BrokerError(
            f"Cannot listen on {address}: {error.strerror}. Choose another host, or another port; port 0 takes free ones."
        ) from error


def _new_plan(nodes: int, controllers: int, host: str, port: int) -> dict[str, Any]:
    brokers = range(1, nodes + 1)
    voters = range(nodes + 1, nodes + controllers + 1) if controllers else brokers
    ports = _ports(nodes, len(voters), host, port)
    shown = f"[{host}]" if ":" in host else host
    client = {number: f"{shown}:{port}" for number, port in zip(brokers, ports, strict=False)}
    voter = {number: f"{shown}:{port}" for number, port in zip(voters, ports[nodes:], strict=True)}
    settings = {}
    for number in sorted({*brokers, *voters}):
        listeners = [f"PLAINTEXT://{client[number]}"] if number in client else []
        listeners += [f"CONTROLLER://{voter[number]}"] if number in voter else []
        roles = ["broker"] * (number in client) + ["controller"] * (number in voter)
        settings[str(number)] = {
            "node.id": str(number),
            "process.roles": ",".join(roles),
            "listeners": ",".join(listeners),
            "controller.quorum.bootstrap.servers": ",".join(voter.values()),
        }
    return {
        "cluster_id": new_id(),
        "initial_controllers": ",".join(f"{number}@{address}:{new_id()}" for number, address in voter.items()),
        "controllers": controllers,
        "bootstrap": list(client.values()),
        "nodes": settings,
    }


def _defaults(brokers: int) -> dict[str, str]:
    """Kafka's replication defaults, limited by the number of brokers."""
    replicas, in_sync = str(min(brokers, 3)), str(min(brokers, 2))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }

"""A cluster of one's own: several daemons on this machine, each in a process of its own.

    with barnabas.Cluster(3) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)

FORMAT   DIR/cluster.json     the cluster's id, the voters that its quorum began with, and each node's settings
         DIR/node-N/          what node N keeps
         DIR/node-N.log       what it said
RULES    1. A cluster that is made again in its folder has the ids, ports and settings that it had; settings that are given then
            lie over them.
         2. All nodes are started at the same time, for one alone would wait for the others; they are all ready, or none runs.
         3. All end at the same time: nobody hands anything over to a node that is about to end.
         4. What a folder's cluster is stands there only when it can start: its addresses are tried first. Who asks for another
            one in its folder is refused, not ignored.
NOT HERE One daemon (`embedded.py`), the command line (`cluster_command.py`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from barnabas.embedded import Broker, BrokerError

PLAN = "cluster.json"
CONTROLLERS_ABOVE = 100
"""The controllers' ports lie so far above the clients', or behind them where there are more."""
_LAST_PORT = 65535
_OF_EACH_NODE = (
    *("node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "log.dir", "log.dirs"),
    *("metadata.log.dir", "controller.quorum.voters", "controller.quorum.bootstrap.servers"),
)
"""Settings that no two nodes share, or that the cluster is."""


class Cluster:
    """So many brokers, and their controllers.

    Without `controllers` each node is both; with it there are so many nodes more that are controllers only. Without
    `data_dir` the data lie in a temporary directory that goes away with `close()` or the `with` block. Clients find the first
    node at `port`, the next one at the port behind; port 0 takes free ones, or those that the folder's cluster has, as no host
    is the one that it has, or 127.0.0.1. `settings` are Kafka's names, for all nodes.
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
        start_timeout_s: float = 60.0,
    ) -> None:
        _check(nodes, controllers, settings or {})
        self._is_temporary = data_dir is None
        self.folder = Path(tempfile.mkdtemp(prefix="barnabas-cluster-") if data_dir is None else data_dir)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            plan = _plan_of(self.folder, nodes, controllers, host, port)
        except OSError as error:
            raise BrokerError(f"{self.folder} cannot hold a cluster: {error.strerror}.") from error
        self.nodes: dict[int, Broker] = {}
        """By their ids; those that are controllers only come last."""
        for number, own in plan["nodes"].items():
            node = self.nodes[int(number)] = Broker(
                self.folder / f"node-{number}",
                settings={**_defaults(len(plan["nodes"]) - plan["controllers"]), **(settings or {}), **own},
                host=plan["bootstrap"][0].rpartition(":")[0].strip("[]"),
                arguments=["--cluster-id", plan["cluster_id"], "--initial-controllers", plan["initial_controllers"]],
                start_timeout_s=start_timeout_s,
            )
            node.log_path = self.folder / f"node-{number}.log"
        self._bootstrap: list[str] = plan["bootstrap"]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """What a client takes as its bootstrap servers: the brokers, also those that do not run."""
        return ",".join(self._bootstrap)

    def start(self) -> Self:
        """Start all nodes that do not run, and wait until they answer requests (rule 2)."""
        started = [node for node in self.nodes.values() if not node.is_running]
        try:
            for node in started:
                node.kill()  # what is left of one that died
                node.launch()
            for node in started:
                node.wait_until_ready()
        except BaseException:
            for node in started:
                node.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop all nodes cleanly (rule 3); the data stay, and `start` finds them again."""
        running = [node for node in self.nodes.values() if node.is_running]
        for number in (signal.SIGTERM, signal.SIGINT):  # the second wish ends a node at once
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
        """Stop, and remove what lies in a temporary directory. May be called twice."""
        try:
            with contextlib.suppress(BrokerError):  # the logs go too
                self.stop()
        finally:
            for node in self.nodes.values():
                node.close()
            if self._is_temporary:
                shutil.rmtree(self.folder, ignore_errors=True)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nobody has now, and that nobody is given for a minute who asks for any port: only who names one gets it.

    A connection that was accepted and ended there does that: the kernel remembers it (TIME_WAIT).
    """
    ports = []
    for _ in range(count):
        with _new_socket(host) as listening, _new_socket(host) as caller:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as who names the port has it, too
            _bind(listening, host, 0)
            listening.listen(1)
            caller.connect(listening.getsockname())
            accepted, _ = listening.accept()
            accepted.close()  # who hangs up first remembers
            caller.recv(1)
            ports.append(listening.getsockname()[1])
    return ports


def new_id() -> str:
    """An id as Kafka writes them."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


def _check(nodes: int, controllers: int, settings: Mapping[str, object]) -> None:
    if nodes < 1 or controllers < 0:
        raise BrokerError("A cluster needs at least one broker.")
    for name in _OF_EACH_NODE:
        if name in settings:
            raise BrokerError(f"{name} cannot be set for all nodes of a cluster: each has its own.")


def _plan_of(folder: Path, nodes: int, controllers: int, host: str | None, port: int) -> dict[str, Any]:
    """What the folder's cluster is (rule 1)."""
    path = folder / PLAN
    if path.exists():
        plan = _read_plan(path)
        there = (len(plan["nodes"]) - plan["controllers"], plan["controllers"])
        if there != (nodes, controllers):
            raise BrokerError(
                f"{folder} holds a cluster of {there[0]} brokers and {there[1]} nodes that are controllers only, not of "
                f"{nodes} and {controllers}: choose another folder, or the same numbers."
            )
        has_host, _, has_port = plan["bootstrap"][0].rpartition(":")
        if (port or int(has_port), host or has_host) != (int(has_port), has_host.strip("[]")):
            raise BrokerError(
                f"{folder} holds a cluster on {','.join(plan['bootstrap'])}, and its addresses cannot change: choose another "
                "folder, or name no host and no port."
            )
        return plan
    plan = _new_plan(nodes, controllers, host or "127.0.0.1", port)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(plan, indent=2) + "\n")
    new.replace(path)
    return plan


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(path.read_text())
        missing = {"cluster_id", "initial_controllers", "controllers", "bootstrap", "nodes"} - plan.keys()
    except (ValueError, AttributeError) as error:
        raise BrokerError(
            f"{path} does not say what cluster this is ({error}): restore it, or choose another folder."
        ) from error
    if missing:
        raise BrokerError(f"{path} lacks {', '.join(sorted(missing))}: restore it, or choose another folder.")
    return plan


def _ports(count: int, voters: int, host: str, port: int) -> list[int]:
    """Those of the clients, then those of the controllers; all can be had (rule 4)."""
    if not port:
        return free_ports(count + voters, host)
    above = port + max(CONTROLLERS_ABOVE, count)
    ports = [*range(port, port + count), *range(above, above + voters)]
    if not 0 < port <= ports[-1] <= _LAST_PORT:
        raise BrokerError(f"The nodes would need the ports {port} to {ports[-1]}, and there are 1 to {_LAST_PORT}.")
    for one in ports:
        with _new_socket(host) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # who hung up is no neighbour
            _bind(probe, host, one)
    return ports


def _new_socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _bind(to: socket.socket, host: str, port: int) -> None:
    try:
        to.bind((host, port))
    except OSError as error:
        place = f"{host}:{port}" if port else host
        raise BrokerError(
            f"Cannot listen on {place}: {error.strerror}. Choose another host, or another port; port 0 takes free ones."
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
    """As many replicas as Kafka has by default, where there are brokers for them."""
    replicas, in_sync = str(min(brokers, 3)), str(min(brokers, 2))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }

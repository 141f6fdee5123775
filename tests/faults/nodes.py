"""A cluster node on a machine: Barnabas or Apache Kafka.

RULES    1. All other modules are independent of the kind of node: the harness also passes with Apache Kafka.
         2. A node has two log directories on its machine's disk. The metadata log is in the first one or, for every other node,
            in a separate directory.
NOT HERE The faults of nodes (`cluster.py`, `faults.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from barnabas import Broker
from tests.support.kafka import CLUSTER_ID, ApacheKafka

PORT, CONTROLLER_PORT = 9092, 9093
DIRECTORIES = ("a", "b")
METADATA_APART = "m"
START_LIMIT_S = 90.0


class Node(Protocol):
    """What can be done to a node."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def log_path(self) -> Path: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class NodeSpec(NamedTuple):
    """Where a node runs, and its settings."""

    number: int
    address: str
    disk: Path
    """As the node sees it."""
    disk_on_host: Path
    command_prefix: Sequence[str]
    """The words before its command."""
    settings: Mapping[str, Any]


class _BarnabasNode(Broker):
    def __init__(self, place: NodeSpec) -> None:
        super().__init__(
            ",".join(str(place.disk / name) for name in DIRECTORIES),
            PORT,
            _settings(place),
            host=place.address,
            arguments=["--cluster-id", CLUSTER_ID],
            start_timeout_s=START_LIMIT_S,
        )
        self._entering = place.command_prefix

    def _command(self) -> list[str]:
        return [*self._entering, *super()._command()]


class _KafkaNode(ApacheKafka):
    def __init__(self, place: NodeSpec) -> None:
        logs = ",".join(str(place.disk / name) for name in DIRECTORIES)
        super().__init__(
            {**_settings(place), "advertised.listeners": _listeners(place), "log.dirs": logs},
            data_dir=place.disk_on_host / DIRECTORIES[0],
            is_static=True,
            command_prefix=place.command_prefix,
            address=(place.address, PORT),
        )

    def close(self) -> None:
        self.__exit__(None, None, None)


def _listeners(place: NodeSpec) -> str:
    doors = {
        "broker": f"PLAINTEXT://{place.address}:{PORT}",
        "controller": f"CONTROLLER://{place.address}:{CONTROLLER_PORT}",
    }
    return ",".join(doors[role] for role in place.settings["process.roles"].split(","))


def metadata_directory(number: int) -> str:
    """The directory of a node's metadata log."""
    return DIRECTORIES[0] if number % 2 else METADATA_APART


def _settings(place: NodeSpec) -> dict[str, Any]:
    own = {
        "node.id": place.number, "listeners": _listeners(place), "controller.listener.names": "CONTROLLER",
        "metadata.log.dir": str(place.disk / metadata_directory(place.number)),
    }  # fmt: skip
    return {**place.settings, **own}


KINDS: dict[str, Callable[[NodeSpec], Node]] = {"barnabas": _BarnabasNode, "kafka": _KafkaNode}

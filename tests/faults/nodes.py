"""A node of a cluster on a machine of its own: ours, or one of Apache Kafka.

RULES    1. Nothing above this file knows which kind it is: the harness has to pass with Apache Kafka.
         2. A node keeps its data on its machine's disk, in two log directories. The first one has the metadata too, or,
            with every other node, a directory has nothing else.
NOT HERE What happens to nodes (`cluster.py`, `faults.py`).
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


class Place(NamedTuple):
    """Where a node is to run, and how."""

    number: int
    address: str
    disk: Path
    """As the node sees it."""
    disk_from_here: Path
    entering: Sequence[str]
    """What stands before its command."""
    settings: Mapping[str, Any]


class _Ours(Broker):
    """A Barnabas daemon on a machine."""

    def __init__(self, place: Place) -> None:
        super().__init__(
            ",".join(str(place.disk / name) for name in DIRECTORIES),
            PORT,
            _settings(place),
            host=place.address,
            arguments=["--cluster-id", CLUSTER_ID],
            start_timeout_s=START_LIMIT_S,
        )
        self._entering = place.entering

    def _command(self) -> list[str]:
        return [*self._entering, *super()._command()]


class _Kafka(ApacheKafka):
    """A node of Apache Kafka on a machine."""

    def __init__(self, place: Place) -> None:
        logs = ",".join(str(place.disk / name) for name in DIRECTORIES)
        super().__init__(
            {**_settings(place), "advertised.listeners": _listeners(place), "log.dirs": logs},
            data_dir=place.disk_from_here / DIRECTORIES[0],
            is_static=True,
            entering=place.entering,
            address=(place.address, PORT),
        )

    def close(self) -> None:
        """End it, and remove its log."""
        self.__exit__(None, None, None)


def _listeners(place: Place) -> str:
    doors = {
        "broker": f"PLAINTEXT://{place.address}:{PORT}",
        "controller": f"CONTROLLER://{place.address}:{CONTROLLER_PORT}",
    }
    return ",".join(doors[role] for role in place.settings["process.roles"].split(","))


def metadata_directory(number: int) -> str:
    """Where a node has its metadata log."""
    return DIRECTORIES[0] if number % 2 else METADATA_APART


def _settings(place: Place) -> dict[str, Any]:
    own = {
        "node.id": place.number, "listeners": _listeners(place), "controller.listener.names": "CONTROLLER",
        "metadata.log.dir": str(place.disk / metadata_directory(place.number)),
    }  # fmt: skip
    return {**place.settings, **own}


KINDS: dict[str, Callable[[Place], Node]] = {"barnabas": _Ours, "kafka": _Kafka}

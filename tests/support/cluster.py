"""A cluster of Barnabas nodes, one process each: all are brokers and controllers.

Its voters are a setting (static quorum); those of `barnabas.Cluster` are in the log.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import barnabas
from barnabas import Broker
from barnabas.cluster import free_ports
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.raw_client import RawClient
from tests.support.waiting import until

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
DEFAULTS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class Cluster:
    """Nodes with the ids 1, 2, ..."""

    def __init__(
        self,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        new_broker: Callable[..., Broker] = Broker,
    ) -> None:
        """In a setting {node} is replaced by the node's id."""
        self._folder = tempfile.TemporaryDirectory(prefix="barnabas-cluster-")
        self.ports = free_ports(2 * nodes)
        """The clients' first."""
        clients, controllers = self.ports[:nodes], self.ports[nodes:]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
        self.nodes: dict[int, Broker] = {}
        for number in range(1, nodes + 1):
            client, controller = clients[number - 1], controllers[number - 1]
            own = {
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            }
            self.nodes[number] = new_broker(
                Path(self._folder.name) / str(number),
                client,
                {**DEFAULTS, **_of_node(settings or {}, number), **own},
                arguments=["--cluster-id", CLUSTER_ID],
                start_timeout_s=180.0,
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for number, node in self.nodes.items():
                error.add_note(f"---- node {number}\n{node.log()[-4000:]}")
        self.close()

    def start(self) -> None:
        """Starts all stopped nodes at the same time, since one alone would wait for the others."""
        stopped = [node for node in self.nodes.values() if not node.is_running]
        for node in stopped:
            node.launch()
        for node in stopped:
            node.wait_until_ready()

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
            node.close()
        self._folder.cleanup()

    def wait_until_known(self, topic: str) -> None:
        """Waits until every running node's metadata has the topic."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

        def is_known(node: Broker) -> bool:
            with RawClient(node.bootstrap) as client:
                code: int = client.ask(request, 13).topics[0].error_code
            return code == ErrorCode.NONE

        running = [node for node in self.nodes.values() if node.is_running]
        until(lambda: all(is_known(node) for node in running), f"every node knows {topic}")

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())


def _of_node(settings: Mapping[str, str], number: int) -> dict[str, str]:
    return {name: text.replace("{node}", str(number)) for name, text in settings.items()}


def identity_of(cluster: barnabas.Cluster) -> tuple[str, str]:
    """The addresses of the controllers and the cluster id of a cluster with a dynamic quorum."""
    node = next(iter(cluster.nodes.values()))
    found = re.search(r"cluster\.id=(.*)", (node.data_dir / "meta.properties").read_text())
    assert found is not None
    return str(node.settings["controller.quorum.bootstrap.servers"]), found[1]


def joining_node(
    data_dir: Path, role: str, number: int, controllers: str, cluster_id: str, *arguments: str, **settings: str
) -> Broker:
    """A new broker or controller for a running cluster; names of settings have underscores for dots."""
    own = {
        "node.id": str(number),
        "process.roles": role,
        "listeners": f"{'CONTROLLER' if role == 'controller' else 'PLAINTEXT'}://127.0.0.1:{free_ports(1)[0]}",
        "controller.quorum.bootstrap.servers": controllers,
        **{name.replace("_", "."): text for name, text in settings.items()},
    }
    return Broker(data_dir, settings=own, arguments=["--cluster-id", cluster_id, *arguments])

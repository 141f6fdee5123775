"""Several nodes of Apache Kafka in one JVM, together with its tools (java/Cluster.java): they start in the time of one node.

A node can be stopped and started again, but not killed, since that would kill the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from barnabas.cluster import free_ports
from tests.support.cluster import CLUSTER_ID, Cluster
from tests.support.kafka import combined_node, compile_java, tool_command
from tests.support.kafka_tools import SOURCE, KafkaTools

SMALL = {
    "group.coordinator.threads": 1,
    "log.cleaner.dedupe.buffer.size": 2 << 20,
    "num.io.threads": 2,
    "num.network.threads": 2,
    "offsets.topic.num.partitions": 3,
    "share.coordinator.threads": 1,
    "transaction.state.log.num.partitions": 3,
}


class ApacheCluster(KafkaTools):
    """The nodes, each broker and controller, during the `with` block; their ids begin with 1.

    With `instead_of`, a stopped cluster of Barnabas, they use its directories and ports.
    """

    def __init__(self, nodes: int, settings: Mapping[str, object], instead_of: Cluster | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="apache-cluster-")
        ports = free_ports(2 * nodes) if instead_of is None else instead_of.ports
        self._settings = {**SMALL, **settings}
        self._directories = self.folder if instead_of is None else instead_of.folder
        self.clients, self._controllers = ports[:nodes], ports[nodes:]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.clients)

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._folder.cleanup()

    def stop(self, node: int) -> None:
        assert self.run("stop", node - 1).code == 0

    def start(self, node: int) -> None:
        assert self.run("start", node - 1).code == 0

    def _command(self) -> list[str]:
        files = [self._written(node) for node in range(1, len(self.clients) + 1)]
        classes = compile_java(SOURCE.with_name("Cluster.java"))
        java, *rest = tool_command("Cluster", *files, classes=classes)
        return [java, f"-Dcluster.id={CLUSTER_ID}", *rest]

    def _written(self, node: int) -> Path:
        client, controller = self.clients[node - 1], self._controllers[node - 1]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(self._controllers, 1))
        settings = {
            **combined_node(f"127.0.0.1:{client}", f"127.0.0.1:{controller}"),
            "node.id": node,
            "controller.quorum.voters": voters,
            "log.dirs": self._directories / str(node),
            **self._settings,
        }
        path = self.folder / f"{node}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

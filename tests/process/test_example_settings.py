"""Nodes start from the files in config/; only hosts, ports and directories are changed."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from barnabas import Broker
from barnabas.cluster import free_ports, new_id
from tests.support.librdkafka import create_topic, produce
from tests.support.waiting import until

pytestmark = pytest.mark.long

CONFIG = Path(__file__).parents[2] / "config"
CONTROLLER = re.compile(r"(?:controller|kafka)(\d)\.example\.org:9093")


class Site:
    """The machines of the files, as ports of this one."""

    def __init__(self, folder: Path, controllers: int, brokers: int) -> None:
        self._folder = folder
        ports = free_ports(controllers + brokers)
        self.controllers = dict(enumerate(ports[:controllers], 1))
        self._ports = iter(ports[controllers:])
        self.cluster_id = new_id()
        self.founders = ",".join(f"{number}@127.0.0.1:{port}:{new_id()}" for number, port in self.controllers.items())

    def node(self, file: str, number: int) -> Broker:
        """A node with an edited file."""
        port, folder = next(self._ports) if file != "controller" else 0, self._folder / str(number)
        text = (CONFIG / f"{file}.properties").read_text()
        text = re.sub(r"^node\.id=.*$", f"node.id={number}", text, flags=re.MULTILINE)
        text = re.sub(r"CONTROLLER://[^,\s]*", f"CONTROLLER://127.0.0.1:{self.controllers.get(number, 0)}", text)
        text = CONTROLLER.sub(lambda found: f"127.0.0.1:{self.controllers[int(found[1])]}", text)
        text = re.sub(r"PLAINTEXT://[^,\s]*", f"PLAINTEXT://127.0.0.1:{port}", text)
        text = text.replace("/var/lib/barnabas", str(folder))
        assert "example.org" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
        folder.mkdir()
        (folder / "server.properties").write_text(text)
        directory = folder / ("metadata" if file == "controller" else "data")
        founded = ["--initial-controllers", self.founders] if file != "broker" else []
        # `listeners` is repeated from the file: by default, this test class assigns other addresses.
        listeners = re.search(r"^listeners=(.*)$", text, re.MULTILINE)
        assert listeners is not None
        return Broker(
            directory,
            settings={"listeners": listeners[1]},
            arguments=["--config", str(folder / "server.properties"), "--cluster-id", self.cluster_id, *founded],
            start_timeout_s=60,
        )


def serve(nodes: list[Broker], brokers: list[Broker]) -> None:
    """Starts all nodes at once, and produces to a replicated topic."""
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.close)
            node.launch()
        for node in nodes:
            node.wait_until_ready()
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        create_topic(bootstrap, "t", -1, -1)
        admin = AdminClient({"bootstrap.servers": bootstrap})

        def replicas() -> list[int]:
            topic = admin.list_topics("t", timeout=30).topics["t"]
            return [len(partition.replicas) for partition in topic.partitions.values()]

        until(lambda: replicas() == [3, 3, 3], "all brokers know the topic")
        produce(bootstrap, "t", [b"v"], acks="all")


@pytest.mark.parametrize("is_combined", [True, False], ids=["combined.properties", "controller and broker.properties"])
def test_nodes_start_from_the_example_settings(tmp_path: Path, *, is_combined: bool) -> None:
    site = Site(tmp_path, 3, 3)
    controllers = [site.node("combined" if is_combined else "controller", number) for number in (1, 2, 3)]
    brokers = controllers if is_combined else [site.node("broker", number) for number in (11, 12, 13)]
    serve(list(dict.fromkeys([*controllers, *brokers])), brokers)

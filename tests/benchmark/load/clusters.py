"""Three nodes of one kind, each broker and controller."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from protocol.messages.cluster import DescribeQuorumRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.benchmark.builds import Build, MeasuredBroker
from tests.benchmark.load import raw
from tests.benchmark.load.meter import Outcome, cpu_seconds
from tests.benchmark.load.running_broker import Node, RunningBroker
from tests.benchmark.report.rows import THEIRS
from tests.benchmark.report.terminal import Wanted
from tests.support import cluster as ours
from tests.support.kafka import STOCK_JVM, ApacheKafka, free_port
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

NODES = (1, 2, 3)
_METADATA_VERSION = 9
_LIMIT_S = 120.0
_SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""For both brokers: fail-over detection takes the same time; the rest differs."""
_SMALL = {"group.initial.rebalance.delay.ms": "0"}
_STEP_S = 0.005


class ThreeNodes:
    def __init__(self, name: str, build: Build | None) -> None:
        """Nodes of this build of Barnabas, or of Apache Kafka."""
        self.name = name
        self._own: ours.Cluster | None = None
        if build is not None:
            self._own = ours.Cluster(len(NODES), {**_SESSION, **_SMALL}, partial(MeasuredBroker, build))
            self.nodes: dict[int, Node] = dict(self._own.nodes)
        else:
            self.nodes = dict(_kafka())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()
        for node in self.nodes.values():
            if isinstance(node, ApacheKafka):
                node.kill()
                node.__exit__(None, None, None)

    # ------------------------------------------------------------ start
    def prepare(self) -> None:
        """Formatting, which is not measured."""
        for node in self.nodes.values():
            if isinstance(node, ApacheKafka):
                node.format()

    def start(self) -> Outcome:
        """Starts the stopped nodes; until each of them lists all brokers."""
        stopped = [node for node in self.nodes.values() if not node.is_running]
        started = time.monotonic()
        with ThreadPoolExecutor(len(stopped)) as pool:
            for one in [pool.submit(node.start) for node in stopped]:
                one.result()
        for node in stopped:
            until(partial(self._names_all, node), f"{self.name} names all its brokers", within_s=_LIMIT_S)
        return Outcome({"s": time.monotonic() - started, "CPU s": sum(cpu_seconds(node.pid) for node in stopped)})

    def _names_all(self, node: Node) -> bool:
        with RawClient(node.bootstrap) as client:
            return len(client.ask(MetadataRequest(topics=[]), _METADATA_VERSION).brokers) == len(NODES)

    # ------------------------------------------------------------ roles and topics
    def broker(self, leader: int) -> RunningBroker:
        """Requests go to the leader; the CPU time of all nodes counts."""
        node = self.nodes[leader]
        others = tuple(other.pid for number, other in self.nodes.items() if number != leader and other.is_running)
        return RunningBroker(self.name, node.bootstrap, node.pid, others)

    def controller(self) -> int:
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        request = message(DescribeQuorumRequest, topics=topics)
        with RawClient(self.nodes[1].bootstrap) as client:
            leader: int = client.ask(request, 1).topics[0].partitions[0].leader_id
            return leader

    def partitions(self, query: Node, topic: str) -> dict[int, Any]:
        """The topic's partitions in the metadata of a node."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        with RawClient(query.bootstrap) as client:
            found = client.ask(request, _METADATA_VERSION).topics[0].partitions
        return {partition.partition_index: partition for partition in found}

    def create(self, topic: str, leader: int, partitions: int = 1, **configs: object) -> None:
        """A topic led by one node, with all replicas in sync."""
        self.create_on((leader, *(number for number in NODES if number != leader)), topic, partitions, **configs)
        self.await_all_in_sync(topic)

    def create_on(self, replicas: tuple[int, ...], topic: str, partitions: int = 1, **configs: object) -> None:
        with RawClient(self.nodes[replicas[0]].bootstrap, _LIMIT_S) as client:
            raw.create_topic(client, topic, partitions, replicas, **configs)

    def await_all_in_sync(self, topic: str) -> None:
        """Waits until every node's metadata has all replicas in sync."""
        for node in self.nodes.values():
            until(partial(self._knows_all_in_sync, node, topic), f"all replicas of {topic} are in sync", _LIMIT_S)

    def _knows_all_in_sync(self, node: Node, topic: str) -> bool:
        found = self.partitions(node, topic).values()
        return bool(found) and all(len(partition.isr_nodes) == len(NODES) for partition in found)

    # ------------------------------------------------------------ fail-over
    def fail_over(self, topic: str, victim: int) -> Outcome:
        """Kills the leader of all partitions: seconds until the first partition accepts a record, and until all do."""
        survivors = [number for number in NODES if number != victim]
        missing = set(self.partitions(self.nodes[survivors[0]], topic))
        started = time.monotonic()
        self.nodes[victim].kill()
        first_s = 0.0
        while missing:
            elapsed = self._write(topic, missing, survivors)
            if elapsed and not first_s:
                first_s = time.monotonic() - started
            missing -= elapsed
            if not elapsed:
                time.sleep(_STEP_S)
        return Outcome({"s": first_s, "s until all take it": time.monotonic() - started})

    def switch_topics(self, topics: Mapping[int, str], victim: int) -> Outcome:
        """Kills one of several masters, each with its own topic: seconds until another accepts a record instead."""
        started = time.monotonic()
        self.nodes[victim].kill()
        for node in (victim, *topics):
            try:
                with RawClient(self.nodes[node].bootstrap, _LIMIT_S) as client:
                    if raw.write(client, topics[node], [0], acks=-1):
                        break
            except OSError:  # stopped: try the next one
                continue
        return Outcome({"s": time.monotonic() - started})

    def _write(self, topic: str, missing: Iterable[int], survivors: list[int]) -> set[int]:
        """A record to each of the partitions that has a leader; returns those that accepted it."""
        known = self.partitions(self.nodes[survivors[0]], topic)
        elapsed: set[int] = set()
        for leader in survivors:
            led = [index for index in missing if known[index].leader_id == leader]
            if led:
                with RawClient(self.nodes[leader].bootstrap, _LIMIT_S) as client:
                    elapsed |= raw.write(client, topic, led, acks=-1)
        return elapsed


def _kafka() -> Mapping[int, ApacheKafka]:
    controllers = {number: free_port() for number in NODES}
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in controllers.items())
    return {number: _kafka_node(number, port, voters) for number, port in controllers.items()}


def _kafka_node(number: int, controller_port: int, voters: str) -> ApacheKafka:
    port = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
    own = {
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": listeners,
        "advertised.listeners": listeners,
        "share.coordinator.state.topic.replication.factor": 3,
        "share.coordinator.state.topic.min.isr": 2,
    }
    return ApacheKafka({**ours.DEFAULTS, **_SESSION, **own}, jvm=STOCK_JVM, is_static=True, address=("127.0.0.1", port))


def three_node_clusters(wanted: Wanted) -> list[ThreeNodes]:
    own = [ThreeNodes(name, build) for name, build in wanted.builds.items()]
    return own if wanted.alone or wanted.against is not None else [*own, ThreeNodes(THEIRS, None)]

"""Separate controllers and brokers, mostly in a dynamic quorum."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from barnabas import Broker, Cluster
from barnabas.cluster import free_ports
from broker.handlers.admin.metadata import CONTROLLERS
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.cluster import DescribeQuorumRequest
from protocol.messages.metadata import DescribeClusterRequest
from replication.metadata.topic_names import METADATA_TOPIC
from tests.support.cluster import identity_of, joining_node
from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import KafkaTools
from tests.support.librdkafka import create_topic, produce, read_to_end
from tests.support.loading import topic
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.long

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "500",
}
LEADS = re.compile(r"node (\d+) leads the metadata quorum in epoch (\d+)")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Brokers 1 and 2; controllers 3, 4 and 5."""
    with Cluster(2, 3, settings=SETTINGS, start_timeout_s=180) as cluster:
        yield cluster


def leader(cluster: Cluster) -> int:
    """The leader of the quorum according to the logs of the running nodes."""
    leaders = [LEADS.findall(node.log()) for node in cluster.nodes.values() if node.is_running]
    newest = max((int(epoch), int(number)) for lines in leaders for number, epoch in lines)
    return newest[1]


def test_brokers_serve_with_another_controller_and_without_a_quorum(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    create_topic(cluster.bootstrap, "t", 2, 2)
    until(lambda: sorted(admin.list_topics(timeout=30).brokers) == [1, 2], "both brokers are registered")
    first = leader(cluster)
    cluster.nodes[first].kill()
    create_topic(cluster.bootstrap, "later", 2, 2)
    second = leader(cluster)
    assert second != first
    cluster.nodes[second].kill()
    produce(cluster.bootstrap, "t", [b"v"], acks="all")
    cluster.start()
    create_topic(cluster.bootstrap, "last", 2, 2)
    produce(cluster.bootstrap, "last", [b"v"], acks="all")


def test_a_forwarded_request_that_takes_long_is_executed_once() -> None:
    """Its commit waits for controllers that do not run."""
    request = CreateTopicsRequest(topics=[topic("slow")], timeout_ms=60_000)
    with (
        Cluster(1, 3, settings={**SETTINGS, "controller.quorum.fetch.timeout.ms": "60000"}) as cluster,
        RawClient(cluster.bootstrap, timeout_s=3) as client,
    ):
        others = [number for number in cluster.nodes if number not in (1, leader(cluster))]
        for number in others:
            cluster.nodes[number].signal(signal.SIGSTOP)
        client.send(request, 7)
        with pytest.raises(TimeoutError):
            client.receive_frame()
        for number in others:
            cluster.nodes[number].signal(signal.SIGCONT)
        client.socket.settimeout(60)
        assert client.receive(request, 7).topics[0].error_code == ErrorCode.NONE


def test_a_stopping_leader_of_the_quorum_resigns(cluster: Cluster) -> None:
    first = leader(cluster)
    cluster.nodes[first].stop()
    until(lambda: leader(cluster) != first, "another controller leads")
    assert "no heartbeat within" not in "".join(node.log() for node in cluster.nodes.values())


def test_a_broker_shuts_down_without_a_controller() -> None:
    with Cluster(1, 1, settings=SETTINGS) as cluster:
        cluster.nodes[2].kill()
        cluster.nodes[1].stop()
        assert "no active controller: shutting down without moving leaders" in cluster.nodes[1].log()
        cluster.start()
        assert "DUPLICATE_BROKER_REGISTRATION" not in cluster.nodes[1].log()


def test_a_broker_stops_at_once_without_controlled_shutdown() -> None:
    """Its leaderships move when its session has expired."""
    settings = {**SETTINGS, "broker.session.timeout.ms": "1500", "controlled.shutdown.enable": "false"}
    with Cluster(2, 1, settings=settings, start_timeout_s=180) as cluster:
        create_topic(cluster.bootstrap, "t", 2, 2)
        cluster.nodes[1].stop()
        until(lambda: "no heartbeat within" in cluster.nodes[3].log(), "the session of broker 1 has expired")
        produce(cluster.nodes[2].bootstrap, "t", [b"v", b"w"], acks="1")


def test_a_broker_works_with_one_static_controller(tmp_path: Path) -> None:
    """The usual set-up of examples: one controller, named in controller.quorum.voters."""
    broker_port, controller_port = free_ports(2)
    voters = {"controller.quorum.voters": f"3000@127.0.0.1:{controller_port}"}
    own = {"node.id": "3000", "process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{controller_port}"}
    other = {"node.id": "1", "process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{broker_port}"}
    arguments = ["--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ"]
    with Broker(tmp_path / "3000", settings={**SETTINGS, **voters, **own}, arguments=arguments):
        for _ in range(2):
            with Broker(tmp_path / "1", settings={**SETTINGS, **voters, **other}, arguments=arguments) as broker:
                if "t" not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics:
                    create_topic(broker.bootstrap, "t", 1, 1)
                produce(broker.bootstrap, "t", [b"v"], acks="all")


def test_a_node_that_is_only_a_controller_for_a_while_keeps_its_partitions() -> None:
    """It does not know the metadata when it starts, and no other node has the records of topic t."""
    with Cluster(3, settings={**SETTINGS, "log.retention.check.interval.ms": "20"}, start_timeout_s=180) as cluster:
        create_topic(cluster.bootstrap, "t", 3, 1)
        produce(cluster.bootstrap, "t", [b"v"] * 30, 3, acks="all")
        node = cluster.nodes[3]
        listeners = node.settings["listeners"]
        for roles, names in (("controller", listeners.split(",")[1]), ("broker,controller", listeners)):
            node.stop()
            node.settings.update({"process.roles": roles, "listeners": names})
            node.start()
        assert "strays" not in node.log()
        assert len(read_to_end(cluster.bootstrap, "t")) == 30


def test_a_controller_with_two_listeners_names_itself_on_each(tmp_path: Path) -> None:
    """Admin clients with bootstrap controllers continue with the addresses in the response."""
    ports = free_ports(2)
    settings = {
        "controller.listener.names": "CONTROLLER,ADMIN",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ADMIN:PLAINTEXT",
        "listeners": "PLAINTEXT://127.0.0.1:0,ADMIN://127.0.0.1:{},CONTROLLER://127.0.0.1:{}".format(*ports),
    }
    with Broker(tmp_path / "data", settings=settings) as broker:
        for port in ports:
            with RawClient(f"127.0.0.1:{port}") as client:
                found = client.ask(DescribeClusterRequest(endpoint_type=CONTROLLERS), 2)
            assert [(node.broker_id, node.port) for node in found.brokers] == [(1, port)]
            assert found.controller_id == 1
        with RawClient(broker.bootstrap) as client:
            requested = {"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}
            (voter,) = client.ask(message(DescribeQuorumRequest, topics=[requested]), 2).nodes
    assert [(endpoint.name, endpoint.port) for endpoint in voter.listeners] == [
        ("CONTROLLER", ports[1]),
        ("ADMIN", ports[0]),
    ]


def quorum(tools: KafkaTools, cluster: Cluster) -> set[int]:
    """The voters according to Kafka's tool."""
    result = tools.run(
        "org.apache.kafka.tools.MetadataQuorumCommand",
        *("--bootstrap-server", cluster.bootstrap, "describe", "--replication"),
    )
    assert result.code == 0, result.err
    return {int(line.split()[0]) for line in result.out.splitlines() if line.split()[-1] in ("Leader", "Follower")}


def new_controller(cluster: Cluster, **settings: str) -> Broker:
    """A controller-only node with the id 6 that joins the quorum."""
    settings = {**SETTINGS, **settings}
    identity = identity_of(cluster)
    return joining_node(cluster.folder / "6", "controller", 6, *identity, "--no-initial-controllers", **settings)


@needs_kafka
def test_kafkas_tool_adds_and_removes_voters(cluster: Cluster, tmp_path: Path) -> None:
    with new_controller(cluster) as added, KafkaTools() as tools:
        config = tmp_path / "controller.properties"
        lines = {**added.settings, "controller.listener.names": "CONTROLLER", "log.dirs": str(added.data_dir)}
        config.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        command = ("org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", cluster.bootstrap)
        done = tools.run(*command, "--command-config", config, "add-controller")
        assert done.code == 0, done.out + done.err
        assert quorum(tools, cluster) == {3, 4, 5, 6}
        gone = leader(cluster)
        directory = re.search(r"directory\.id=(.*)", (cluster.nodes[gone].data_dir / "meta.properties").read_text())
        assert directory is not None
        removal = ("--controller-id", gone, "--controller-directory-id", directory[1])
        done = tools.run(*command, "remove-controller", *removal)
        assert done.code == 0, done.out + done.err
        assert quorum(tools, cluster) == {3, 4, 5, 6} - {gone}


@needs_kafka
def test_a_controller_with_auto_join_becomes_a_voter(cluster: Cluster) -> None:
    with new_controller(cluster, controller_quorum_auto_join_enable="true"), KafkaTools() as tools:
        until(lambda: quorum(tools, cluster) == {3, 4, 5, 6}, "the fourth controller has a vote")

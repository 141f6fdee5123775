"""Reassignments, elections, unregistration and quorum changes in two-broker clusters of Barnabas and Apache Kafka."""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages import cluster as cluster_messages
from protocol.primitives import uuid_text
from replication.metadata.image import ResourceType
from tests.conformance.brokers import describe_configs
from tests.support.follower import PartitionView
from tests.support.follower_harness import Cluster, FollowerHarness
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

E = ErrorCode
FILE = 4
"""The config source STATIC_BROKER_CONFIG."""


def reassign(
    harness: FollowerHarness, topic: str, replicas: list[int] | None, *, may_grow: bool = True
) -> tuple[int, str | None]:
    """Requests a replica list for partition 0, or (None) cancels its reassignment."""
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
    request = message(
        cluster_messages.AlterPartitionReassignmentsRequest, topics=topics, allow_replication_factor_change=may_grow
    )
    (answer,) = harness.client.raw.ask(request, 1).responses[0].partitions
    return answer.error_code, answer.error_message


def ongoing(harness: FollowerHarness, topic: str) -> list[tuple[list[int], list[int], list[int]]]:
    """Replicas, adding replicas, removing replicas."""
    topics = [{"name": topic, "partition_indexes": [0, 1]}]
    response = harness.client.raw.ask(message(cluster_messages.ListPartitionReassignmentsRequest, topics=topics), 0)
    return [(p.replicas, p.adding_replicas, p.removing_replicas) for row in response.topics for p in row.partitions]


def test_a_partition_gets_other_replicas(harness: FollowerHarness) -> None:
    """A new replica is added; an old one stays until the new ones are in sync, then another replica leads."""
    harness.join()
    topic = harness.topic([1])
    name, _ = topic
    assert reassign(harness, name, [1, harness.id], may_grow=False) == (
        E.INVALID_REPLICATION_FACTOR,
        "The replication factor is changed from 1 to 2",
    )
    assert reassign(harness, name, [1, harness.id]) == (E.NONE, None)
    until(lambda: ongoing(harness, name) == [([1, harness.id], [harness.id], [])], "a replica comes")
    assert reassign(harness, name, None) == (E.NONE, None)
    assert reassign(harness, name, None) == (E.NO_REASSIGNMENT_IN_PROGRESS, None)
    until(lambda: ongoing(harness, name) == [], "it does not come any more")
    harness.wait_for_view(topic, PartitionView(1, 1, [1], [], []))
    harness.follower.heartbeat()
    assert reassign(harness, name, [harness.id], may_grow=False) == (E.NONE, None)
    until(lambda: ongoing(harness, name) == [([harness.id, 1], [harness.id], [1])], "one comes, one goes")
    harness.wait_for_view(topic, PartitionView(1, 1, [1], [], []))
    assert harness.fetch_until(topic, 0, [harness.id]) == PartitionView(harness.id, 2, [harness.id], [], [])
    assert ongoing(harness, name) == []
    assert reassign(harness, name, [harness.id]) == (E.NONE, None)
    assert harness.describe(topic) == PartitionView(harness.id, 2, [harness.id], [], [])


def elect(harness: FollowerHarness, topic: str, kind: int) -> tuple[int, str | None]:
    partitions = [{"topic": topic, "partitions": [0]}]
    request = message(cluster_messages.ElectLeadersRequest, election_type=kind, topic_partitions=partitions)
    (answer,) = harness.client.raw.ask(request, 2).replica_election_results[0].partition_result
    return answer.error_code, answer.error_message


def test_leaders_are_elected_on_request(harness: FollowerHarness) -> None:
    """The preferred replica once it is in sync; any replica if there is no leader (unclean)."""
    harness.join()
    topic = harness.topic([harness.id, 1])
    only_replica = harness.topic([harness.id])
    assert harness.follower.heartbeat(want_fence=True).is_fenced
    until(lambda: harness.describe(topic).leader == 1, "broker 1 leads")
    missing = (E.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    assert elect(harness, topic[0], 0) == missing
    not_available = (E.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
    assert elect(harness, only_replica[0], 1) == not_available
    harness.follower.heartbeat()
    harness.fetch_until(topic, 0, [1, harness.id])
    assert elect(harness, topic[0], 1)[0] == E.ELECTION_NOT_NEEDED
    before = harness.describe(topic).leader_epoch
    assert elect(harness, topic[0], 0) == (E.NONE, None)
    until(lambda: harness.describe(topic).leader == harness.id, "the first replica leads")
    assert harness.describe(topic) == PartitionView(harness.id, before + 1, [1, harness.id], [], [])


def unregister(harness: FollowerHarness) -> tuple[int, str | None]:
    answer = harness.client.raw.ask(cluster_messages.UnregisterBrokerRequest(broker_id=harness.id), 0)
    return answer.error_code, answer.error_message


def test_an_offline_broker_is_unregistered(harness: FollowerHarness) -> None:
    """It leaves every ISR but stays in the replica lists; its next heartbeat is refused."""
    harness.join()
    topic = harness.topic()
    only_replica = harness.topic([harness.id])
    harness.fetch_until(topic, 0, [1, harness.id])
    assert unregister(harness)[0] == E.NONE
    until(lambda: harness.id not in harness.client.brokers(), "clients are not told of it")
    assert harness.describe(topic) == PartitionView(1, 0, [1], [], [])
    assert harness.describe(only_replica) == PartitionView(-1, 1, [], [harness.id], [harness.id])
    unknown = f"Broker ID {harness.id} is not currently registered"
    assert unregister(harness) == (E.BROKER_ID_NOT_REGISTERED, unknown)
    assert harness.follower.heartbeat().error_code == E.STALE_BROKER_EPOCH
    with harness.new_follower() as process:
        assert process.register().error_code == E.NONE


def described_quorum(client: RawClient, version: int, *partitions: int, topic: str = "__cluster_metadata") -> Any:
    topics = [{"topic_name": topic, "partitions": [{"partition_index": index} for index in partitions]}]
    return client.ask(message(cluster_messages.DescribeQuorumRequest, topics=topics), version)


def test_the_quorum_is_one_node(cluster: Cluster) -> None:
    """Leader, epoch, log end offset and endpoint; other topics are unknown."""
    host, _, port = cluster.controller.rpartition(":")
    with RawClient(cluster.bootstrap) as client:
        for version in (0, 1, 2):
            response = described_quorum(client, version, 0)
            (quorum,) = response.topics[0].partitions
            (voter,) = quorum.current_voters
            assert (response.error_code, quorum.error_code, quorum.leader_id, quorum.observers) == (0, 0, 1, [])
            assert 0 < quorum.high_watermark <= voter.log_end_offset
            assert quorum.leader_epoch > 0
            assert (voter.replica_id, voter.replica_directory_id != bytes(16)) == (1, version == 2)
            assert (voter.last_fetch_timestamp > 0, voter.last_caught_up_timestamp > 0) == (version > 0, version > 0)
        assert [(node.node_id, [(e.host, e.port) for e in node.listeners]) for node in response.nodes] == [
            (1, [(host, int(port))])
        ]
        for partitions, topic in (((1,), "__cluster_metadata"), ((0, 1), "__cluster_metadata"), ((0,), "t1")):
            answer = described_quorum(client, 2, *partitions, topic=topic)
            assert {p.error_code for p in answer.topics[0].partitions} == {E.UNKNOWN_TOPIC_OR_PARTITION}
            assert (answer.error_code, answer.nodes) == (0, [])


OTHER = b"D" * 16
ADDED = [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}]
ODD = [{"name": "X", "host": "h", "port": 5}]
NO_ENDPOINT = "Add voter request didn't include the endpoint ({}) for the default listener ListenerName(CONTROLLER)"


def test_the_only_voter_stays_the_only_one(cluster: Cluster) -> None:
    """Invalid requests are refused; a voter that has not caught up cannot be added."""
    with RawClient(cluster.bootstrap) as client:
        (voter,) = described_quorum(client, 2, 0).topics[0].partitions[0].current_voters
        own = voter.replica_directory_id
        response = f"[ReplicaKey(id=1, directoryId={uuid_text(own)})]"

        def add(
            voter_id: int, directory: bytes, listeners: list[dict[str, Any]] = ADDED, who: str | None = None
        ) -> Any:
            request = message(
                cluster_messages.AddRaftVoterRequest, cluster_id=who, timeout_ms=1000, voter_id=voter_id,
                voter_directory_id=directory, listeners=listeners,
            )  # fmt: skip
            answer = client.ask(request, 1)
            return answer.error_code, answer.error_message

        def remove(voter_id: int, directory: bytes, who: str | None = None) -> Any:
            request = cluster_messages.RemoveRaftVoterRequest(
                cluster_id=who, voter_id=voter_id, voter_directory_id=directory
            )
            answer = client.ask(request, 0)
            return answer.error_code, answer.error_message

        for do, verb in ((add, "Add"), (remove, "Remove")):
            code, sentence = do(-1, OTHER, who="nope")
            assert code == E.INCONSISTENT_CLUSTER_ID
            assert sentence.startswith('The given id "nope" doesn\'t match the cluster id "')
            for bad in ((-1, OTHER), (2, bytes(16))):
                assert do(*bad) == (E.INVALID_REQUEST, f"{verb} voter request didn't include a valid voter")
        for key, directory in ((1, own), (1, OTHER), (2, OTHER)):
            name = f"ReplicaKey(id={key}, directoryId={uuid_text(directory)})"
            assert remove(key, directory) == (
                E.VOTER_NOT_FOUND, f"Cannot remove voter {name} from the set of voters {response}"
            )  # fmt: skip
            if key == 1:
                assert add(key, directory) == (
                    E.DUPLICATE_VOTER, f"The voter id for {name} is already part of the set of voters {response}."
                )  # fmt: skip
        for listeners, shown in (([], ""), (ODD, "ListenerName(X)=h/<unresolved>:5")):
            sentence = NO_ENDPOINT.format(f"Endpoints(endpoints={{{shown}}})")
            assert add(1, own, listeners) == (E.INVALID_REQUEST, sentence)
        assert add(2, OTHER)[0] == E.REQUEST_TIMED_OUT


def test_a_controller_describes_its_own_settings(cluster: Cluster) -> None:
    """As kafka-configs --bootstrap-controller requests: its own node, all brokers, topics; not another node."""
    own = [("node.id", "1", FILE)]
    for kind, name, code, described in (
        (ResourceType.BROKER, "1", E.NONE, own),
        (ResourceType.BROKER, "2", E.INVALID_REQUEST, []),
        (ResourceType.BROKER, "", E.NONE, []),
        (ResourceType.TOPIC, "nowhere", E.UNKNOWN_TOPIC_OR_PARTITION, []),
    ):
        with RawClient(cluster.controller) as client:
            answer = describe_configs(client, kind, name, ["node.id"])
        found = [(entry.name, entry.value, entry.config_source) for entry in answer.configs]
        assert (answer.error_code, found) == (code, described)

"""A client without any permission: every API answers with the authorization error and reveals nothing.

RULES    1. Each case runs on this broker with an authorizer that denies everything, and on Apache Kafka 4.3 with its
            StandardAuthorizer and no ACLs: the expected errors are Kafka's.
         2. The topic `secret` exists and must not be revealed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.config.config_loader import load_config
from broker.server import Server
from protocol.errors import ErrorCode
from protocol.messages import admin, cluster, groups, logs, metadata, produce_fetch, quorum, quotas_scram, transactions
from protocol.schema import Message, fields_of
from replication.metadata_log.formatting import FormatOptions
from tests.support.batches import batch
from tests.support.cluster_cases import altered, credential, gone
from tests.support.config_cases import SET, replaced, resource
from tests.support.deny import DenyingAuthorizer
from tests.support.feature_cases import UP, updates
from tests.support.follower import Client, features
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS

E = ErrorCode
KAFKA_STRICT: dict[str, object] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="p" user_admin="p";'
    ),
}
"""Clients are ANONYMOUS without permissions; the node itself is `admin` on the controller listener."""


class Strict(NamedTuple):
    """A broker that denies everything, and the id of its topic."""

    bootstrap: str
    controller: str
    topic_id: bytes


@pytest.fixture(scope="module", params=["barnabas", pytest.param("apache-kafka", marks=needs_kafka)])
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strict]:
    """One node with a topic, and a client without permissions."""
    path = tmp_path_factory.mktemp("strict")
    yield from barnabas(path) if request.param == "barnabas" else kafka(path)


def kafka(path: Path) -> Iterator[Strict]:
    with ApacheKafka(data_dir=path / "data") as generous:
        topic_id = Client(generous.bootstrap).create("secret", [1])
    with ApacheKafka(KAFKA_STRICT, data_dir=path / "data") as broker:
        yield Strict(broker.bootstrap, broker.controller, topic_id)


def barnabas(path: Path) -> Iterator[Strict]:
    """The node runs in a thread of the test, since no config makes it deny."""
    loop = asyncio.new_event_loop()
    listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
    config = load_config(None, {"log.dirs": str(path / "data"), "listeners": listeners})
    server = Server(config, loop, FormatOptions())
    server._authorizer = authorizer = DenyingAuthorizer()
    ready = threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        server.start(ready.set)
        loop.run_forever()
        server.close()
        server.release()
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(20)
    bootstrap = f"127.0.0.1:{server.listeners[0].port}"
    topic_id = Client(bootstrap).create("secret", [1])
    authorizer.is_strict = True
    yield Strict(bootstrap, f"127.0.0.1:{server.controller_listeners[0].port}", topic_id)
    loop.call_soon_threadsafe(server.stop)
    thread.join(20)
    assert server.failure is None


def codes(found_in: Message, version: int) -> list[int]:
    """All error codes of a response, outermost first."""
    found: list[int] = []
    for field in fields_of(type(found_in)):
        value = getattr(found_in, field.name)
        if not field.is_in(version):
            continue
        if field.name == "error_code":
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Message):
                    found += codes(item, version)
    return found


def fetch(**who: Any) -> Message:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": "secret", "partitions": [partition]}]
    return message(produce_fetch.FetchRequest, max_wait_ms=0, min_bytes=1, topics=topics, **who)


def produce(transactional_id: str | None = None) -> Message:
    topics = [{"name": "secret", "partition_data": [{"index": 0, "records": bytes(batch(RECENT_MS))}]}]
    given = {"transactional_id": transactional_id, "acks": 1, "timeout_ms": 1000, "topic_data": topics}
    return message(produce_fetch.ProduceRequest, **given)


def alter(*resources: tuple[int, str]) -> Message:
    change = ("retention.ms", SET, "1")
    wanted = [resource(kind, name, change) for kind, name in resources]
    return admin.IncrementalAlterConfigsRequest(resources=wanted, validate_only=False)


def in_secret(**fields: object) -> list[dict[str, Any]]:
    """One partition of the secret topic with these fields."""
    return [{"name": "secret", "partitions": [fields]}]


TOPIC, GROUP, CLUSTER = E.TOPIC_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TWO = [{"name": "secret"}, {"name": "nowhere"}]

# (request, version, error codes, outermost first)
CASES: dict[str, tuple[Message, int, list[ErrorCode]]] = {
    "Produce": (produce(), 9, [TOPIC]),
    "Produce with the id of a transaction that none of its records is of": (produce("tx"), 9, [TOPIC]),
    "Fetch": (fetch(), 12, [E.NONE, TOPIC]),
    "Fetch by a follower": (fetch(replica_id=2), 12, [E.NONE, TOPIC]),
    "ListOffsets": (
        message(produce_fetch.ListOffsetsRequest, topics=in_secret(partition_index=0, timestamp=-1)), 7, [TOPIC],
    ),
    "OffsetForLeaderEpoch": (
        message(produce_fetch.OffsetForLeaderEpochRequest, topics=[
            {"topic": "secret", "partitions": [{"partition": 0, "leader_epoch": 0}]}]), 4, [TOPIC],
    ),
    "Metadata of all": (metadata.MetadataRequest(topics=None), 12, []),
    "Metadata by name": (message(metadata.MetadataRequest, topics=TWO), 12, [TOPIC, TOPIC]),
    "DescribeTopicPartitions of all": (metadata.DescribeTopicPartitionsRequest(topics=[]), 0, []),
    "DescribeTopicPartitions": (
        message(metadata.DescribeTopicPartitionsRequest, topics=[{"name": "secret"}]), 0, [TOPIC],
    ),
    "FindCoordinator of a group": (metadata.FindCoordinatorRequest(key="g"), 3, [GROUP]),
    "FindCoordinator of a transaction": (metadata.FindCoordinatorRequest(key="t", key_type=1), 3, [TRANSACTION]),
    "CreateTopics": (
        message(admin.CreateTopicsRequest, topics=[{"name": "new", "num_partitions": 1, "replication_factor": 1}],
                timeout_ms=1000, validate_only=False), 7, [TOPIC],
    ),
    "DeleteTopics": (message(admin.DeleteTopicsRequest, topics=TWO, timeout_ms=1000), 6, [TOPIC, TOPIC]),
    "CreatePartitions": (
        message(admin.CreatePartitionsRequest, topics=[{"name": "secret", "count": 2}], timeout_ms=1000,
                validate_only=False), 3, [TOPIC],
    ),
    "DeleteRecords": (
        message(logs.DeleteRecordsRequest, timeout_ms=1000, topics=[
            {**topic, "partitions": [{"partition_index": 0, "offset": 0}]} for topic in TWO]), 2, [TOPIC, TOPIC],
    ),
    "AlterReplicaLogDirs": (
        message(logs.AlterReplicaLogDirsRequest, dirs=[
            {"path": "/d", "topics": [{"name": "secret", "partitions": [0]}]}]), 2, [CLUSTER],
    ),
    "DescribeLogDirs": (logs.DescribeLogDirsRequest(topics=None), 5, [CLUSTER]),
    "DescribeConfigs": (
        message(admin.DescribeConfigsRequest, resources=[
            {"resource_type": 2, "resource_name": "secret"}, {"resource_type": 4, "resource_name": "1"}]),
        4, [TOPIC, CLUSTER],
    ),
    "DescribeConfigs of groups and subscriptions": (
        message(admin.DescribeConfigsRequest, resources=[
            {"resource_type": 32, "resource_name": "g"}, {"resource_type": 16, "resource_name": "m"}]),
        4, [GROUP, CLUSTER],
    ),
    "ListConfigResources": (admin.ListConfigResourcesRequest(), 1, [CLUSTER]),
    "AlterConfigs": (
        admin.AlterConfigsRequest(validate_only=False, resources=[
            replaced(kind, name) for kind, name in ((2, "secret"), (4, "1"), (16, "m"), (32, "g"))]),
        2, [TOPIC, CLUSTER, CLUSTER, GROUP],
    ),
    "IncrementalAlterConfigs of groups and subscriptions": (alter((32, "g"), (16, "m")), 1, [GROUP, CLUSTER]),
    "IncrementalAlterConfigs of a topic": (alter((2, "secret")), 1, [TOPIC]),
    "IncrementalAlterConfigs of a broker": (alter((4, "1")), 1, [CLUSTER]),
    "IncrementalAlterConfigs of loggers": (alter((8, "1")), 1, [CLUSTER]),
    "ElectLeaders": (
        message(cluster.ElectLeadersRequest, topic_partitions=[
            {"topic": topic["name"], "partitions": [0]} for topic in TWO]), 2, [CLUSTER, CLUSTER, CLUSTER],
    ),
    "ElectLeaders of all": (cluster.ElectLeadersRequest(topic_partitions=None), 2, [CLUSTER]),
    "AlterPartitionReassignments": (
        message(cluster.AlterPartitionReassignmentsRequest, topics=in_secret(partition_index=0, replicas=[1])),
        1, [CLUSTER, CLUSTER],
    ),
    "ListPartitionReassignments": (cluster.ListPartitionReassignmentsRequest(topics=None), 0, [CLUSTER]),
    "UpdateFeatures": (updates(("group.version", 1, UP)), 2, [CLUSTER]),
    "UnregisterBroker": (cluster.UnregisterBrokerRequest(broker_id=7), 0, [CLUSTER]),
    "AddRaftVoter": (cluster.AddRaftVoterRequest(
        cluster_id=None, timeout_ms=1000, voter_id=2, voter_directory_id=b"D" * 16, listeners=[]), 1, [CLUSTER]),
    "RemoveRaftVoter": (
        cluster.RemoveRaftVoterRequest(cluster_id=None, voter_id=1, voter_directory_id=b"D" * 16), 0, [CLUSTER],
    ),
    "DescribeQuorum": (cluster.DescribeQuorumRequest(topics=[]), 2, [CLUSTER]),
    "DescribeClientQuotas": (quotas_scram.DescribeClientQuotasRequest(components=[], strict=False), 1, [CLUSTER]),
    "AlterClientQuotas": (
        quotas_scram.AlterClientQuotasRequest(entries=[altered({"user": "a"}, ("producer_byte_rate", 1.0))],
                                       validate_only=False), 1, [CLUSTER],
    ),
    "DescribeUserScramCredentials": (
        message(quotas_scram.DescribeUserScramCredentialsRequest, users=[{"name": "a"}]), 0, [CLUSTER, CLUSTER],
    ),
    "AlterUserScramCredentials": (
        quotas_scram.AlterUserScramCredentialsRequest(deletions=[gone("a")], upsertions=[credential("b")]),
        0, [CLUSTER, CLUSTER],
    ),
    "InitProducerId": (
        transactions.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4, [CLUSTER],
    ),
    "InitProducerId of a transaction": (
        transactions.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000), 4, [TRANSACTION],
    ),
    "Heartbeat": (groups.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3, [GROUP]),
    "JoinGroup": (
        message(groups.JoinGroupRequest, group_id="g", session_timeout_ms=9000, rebalance_timeout_ms=9000, member_id="",
                protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}]), 5, [GROUP],
    ),
    "SyncGroup": (groups.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[]), 3, [GROUP]),
    "LeaveGroup": (groups.LeaveGroupRequest(group_id="g", member_id="m"), 2, [GROUP]),
    "DescribeGroups": (groups.DescribeGroupsRequest(groups=["g"]), 5, [GROUP]),
    "ListGroups": (groups.ListGroupsRequest(), 4, [E.NONE]),
    "DeleteGroups": (groups.DeleteGroupsRequest(groups_names=["g"]), 2, [GROUP]),
    "OffsetDelete": (
        message(groups.OffsetDeleteRequest, group_id="g", topics=in_secret(partition_index=0)), 0, [GROUP],
    ),
    "OffsetCommit": (
        message(groups.OffsetCommitRequest, group_id="g", member_id="", topics=in_secret(
            partition_index=0, committed_offset=1, committed_metadata=None)), 8, [GROUP],
    ),
    "OffsetFetch": (
        message(groups.OffsetFetchRequest, groups=[
            {"group_id": "g", "topics": [{"name": "secret", "partition_indexes": [0]}]}]), 8, [GROUP],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_unauthorized_client_gets_authorization_errors(strict: Strict, case: str) -> None:
    """The authorization error of the requested resource."""
    request, version, expected = CASES[case]
    with RawClient(strict.bootstrap) as client:
        assert codes(client.ask(request, version), version) == expected


def test_a_topic_id_does_not_reveal_the_topic_name(strict: Strict) -> None:
    """It reveals that such a topic exists, as in Kafka."""
    with RawClient(strict.bootstrap) as client:
        for topic_id, code in ((strict.topic_id, TOPIC), (os.urandom(16), E.UNKNOWN_TOPIC_ID)):
            query = message(metadata.MetadataRequest, topics=[{"topic_id": topic_id, "name": None}])
            (response,) = client.ask(query, 12).topics
            assert (response.error_code, response.name, response.partitions) == (code, None, [])
            topics = [{"name": None, "topic_id": topic_id}]
            (response,) = client.ask(message(admin.DeleteTopicsRequest, topics=topics, timeout_ms=9), 6).responses
            assert (response.error_code, response.name) == (code, None)


CONTROLLER: dict[str, tuple[Message, int, list[ErrorCode]]] = {
    "BrokerRegistration": (
        quorum.BrokerRegistrationRequest(broker_id=2, cluster_id="c", incarnation_id=b"I" * 16, listeners=[],
                                         features=features(), rack=None, log_dirs=[b"D" * 16]), 4, [CLUSTER],
    ),
    "BrokerHeartbeat": (
        quorum.BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=1, current_metadata_offset=1, want_fence=True, want_shut_down=True), 2, [CLUSTER],
    ),
    "AlterPartition": (quorum.AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=[]), 3, [CLUSTER]),
    "AllocateProducerIds": (quorum.AllocateProducerIdsRequest(broker_id=1, broker_epoch=1), 0, [CLUSTER]),
    "DescribeCluster": (metadata.DescribeClusterRequest(endpoint_type=2), 1, [CLUSTER]),
    "CreateTopics": CASES["CreateTopics"],
}  # fmt: skip


@pytest.mark.parametrize("case", CONTROLLER)
@pytest.mark.parametrize("strict", ["barnabas"], indirect=True)
def test_the_controller_refuses_unknown_nodes(strict: Strict, case: str) -> None:
    """CLUSTER_ACTION; Kafka's controller requires credentials here, so the expectation follows its ControllerApis."""
    request, version, expected = CONTROLLER[case]
    with RawClient(strict.controller) as client:
        assert codes(client.ask(request, version), version) == expected

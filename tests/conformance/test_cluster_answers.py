"""What each of three nodes answers to the same requests, compared with Apache Kafka message by message.

Clients find leaders and coordinators by such answers: errors, and the current leader (KIP-951).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from protocol.messages import produce_fetch
from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, OffsetFetchRequest
from protocol.messages.logs import DeleteRecordsRequest
from protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from protocol.messages.transactions import DescribeProducersRequest
from protocol.schema import Message, fields_of
from tests.conformance.test_cluster_tools import SETTINGS
from tests.support.batches import batch
from tests.support.cluster import Cluster
from tests.support.group_requests import add_offsets_request, add_request_v3, commit_request, end_request
from tests.support.kafka import needs_kafka
from tests.support.kafka_cluster import ApacheCluster
from tests.support.loading import fetch_request
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

pytestmark = needs_kafka

PATIENT = {**SETTINGS, "broker.session.timeout.ms": "20000", "log.retention.ms": "-1"}
"""No session expires unless a node shuts down, and old records stay, however long the test takes."""
PARTITIONS = (0, 1, 2)
"""Of topic t; each has one node without a replica."""
PLACED = {"t": "1:2,2:3,3:1", "__consumer_offsets": "1:2:3,2:3:1,3:1:2", "__transaction_state": "1:2:3,2:3:1,3:1:2"}


class Nodes(NamedTuple):
    """Three nodes, of Barnabas or of Apache Kafka."""

    cluster: Cluster | ApacheCluster
    addresses: list[str]
    topic_id: bytes
    ends: dict[int, int]
    """The log end offset of each partition of topic t."""

    def answer(self, node: int, request: Message, version: int) -> str:
        """A node's response without the fields that differ from run to run."""
        with RawClient(self.addresses[node - 1]) as client:
            answer = client.ask(request, version)
        if isinstance(answer, produce_fetch.ProduceResponse):
            for row in answer.responses[0].partition_responses:
                self.ends[row.index] = max(row.base_offset + 1, self.ends.get(row.index, 0))
        text = plain(answer)
        for number, address in enumerate(self.addresses, 1):
            text = re.sub(rf"\bport={address.rpartition(':')[2]}\b", f"port=(of {number})", text)
        return text.replace(self.topic_id.hex(), "(the id)")

    def stop(self, node: int) -> None:
        if isinstance(self.cluster, ApacheCluster):
            self.cluster.stop(node)
        else:
            self.cluster.nodes[node].stop()

    def is_without(self, gone: int, query: int) -> bool:
        """Whether a node's metadata has another one in no ISR, and a leader for every partition."""
        rows = [row for topic in PLACED for row in metadata(self.addresses[query - 1], topic).topics[0].partitions]
        return all(gone not in row.isr_nodes and row.leader_id > 0 for row in rows)

    def is_copied(self, query: tuple[int, ...]) -> bool:
        """Whether each node can serve all records of the partitions that it has a replica of.

        A follower serves up to the high watermark of its last fetch, which may have waited 500 ms.
        """
        for node in query:
            with RawClient(self.addresses[node - 1]) as client:
                rows = client.ask(fetch(self.topic_id), 13).responses[0].partitions
            if any(row.high_watermark < self.ends[row.partition_index] for row in rows if not row.error_code):
                return False
        return True


MASKED = {"throttle_time_ms", "controller_id", "cluster_id"}


def plain(value: object) -> str:
    """A message as text; lists are sorted, since Kafka's are in the order of a hash set."""
    if isinstance(value, Message):
        fields = (field.name for field in fields_of(type(value)) if field.name not in MASKED)
        return f"{type(value).__name__}({', '.join(f'{name}={plain(getattr(value, name))}' for name in fields)})"
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return f"[{', '.join(sorted(map(plain, value)))}]"
    return repr(value)


def metadata(address: str, topic: str = "t") -> Any:
    query = message(MetadataRequest, topics=[{"name": topic}], allow_auto_topic_creation=False)
    with RawClient(address) as client:
        return client.ask(query, 13)


def partitions_of(address: str, topic: str) -> list[Any]:
    return list(metadata(address, topic).topics[0].partitions)


def is_missed(nodes: Nodes, gone: int) -> bool:
    return all(nodes.is_without(gone, query) for query in (1, 2))


def prepared(cluster: Cluster | ApacheCluster, addresses: list[str], tools: ApacheCluster) -> Nodes:
    for topic, replicas in PLACED.items():
        tools.run(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", addresses[0], "--create", "--topic", topic, "--replica-assignment", replicas),
        )
    for address in addresses:
        for topic in PLACED:
            until(partial(partitions_of, address, topic), "the node knows the topic")
    return Nodes(cluster, addresses, metadata(addresses[0]).topics[0].topic_id, ends={})


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Nodes, Nodes]]:
    with ApacheCluster(3, PATIENT) as kafka, Cluster(settings=PATIENT) as ours:
        theirs = prepared(kafka, kafka.bootstrap.split(","), kafka)
        yield theirs, prepared(ours, ours.bootstrap.split(","), kafka)


def produce(topic_id: bytes, acks: int = 1) -> produce_fetch.ProduceRequest:
    data = [{"index": index, "records": bytes(batch(RECENT_MS, 1))} for index in (*PARTITIONS, 7)]
    topic = {"name": "t", "topic_id": topic_id, "partition_data": data}
    return message(produce_fetch.ProduceRequest, acks=acks, timeout_ms=2000, topic_data=[topic])


def fetch(topic_id: bytes, epoch: int = -1, offset: int = 0) -> produce_fetch.FetchRequest:
    places = {("t", topic_id, index): offset for index in (*PARTITIONS, 7)}
    return fetch_request(13, places, min_bytes=0, partition={"current_leader_epoch": epoch})


def offsets(epoch: int = -1, timestamp: int = -1) -> produce_fetch.ListOffsetsRequest:
    parts = [{"partition_index": i, "current_leader_epoch": epoch, "timestamp": timestamp} for i in (*PARTITIONS, 7)]
    return message(produce_fetch.ListOffsetsRequest, topics=[{"name": "t", "partitions": parts}])


def epochs(current: int = -1, query: int = 0) -> produce_fetch.OffsetForLeaderEpochRequest:
    parts = [{"partition": i, "current_leader_epoch": current, "leader_epoch": query} for i in PARTITIONS]
    return message(
        produce_fetch.OffsetForLeaderEpochRequest, replica_id=-1, topics=[{"topic": "t", "partitions": parts}]
    )


def writing(topic_id: bytes) -> Iterator[tuple[Message, int]]:
    """The first requests, with their versions."""
    for version in (3, 9, 10, 12, 13):
        yield produce(topic_id), version
    yield produce(topic_id, acks=-1), 13
    yield produce(bytes(15) + b"x"), 13


def reading(topic_id: bytes) -> Iterator[tuple[Message, int]]:
    """The requests after replication, with their versions."""
    for version in (4, 11, 12, 13, 15, 16, 18):
        yield fetch(topic_id), version
    for epoch in (0, 5):
        yield fetch(topic_id, epoch), 17
    yield fetch(topic_id, offset=99), 17
    yield fetch(bytes(15) + b"x"), 17
    for timestamp in (-1, -2, -3, -4, -5, 0):
        yield offsets(timestamp=timestamp), 11
    for epoch in (0, 5):
        yield offsets(epoch), 11
    for current, query in ((-1, 0), (0, 0), (5, 0), (-1, 9)):
        yield epochs(current, query), 4
    parts = [{"partition_index": index, "offset": 1} for index in (*PARTITIONS, 7)]
    yield message(DeleteRecordsRequest, topics=[{"name": "t", "partitions": parts}], timeout_ms=2000), 2
    yield message(DescribeProducersRequest, topics=[{"name": "t", "partition_indexes": [0, 1, 2, 7]}]), 0
    for key in ("g0", "g1", "g2", "g3"):
        yield from of_group(key)
        yield from of_transaction(key)
    for version in (4, 7, 13):
        yield message(MetadataRequest, topics=[{"name": "t"}], allow_auto_topic_creation=False), version


def of_group(key: str) -> Iterator[tuple[Message, int]]:
    yield FindCoordinatorRequest(key=key), 3
    yield FindCoordinatorRequest(key_type=0, coordinator_keys=[key, ""]), 6
    join = {"group_id": key, "session_timeout_ms": 10_000, "member_id": "nobody", "protocol_type": "consumer"}
    yield message(JoinGroupRequest, protocols=[{"name": "range", "metadata": b""}], **join), 9
    yield HeartbeatRequest(group_id=key, generation_id=1, member_id="nobody"), 4
    yield commit_request(1, key, metadata=None), 9
    yield message(OffsetFetchRequest, groups=[{"group_id": key, "topics": None}]), 9


def of_transaction(key: str) -> Iterator[tuple[Message, int]]:
    yield FindCoordinatorRequest(key_type=1, coordinator_keys=[key]), 6
    producer = (7, 0)
    yield add_offsets_request(key, producer), 3
    yield add_request_v3(key, producer, 0), 3
    yield end_request(key, producer), 4


RequestsOf = Callable[[bytes], Iterable[tuple[Message, int]]]


def differences(both: tuple[Nodes, Nodes], nodes: tuple[int, ...], requests: RequestsOf) -> list[str]:
    theirs, ours = both
    found = []
    for (query, version), (our_requests, _) in zip(requests(theirs.topic_id), requests(ours.topic_id), strict=True):
        for node in nodes:
            expected, response = theirs.answer(node, query, version), ours.answer(node, our_requests, version)
            if expected != response:
                found.append(f"{type(query).__name__} {version} to node {node}\n  Kafka {expected}\n  ours  {response}")
    return found


def compare(both: tuple[Nodes, Nodes], nodes: tuple[int, ...]) -> None:
    found = differences(both, nodes, writing)
    until(lambda: all(cluster.is_copied(nodes) for cluster in both), "what was written is copied")
    found += differences(both, nodes, reading)
    assert not found, "\n".join(found)


def test_every_node_answers_as_kafkas(both: tuple[Nodes, Nodes]) -> None:
    """Leaders, followers, nodes without a replica, coordinators and others; then again while one node is down."""
    compare(both, (1, 2, 3))
    for nodes in both:
        nodes.stop(3)
    for nodes in both:
        until(partial(is_missed, nodes, 3), "node 3 is missed")
    compare(both, (1, 2))

"""ACLs in a cluster of one controller and two brokers: all nodes obey them, a client with few rights reaches nothing.

The nodes are at 127.0.0.1 and may do ClusterAction, the administrator at 127.0.0.2 everything, the other client at 127.0.0.3.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from barnabas import Cluster
from broker.config.security_configs import STANDARD_AUTHORIZER
from protocol.errors import ErrorCode
from protocol.messages import acls
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce_fetch import ProduceRequest
from protocol.schema import Message
from tests.support.batches import batch
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

NODES, ADMIN, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
TOPIC, GROUP, CLUSTER = 2, 3, 4
ALL, DESCRIBE, CLUSTER_ACTION = 2, 8, 9
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def entry(kind: int, host: str, operation: int = ALL, name: str = "*") -> acls.AclCreation:
    return acls.AclCreation(
        resource_type=kind, resource_name=name, principal="User:*", host=host, operation=operation, permission_type=3
    )


def ask(address: str, request: Message, version: int, source: str = ADMIN) -> Any:
    with RawClient(address, source=source) as client:
        return client.ask(request, version)


def create(address: str, *entries: acls.AclCreation) -> set[int]:
    response = ask(address, acls.CreateAclsRequest(creations=list(entries)), 3)
    return {result.error_code for result in response.results}


def topic_error(address: str, source: str) -> int:
    (topic,) = ask(address, message(MetadataRequest, topics=[{"name": "t"}]), 12, source).topics
    return int(topic.error_code)


def is_known(address: str, source: str) -> bool:
    return topic_error(address, source) == 0


def create_topic(address: str, name: str, source: str = ADMIN) -> int:
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 2}]
    request = message(CreateTopicsRequest, topics=topics, timeout_ms=30_000)
    return int(ask(address, request, 7, source).topics[0].error_code)


def produce(address: str) -> int:
    partitions = [{"index": 0, "records": bytes(batch(RECENT_MS))}]
    request = message(
        ProduceRequest, acks=-1, timeout_ms=9000, topic_data=[{"name": "t", "partition_data": partitions}]
    )
    return int(ask(address, request, 9).responses[0].partition_responses[0].error_code)


def test_all_nodes_of_a_cluster_obey_acls(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER}
    with Cluster(2, 1, data_dir=tmp_path, settings={**settings, "super.users": "User:ANONYMOUS"}) as cluster:
        first = cluster.bootstrap.split(",")[0]
        assert create(first, *(entry(kind, ADMIN) for kind in (TOPIC, GROUP))) == {0}
        assert create(first, entry(CLUSTER, ADMIN, name="kafka-cluster")) == {0}
        assert create(first, entry(CLUSTER, NODES, CLUSTER_ACTION, "kafka-cluster")) == {0}
    with Cluster(2, 1, data_dir=tmp_path, settings=settings) as cluster:
        addresses = cluster.bootstrap.split(",")
        assert create_topic(addresses[0], "t") == 0
        for address in addresses:
            until(partial(is_known, address, ADMIN), "the topic is known")
            assert topic_error(address, OTHER) == DENIED
            assert create_topic(address, "u", OTHER) == DENIED
        until(lambda: 0 in {produce(address) for address in addresses}, "the follower replicates")
        assert create_topic(addresses[0], "not-by-a-node", NODES) == DENIED
        assert create(addresses[1], entry(TOPIC, OTHER, DESCRIBE, "t")) == {0}
        for address in addresses:
            until(partial(is_known, address, OTHER), "the new entry counts on every broker")

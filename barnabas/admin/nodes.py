"""The nodes of a cluster: brokers, the metadata quorum, features, log directories.

RULES    1. Log directories are asked of each broker; a directory that failed is a row with its error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeLogDirsRequest, DescribeQuorumRequest
from kafka.protocol.metadata import ApiVersionsRequest

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused, check
from barnabas.admin.topics import id_text
from barnabas.client.error_codes import error_name

_METADATA_TOPIC = "__cluster_metadata"
_UNSUPPORTED = 35


class Broker(NamedTuple):
    """A broker; fenced: registered, but without heartbeats. None: the cluster does not say."""

    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool | None


class ClusterInfo(NamedTuple):
    """A cluster: its id, the broker that clients take for the controller, the brokers."""

    id: str
    controller: int
    brokers: list[Broker]


class Replica(NamedTuple):
    """A node of the metadata quorum, with its end of the metadata log. Times are ms since 1970, -1: unknown."""

    id: int
    role: str
    directory: str
    end_offset: int
    lag: int
    last_fetch_ms: int
    last_caught_up_ms: int


class Quorum(NamedTuple):
    """The Raft quorum of the metadata log; the high watermark is -1 if unknown."""

    leader: int
    epoch: int
    high_watermark: int
    replicas: list[Replica]


class Feature(NamedTuple):
    """A feature: its finalized level (0: none) and the levels that the asked node supports."""

    name: str
    level: int
    min_supported: int
    max_supported: int


class ReplicaDirectory(NamedTuple):
    """A replica's files: bytes, records behind, whether it is a copy that moves to this directory."""

    topic: str
    partition: int
    bytes: int
    lag: int
    is_future: bool


class LogDirectory(NamedTuple):
    """A log directory of a broker. Bytes of the file system are -1 if unknown; `error` is a name or empty."""

    broker: int
    path: str
    error: str
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaDirectory]


def describe_cluster(client: Client) -> ClusterInfo:
    """Returns the brokers, with fenced ones if the cluster lists them. Raises Refused."""
    try:
        found = client.ask(DescribeClusterRequest(include_fenced_brokers=True, min_version=2))
        has_fenced = True
    except Refused as failure:
        if failure.code != _UNSUPPORTED:
            raise
        found = client.ask(DescribeClusterRequest(max_version=1))
        has_fenced = False
    check(found.error_code, found.error_message, "describe the cluster", "Describe on the cluster")
    brokers = [
        Broker(broker.broker_id, broker.host, broker.port, broker.rack, bool(broker.is_fenced) if has_fenced else None)
        for broker in found.brokers
    ]
    return ClusterInfo(found.cluster_id, found.controller_id, sorted(brokers))


def describe_quorum(client: Client) -> Quorum:
    """Returns the metadata quorum. Raises Refused; a cluster with ZooKeeper has none."""
    kinds: Any = DescribeQuorumRequest.TopicData
    topic = kinds(topic_name=_METADATA_TOPIC, partitions=[kinds.PartitionData(partition_index=0)])
    response = client.ask_controller(DescribeQuorumRequest(topics=[topic]))
    action, right = "describe the quorum", "Describe on the cluster"
    check(response.error_code, response.error_message, action, right)
    found = response.topics[0].partitions[0]
    check(found.error_code, found.error_message, action, right)
    ends = [voter.log_end_offset for voter in found.current_voters if voter.replica_id == found.leader_id]
    end = ends[0] if ends else found.high_watermark
    replicas = [
        _replica(voter, "leader" if voter.replica_id == found.leader_id else "voter", end)
        for voter in found.current_voters
    ]
    replicas += [_replica(observer, "observer", end) for observer in found.observers]
    return Quorum(found.leader_id, found.leader_epoch, found.high_watermark, replicas)


def _replica(replica: Any, role: str, end: int) -> Replica:
    directory = id_text(replica.replica_directory_id)
    lag = max(0, end - replica.log_end_offset)
    return Replica(
        replica.replica_id,
        role,
        directory,
        replica.log_end_offset,
        lag,
        replica.last_fetch_timestamp,
        replica.last_caught_up_timestamp,
    )


def list_features(client: Client) -> list[Feature]:
    """Returns the features that a node supports or that are finalized. Raises Refused."""
    response = client.ask(
        ApiVersionsRequest(client_software_name="barnabas", client_software_version="1", min_version=3)
    )
    check(response.error_code, None, "list features")
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features or ()}
    supported = {
        feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features or ()
    }
    return [Feature(name, levels.get(name, 0), *supported.get(name, (0, 0))) for name in sorted({*levels, *supported})]


def list_log_dirs(client: Client, brokers: Iterable[int] = (), topics: Iterable[str] = ()) -> list[LogDirectory]:
    """Returns the log directories of these brokers, by default of all, with replicas of these topics. Raises Refused."""
    chosen = set(topics)
    found = []
    for broker in sorted(brokers) or client.node_ids():
        response = client.ask(DescribeLogDirsRequest(topics=None), broker)
        check(response.error_code or 0, None, f"list log directories of broker {broker}", "Describe on the cluster")
        found += [_directory(broker, result, chosen) for result in response.results]
    return sorted(found)


def _directory(broker: int, result: Any, topics: set[str]) -> LogDirectory:
    error = error_name(result.error_code) if result.error_code else ""
    replicas = [
        ReplicaDirectory(
            topic.name, part.partition_index, part.partition_size, max(0, part.offset_lag), bool(part.is_future_key)
        )
        for topic in result.topics
        for part in topic.partitions
        if not topics or topic.name in topics
    ]
    return LogDirectory(broker, result.log_dir, error, result.total_bytes, result.usable_bytes, sorted(replicas))

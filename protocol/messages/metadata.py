"""Discovery: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import ErrorMessageResponse, Response
from protocol.primitives import ZERO_UUID
from protocol.schema import EMPTY, Ignorable, Int8, Int16, Int32, Int64, Message, Nullable, Since, Tag, Until, Uuid


class ApiVersionsRequest(Message, api_key=18, versions=(0, 4), flexible=3):
    """Ask for the supported API versions; the first request on a connection."""

    client_software_name: Annotated[str, Since(3), Ignorable] = ""
    client_software_version: Annotated[str, Since(3), Ignorable] = ""


class ApiVersion(Message):
    """One API and its supported versions."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Message):
    """A feature and the levels that this broker supports."""

    name: str
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Message):
    """A feature and its finalized level in the cluster."""

    name: str
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message, request=ApiVersionsRequest):
    """The supported APIs. Its header always has version 0; version 0 of it answers unknown request versions."""

    error_code: Int16
    api_keys: list[ApiVersion]
    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    supported_features: Annotated[list[SupportedFeatureKey], Since(3), Tag(0), Ignorable] = EMPTY
    finalized_features_epoch: Annotated[Int64, Since(3), Tag(1), Ignorable] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], Since(3), Tag(2), Ignorable] = EMPTY
    zk_migration_ready: Annotated[bool, Since(3), Tag(3), Ignorable] = False


class MetadataRequestTopic(Message):
    """A topic by name, or from version 10 on by id with a null name."""

    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    name: Annotated[str | None, Nullable(10)]


class MetadataRequest(Message, api_key=3, versions=(0, 13), flexible=9):
    """Ask for brokers and topics. Null topics means all; in version 0 an empty list does."""

    topics: Annotated[list[MetadataRequestTopic] | None, Nullable(1)]
    allow_auto_topic_creation: Annotated[bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[bool, Since(8), Until(10)] = False
    include_topic_authorized_operations: Annotated[bool, Since(8)] = False


class MetadataResponseBroker(Message):
    """The address of one broker."""

    node_id: Int32
    host: str
    port: Int32
    rack: Annotated[str | None, Since(1), Ignorable] = None


class MetadataResponsePartition(Message):
    """Leader and replicas of one partition; leader_id is -1 if there is no leader."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Since(7), Ignorable] = -1
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: Annotated[list[Int32], Since(5), Ignorable] = EMPTY


class MetadataResponseTopic(Message):
    """One topic; the name is null for an unknown topic id."""

    error_code: Int16
    name: Annotated[str | None, Nullable(12)]
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    is_internal: Annotated[bool, Since(1), Ignorable] = False
    partitions: list[MetadataResponsePartition] = EMPTY
    topic_authorized_operations: Annotated[Int32, Since(8)] = -0x8000_0000


class MetadataResponse(Message, request=MetadataRequest):
    """Authorized operations are a bit set; the default means that they were not requested."""

    throttle_time_ms: Annotated[Int32, Since(3), Ignorable] = 0
    brokers: list[MetadataResponseBroker]
    cluster_id: Annotated[str | None, Since(2), Ignorable] = None
    controller_id: Annotated[Int32, Since(1), Ignorable] = -1
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Annotated[Int32, Since(8), Until(10)] = -0x8000_0000
    error_code: Annotated[Int16, Since(13), Ignorable] = 0


class DescribeClusterRequest(Message, api_key=60, versions=(0, 2), flexible=0):
    """Brokers or controllers of the cluster. endpoint_type: 1 brokers, 2 controllers."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[Int8, Since(1)] = 1
    include_fenced_brokers: Annotated[bool, Since(2)] = False


class DescribeClusterBroker(Message):
    """The address of one node."""

    broker_id: Int32
    host: str
    port: Int32
    rack: str | None = None
    is_fenced: Annotated[bool, Since(2)] = False


class DescribeClusterResponse(ErrorMessageResponse, request=DescribeClusterRequest):
    endpoint_type: Annotated[Int8, Since(1)] = 1
    cluster_id: str
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = -0x8000_0000


class TopicRequest(Message):
    """A topic by name."""

    name: str


class Cursor(Message):
    """The partition where the next page begins."""

    topic_name: str
    partition_index: Int32


class DescribeTopicPartitionsRequest(Message, api_key=75, versions=(0, 0), flexible=0):
    """Describe topics in pages; no topics means all. Topics are returned in order of name."""

    topics: list[TopicRequest]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    """Leader and replicas of one partition, including its eligible leader replicas (KIP-966)."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = EMPTY


class DescribeTopicPartitionsResponseTopic(Message):
    """One topic, or the part of it on this page."""

    error_code: Int16
    name: str | None
    topic_id: Uuid = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = EMPTY
    topic_authorized_operations: Int32 = -0x8000_0000


class DescribeTopicPartitionsResponse(Response, request=DescribeTopicPartitionsRequest):
    """One page; next_cursor is null on the last page."""

    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None


class FindCoordinatorRequest(Message, api_key=10, versions=(0, 6), flexible=3):
    """Find the coordinators of groups (key_type 0) or transactional ids (1); a single key until version 3."""

    key: Annotated[str, Until(3)] = ""
    key_type: Annotated[Int8, Since(1)] = 0
    coordinator_keys: Annotated[list[str], Since(4)] = EMPTY


class Coordinator(Message):
    """The coordinator of one key; node_id is -1 with an error."""

    key: str
    node_id: Int32
    host: str
    port: Int32
    error_code: Int16
    error_message: str | None


class FindCoordinatorResponse(Message, request=FindCoordinatorRequest):
    """The top-level fields are for a single key."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Annotated[Int16, Until(3)] = 0
    error_message: Annotated[str | None, Since(1), Until(3), Ignorable] = None
    node_id: Annotated[Int32, Until(3)] = 0
    host: Annotated[str, Until(3)] = ""
    port: Annotated[Int32, Until(3)] = 0
    coordinators: Annotated[list[Coordinator], Since(4)] = EMPTY

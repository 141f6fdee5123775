"""Messages that change and show topics and settings."""

from __future__ import annotations

from protocol.primitives import ZERO_UUID
from protocol.schema import (
    EMPTY,
    Annotated,
    Ignorable,
    Int8,
    Int16,
    Int32,
    Message,
    Nullable,
    Since,
    Tag,
    Until,
    Uuid,
)


class CreatableReplicaAssignment(Message):
    """The replicas of one partition, chosen by hand; the first is the preferred leader."""

    partition_index: Int32
    broker_ids: list[Int32]


class CreatableTopicConfig(Message):
    """One setting of a new topic."""

    name: str
    value: str | None


class CreatableTopic(Message):
    """A new topic. Counts are -1 for the broker's default, and whenever assignments are given."""

    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment] = EMPTY
    configs: list[CreatableTopicConfig] = EMPTY


class CreateTopicsRequest(Message, api_key=19, versions=(2, 7), flexible=5):
    """Create topics; with validate_only say only what would happen."""

    topics: list[CreatableTopic]
    timeout_ms: Int32 = 60000
    validate_only: bool = False


class CreatableTopicConfigs(Message):
    """One setting as the new topic has it."""

    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool


class CreatableTopicResult(Message):
    """What became of one topic. topic_config_error_code: why the settings are not shown."""

    name: str
    topic_id: Annotated[Uuid, Since(7), Ignorable] = ZERO_UUID
    error_code: Int16
    error_message: str | None = None
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0), Ignorable] = 0
    num_partitions: Annotated[Int32, Since(5), Ignorable] = -1
    replication_factor: Annotated[Int16, Since(5), Ignorable] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, Since(5), Ignorable] = EMPTY


class CreateTopicsResponse(Message, api_key=19, versions=(2, 7), flexible=5):
    """The answer to CreateTopicsRequest."""

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult]


class DeleteTopicState(Message):
    """A topic by name, or by id with a null name."""

    name: str | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message, api_key=20, versions=(1, 6), flexible=4):
    """Delete topics; topic_names until version 5, topics after that."""

    topics: Annotated[list[DeleteTopicState], Since(6)] = EMPTY
    topic_names: Annotated[list[str], Until(5), Ignorable] = EMPTY
    timeout_ms: Int32


class DeletableTopicResult(Message):
    """What became of one topic."""

    name: Annotated[str | None, Nullable(6)]
    topic_id: Annotated[Uuid, Since(6), Ignorable] = ZERO_UUID
    error_code: Int16
    error_message: Annotated[str | None, Since(5), Ignorable] = None


class DeleteTopicsResponse(Message, api_key=20, versions=(1, 6), flexible=4):
    """The answer to DeleteTopicsRequest."""

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult]


class CreatePartitionsAssignment(Message):
    """The replicas of one new partition, chosen by hand."""

    broker_ids: list[Int32]


class CreatePartitionsTopic(Message):
    """A topic and its new number of partitions; assignments are of the new ones only."""

    name: str
    count: Int32
    assignments: list[CreatePartitionsAssignment] | None = None


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible=2):
    """Give topics more partitions."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: bool = False


class CreatePartitionsTopicResult(Message):
    """What became of one topic."""

    name: str
    error_code: Int16
    error_message: str | None = None


class CreatePartitionsResponse(Message, api_key=37, versions=(0, 3), flexible=2):
    """The answer to CreatePartitionsRequest."""

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult]


class DescribeConfigsResource(Message):
    """A topic (2), broker (4), broker's loggers (8), ...; null keys means all settings."""

    resource_type: Int8
    resource_name: str
    configuration_keys: list[str] | None = None


class DescribeConfigsRequest(Message, api_key=32, versions=(1, 4), flexible=4):
    """Settings of topics and brokers."""

    resources: list[DescribeConfigsResource]
    include_synonyms: bool = False
    include_documentation: Annotated[bool, Since(3)] = False


class DescribeConfigsSynonym(Message):
    """Another place that could have given the setting, and what it says."""

    name: str
    value: str | None
    source: Int8


class DescribeConfigsResourceResult(Message):
    """One setting. config_source: 1 topic, 2 broker, 3 all brokers, 4 file, 5 default."""

    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool
    synonyms: list[DescribeConfigsSynonym] = EMPTY
    config_type: Annotated[Int8, Since(3), Ignorable] = 0
    documentation: Annotated[str | None, Since(3), Ignorable] = None


class DescribeConfigsResult(Message):
    """The settings of one resource."""

    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: list[DescribeConfigsResourceResult]


class DescribeConfigsResponse(Message, api_key=32, versions=(1, 4), flexible=4):
    """The answer to DescribeConfigsRequest."""

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult]


class AlterableConfig(Message):
    """One change: 0 set, 1 delete, 2 append to a list, 3 subtract from a list."""

    name: str
    config_operation: Int8
    value: str | None


class AlterConfigsResource(Message):
    """Changes of one topic, broker, ..."""

    resource_type: Int8
    resource_name: str
    configs: list[AlterableConfig]


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=(0, 1), flexible=1):
    """Change single settings and leave the others alone."""

    resources: list[AlterConfigsResource]
    validate_only: bool = False


class AlterConfigsResourceResponse(Message):
    """What became of one resource's changes."""

    error_code: Int16
    error_message: str | None = None
    resource_type: Int8
    resource_name: str


class IncrementalAlterConfigsResponse(Message, api_key=44, versions=(0, 1), flexible=1):
    """The answer to IncrementalAlterConfigsRequest."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]


class ReplacedConfig(Message):
    """A setting that a resource shall have."""

    name: str
    value: str | None


class ReplacedConfigsResource(Message):
    """All the settings that a resource shall have."""

    resource_type: Int8
    resource_name: str
    configs: list[ReplacedConfig]


class AlterConfigsRequest(Message, api_key=33, versions=(0, 2), flexible=2):
    """Set these settings and drop all others."""

    resources: list[ReplacedConfigsResource]
    validate_only: bool


class AlterConfigsResponse(Message, api_key=33, versions=(0, 2), flexible=2):
    """The answer to AlterConfigsRequest."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Message, api_key=74, versions=(0, 1), flexible=0):
    """What has settings, of these types or, without any, of all; version 0 asks for client metrics."""

    resource_types: Annotated[list[Int8], Since(1)] = EMPTY


class ConfigResource(Message):
    """Something that has settings."""

    resource_name: str
    resource_type: Annotated[Int8, Since(1), Ignorable] = 16


class ListConfigResourcesResponse(Message, api_key=74, versions=(0, 1), flexible=0):
    """The answer to ListConfigResourcesRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    config_resources: list[ConfigResource]

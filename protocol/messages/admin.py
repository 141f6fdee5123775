"""Requests and responses that create, change and describe topics and configs."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import ErrorResponse, Response
from protocol.primitives import ZERO_UUID
from protocol.schema import EMPTY, Ignorable, Int8, Int16, Int32, Message, Nullable, Since, Tag, Until, Uuid


class CreatableReplicaAssignment(Message):
    """The replicas of one partition, assigned manually; the first is the preferred leader."""

    partition_index: Int32
    broker_ids: list[Int32]


class ConfigEntry(Message):
    """A config and its value."""

    name: str
    value: str | None


class CreatableTopic(Message):
    """A new topic. Counts are -1 for the broker's default, and if assignments are given."""

    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment] = EMPTY
    configs: list[ConfigEntry] = EMPTY


class CreateTopicsRequest(Message, api_key=19, versions=(2, 7), flexible=5):
    """Create topics; with validate_only, only check the request."""

    topics: list[CreatableTopic]
    timeout_ms: Int32 = 60000
    validate_only: bool = False


class CreatableTopicConfigs(Message):
    """One config. config_source: 1 topic, 2 broker, 3 cluster-wide broker default, 4 static file, 5 default."""

    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool


class CreatableTopicResult(Message):
    """The result for one topic. topic_config_error_code: why configs are not returned."""

    name: str
    topic_id: Annotated[Uuid, Since(7), Ignorable] = ZERO_UUID
    error_code: Int16
    error_message: str | None = None
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0), Ignorable] = 0
    num_partitions: Annotated[Int32, Since(5), Ignorable] = -1
    replication_factor: Annotated[Int16, Since(5), Ignorable] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, Since(5), Ignorable] = EMPTY


class CreateTopicsResponse(Response, request=CreateTopicsRequest):
    topics: list[CreatableTopicResult]


class DeleteTopicState(Message):
    """A topic by name, or by id with a null name."""

    name: str | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message, api_key=20, versions=(1, 6), flexible=4):
    """Delete topics; topic_names until version 5, topics from version 6 on."""

    topics: Annotated[list[DeleteTopicState], Since(6)] = EMPTY
    topic_names: Annotated[list[str], Until(5), Ignorable] = EMPTY
    timeout_ms: Int32


class DeletableTopicResult(Message):
    """The result for one topic."""

    name: Annotated[str | None, Nullable(6)]
    topic_id: Annotated[Uuid, Since(6), Ignorable] = ZERO_UUID
    error_code: Int16
    error_message: Annotated[str | None, Since(5), Ignorable] = None


class DeleteTopicsResponse(Response, request=DeleteTopicsRequest):
    responses: list[DeletableTopicResult]


class CreatePartitionsAssignment(Message):
    """The replicas of one new partition, assigned manually."""

    broker_ids: list[Int32]


class CreatePartitionsTopic(Message):
    """A topic and its new number of partitions; assignments are for the new ones only."""

    name: str
    count: Int32
    assignments: list[CreatePartitionsAssignment] | None = None


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible=2):
    """Add partitions to topics."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: bool = False


class CreatePartitionsTopicResult(Message):
    """The result for one topic."""

    name: str
    error_code: Int16
    error_message: str | None = None


class CreatePartitionsResponse(Response, request=CreatePartitionsRequest):
    results: list[CreatePartitionsTopicResult]


class DescribeConfigsResource(Message):
    """A topic (2), broker (4), broker's loggers (8), ...; null or no keys mean all configs."""

    resource_type: Int8
    resource_name: str
    configuration_keys: list[str] | None = None


class DescribeConfigsRequest(Message, api_key=32, versions=(1, 4), flexible=4):
    """Describe configs of topics, brokers and other resources."""

    resources: list[DescribeConfigsResource]
    include_synonyms: bool = False
    include_documentation: Annotated[bool, Since(3)] = False


class DescribeConfigsSynonym(Message):
    """Another source of the config and the value it gives."""

    name: str
    value: str | None
    source: Int8


class DescribeConfigsResourceResult(CreatableTopicConfigs):
    """One config of a resource, with its sources."""

    synonyms: list[DescribeConfigsSynonym] = EMPTY
    config_type: Annotated[Int8, Since(3), Ignorable] = 0
    documentation: Annotated[str | None, Since(3), Ignorable] = None


class DescribeConfigsResult(Message):
    """The configs of one resource."""

    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: list[DescribeConfigsResourceResult]


class DescribeConfigsResponse(Response, request=DescribeConfigsRequest):
    results: list[DescribeConfigsResult]


class AlterableConfig(Message):
    """One change: 0 set, 1 delete, 2 append to a list, 3 subtract from a list."""

    name: str
    config_operation: Int8
    value: str | None


class AlterConfigsResource(Message):
    """Changes to one resource."""

    resource_type: Int8
    resource_name: str
    configs: list[AlterableConfig]


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=(0, 1), flexible=1):
    """Change single configs."""

    resources: list[AlterConfigsResource]
    validate_only: bool = False


class AlterConfigsResourceResponse(Message):
    """The result for one resource."""

    error_code: Int16
    error_message: str | None = None
    resource_type: Int8
    resource_name: str


class IncrementalAlterConfigsResponse(Response, request=IncrementalAlterConfigsRequest):
    responses: list[AlterConfigsResourceResponse]


class ReplacedConfigsResource(Message):
    """The complete new configs of a resource."""

    resource_type: Int8
    resource_name: str
    configs: list[ConfigEntry]


class AlterConfigsRequest(Message, api_key=33, versions=(0, 2), flexible=2):
    """Replace all configs of resources."""

    resources: list[ReplacedConfigsResource]
    validate_only: bool


class AlterConfigsResponse(Response, request=AlterConfigsRequest):
    responses: list[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Message, api_key=74, versions=(0, 1), flexible=0):
    """List resources that have configs, of these types or all; version 0 lists client metrics only."""

    resource_types: Annotated[list[Int8], Since(1)] = EMPTY


class ConfigResource(Message):
    """A resource that has configs."""

    resource_name: str
    resource_type: Annotated[Int8, Since(1), Ignorable] = 16


class ListConfigResourcesResponse(ErrorResponse, request=ListConfigResourcesRequest):
    config_resources: list[ConfigResource]

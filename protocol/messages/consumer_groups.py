"""Consumer groups with server-side assignment (KIP-848)."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import ErrorMessageResponse, Response, TopicById
from protocol.schema import EMPTY, Ignorable, Int8, Int16, Int32, Message, Since, Uuid


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions=(0, 1), flexible=0):
    """A heartbeat: epoch 0 joins, -1 leaves, -2 leaves temporarily (static member). Null or -1 fields are unchanged."""

    group_id: str
    member_id: str
    member_epoch: Int32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: Annotated[str | None, Since(1)] = None
    server_assignor: str | None = None
    topic_partitions: list[TopicById[Int32]] | None = None


class ConsumerGroupHeartbeatResponseAssignment(Message):
    """The member's assignment."""

    topic_partitions: list[TopicById[Int32]]


class ConsumerGroupHeartbeatResponse(ErrorMessageResponse, request=ConsumerGroupHeartbeatRequest):
    """The member's current epoch; a null assignment is unchanged."""

    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = None


class ConsumerGroupDescribeRequest(Message, api_key=69, versions=(0, 1), flexible=0):
    """Describe consumer groups."""

    group_ids: list[str]
    include_authorized_operations: bool


class ConsumerGroupDescribeResponseTopicPartitions(Message):
    """Partitions of a topic."""

    topic_id: Uuid
    topic_name: str
    partitions: list[Int32]


class ConsumerGroupDescribeResponseAssignment(Message):
    """A member's current or target assignment."""

    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = EMPTY


class ConsumerGroupDescribeResponseMember(Message):
    """One member; member_type: -1 unknown, 0 classic, 1 consumer."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None = None
    assignment: ConsumerGroupDescribeResponseAssignment
    target_assignment: ConsumerGroupDescribeResponseAssignment
    member_type: Annotated[Int8, Since(1), Ignorable] = -1


class ConsumerGroupDescribeResponseGroup(Message):
    """One group."""

    error_code: Int16
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[ConsumerGroupDescribeResponseMember] = EMPTY
    authorized_operations: Int32 = -0x8000_0000


class ConsumerGroupDescribeResponse(Response, request=ConsumerGroupDescribeRequest):
    groups: list[ConsumerGroupDescribeResponseGroup]

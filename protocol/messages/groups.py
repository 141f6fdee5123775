"""Classic groups and committed offsets, and the embedded consumer protocol."""

from __future__ import annotations

from typing import Annotated, Generic

from protocol.messages.common import PartitionError, PartitionIndex, PartitionIndexes, Response, Topic, TopicPartitions
from protocol.messages.stored_records import ClassicProtocol
from protocol.primitives import ZERO_UUID
from protocol.schema import EMPTY, Ignorable, Int16, Int32, Int64, Message, Nullable, P, Since, Until, Uuid


class JoinGroupRequest(Message, api_key=11, versions=(0, 9), flexible=6):
    """Join or rejoin a classic group; member_id is empty the first time."""

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Since(1), Ignorable] = -1
    member_id: str
    group_instance_id: Annotated[str | None, Since(5)] = None
    protocol_type: str
    protocols: list[ClassicProtocol]
    reason: Annotated[str | None, Since(8), Ignorable] = None


class JoinGroupResponseMember(Message):
    """A member and its subscription; only the leader receives them."""

    member_id: str
    group_instance_id: Annotated[str | None, Since(5), Ignorable] = None
    metadata: bytes


class JoinGroupResponse(Message, request=JoinGroupRequest):
    """The member's generation. skip_assignment: the leader keeps a static member's previous assignment."""

    throttle_time_ms: Annotated[Int32, Since(2), Ignorable] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: Annotated[str | None, Since(7), Ignorable] = None
    protocol_name: Annotated[str | None, Nullable(7)] = ""
    leader: str = ""
    skip_assignment: Annotated[bool, Since(9)] = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = EMPTY


class SyncGroupRequestAssignment(Message):
    """One member's assignment."""

    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, api_key=14, versions=(0, 5), flexible=4):
    """The leader's assignments; other members send an empty list and wait for theirs."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, Since(3)] = None
    protocol_type: Annotated[str | None, Since(5), Ignorable] = None
    protocol_name: Annotated[str | None, Since(5), Ignorable] = None
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Message, request=SyncGroupRequest):
    """The member's assignment."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16
    protocol_type: Annotated[str | None, Since(5), Ignorable] = None
    protocol_name: Annotated[str | None, Since(5), Ignorable] = None
    assignment: bytes = b""


class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible=4):
    """A heartbeat of a member of a classic group."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, Since(3)] = None


class HeartbeatResponse(Message, request=HeartbeatRequest):
    """After REBALANCE_IN_PROGRESS the member must rejoin."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16


class MemberIdentity(Message):
    """A leaving member, identified by member id or instance id."""

    member_id: str
    group_instance_id: str | None = None
    reason: Annotated[str | None, Since(5), Ignorable] = None


class LeaveGroupRequest(Message, api_key=13, versions=(0, 5), flexible=4):
    """Leave a classic group; a single member until version 2."""

    group_id: str
    member_id: Annotated[str, Until(2)] = ""
    members: Annotated[list[MemberIdentity], Since(3)] = EMPTY


class MemberResponse(Message):
    """The result for one leaving member."""

    member_id: str
    group_instance_id: str | None = None
    error_code: Int16


class LeaveGroupResponse(Message, request=LeaveGroupRequest):
    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16
    members: Annotated[list[MemberResponse], Since(3)] = EMPTY


class OffsetCommitRequestPartition(Message):
    """The next offset to read, and the consumer's metadata text."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(6), Ignorable] = -1
    committed_metadata: str | None


class OffsetsTopic(Message, Generic[P]):
    """Offsets of one topic; identified by id from version 10 on."""

    name: Annotated[str, Until(9), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    partitions: list[P]


class OffsetCommitRequest(Message, api_key=8, versions=(2, 10), flexible=8):
    """Commit offsets of a group. A client that is not a member sends an empty member id and generation -1."""

    group_id: str
    generation_id_or_member_epoch: Int32 = -1
    member_id: str
    group_instance_id: Annotated[str | None, Since(7)] = None
    retention_time_ms: Annotated[Int64, Until(4), Ignorable] = -1
    topics: list[OffsetsTopic[OffsetCommitRequestPartition]]


class OffsetCommitResponse(Message, request=OffsetCommitRequest):
    throttle_time_ms: Annotated[Int32, Since(3), Ignorable] = 0
    topics: list[OffsetsTopic[PartitionError]]


class OffsetFetchRequestTopics(Message):
    """Partitions of one topic, from version 8 on; identified by id from version 10 on."""

    name: Annotated[str, Until(9), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    partition_indexes: list[Int32]


class OffsetFetchRequestGroup(Message):
    """One group to query; null topics means all."""

    group_id: str
    member_id: Annotated[str | None, Since(9), Ignorable] = None
    member_epoch: Annotated[Int32, Since(9), Ignorable] = -1
    topics: list[OffsetFetchRequestTopics] | None


class OffsetFetchRequest(Message, api_key=9, versions=(1, 10), flexible=6):
    """Fetch committed offsets. The top-level fields name one group, until version 7; null topics means all."""

    group_id: Annotated[str, Until(7)] = ""
    topics: Annotated[list[PartitionIndexes] | None, Until(7), Nullable(2)] = EMPTY
    groups: Annotated[list[OffsetFetchRequestGroup], Since(8)] = EMPTY
    require_stable: Annotated[bool, Since(7)] = False


class OffsetFetchResponsePartition(Message):
    """One committed offset, until version 7; -1 if there is none."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(5), Ignorable] = -1
    metadata: str | None
    error_code: Int16


class OffsetFetchResponseGroup(Message):
    """Offsets of one group."""

    group_id: str
    topics: list[OffsetsTopic[OffsetFetchResponsePartition]]
    error_code: Int16 = 0


class OffsetFetchResponse(Message, request=OffsetFetchRequest):
    throttle_time_ms: Annotated[Int32, Since(3), Ignorable] = 0
    topics: Annotated[list[Topic[OffsetFetchResponsePartition]], Until(7)] = EMPTY
    error_code: Annotated[Int16, Since(2), Until(7), Ignorable] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], Since(8)] = EMPTY


class DescribeGroupsRequest(Message, api_key=15, versions=(0, 6), flexible=5):
    """Describe classic groups."""

    groups: list[str]
    include_authorized_operations: Annotated[bool, Since(3)] = False


class DescribedGroupMember(Message):
    """One member, with the opaque bytes of its subscription and assignment."""

    member_id: str
    group_instance_id: Annotated[str | None, Since(4), Ignorable] = None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribedGroup(Message):
    """One group. A nonexistent group has state Dead; from version 6 on also error GROUP_ID_NOT_FOUND."""

    error_code: Int16
    error_message: Annotated[str | None, Since(6)] = None
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = EMPTY
    authorized_operations: Annotated[Int32, Since(3)] = -0x8000_0000


class DescribeGroupsResponse(Message, request=DescribeGroupsRequest):
    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    groups: list[DescribedGroup]


class ListGroupsRequest(Message, api_key=16, versions=(0, 5), flexible=3):
    """List the groups that this broker coordinates; an empty filter matches all."""

    states_filter: Annotated[list[str], Since(4)] = EMPTY
    types_filter: Annotated[list[str], Since(5)] = EMPTY


class ListedGroup(Message):
    """One group."""

    group_id: str
    protocol_type: str
    group_state: Annotated[str, Since(4), Ignorable] = ""
    group_type: Annotated[str, Since(5), Ignorable] = ""


class ListGroupsResponse(Message, request=ListGroupsRequest):
    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16
    groups: list[ListedGroup] = EMPTY


class DeleteGroupsRequest(Message, api_key=42, versions=(0, 2), flexible=2):
    """Delete groups without members, and their offsets."""

    groups_names: list[str]


class DeletableGroupResult(Message):
    """The result for one group."""

    group_id: str
    error_code: Int16


class DeleteGroupsResponse(Response, request=DeleteGroupsRequest):
    results: list[DeletableGroupResult]


class OffsetDeleteRequest(Message, api_key=47, versions=(0, 0)):
    """Delete committed offsets of topics that the group is not subscribed to."""

    group_id: str
    topics: list[Topic[PartitionIndex]]


class OffsetDeleteResponse(Message, request=OffsetDeleteRequest):
    """The top-level error applies to the whole request."""

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: list[Topic[PartitionError]] = EMPTY


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    """A consumer's subscription: the metadata field of JoinGroup."""

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: Annotated[list[TopicPartitions[Int32]], Since(1), Ignorable] = EMPTY
    generation_id: Annotated[Int32, Since(2), Ignorable] = -1
    rack_id: Annotated[str | None, Since(3), Ignorable] = None


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    """A consumer's assignment: the assignment field of SyncGroup."""

    assigned_partitions: list[TopicPartitions[Int32]]
    user_data: bytes | None = None

"""Messages between the voters of the metadata quorum, and of those who follow it (KIP-595, 630, 853, 996)."""

from __future__ import annotations

from protocol.primitives import ZERO_UUID
from protocol.schema import (
    EMPTY,
    Annotated,
    Ignorable,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    Since,
    Tag,
    UInt16,
    Until,
    Uuid,
)


class NodeEndpoint(Message):
    """Where the leader that an answer names listens for controllers."""

    node_id: Int32
    host: str
    port: UInt16


class LeaderEndpoint(Message):
    """A listener of the leader that asks."""

    name: str
    host: str
    port: UInt16


class VoteRequestPartition(Message):
    """Who asks for a vote, of whom, and how far the asker's log goes."""

    partition_index: Int32 = 0
    replica_epoch: Int32
    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Since(1), Ignorable] = ZERO_UUID
    voter_directory_id: Annotated[Uuid, Since(1), Ignorable] = ZERO_UUID
    last_offset_epoch: Int32
    last_offset: Int64
    pre_vote: Annotated[bool, Since(2)] = False


class VoteRequestTopic(Message):
    """The metadata topic."""

    topic_name: str
    partitions: list[VoteRequestPartition]


class VoteRequest(Message, api_key=52, versions=(0, 2), flexible=0):
    """Would you vote for me (pre_vote), or do you? `last_offset` is where the log ends."""

    cluster_id: str | None = None
    voter_id: Annotated[Int32, Since(1), Ignorable] = -1
    topics: list[VoteRequestTopic]


class QuorumPartitionResponse(Message):
    """The leader that the one who answers knows: -1 is nobody."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32


class QuorumTopicResponse(Message):
    """The metadata topic."""

    topic_name: str
    partitions: list[QuorumPartitionResponse]


class VoteResponsePartition(Message):
    """A vote, and the leader that the voter knows: -1 is nobody."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32
    vote_granted: bool


class VoteResponseTopic(Message):
    """The metadata topic."""

    topic_name: str
    partitions: list[VoteResponsePartition]


class VoteResponse(Message, api_key=52, versions=(0, 2), flexible=0):
    """The answer to VoteRequest."""

    error_code: Int16 = 0
    topics: list[VoteResponseTopic] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class BeginQuorumEpochPartition(Message):
    """Who leads from now on."""

    partition_index: Int32 = 0
    voter_directory_id: Annotated[Uuid, Since(1), Ignorable] = ZERO_UUID
    leader_id: Int32
    leader_epoch: Int32


class BeginQuorumEpochTopic(Message):
    """The metadata topic."""

    topic_name: str
    partitions: list[BeginQuorumEpochPartition]


class BeginQuorumEpochRequest(Message, api_key=53, versions=(0, 1), flexible=1):
    """A leader tells a voter that does not fetch from it that it was elected."""

    cluster_id: str | None = None
    voter_id: Annotated[Int32, Since(1), Ignorable] = -1
    topics: list[BeginQuorumEpochTopic]
    leader_endpoints: Annotated[list[LeaderEndpoint], Since(1), Ignorable] = EMPTY


class BeginQuorumEpochResponse(Message, api_key=53, versions=(0, 1), flexible=1):
    """The answer to BeginQuorumEpochRequest."""

    error_code: Int16 = 0
    topics: list[QuorumTopicResponse] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class PreferredCandidate(Message):
    """A voter that should stand for election."""

    candidate_id: Int32
    candidate_directory_id: Uuid


class EndQuorumEpochPartition(Message):
    """Who leads no longer, and who should stand for election, the best first."""

    partition_index: Int32 = 0
    leader_id: Int32
    leader_epoch: Int32
    preferred_successors: Annotated[list[Int32], Until(0), Ignorable] = EMPTY
    preferred_candidates: Annotated[list[PreferredCandidate], Since(1), Ignorable] = EMPTY


class EndQuorumEpochTopic(Message):
    """The metadata topic."""

    topic_name: str
    partitions: list[EndQuorumEpochPartition]


class EndQuorumEpochRequest(Message, api_key=54, versions=(0, 1), flexible=1):
    """A leader resigns: nobody needs to wait until it is missed."""

    cluster_id: str | None = None
    topics: list[EndQuorumEpochTopic]
    leader_endpoints: Annotated[list[LeaderEndpoint], Since(1), Ignorable] = EMPTY


class EndQuorumEpochResponse(Message, api_key=54, versions=(0, 1), flexible=1):
    """The answer to EndQuorumEpochRequest."""

    error_code: Int16 = 0
    topics: list[QuorumTopicResponse] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class WantedSnapshot(Message):
    """A snapshot, by the offset and the epoch where it ends."""

    end_offset: Int64
    epoch: Int32


class QuorumLeader(Message):
    """The leader that the one who answers knows: -1 is nobody."""

    leader_id: Int32
    leader_epoch: Int32


class FetchSnapshotPartition(Message):
    """From which byte of which snapshot."""

    partition: Int32 = 0
    current_leader_epoch: Int32
    snapshot_id: WantedSnapshot
    position: Int64
    replica_directory_id: Annotated[Uuid, Since(1), Tag(0), Ignorable] = ZERO_UUID


class FetchSnapshotTopic(Message):
    """The metadata topic."""

    name: str
    partitions: list[FetchSnapshotPartition]


class FetchSnapshotRequest(Message, api_key=59, versions=(0, 1), flexible=0):
    """Read a piece of a snapshot of the leader's."""

    cluster_id: Annotated[str | None, Tag(0)] = None
    replica_id: Int32 = -1
    max_bytes: Int32 = 0x7FFF_FFFF
    topics: list[FetchSnapshotTopic]


class FetchSnapshotPartitionResponse(Message):
    """A piece of a snapshot, which may begin and end anywhere."""

    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: WantedSnapshot
    current_leader: Annotated[QuorumLeader | None, Tag(0)] = None
    size: Int64
    position: Int64
    unaligned_records: Records


class FetchSnapshotTopicResponse(Message):
    """The metadata topic."""

    name: str
    partitions: list[FetchSnapshotPartitionResponse]


class FetchSnapshotResponse(Message, api_key=59, versions=(0, 1), flexible=0):
    """The answer to FetchSnapshotRequest."""

    throttle_time_ms: Annotated[Int32, Ignorable] = 0
    error_code: Int16 = 0
    topics: list[FetchSnapshotTopicResponse] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class VoterEndpoint(Message):
    """Where a voter listens."""

    name: str
    host: str
    port: UInt16


class SupportedKRaftVersions(Message):
    """The range of kraft.version that a voter works with."""

    min_supported_version: Int16
    max_supported_version: Int16


class UpdateRaftVoterRequest(Message, api_key=82, versions=(0, 0), flexible=0):
    """A voter tells the leader where it listens now, and what it supports."""

    cluster_id: str | None
    current_leader_epoch: Int32
    voter_id: Int32
    voter_directory_id: Uuid
    listeners: list[VoterEndpoint]
    k_raft_version_feature: SupportedKRaftVersions


class CurrentLeader(Message):
    """The leader that the one who answers knows, and where it listens."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: str = ""
    port: Int32 = 0


class UpdateRaftVoterResponse(Message, api_key=82, versions=(0, 0), flexible=0):
    """The answer to UpdateRaftVoterRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    current_leader: Annotated[CurrentLeader | None, Tag(0)] = None

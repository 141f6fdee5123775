"""RPCs of the metadata quorum (KIP-595, KIP-630, KIP-853, KIP-996)."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import ErrorResponse, KRaftVersionFeature, ListenerEndpoint, QuorumTopic, Response, Topic
from protocol.primitives import ZERO_UUID
from protocol.schema import EMPTY, Ignorable, Int16, Int32, Int64, Message, Records, Since, Tag, UInt16, Until, Uuid


class NodeEndpoint(Message):
    """The controller listener of the leader that a response names."""

    node_id: Int32
    host: str
    port: UInt16


class VoteRequestPartition(Message):
    """The candidate, the voter, and the candidate's last epoch and log end offset."""

    partition_index: Int32 = 0
    replica_epoch: Int32
    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Since(1), Ignorable] = ZERO_UUID
    voter_directory_id: Annotated[Uuid, Since(1), Ignorable] = ZERO_UUID
    last_offset_epoch: Int32
    last_offset: Int64
    pre_vote: Annotated[bool, Since(2)] = False


class VoteRequest(Message, api_key=52, versions=(0, 2), flexible=0):
    """Request a vote or a pre-vote. `last_offset` is the candidate's log end offset."""

    cluster_id: str | None = None
    voter_id: Annotated[Int32, Since(1), Ignorable] = -1
    topics: list[QuorumTopic[VoteRequestPartition]]


class QuorumPartitionResponse(Message):
    """The leader known to the responding node; -1: none."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32


class VoteResponsePartition(QuorumPartitionResponse):
    """The vote, and the leader known to the voter; -1: none."""

    vote_granted: bool


class VoteResponse(Message, request=VoteRequest):
    error_code: Int16 = 0
    topics: list[QuorumTopic[VoteResponsePartition]] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class BeginQuorumEpochPartition(Message):
    """The new leader and its epoch."""

    partition_index: Int32 = 0
    voter_directory_id: Annotated[Uuid, Since(1), Ignorable] = ZERO_UUID
    leader_id: Int32
    leader_epoch: Int32


class BeginQuorumEpochRequest(Message, api_key=53, versions=(0, 1), flexible=1):
    """A new leader notifies a voter that does not fetch from it yet."""

    cluster_id: str | None = None
    voter_id: Annotated[Int32, Since(1), Ignorable] = -1
    topics: list[QuorumTopic[BeginQuorumEpochPartition]]
    leader_endpoints: Annotated[list[ListenerEndpoint], Since(1), Ignorable] = EMPTY


class BeginQuorumEpochResponse(Message, request=BeginQuorumEpochRequest):
    error_code: Int16 = 0
    topics: list[QuorumTopic[QuorumPartitionResponse]] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class PreferredCandidate(Message):
    """A voter that should become a candidate."""

    candidate_id: Int32
    candidate_directory_id: Uuid


class EndQuorumEpochPartition(Message):
    """The resigning leader, and its preferred successors, the best first."""

    partition_index: Int32 = 0
    leader_id: Int32
    leader_epoch: Int32
    preferred_successors: Annotated[list[Int32], Until(0), Ignorable] = EMPTY
    preferred_candidates: Annotated[list[PreferredCandidate], Since(1), Ignorable] = EMPTY


class EndQuorumEpochRequest(Message, api_key=54, versions=(0, 1), flexible=1):
    """A leader resigns, so that voters do not wait for the fetch timeout."""

    cluster_id: str | None = None
    topics: list[QuorumTopic[EndQuorumEpochPartition]]
    leader_endpoints: Annotated[list[ListenerEndpoint], Since(1), Ignorable] = EMPTY


class EndQuorumEpochResponse(Message, request=EndQuorumEpochRequest):
    error_code: Int16 = 0
    topics: list[QuorumTopic[QuorumPartitionResponse]] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class WantedSnapshot(Message):
    """A snapshot id: end offset and epoch."""

    end_offset: Int64
    epoch: Int32


class QuorumLeader(Message):
    """The leader known to the responding node; -1: none."""

    leader_id: Int32
    leader_epoch: Int32


class FetchSnapshotPartition(Message):
    """The snapshot and the position to read from."""

    partition: Int32 = 0
    current_leader_epoch: Int32
    snapshot_id: WantedSnapshot
    position: Int64
    replica_directory_id: Annotated[Uuid, Since(1), Tag(0), Ignorable] = ZERO_UUID


class FetchSnapshotRequest(Message, api_key=59, versions=(0, 1), flexible=0):
    """Fetch a part of a snapshot from the leader."""

    cluster_id: Annotated[str | None, Tag(0)] = None
    replica_id: Int32 = -1
    max_bytes: Int32 = 0x7FFF_FFFF
    topics: list[Topic[FetchSnapshotPartition]]


class FetchSnapshotPartitionResponse(Message):
    """A part of a snapshot; it need not end at a record boundary."""

    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: WantedSnapshot
    current_leader: Annotated[QuorumLeader | None, Tag(0)] = None
    size: Int64
    position: Int64
    unaligned_records: Records


class FetchSnapshotResponse(Response, request=FetchSnapshotRequest):
    error_code: Int16 = 0
    topics: list[Topic[FetchSnapshotPartitionResponse]] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = EMPTY


class UpdateRaftVoterRequest(Message, api_key=82, versions=(0, 0), flexible=0):
    """A voter reports its listeners and supported versions to the leader."""

    cluster_id: str | None
    current_leader_epoch: Int32
    voter_id: Int32
    voter_directory_id: Uuid
    listeners: list[ListenerEndpoint]
    k_raft_version_feature: KRaftVersionFeature


class CurrentLeader(Message):
    """The leader known to the responding node, and its address."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: str = ""
    port: Int32 = 0


class UpdateRaftVoterResponse(ErrorResponse, request=UpdateRaftVoterRequest):
    current_leader: Annotated[CurrentLeader | None, Tag(0)] = None

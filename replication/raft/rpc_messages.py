"""The requests and answers of Raft, which always speak of one partition: made and opened.

RULES    1. A request for anything but the one partition of the metadata topic is refused as Apache Kafka does.
         2. Whoever names a leader says where it listens, if that is known.
NOT HERE What is said in them (`elections.py`, `leader_fetch.py`, `follower_fetch.py`, `voter_changes.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    VoterListener,
)
from protocol.messages.produce_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from protocol.messages.produce_fetch import NodeEndpoint as FetchNodeEndpoint
from protocol.messages.raft import (
    BeginQuorumEpochPartition,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    BeginQuorumEpochTopic,
    CurrentLeader,
    EndQuorumEpochPartition,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    EndQuorumEpochTopic,
    FetchSnapshotPartition,
    FetchSnapshotPartitionResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FetchSnapshotTopic,
    FetchSnapshotTopicResponse,
    LeaderEndpoint,
    NodeEndpoint,
    PreferredCandidate,
    QuorumPartitionResponse,
    QuorumTopicResponse,
    SupportedKRaftVersions,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoterEndpoint,
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
    VoteResponsePartition,
    VoteResponseTopic,
    WantedSnapshot,
)
from protocol.schema import Message
from replication.raft.raft_log import EpochEnd
from replication.raft.voters import Address, ReplicaKey, Voter

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = (1).to_bytes(16, "big")
MAX_WAIT_MS = 500
MAX_FETCH_BYTES = 8 * 1024 * 1024


class Who(NamedTuple):
    """The leader and the epoch that a replica knows, and where that leader listens for controllers."""

    leader_id: int
    epoch: int
    address: Address | None = None

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        """Rule 2."""
        if self.address is None or self.leader_id < 0:
            return []
        return [NodeEndpoint(node_id=self.leader_id, host=self.address.host, port=self.address.port)]


QuorumResponse = type[BeginQuorumEpochResponse] | type[EndQuorumEpochResponse]


def only_partition(message: Any) -> Any:
    """The one partition that a request or an answer speaks of; None: it speaks of something else (rule 1)."""
    topics: Any = message.responses if isinstance(message, FetchResponse) else message.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    if isinstance(message, FetchRequest | FetchResponse):
        is_metadata = topic.topic in (METADATA_TOPIC, "") and topic.topic_id in (METADATA_TOPIC_ID, bytes(16))
    else:
        is_metadata = (topic.name if hasattr(topic, "name") else topic.topic_name) == METADATA_TOPIC
    index = next(getattr(partition, name) for name in _INDEXES if hasattr(partition, name))
    return partition if is_metadata and index == 0 else None


_INDEXES = ("partition_index", "partition", "index")


# ---- requests --------------------------------------------------------------------------------------------------


def vote_request(
    cluster_id: str, own: ReplicaKey, voter: ReplicaKey, *, epoch: int, end: EpochEnd, is_pre_vote: bool
) -> VoteRequest:
    """Ask a voter."""
    partition = VoteRequestPartition(
        replica_epoch=epoch,
        replica_id=own.node_id,
        replica_directory_id=own.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=end.epoch,
        last_offset=end.offset,
        pre_vote=is_pre_vote,
    )
    topics = [VoteRequestTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return VoteRequest(cluster_id=cluster_id, voter_id=voter.node_id, topics=topics)


def begin_epoch_request(cluster_id: str, own: Voter, voter: ReplicaKey, epoch: int) -> BeginQuorumEpochRequest:
    """Tell a voter who leads."""
    partition = BeginQuorumEpochPartition(
        voter_directory_id=voter.directory_id, leader_id=own.key.node_id, leader_epoch=epoch
    )
    topics = [BeginQuorumEpochTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id, voter_id=voter.node_id, topics=topics, leader_endpoints=_leader_endpoints(own)
    )


def _leader_endpoints(own: Voter) -> list[LeaderEndpoint]:
    return [LeaderEndpoint(name=name, host=host, port=port) for name, host, port in own.addresses]


def end_epoch_request(cluster_id: str, own: Voter, epoch: int, preferred: list[ReplicaKey]) -> EndQuorumEpochRequest:
    """Tell a voter that nobody leads any more."""
    partition = EndQuorumEpochPartition(
        leader_id=own.key.node_id,
        leader_epoch=epoch,
        preferred_successors=[key.node_id for key in preferred],
        preferred_candidates=[
            PreferredCandidate(candidate_id=key.node_id, candidate_directory_id=key.directory_id) for key in preferred
        ],
    )
    topics = [EndQuorumEpochTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return EndQuorumEpochRequest(cluster_id=cluster_id, topics=topics, leader_endpoints=_leader_endpoints(own))


def fetch_request(cluster_id: str, own: ReplicaKey, *, epoch: int, end: EpochEnd, high_watermark: int) -> FetchRequest:
    """Ask the leader for what follows, and tell what is here."""
    partition = FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=end.offset,
        last_fetched_epoch=end.epoch,
        log_start_offset=-1,
        partition_max_bytes=0,
        replica_directory_id=own.directory_id,
        high_watermark=high_watermark,
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=ReplicaState(replica_id=own.node_id),
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=0,
        max_bytes=MAX_FETCH_BYTES,
        topics=[FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def snapshot_request(
    cluster_id: str, own: ReplicaKey, *, epoch: int, snapshot: EpochEnd, position: int
) -> FetchSnapshotRequest:
    """Ask the leader for a piece of a snapshot."""
    partition = FetchSnapshotPartition(
        current_leader_epoch=epoch,
        snapshot_id=WantedSnapshot(end_offset=snapshot.offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=own.directory_id,
    )
    topics = [FetchSnapshotTopic(name=METADATA_TOPIC, partitions=[partition])]
    return FetchSnapshotRequest(cluster_id=cluster_id, replica_id=own.node_id, max_bytes=MAX_FETCH_BYTES, topics=topics)


def update_voter_request(cluster_id: str, own: Voter, epoch: int) -> UpdateRaftVoterRequest:
    """Tell the leader where this voter listens and what it supports."""
    return UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=epoch,
        voter_id=own.key.node_id,
        voter_directory_id=own.key.directory_id,
        listeners=[VoterEndpoint(name=name, host=host, port=port) for name, host, port in own.addresses],
        k_raft_version_feature=SupportedKRaftVersions(
            min_supported_version=own.kraft_versions[0], max_supported_version=own.kraft_versions[1]
        ),
    )


def add_voter_request(cluster_id: str, own: Voter, timeout_ms: int) -> AddRaftVoterRequest:
    """Ask the leader for a vote; whoever asks for itself does not wait until it is committed: that may need its vote."""
    return AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        voter_id=own.key.node_id,
        voter_directory_id=own.key.directory_id,
        listeners=[VoterListener(name=name, host=host, port=port) for name, host, port in own.addresses],
        ack_when_committed=False,
    )


def remove_voter_request(cluster_id: str, voter: ReplicaKey) -> RemoveRaftVoterRequest:
    """Ask the leader to take a vote away."""
    return RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=voter.node_id, voter_directory_id=voter.directory_id)


# ---- answers ---------------------------------------------------------------------------------------------------


def vote_response(code: ErrorCode, who: Who, *, is_granted: bool = False) -> VoteResponse:
    """Answer who asks for a vote."""
    partition = VoteResponsePartition(
        error_code=code, leader_id=who.leader_id, leader_epoch=who.epoch, vote_granted=is_granted
    )
    topics = [VoteResponseTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return VoteResponse(topics=topics, node_endpoints=who.endpoints)


def quorum_response(cls: QuorumResponse, code: ErrorCode, who: Who) -> Message:
    """Answer a leader that begins or ends its epoch."""
    partition = QuorumPartitionResponse(error_code=code, leader_id=who.leader_id, leader_epoch=who.epoch)
    topics = [QuorumTopicResponse(topic_name=METADATA_TOPIC, partitions=[partition])]
    return cls(topics=topics, node_endpoints=who.endpoints)


def fetch_response(partition: PartitionData, who: Who) -> FetchResponse:
    """Answer who fetches."""
    topic = FetchableTopicResponse(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    endpoints = [FetchNodeEndpoint(node_id=one.node_id, host=one.host, port=one.port) for one in who.endpoints]
    return FetchResponse(responses=[topic], node_endpoints=endpoints)


def snapshot_response(partition: FetchSnapshotPartitionResponse, who: Who) -> FetchSnapshotResponse:
    """Answer who fetches a snapshot."""
    topic = FetchSnapshotTopicResponse(name=METADATA_TOPIC, partitions=[partition])
    return FetchSnapshotResponse(topics=[topic], node_endpoints=who.endpoints)


def unknown_snapshot_partition(request: FetchSnapshotRequest, who: Who) -> FetchSnapshotResponse:
    """Answer who asks for snapshots of another partition than the one there is."""
    if not request.topics or not request.topics[0].partitions:
        return FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST)
    topic = request.topics[0]
    partition = FetchSnapshotPartitionResponse(
        index=topic.partitions[0].partition,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        snapshot_id=WantedSnapshot(end_offset=0, epoch=0),
        size=0,
        position=0,
        unaligned_records=b"",
    )
    topics = [FetchSnapshotTopicResponse(name=topic.name, partitions=[partition])]
    return FetchSnapshotResponse(topics=topics, node_endpoints=who.endpoints)


def update_voter_response(code: ErrorCode, who: Who) -> UpdateRaftVoterResponse:
    """Answer a voter that tells where it listens."""
    leader = CurrentLeader(leader_id=who.leader_id, leader_epoch=who.epoch)
    if who.address is not None and who.leader_id >= 0:
        leader.host, leader.port = who.address.host, who.address.port
    return UpdateRaftVoterResponse(error_code=code, current_leader=leader)


def change_response(
    request: AddRaftVoterRequest | RemoveRaftVoterRequest, code: ErrorCode, sentence: str | None = None
) -> AddRaftVoterResponse | RemoveRaftVoterResponse:
    """Answer who wants other voters."""
    cls = AddRaftVoterResponse if isinstance(request, AddRaftVoterRequest) else RemoveRaftVoterResponse
    return cls(error_code=code, error_message=sentence)


def refused(request: Message, code: ErrorCode) -> Message:
    """The answer to a request that is wrong as a whole."""
    if isinstance(request, VoteRequest):
        return VoteResponse(error_code=code)
    if isinstance(request, BeginQuorumEpochRequest):
        return BeginQuorumEpochResponse(error_code=code)
    if isinstance(request, EndQuorumEpochRequest):
        return EndQuorumEpochResponse(error_code=code)
    if isinstance(request, FetchSnapshotRequest):
        return FetchSnapshotResponse(error_code=code)
    if isinstance(request, UpdateRaftVoterRequest):
        return UpdateRaftVoterResponse(error_code=code)
    assert isinstance(request, FetchRequest), f"{request!r} is no request of Raft"
    return FetchResponse(error_code=code, responses=[])


def addresses_of(leader_id: int, response: Any, listener: str) -> tuple[Address, ...]:
    """Where an answer says that the leader listens; empty: it does not (rule 2)."""
    if isinstance(response, UpdateRaftVoterResponse):
        leader = response.current_leader
        return (Address(listener, leader.host, leader.port),) if leader is not None and leader.host else ()
    found = [one for one in response.node_endpoints if one.node_id == leader_id]
    return tuple(Address(listener, one.host, one.port) for one in found)

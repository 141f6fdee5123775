"""The requests and answers of Raft, which always speak of one partition: made and opened.

RULES    1. A request for anything but the one partition of the metadata topic is refused as Apache Kafka does.
NOT HERE What is said in them (`raft.py`).
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from protocol.messages.raft import (
    BeginQuorumEpochPartition,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    BeginQuorumEpochTopic,
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
    PreferredCandidate,
    QuorumPartitionResponse,
    QuorumTopicResponse,
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
    VoteResponsePartition,
    VoteResponseTopic,
    WantedSnapshot,
)
from protocol.schema import Message
from replication.raft.replica_log import EpochEnd
from replication.raft.voters import ReplicaKey

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = (1).to_bytes(16, "big")
MAX_WAIT_MS = 500
MAX_FETCH_BYTES = 8 * 1024 * 1024

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


def begin_epoch_request(cluster_id: str, leader_id: int, voter: ReplicaKey, epoch: int) -> BeginQuorumEpochRequest:
    """Tell a voter who leads."""
    partition = BeginQuorumEpochPartition(
        voter_directory_id=voter.directory_id, leader_id=leader_id, leader_epoch=epoch
    )
    topics = [BeginQuorumEpochTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return BeginQuorumEpochRequest(cluster_id=cluster_id, voter_id=voter.node_id, topics=topics)


def end_epoch_request(
    cluster_id: str, leader_id: int, epoch: int, preferred: list[ReplicaKey]
) -> EndQuorumEpochRequest:
    """Tell a voter that nobody leads any more."""
    partition = EndQuorumEpochPartition(
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_successors=[key.node_id for key in preferred],
        preferred_candidates=[
            PreferredCandidate(candidate_id=key.node_id, candidate_directory_id=key.directory_id) for key in preferred
        ],
    )
    topics = [EndQuorumEpochTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return EndQuorumEpochRequest(cluster_id=cluster_id, topics=topics)


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


# ---- answers ---------------------------------------------------------------------------------------------------


def vote_response(code: ErrorCode, leader_id: int, epoch: int, *, is_granted: bool = False) -> VoteResponse:
    """Answer who asks for a vote."""
    partition = VoteResponsePartition(error_code=code, leader_id=leader_id, leader_epoch=epoch, vote_granted=is_granted)
    return VoteResponse(topics=[VoteResponseTopic(topic_name=METADATA_TOPIC, partitions=[partition])])


def quorum_response(cls: QuorumResponse, code: ErrorCode, leader_id: int, epoch: int) -> Message:
    """Answer a leader that begins or ends its epoch."""
    partition = QuorumPartitionResponse(error_code=code, leader_id=leader_id, leader_epoch=epoch)
    return cls(topics=[QuorumTopicResponse(topic_name=METADATA_TOPIC, partitions=[partition])])


def fetch_response(partition: PartitionData) -> FetchResponse:
    """Answer who fetches."""
    topic = FetchableTopicResponse(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    return FetchResponse(responses=[topic])


def snapshot_response(partition: FetchSnapshotPartitionResponse) -> FetchSnapshotResponse:
    """Answer who fetches a snapshot."""
    topic = FetchSnapshotTopicResponse(name=METADATA_TOPIC, partitions=[partition])
    return FetchSnapshotResponse(topics=[topic])


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
    return FetchResponse(error_code=code, responses=[])

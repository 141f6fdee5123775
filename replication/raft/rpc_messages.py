"""Builders and accessors for Raft requests and responses, which always concern one partition.

RULES    1. A request for a partition other than that of the metadata topic is rejected as in Apache Kafka.
         2. A response that names the leader also names its endpoint, if known.
NOT HERE The content (`elections.py`, `leader_fetch.py`, `follower_fetch.py`, `voter_changes.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.api import APIS
from protocol.errors import ErrorCode
from protocol.messages import cluster, produce_fetch, raft
from protocol.schema import Message, blank
from replication.raft.raft_log import EpochEnd
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = (1).to_bytes(16, "big")
MAX_WAIT_MS = 500
MAX_FETCH_BYTES = 8 * 1024 * 1024


class LeaderAndEpoch(NamedTuple):
    """A leader, its epoch and its address on the controller listener."""

    leader_id: int
    epoch: int
    address: ListenerAddress | None = None

    @property
    def endpoints(self) -> list[raft.NodeEndpoint]:
        """The NodeEndpoints of a response (rule 2)."""
        if self.address is None or self.leader_id < 0:
            return []
        return [raft.NodeEndpoint(node_id=self.leader_id, host=self.address.host, port=self.address.port)]


def single_partition(message: Any) -> Any:
    """The metadata partition in a request or response; None if it contains anything else (rule 1)."""
    topics: Any = message.responses if isinstance(message, produce_fetch.FetchResponse) else message.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    if isinstance(message, produce_fetch.FetchRequest | produce_fetch.FetchResponse):
        is_metadata = topic.topic in (METADATA_TOPIC, "") and topic.topic_id in (METADATA_TOPIC_ID, bytes(16))
    else:
        is_metadata = (topic.name if hasattr(topic, "name") else topic.topic_name) == METADATA_TOPIC
    index = next(getattr(partition, name) for name in _INDEXES if hasattr(partition, name))
    return partition if is_metadata and index == 0 else None


_INDEXES = ("partition_index", "partition", "index")


# ---- requests --------------------------------------------------------------------------------------------------


def vote_request(
    cluster_id: str, local: ReplicaKey, voter: ReplicaKey, *, epoch: int, end: EpochEnd, is_pre_vote: bool
) -> raft.VoteRequest:
    """A Vote request to a voter."""
    partition = raft.VoteRequestPartition(
        replica_epoch=epoch,
        replica_id=local.node_id,
        replica_directory_id=local.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=end.epoch,
        last_offset=end.offset,
        pre_vote=is_pre_vote,
    )
    topics = [raft.VoteRequestTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return raft.VoteRequest(cluster_id=cluster_id, voter_id=voter.node_id, topics=topics)


def begin_epoch_request(cluster_id: str, local: Voter, voter: ReplicaKey, epoch: int) -> raft.BeginQuorumEpochRequest:
    """A BeginQuorumEpoch request to a voter."""
    partition = raft.BeginQuorumEpochPartition(
        voter_directory_id=voter.directory_id, leader_id=local.key.node_id, leader_epoch=epoch
    )
    topics = [raft.BeginQuorumEpochTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return raft.BeginQuorumEpochRequest(
        cluster_id=cluster_id, voter_id=voter.node_id, topics=topics, leader_endpoints=_leader_endpoints(local)
    )


def _leader_endpoints(local: Voter) -> list[raft.LeaderEndpoint]:
    return [raft.LeaderEndpoint(name=name, host=host, port=port) for name, host, port in local.addresses]


def end_epoch_request(
    cluster_id: str, local: Voter, epoch: int, preferred_successors: list[ReplicaKey]
) -> raft.EndQuorumEpochRequest:
    """An EndQuorumEpoch request with the preferred candidates."""
    partition = raft.EndQuorumEpochPartition(
        leader_id=local.key.node_id,
        leader_epoch=epoch,
        preferred_successors=[key.node_id for key in preferred_successors],
        preferred_candidates=[
            raft.PreferredCandidate(candidate_id=key.node_id, candidate_directory_id=key.directory_id)
            for key in preferred_successors
        ],
    )
    topics = [raft.EndQuorumEpochTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return raft.EndQuorumEpochRequest(cluster_id=cluster_id, topics=topics, leader_endpoints=_leader_endpoints(local))


def fetch_request(
    cluster_id: str, local: ReplicaKey, *, epoch: int, end: EpochEnd, high_watermark: int
) -> produce_fetch.FetchRequest:
    """A Fetch request from the local log end."""
    partition = produce_fetch.FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=end.offset,
        last_fetched_epoch=end.epoch,
        log_start_offset=-1,
        partition_max_bytes=0,
        replica_directory_id=local.directory_id,
        high_watermark=high_watermark,
    )
    return produce_fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=produce_fetch.ReplicaState(replica_id=local.node_id),
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=0,
        max_bytes=MAX_FETCH_BYTES,
        topics=[produce_fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def snapshot_request(
    cluster_id: str, local: ReplicaKey, *, epoch: int, snapshot: EpochEnd, position: int
) -> raft.FetchSnapshotRequest:
    """A FetchSnapshot request for the chunk at a position."""
    partition = raft.FetchSnapshotPartition(
        current_leader_epoch=epoch,
        snapshot_id=raft.WantedSnapshot(end_offset=snapshot.offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=local.directory_id,
    )
    topics = [raft.FetchSnapshotTopic(name=METADATA_TOPIC, partitions=[partition])]
    return raft.FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=local.node_id, max_bytes=MAX_FETCH_BYTES, topics=topics
    )


def update_voter_request(cluster_id: str, local: Voter, epoch: int) -> raft.UpdateRaftVoterRequest:
    """An UpdateRaftVoter request with the local endpoints and versions."""
    return raft.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=epoch,
        voter_id=local.key.node_id,
        voter_directory_id=local.key.directory_id,
        listeners=[raft.VoterEndpoint(name=name, host=host, port=port) for name, host, port in local.addresses],
        k_raft_version_feature=raft.SupportedKRaftVersions(
            min_supported_version=local.kraft_versions[0], max_supported_version=local.kraft_versions[1]
        ),
    )


def add_voter_request(cluster_id: str, local: Voter, timeout_ms: int) -> cluster.AddRaftVoterRequest:
    """An AddRaftVoter request for the local replica; it does not wait for the commit, which may need its own vote."""
    return cluster.AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        voter_id=local.key.node_id,
        voter_directory_id=local.key.directory_id,
        listeners=[cluster.VoterListener(name=name, host=host, port=port) for name, host, port in local.addresses],
        ack_when_committed=False,
    )


def remove_voter_request(cluster_id: str, voter: ReplicaKey) -> cluster.RemoveRaftVoterRequest:
    """A RemoveRaftVoter request."""
    return cluster.RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=voter.node_id, voter_directory_id=voter.directory_id
    )


# ---- answers ---------------------------------------------------------------------------------------------------


def vote_response(code: ErrorCode, leader: LeaderAndEpoch, *, is_granted: bool = False) -> raft.VoteResponse:
    """A Vote response."""
    partition = raft.VoteResponsePartition(
        error_code=code, leader_id=leader.leader_id, leader_epoch=leader.epoch, vote_granted=is_granted
    )
    topics = [raft.VoteResponseTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return raft.VoteResponse(topics=topics, node_endpoints=leader.endpoints)


def quorum_response(request: Message, code: ErrorCode, leader: LeaderAndEpoch) -> Message:
    """The response to BeginQuorumEpoch or EndQuorumEpoch."""
    partition = raft.QuorumPartitionResponse(error_code=code, leader_id=leader.leader_id, leader_epoch=leader.epoch)
    topics = [raft.QuorumTopicResponse(topic_name=METADATA_TOPIC, partitions=[partition])]
    return APIS[request.API_KEY].response(topics=topics, node_endpoints=leader.endpoints)


def fetch_response(partition: produce_fetch.PartitionData, leader: LeaderAndEpoch) -> produce_fetch.FetchResponse:
    """A Fetch response."""
    topic = produce_fetch.FetchableTopicResponse(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    endpoints = [
        produce_fetch.NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port) for one in leader.endpoints
    ]
    return produce_fetch.FetchResponse(responses=[topic], node_endpoints=endpoints)


def snapshot_response(
    partition: raft.FetchSnapshotPartitionResponse, leader: LeaderAndEpoch
) -> raft.FetchSnapshotResponse:
    """A FetchSnapshot response."""
    topic = raft.FetchSnapshotTopicResponse(name=METADATA_TOPIC, partitions=[partition])
    return raft.FetchSnapshotResponse(topics=[topic], node_endpoints=leader.endpoints)


def unknown_snapshot_partition(
    request: raft.FetchSnapshotRequest, leader: LeaderAndEpoch
) -> raft.FetchSnapshotResponse:
    """The FetchSnapshot response for an unknown partition."""
    if not request.topics or not request.topics[0].partitions:
        return raft.FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST)
    topic = request.topics[0]
    partition = raft.FetchSnapshotPartitionResponse(
        index=topic.partitions[0].partition,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        snapshot_id=raft.WantedSnapshot(end_offset=0, epoch=0),
        size=0,
        position=0,
        unaligned_records=b"",
    )
    topics = [raft.FetchSnapshotTopicResponse(name=topic.name, partitions=[partition])]
    return raft.FetchSnapshotResponse(topics=topics, node_endpoints=leader.endpoints)


def update_voter_response(code: ErrorCode, leader: LeaderAndEpoch) -> raft.UpdateRaftVoterResponse:
    """An UpdateRaftVoter response."""
    current_leader = raft.CurrentLeader(leader_id=leader.leader_id, leader_epoch=leader.epoch)
    if leader.address is not None and leader.leader_id >= 0:
        current_leader.host, current_leader.port = leader.address.host, leader.address.port
    return raft.UpdateRaftVoterResponse(error_code=code, current_leader=current_leader)


def voter_change_response(
    request: cluster.AddRaftVoterRequest | cluster.RemoveRaftVoterRequest, code: ErrorCode, message: str | None = None
) -> Message:
    """The response to AddRaftVoter or RemoveRaftVoter."""
    return APIS[request.API_KEY].response(error_code=code, error_message=message)


def error_response(request: Message, code: ErrorCode) -> Message:
    """The response to a request that is rejected as a whole."""
    response = blank(APIS[request.API_KEY].response)
    response.error_code = code  # type: ignore[attr-defined]
    return response


def leader_addresses(leader_id: int, response: Any, listener: str) -> tuple[ListenerAddress, ...]:
    """The leader's addresses in a response; empty if it names none (rule 2)."""
    if isinstance(response, raft.UpdateRaftVoterResponse):
        leader = response.current_leader
        return (ListenerAddress(listener, leader.host, leader.port),) if leader is not None and leader.host else ()
    found = [one for one in response.node_endpoints if one.node_id == leader_id]
    return tuple(ListenerAddress(listener, one.host, one.port) for one in found)

"""The DescribeQuorum response: the leader's view of voters and observers (KIP-595).

NOT HERE Authorization (`broker/handlers/admin/cluster_admin.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    DescribedQuorum,
    DescribeQuorumResponse,
    QuorumNode,
    QuorumReplica,
)
from protocol.messages.common import ListenerEndpoint, QuorumTopic
from replication.metadata.image import MetadataImage
from replication.metadata.topic_names import METADATA_TOPIC
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Leader
from replication.raft.voters import ReplicaKey

_UNKNOWN = -1


class _Times(NamedTuple):
    """The current time on both clocks."""

    mono_ms: int
    wall_ms: int

    def to_wall(self, mono_ms: int | None) -> int:
        """A monotonic time as wall-clock time; -1 for None."""
        return _UNKNOWN if mono_ms is None else mono_ms + self.wall_ms - self.mono_ms


def describe_quorum(state: QuorumState, image: MetadataImage, *, mono_ms: int, wall_ms: int) -> DescribeQuorumResponse:
    """Describe the quorum; the error is NOT_LEADER_OR_FOLLOWER if this replica does not lead it.

    `state` is the local replica's, `image` has the endpoints of the voters, and both times are the current one.
    """
    quorum = DescribedQuorum(
        partition_index=0,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        error_message="This replica does not lead the metadata quorum.",
        leader_id=state.leader_id,
        leader_epoch=state.epoch,
        high_watermark=state.high_watermark,
        current_voters=[],
        observers=[],
    )
    if isinstance(state.role, Leader):
        quorum.error_code, quorum.error_message = ErrorCode.NONE, ""
        replicas = _replicas(state, state.role, _Times(mono_ms, wall_ms))
        quorum.current_voters = [_voter(voter.key, replicas) for voter in state.voters]
        quorum.observers = list(replicas.values())
    topic = QuorumTopic(topic_name=METADATA_TOPIC, partitions=[quorum])
    nodes = _nodes(image, [replica.replica_id for replica in quorum.current_voters])
    return DescribeQuorumResponse(error_code=ErrorCode.NONE, error_message="", topics=[topic], nodes=nodes)


def _replicas(state: QuorumState, role: Leader, times: _Times) -> dict[ReplicaKey, QuorumReplica]:
    """The replicas that have fetched, and the leader itself; a node with a new directory is another replica."""
    replicas = {
        replica.key: QuorumReplica(
            replica_id=replica.key.node_id,
            replica_directory_id=replica.key.directory_id,
            log_end_offset=replica.end_offset,
            last_fetch_timestamp=times.to_wall(replica.last_fetch_ms),
            last_caught_up_timestamp=times.to_wall(replica.caught_up_ms),
        )
        for replica in role.progress.replicas.values()
    }
    local = state.local.key
    replicas[local] = QuorumReplica(
        replica_id=local.node_id,
        replica_directory_id=local.directory_id,
        log_end_offset=state.log.end.offset,
        last_fetch_timestamp=times.wall_ms,
        last_caught_up_timestamp=times.wall_ms,
    )
    return replicas


def _voter(key: ReplicaKey, replicas: dict[ReplicaKey, QuorumReplica]) -> QuorumReplica:
    """A voter, removed from `replicas`; its directory id is the voter set's: none in a static quorum, as in Kafka."""
    found = [replicas.pop(replica) for replica in list(replicas) if key.matches(replica)]
    absent = QuorumReplica(replica_id=key.node_id, log_end_offset=_UNKNOWN)
    voter = max(found, key=lambda replica: replica.last_fetch_timestamp, default=absent)
    voter.replica_directory_id = key.directory_id
    return voter


def _nodes(image: MetadataImage, voter_ids: list[int]) -> list[QuorumNode]:
    """The registered endpoints of the voters."""
    return [
        QuorumNode(
            node_id=node_id,
            listeners=[ListenerEndpoint(name=e.listener, host=e.host, port=e.port) for e in controller.endpoints],
        )
        for node_id, controller in image.controllers.items()
        if node_id in voter_ids
    ]

"""The DescribeQuorum response: the leader's view of voters and observers (KIP-595).

NOT HERE Authorization (`broker/handlers/admin/cluster_admin.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    DescribedQuorum,
    DescribeQuorumResponse,
    QuorumNode,
    QuorumReplica,
)
from protocol.messages.common import ListenerEndpoint, QuorumTopic
from replication.metadata.image import MetadataImage
from replication.metadata_log.raft_wire import METADATA_TOPIC
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Leader
from replication.raft.voters import ReplicaKey

_UNKNOWN = -1


def describe_quorum(state: QuorumState, image: MetadataImage, *, mono_ms: int, wall_ms: int) -> DescribeQuorumResponse:
    """Describe the quorum; the error is NOT_LEADER_OR_FOLLOWER if this replica does not lead it.

    `state` is the local replica's, `image` has the endpoints of the voters, and both times are the current one.
    """

    def described(
        key: ReplicaKey, end: int = _UNKNOWN, fetch_ms: int | None = None, caught_up_ms: int | None = None
    ) -> QuorumReplica:
        fetched, caught_up = (_UNKNOWN if ms is None else ms + wall_ms - mono_ms for ms in (fetch_ms, caught_up_ms))
        return QuorumReplica(
            replica_id=key.node_id,
            replica_directory_id=key.directory_id,
            log_end_offset=end,
            last_fetch_timestamp=fetched,
            last_caught_up_timestamp=caught_up,
        )

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
        known = {
            one.key.node_id: described(one.key, one.end_offset, one.last_fetch_ms, one.caught_up_ms)
            for one in state.role.progress.replicas.values()
        }
        known[state.local.key.node_id] = described(state.local.key, state.log.end.offset, mono_ms, mono_ms)
        quorum.error_code, quorum.error_message = ErrorCode.NONE, ""
        quorum.current_voters = [known.pop(voter.key.node_id, described(voter.key)) for voter in state.voters]
        for replica, voter in zip(quorum.current_voters, state.voters, strict=True):
            replica.replica_directory_id = voter.key.directory_id  # none in a static quorum, as in Kafka
        quorum.observers = list(known.values())
    voters = [replica.replica_id for replica in quorum.current_voters]
    nodes = [
        QuorumNode(
            node_id=node_id,
            listeners=[ListenerEndpoint(name=e.listener, host=e.host, port=e.port) for e in controller.endpoints],
        )
        for node_id, controller in image.controllers.items()
        if node_id in voters
    ]
    topic = QuorumTopic(topic_name=METADATA_TOPIC, partitions=[quorum])
    return DescribeQuorumResponse(error_code=ErrorCode.NONE, error_message="", topics=[topic], nodes=nodes)

"""The DescribeQuorum response: the leader's view of voters and observers (KIP-595).

NOT HERE Authorization (`broker/handlers/admin/cluster_admin.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.cluster import DescribedQuorum, QuorumReplica
from replication.raft.raft import Raft
from replication.raft.roles import Leader
from replication.raft.voters import ReplicaKey

_UNKNOWN = -1


def describe_quorum(raft: Raft, end_offset: int, *, mono_ms: int, wall_ms: int) -> DescribedQuorum:
    """Describe the quorum; the error is NOT_LEADER_OR_FOLLOWER if this replica does not lead it.

    Args:
        raft: the local replica.
        end_offset: its log end offset.
        mono_ms: the current monotonic time.
        wall_ms: the current time in ms since 1970.
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
        leader_id=raft.state.leader_id,
        leader_epoch=raft.state.epoch,
        high_watermark=raft.state.high_watermark,
        current_voters=[],
        observers=[],
    )
    if isinstance(raft.state.role, Leader):
        known = {
            one.key.node_id: described(one.key, one.end_offset, one.last_fetch_ms, one.caught_up_ms)
            for one in raft.state.role.progress.replicas.values()
        }
        known[raft.state.local.key.node_id] = described(raft.state.local.key, end_offset, mono_ms, mono_ms)
        quorum.error_code, quorum.error_message = ErrorCode.NONE, ""
        quorum.current_voters = [known.pop(voter.key.node_id, described(voter.key)) for voter in raft.state.voters]
        quorum.observers = list(known.values())
    return quorum

"""What DescribeQuorum tells of the metadata quorum: its leader's view of the replicas (KIP-595).

NOT HERE Who may ask (`broker/handlers/admin/cluster_admin.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.cluster import DescribedQuorum, QuorumReplica
from replication.raft.raft import Raft
from replication.raft.roles import Leader
from replication.raft.voters import ReplicaKey

_UNKNOWN = -1


def describe(raft: Raft, end_offset: int, *, mono_ms: int, wall_ms: int) -> DescribedQuorum:
    """The quorum; NOT_LEADER_OR_FOLLOWER where this replica does not lead it.

    Args:
        raft: of this replica.
        end_offset: where its log ends.
        mono_ms: now.
        wall_ms: now, as timestamps count.
    """
    role = raft.role
    if not isinstance(role, Leader):
        return _described(raft, ErrorCode.NOT_LEADER_OR_FOLLOWER, [], [])
    behind_ms = wall_ms - mono_ms
    own = QuorumReplica(
        replica_id=raft.own.key.node_id,
        replica_directory_id=raft.own.key.directory_id,
        log_end_offset=end_offset,
        last_fetch_timestamp=wall_ms,
        last_caught_up_timestamp=wall_ms,
    )
    known = {
        replica.key.node_id: QuorumReplica(
            replica_id=replica.key.node_id,
            replica_directory_id=replica.key.directory_id,
            log_end_offset=replica.end_offset,
            last_fetch_timestamp=_time(replica.last_fetch_ms, behind_ms),
            last_caught_up_timestamp=_time(replica.caught_up_ms, behind_ms),
        )
        for replica in role.progress.replicas.values()
    }
    known[own.replica_id] = own
    voters = [known.pop(voter.key.node_id, _never_heard(voter.key)) for voter in raft.voters]
    return _described(raft, ErrorCode.NONE, voters, list(known.values()))


def _time(mono_ms: int | None, behind_ms: int) -> int:
    return _UNKNOWN if mono_ms is None else mono_ms + behind_ms


def _never_heard(key: ReplicaKey) -> QuorumReplica:
    return QuorumReplica(
        replica_id=key.node_id,
        replica_directory_id=key.directory_id,
        log_end_offset=_UNKNOWN,
        last_fetch_timestamp=_UNKNOWN,
        last_caught_up_timestamp=_UNKNOWN,
    )


def _described(
    raft: Raft, code: ErrorCode, voters: list[QuorumReplica], observers: list[QuorumReplica]
) -> DescribedQuorum:
    return DescribedQuorum(
        partition_index=0,
        error_code=code,
        error_message="" if code == ErrorCode.NONE else "This replica does not lead the metadata quorum.",
        leader_id=raft.leader_id,
        leader_epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        current_voters=voters,
        observers=observers,
    )

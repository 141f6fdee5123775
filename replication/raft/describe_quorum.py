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
    role = raft.role
    if not isinstance(role, Leader):
        return _response(raft, ErrorCode.NOT_LEADER_OR_FOLLOWER, [], [])
    clock_offset_ms = wall_ms - mono_ms
    local = QuorumReplica(
        replica_id=raft.local.key.node_id,
        replica_directory_id=raft.local.key.directory_id,
        log_end_offset=end_offset,
        last_fetch_timestamp=wall_ms,
        last_caught_up_timestamp=wall_ms,
    )
    known = {
        replica.key.node_id: QuorumReplica(
            replica_id=replica.key.node_id,
            replica_directory_id=replica.key.directory_id,
            log_end_offset=replica.end_offset,
            last_fetch_timestamp=_time(replica.last_fetch_ms, clock_offset_ms),
            last_caught_up_timestamp=_time(replica.caught_up_ms, clock_offset_ms),
        )
        for replica in role.progress.replicas.values()
    }
    known[local.replica_id] = local
    voters = [known.pop(voter.key.node_id, _never_fetched(voter.key)) for voter in raft.voters]
    return _response(raft, ErrorCode.NONE, voters, list(known.values()))


def _time(mono_ms: int | None, clock_offset_ms: int) -> int:
    return _UNKNOWN if mono_ms is None else mono_ms + clock_offset_ms


def _never_fetched(key: ReplicaKey) -> QuorumReplica:
    return QuorumReplica(
        replica_id=key.node_id,
        replica_directory_id=key.directory_id,
        log_end_offset=_UNKNOWN,
        last_fetch_timestamp=_UNKNOWN,
        last_caught_up_timestamp=_UNKNOWN,
    )


def _response(
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

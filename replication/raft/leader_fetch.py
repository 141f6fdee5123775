"""What a leader of the metadata log sends to who fetches from it: records, where the two logs part, pieces of snapshots.

RULES    1. A log agrees with the leader's up to an offset when the leader knows the epoch before it, and had that much of it.
         2. Who is before the log's start gets the newest snapshot named; so does who knows only epochs before it, and who
            has nothing yet when there is a snapshot (KIP-630). The checkpoint at offset 0 is nobody else's matter.
         3. What a replica fetches says what it has: the high watermark moves with it (`replica_progress.py`).
         4. A leader that is no voter any more resigns as soon as that is committed.
         5. Checks and their order are Apache Kafka's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    FetchEpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from protocol.messages.raft import (
    FetchSnapshotPartition,
    FetchSnapshotPartitionResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumLeader,
    WantedSnapshot,
)
from replication.raft import rpc_messages
from replication.raft.raft_log import EpochEnd, ReplicaLog
from replication.raft.replica_state import Standing
from replication.raft.roles import Leader
from replication.raft.voter_changes import VoterChanges
from replication.raft.voters import ReplicaKey


class Parting(NamedTuple):
    """Where to go on instead: in one of the two ways."""

    diverging: FetchEpochEndOffset | None = None
    snapshot: SnapshotId | None = None


def parting(log: ReplicaLog, asked: EpochEnd) -> Parting | None:
    """What a replica whose log ends so is told; None: the logs agree (rules 1 and 2)."""
    oldest, newest = log.oldest_snapshot, log.newest_snapshot
    is_behind = oldest is not None and (
        asked.offset < log.start_offset
        or (asked.offset == log.start_offset != 0 and asked.epoch != oldest.epoch)
        or asked.epoch < oldest.epoch
    )
    if newest is not None and newest.offset > 0 and (is_behind or asked.offset == 0):
        return Parting(snapshot=SnapshotId(end_offset=newest.offset, epoch=newest.epoch))
    if asked == (0, 0):
        return None
    end = log.end_of_epoch(asked.epoch)
    if end.epoch == asked.epoch and end.offset >= asked.offset:
        return None
    return Parting(diverging=FetchEpochEndOffset(epoch=end.epoch, end_offset=end.offset))


class Serving:
    """The leader's side of the metadata log."""

    def __init__(self, standing: Standing, changes: VoterChanges) -> None:
        self._standing = standing
        self._changes = changes

    def refusal(self, epoch: int) -> ErrorCode:
        """Whether somebody who believes in an epoch can be served here."""
        standing = self._standing
        if epoch < standing.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > standing.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(standing.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def fetched(
        self, request: FetchRequest, asked: FetchPartition, mono_ms: int, *, may_wait: bool
    ) -> FetchResponse | None:
        """Somebody asks for what follows; None: it may wait."""
        standing, role = self._standing, self._standing.role
        state = request.replica_state
        replica = ReplicaKey(request.replica_id if state is None else state.replica_id, asked.replica_directory_id)
        code = self._fault(request, asked)
        if code == ErrorCode.NONE:
            code = self.refusal(asked.current_leader_epoch)
        if code == ErrorCode.NONE and replica.node_id == standing.own.key.node_id:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        if code != ErrorCode.NONE or not isinstance(role, Leader):
            return rpc_messages.fetch_response(self._partition(code, -1), standing.who)
        parted = parting(standing.log, EpochEnd(asked.last_fetched_epoch, asked.fetch_offset))
        if parted is not None:
            answer = self._partition(code, self._watermark(role))
            answer.diverging_epoch, answer.snapshot_id = parted
            return rpc_messages.fetch_response(answer, standing.who)
        end = standing.log.end.offset
        if replica.node_id >= 0:
            role.progress.fetched(replica, asked.fetch_offset, leader_end=end, mono_ms=mono_ms)
            self.commit(role, mono_ms)
        watermark = self._watermark(role)
        may_wait = may_wait and request.max_wait_ms > 0
        records = standing.log.read(asked.fetch_offset, request.max_bytes)
        if may_wait and not len(records) and asked.high_watermark >= watermark and role is standing.role:
            return None
        return rpc_messages.fetch_response(self._partition(code, watermark, records), standing.who)

    @staticmethod
    def _fault(request: FetchRequest, asked: FetchPartition) -> ErrorCode:
        is_negative = min(request.max_wait_ms, asked.fetch_offset, asked.last_fetched_epoch) < 0
        is_wrong = is_negative or asked.last_fetched_epoch > asked.current_leader_epoch
        return ErrorCode.INVALID_REQUEST if is_wrong else ErrorCode.NONE

    @staticmethod
    def _watermark(role: Leader) -> int:
        """What a leader knows to be committed; -1: nothing, before a record of its own epoch is."""
        return role.progress.high_watermark or -1

    def _partition(self, code: ErrorCode, high_watermark: int, records: Any = b"") -> PartitionData:
        standing = self._standing
        return PartitionData(
            partition_index=0,
            error_code=code,
            high_watermark=high_watermark,
            log_start_offset=standing.log.start_offset,
            current_leader=LeaderIdAndEpoch(leader_id=standing.leader_id, leader_epoch=standing.epoch),
            records=records,
        )

    def commit(self, role: Leader, mono_ms: int) -> None:
        """Move the high watermark as far as it goes, and answer who waited for that (rules 3 and 4)."""
        standing = self._standing
        if not role.progress.commit(standing.voters, standing.log.flushed_offset):
            return
        standing.pull.committed(role.progress.high_watermark)
        self._changes.committed(role)
        if not standing.is_voter and role.progress.high_watermark > standing.log.voters.latest_offset:
            standing.resign(mono_ms)

    def snapshot_fetched(
        self, request: FetchSnapshotRequest, asked: FetchSnapshotPartition, mono_ms: int
    ) -> FetchSnapshotResponse:
        """Somebody asks for a piece of a snapshot."""
        standing, role = self._standing, self._standing.role
        code = self.refusal(asked.current_leader_epoch)
        wanted = EpochEnd(asked.snapshot_id.epoch, asked.snapshot_id.end_offset)
        piece, size = b"", 0
        if isinstance(role, Leader) and code == ErrorCode.NONE:
            code, piece, size = self._piece(wanted, asked.position, request.max_bytes)
            if code == ErrorCode.NONE and request.replica_id not in (-1, standing.own.key.node_id):
                role.progress.heard_of(ReplicaKey(request.replica_id, asked.replica_directory_id), mono_ms)
        partition = FetchSnapshotPartitionResponse(
            error_code=code,
            snapshot_id=WantedSnapshot(end_offset=wanted.offset, epoch=wanted.epoch),
            current_leader=QuorumLeader(leader_id=standing.leader_id, leader_epoch=standing.epoch),
            size=size,
            position=asked.position,
            unaligned_records=piece,
        )
        return rpc_messages.snapshot_response(partition, standing.who)

    def _piece(self, wanted: EpochEnd, position: int, max_bytes: int) -> tuple[ErrorCode, Any, int]:
        log = self._standing.log
        found = log.read_snapshot(wanted, position, max_bytes) if wanted.offset > 0 else None
        if found is None:
            return ErrorCode.SNAPSHOT_NOT_FOUND, b"", 0
        if not 0 <= position < found[1]:
            return ErrorCode.POSITION_OUT_OF_RANGE, b"", 0
        return ErrorCode.NONE, *found

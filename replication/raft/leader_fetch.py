"""Fetch and FetchSnapshot on the leader: records, log divergence, snapshot chunks.

RULES    1. A replica's log agrees with the leader's if the leader has the replica's last epoch, up to at least its end offset.
         2. The response names the latest snapshot if the fetch offset is below the log start offset, if the last fetched epoch
            is below that of the oldest snapshot, or if the replica's log is empty (KIP-630). The bootstrap checkpoint at
            offset 0 is never sent.
         3. A fetch offset acknowledges the records before it and can advance the high watermark (`replica_progress.py`).
         4. A leader that removed itself from the voters resigns when the removal is committed.
         5. The checks and their order are Apache Kafka's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages import produce_fetch, raft
from replication.raft import rpc_messages
from replication.raft.quorum_state import QuorumState
from replication.raft.raft_log import EpochEnd, RaftLog
from replication.raft.roles import Leader
from replication.raft.voter_changes import VoterChanges
from replication.raft.voters import ReplicaKey


class OffsetMismatch(NamedTuple):
    """Where the replica must continue instead: at a diverging epoch or with a snapshot."""

    diverging: produce_fetch.FetchEpochEndOffset | None = None
    snapshot: produce_fetch.SnapshotId | None = None


def validate_offset_and_epoch(log: RaftLog, replica_end: EpochEnd) -> OffsetMismatch | None:
    """Compare the end of a replica's log with the leader's log; None if the replica can fetch (rules 1 and 2)."""
    oldest, newest = log.oldest_snapshot, log.newest_snapshot
    needs_snapshot = oldest is not None and (
        replica_end.offset < log.start_offset
        or (replica_end.offset == log.start_offset != 0 and replica_end.epoch != oldest.epoch)
        or replica_end.epoch < oldest.epoch
    )
    if newest is not None and newest.offset > 0 and (needs_snapshot or replica_end.offset == 0):
        return OffsetMismatch(snapshot=produce_fetch.SnapshotId(end_offset=newest.offset, epoch=newest.epoch))
    if replica_end == (0, 0):
        return None
    end = log.end_of_epoch(replica_end.epoch)
    if end.epoch == replica_end.epoch and end.offset >= replica_end.offset:
        return None
    return OffsetMismatch(diverging=produce_fetch.FetchEpochEndOffset(epoch=end.epoch, end_offset=end.offset))


class LeaderFetch:
    """Fetch requests, as the leader handles them."""

    def __init__(self, quorum: QuorumState, changes: VoterChanges) -> None:
        self._quorum = quorum
        self._changes = changes

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """The error for a request with this leader epoch; NONE if this replica leads that epoch."""
        quorum = self._quorum
        if epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > quorum.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(quorum.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def handle_fetch(
        self, request: produce_fetch.FetchRequest, fetch: produce_fetch.FetchPartition, mono_ms: int, *, may_wait: bool
    ) -> produce_fetch.FetchResponse | None:
        """Return records or a log mismatch; None if there is no news and the request may wait."""
        quorum, role = self._quorum, self._quorum.role
        state = request.replica_state
        replica = ReplicaKey(request.replica_id if state is None else state.replica_id, fetch.replica_directory_id)
        code = self._validate_request(request, fetch)
        if code == ErrorCode.NONE:
            code = self.check_leader_epoch(fetch.current_leader_epoch)
        if code == ErrorCode.NONE and replica.node_id == quorum.local.key.node_id:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        if code != ErrorCode.NONE or not isinstance(role, Leader):
            return rpc_messages.fetch_response(self._partition(code, -1), quorum.leader_and_epoch)
        mismatch = validate_offset_and_epoch(quorum.log, EpochEnd(fetch.last_fetched_epoch, fetch.fetch_offset))
        if mismatch is not None:
            partition = self._partition(code, self._high_watermark(role))
            partition.diverging_epoch, partition.snapshot_id = mismatch
            return rpc_messages.fetch_response(partition, quorum.leader_and_epoch)
        end = quorum.log.end.offset
        if replica.node_id >= 0:
            role.progress.on_fetch(replica, fetch.fetch_offset, leader_end=end, mono_ms=mono_ms)
            self.update_high_watermark(role, mono_ms)
        high_watermark = self._high_watermark(role)
        may_wait = may_wait and request.max_wait_ms > 0
        records = quorum.log.read(fetch.fetch_offset, request.max_bytes)
        if may_wait and not len(records) and fetch.high_watermark >= high_watermark and role is quorum.role:
            return None
        return rpc_messages.fetch_response(self._partition(code, high_watermark, records), quorum.leader_and_epoch)

    @staticmethod
    def _validate_request(request: produce_fetch.FetchRequest, fetch: produce_fetch.FetchPartition) -> ErrorCode:
        is_negative = min(request.max_wait_ms, fetch.fetch_offset, fetch.last_fetched_epoch) < 0
        is_invalid = is_negative or fetch.last_fetched_epoch > fetch.current_leader_epoch
        return ErrorCode.INVALID_REQUEST if is_invalid else ErrorCode.NONE

    @staticmethod
    def _high_watermark(role: Leader) -> int:
        """The high watermark for responses; -1 before a record of this epoch is committed."""
        return role.progress.high_watermark or -1

    def _partition(self, code: ErrorCode, high_watermark: int, records: Any = b"") -> produce_fetch.PartitionData:
        quorum = self._quorum
        return produce_fetch.PartitionData(
            partition_index=0,
            error_code=code,
            high_watermark=high_watermark,
            log_start_offset=quorum.log.start_offset,
            current_leader=produce_fetch.LeaderIdAndEpoch(leader_id=quorum.leader_id, leader_epoch=quorum.epoch),
            records=records,
        )

    def update_high_watermark(self, role: Leader, mono_ms: int) -> None:
        """Advance the high watermark and complete what waits for it (rules 3 and 4)."""
        quorum = self._quorum
        if not role.progress.update_high_watermark(quorum.voters, quorum.log.flushed_offset):
            return
        quorum.log_sync.advance_high_watermark(role.progress.high_watermark)
        self._changes.on_high_watermark(role)
        if not quorum.is_voter and role.progress.high_watermark > quorum.log.voters.latest_offset:
            quorum.resign(mono_ms)

    def handle_fetch_snapshot(
        self, request: raft.FetchSnapshotRequest, fetch: raft.FetchSnapshotPartition, mono_ms: int
    ) -> raft.FetchSnapshotResponse:
        """Return a chunk of a snapshot."""
        quorum, role = self._quorum, self._quorum.role
        code = self.check_leader_epoch(fetch.current_leader_epoch)
        snapshot = EpochEnd(fetch.snapshot_id.epoch, fetch.snapshot_id.end_offset)
        chunk, size = b"", 0
        if isinstance(role, Leader) and code == ErrorCode.NONE:
            code, chunk, size = self._snapshot_chunk(snapshot, fetch.position, request.max_bytes)
            if code == ErrorCode.NONE and request.replica_id not in (-1, quorum.local.key.node_id):
                role.progress.on_contact(ReplicaKey(request.replica_id, fetch.replica_directory_id), mono_ms)
        partition = raft.FetchSnapshotPartitionResponse(
            error_code=code,
            snapshot_id=raft.WantedSnapshot(end_offset=snapshot.offset, epoch=snapshot.epoch),
            current_leader=raft.QuorumLeader(leader_id=quorum.leader_id, leader_epoch=quorum.epoch),
            size=size,
            position=fetch.position,
            unaligned_records=chunk,
        )
        return rpc_messages.snapshot_response(partition, quorum.leader_and_epoch)

    def _snapshot_chunk(self, snapshot: EpochEnd, position: int, max_bytes: int) -> tuple[ErrorCode, Any, int]:
        log = self._quorum.log
        found = log.read_snapshot(snapshot, position, max_bytes) if snapshot.offset > 0 else None
        if found is None:
            return ErrorCode.SNAPSHOT_NOT_FOUND, b"", 0
        if not 0 <= position < found[1]:
            return ErrorCode.POSITION_OUT_OF_RANGE, b"", 0
        return ErrorCode.NONE, *found

"""What a leader of the metadata log sends to who fetches from it: whether the two logs agree, and pieces of snapshots.

RULES    1. A log agrees with the leader's up to an offset when the leader knows the epoch before it, and had that much of it.
         2. Who is before the log's start gets the newest snapshot named; so does who knows only epochs before it (KIP-630).
NOT HERE Who may fetch, and what the leader notes of it (`raft.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchEpochEndOffset, SnapshotId
from protocol.messages.raft import FetchSnapshotPartition, FetchSnapshotPartitionResponse, QuorumLeader, WantedSnapshot
from replication.raft.replica_log import EpochEnd, ReplicaLog


class Parting(NamedTuple):
    """Where to go on instead: in one of the two ways."""

    diverging: FetchEpochEndOffset | None = None
    snapshot: SnapshotId | None = None


def parting(log: ReplicaLog, asked: EpochEnd) -> Parting | None:
    """What a replica whose log ends so is told; None: the logs agree (rules 1 and 2)."""
    oldest = log.oldest_snapshot
    if asked == (0, 0) and log.start_offset == 0:
        return None
    if oldest is not None and (
        asked.offset < log.start_offset
        or (asked.offset == log.start_offset != 0 and asked.epoch != oldest.epoch)
        or asked.epoch < oldest.epoch
    ):
        newest = log.newest_snapshot
        assert newest is not None, "where there is an oldest snapshot there is a newest"
        return Parting(snapshot=SnapshotId(end_offset=newest.offset, epoch=newest.epoch))
    end = log.end_of_epoch(asked.epoch)
    if end.epoch == asked.epoch and end.offset >= asked.offset:
        return None
    return Parting(diverging=FetchEpochEndOffset(epoch=end.epoch, end_offset=end.offset))


def snapshot_piece(
    log: ReplicaLog, asked: FetchSnapshotPartition, max_bytes: int, refusal: ErrorCode, leader: QuorumLeader
) -> FetchSnapshotPartitionResponse:
    """A piece of a snapshot, unless there is a reason to refuse it."""
    wanted = EpochEnd(asked.snapshot_id.epoch, asked.snapshot_id.end_offset)
    code, piece, size = refusal, b"", 0
    if code == ErrorCode.NONE:
        code, piece, size = _read(log, wanted, asked.position, max_bytes)
    return FetchSnapshotPartitionResponse(
        error_code=code,
        snapshot_id=WantedSnapshot(end_offset=wanted.offset, epoch=wanted.epoch),
        current_leader=leader,
        size=size,
        position=asked.position,
        unaligned_records=piece,
    )


def _read(log: ReplicaLog, wanted: EpochEnd, position: int, max_bytes: int) -> tuple[ErrorCode, Any, int]:
    found = log.read_snapshot(wanted, position, max_bytes)
    if found is None:
        return ErrorCode.SNAPSHOT_NOT_FOUND, b"", 0
    if not 0 <= position < found[1]:
        return ErrorCode.POSITION_OUT_OF_RANGE, b"", 0
    return ErrorCode.NONE, *found

"""Fetch and FetchSnapshot on the leader: records, log divergence, snapshot chunks.

RULES    1. A replica's log agrees with the leader's if the leader has the replica's last epoch, up to at least its end offset.
         2. The response names the latest snapshot if the fetch offset is below the log start offset, if the last fetched epoch
            is below that of the oldest snapshot, or if the replica's log is empty (KIP-630). The bootstrap checkpoint at
            offset 0 is never sent.
         3. A fetch offset acknowledges the records before it and can advance the high watermark (`replica_progress.py`).
         4. A leader that removed itself from the voters resigns when the removal is committed.
         5. A Fetch without news waits for some, or for its max_wait_ms, and is then handled again. The end of the role, a
            new high watermark and new records are news.
         6. The checks and their order are Apache Kafka's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from replication.raft import voter_changes
from replication.raft.quorum_state import QuorumState
from replication.raft.raft_log import EpochEnd, RaftLog
from replication.raft.roles import Leader
from replication.raft.rpc_messages import Fetch, FetchResponse, FetchSnapshot, FetchSnapshotResponse


class OffsetMismatch(NamedTuple):
    """Where the replica must continue instead: at a diverging epoch or with a snapshot."""

    diverging: EpochEnd | None = None
    snapshot: EpochEnd | None = None


def validate_offset_and_epoch(log: RaftLog, replica_end: EpochEnd) -> OffsetMismatch | None:
    """Compare the end of a replica's log with the leader's log; None if the replica can fetch (rules 1 and 2)."""
    oldest, newest = log.oldest_snapshot, log.newest_snapshot
    needs_snapshot = oldest is not None and (
        replica_end.offset < log.start_offset
        or (replica_end.offset == log.start_offset != 0 and replica_end.epoch != oldest.epoch)
        or replica_end.epoch < oldest.epoch
    )
    if newest is not None and newest.offset > 0 and (needs_snapshot or replica_end.offset == 0):
        return OffsetMismatch(snapshot=newest)
    if replica_end == (0, 0):
        return None
    end = log.end_of_epoch(replica_end.epoch)
    if end.epoch == replica_end.epoch and end.offset >= replica_end.offset:
        return None
    return OffsetMismatch(diverging=end)


# ---- Fetch -----------------------------------------------------------------------------------------------------


class _WaitingFetch(NamedTuple):
    """A Fetch that waits for news (rule 5)."""

    request_id: int
    fetch: Fetch
    deadline_ms: int


class LeaderFetch:
    """The fetches of other replicas, those that wait among them (Kafka: the fetch purgatory of KafkaRaftClient)."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state
        self._waiting: list[_WaitingFetch] = []
        self._last_news: tuple[int, bool, int] | None = None

    @property
    def deadlines_ms(self) -> list[int]:
        """The times at which fetches end their wait."""
        return [waiting.deadline_ms for waiting in self._waiting]

    def handle(self, request_id: int, fetch: Fetch, deadline_ms: int | None = None) -> FetchResponse | None:
        """Return records or a log mismatch; None if the fetch waits, until its deadline if it waited before."""
        state = self._state
        now_ms = state.mono_ms
        may_wait = fetch.max_wait_ms > 0 and (deadline_ms is None or now_ms < deadline_ms)
        response = _on_fetch(state, fetch, may_wait=may_wait)
        if response is None:
            self._waiting.append(_WaitingFetch(request_id, fetch, deadline_ms or now_ms + fetch.max_wait_ms))
        return response

    def take_ready(self, *, is_appended: bool) -> list[_WaitingFetch]:
        """Remove and return the fetches to handle again, if there is news or one has reached its deadline."""
        state = self._state
        news = (state.epoch, isinstance(state.role, Leader), state.log_sync.high_watermark)
        is_news, self._last_news = is_appended or news != self._last_news, news
        if not is_news and state.mono_ms < min(self.deadlines_ms, default=state.mono_ms):
            return []
        ready, self._waiting = self._waiting, []
        return ready


def _on_fetch(state: QuorumState, fetch: Fetch, *, may_wait: bool) -> FetchResponse | None:
    """Return records or a log mismatch; None if there is no news and the fetch may wait."""
    role = state.role
    code = ErrorCode.INVALID_REQUEST if _is_invalid(fetch) else state.check_leader_epoch(fetch.epoch)
    if code == ErrorCode.NONE and fetch.replica.node_id == state.local.key.node_id:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    if code != ErrorCode.NONE or not isinstance(role, Leader):
        return FetchResponse(code, state.leader_and_epoch, -1, state.log.start_offset)
    mismatch = validate_offset_and_epoch(state.log, fetch.end)
    if mismatch is not None:
        watermark = _high_watermark(role)
        return FetchResponse(code, state.leader_and_epoch, watermark, state.log.start_offset, b"", *mismatch)
    if fetch.replica.node_id >= 0:
        end = state.log.end.offset
        role.progress.on_fetch(fetch.replica, fetch.end.offset, leader_end=end, mono_ms=state.mono_ms)
        update_high_watermark(state, role)
    watermark = _high_watermark(role)
    records = state.log.read(fetch.end.offset, fetch.max_bytes)
    if may_wait and not len(records) and fetch.high_watermark >= watermark and role is state.role:
        return None
    return FetchResponse(code, state.leader_and_epoch, watermark, state.log.start_offset, records)


def _is_invalid(fetch: Fetch) -> bool:
    return min(fetch.max_wait_ms, *fetch.end) < 0 or fetch.end.epoch > fetch.epoch


def _high_watermark(role: Leader) -> int:
    """The high watermark for responses; -1 before a record of this epoch is committed."""
    return role.progress.high_watermark or -1


def update_high_watermark(state: QuorumState, role: Leader) -> None:
    """Advance the high watermark and complete what waits for it (rules 3 and 4)."""
    if not role.progress.update_high_watermark(state.voters, state.log.flushed_offset):
        return
    state.log_sync.advance_high_watermark(role.progress.high_watermark)
    voter_changes.on_high_watermark(state, role)
    if not state.is_voter and role.progress.high_watermark > state.log.voters.latest_offset:
        state.resign()


# ---- FetchSnapshot ---------------------------------------------------------------------------------------------


def on_fetch_snapshot(state: QuorumState, fetch: FetchSnapshot) -> FetchSnapshotResponse:
    """Return a chunk of a snapshot."""
    role = state.role
    code: ErrorCode = state.check_leader_epoch(fetch.epoch)
    chunk, size = b"", 0
    if isinstance(role, Leader) and code == ErrorCode.NONE:
        code, chunk, size = _snapshot_chunk(state.log, fetch)
        if code == ErrorCode.NONE and fetch.replica.node_id not in (-1, state.local.key.node_id):
            role.progress.on_contact(fetch.replica, state.mono_ms)
    return FetchSnapshotResponse(code, state.leader_and_epoch, fetch.snapshot, fetch.position, size, chunk)


def _snapshot_chunk(log: RaftLog, fetch: FetchSnapshot) -> tuple[ErrorCode, Any, int]:
    found = log.read_snapshot(fetch.snapshot, fetch.position, fetch.max_bytes) if fetch.snapshot.offset > 0 else None
    if found is None:
        return ErrorCode.SNAPSHOT_NOT_FOUND, b"", 0
    if not 0 <= fetch.position < found[1]:
        return ErrorCode.POSITION_OUT_OF_RANGE, b"", 0
    return ErrorCode.NONE, *found

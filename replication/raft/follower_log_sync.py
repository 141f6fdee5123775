"""Replication of the leader's log to a follower: the next request, and the write for each response.

RULES    1. No request is built during a write: a fetch offset acknowledges that all records before it are durable.
         2. Committed records are never truncated. A leader that asks for it contradicts the local log: the node stops.
         3. The high watermark is the leader's, limited to the local log end, and does not decrease.
         4. Snapshot chunks arrive in order. A response about another snapshot or position restarts the download.
NOT HERE The choice of the peer and the time (`follower_fetch.py`).
"""

from __future__ import annotations

from replication.raft.events import AppendBatches, Fail, Truncate, WriteSnapshotChunk
from replication.raft.raft_log import EpochEnd, RaftLog
from replication.raft.rpc_messages import Fetch, FetchResponse, FetchSnapshot, FetchSnapshotResponse
from replication.raft.voters import ReplicaKey


class FollowerLogSync:
    """The replication state of one replica; it continues under each new leader."""

    def __init__(self, log: RaftLog) -> None:
        self._log = log
        self._fetching_snapshot: tuple[EpochEnd, int] | None = None
        self._leader_high_watermark = -1
        self.high_watermark = log.start_offset
        self.is_writing = False

    def on_new_leader(self) -> None:
        """Discard the snapshot download and the leader's high watermark."""
        self._fetching_snapshot, self._leader_high_watermark = None, -1

    def next_request(self, local: ReplicaKey, epoch: int) -> Fetch | FetchSnapshot:
        """The next request to the leader: Fetch, or FetchSnapshot during a download."""
        if self._fetching_snapshot is None:
            return self.fetch(local, epoch)
        return FetchSnapshot(local, epoch, *self._fetching_snapshot)

    def fetch(self, local: ReplicaKey, epoch: int) -> Fetch:
        """A Fetch for any peer; a peer that is not the leader names it in its response."""
        return Fetch(local, epoch, self._log.end, self.high_watermark)

    def abandon_snapshot(self) -> None:
        """Stop the snapshot download: the leader no longer has this snapshot."""
        self._fetching_snapshot = None

    def on_fetch_response(self, response: FetchResponse, epoch: int) -> AppendBatches | Truncate | Fail | None:
        """Return the write for a Fetch response, if any; `Fail` if it asks to truncate committed records (rule 2)."""
        if response.diverging is not None:
            return self._truncate(response.diverging)
        if response.snapshot is not None:
            self._fetching_snapshot = (response.snapshot, 0)
            return None
        self._leader_high_watermark = response.high_watermark
        if response.records:
            self.is_writing = True
            return AppendBatches(response.records, epoch)
        self._update_high_watermark()
        return None

    def on_snapshot_response(self, response: FetchSnapshotResponse) -> WriteSnapshotChunk | None:
        """Return the write for a FetchSnapshot response, if it continues the download (rule 4)."""
        snapshot, position = response.snapshot, response.position
        if self._fetching_snapshot != (snapshot, position):
            self._fetching_snapshot = None
            return None
        end = position + len(response.chunk)
        is_last = end >= response.size
        self._fetching_snapshot = None if is_last else (snapshot, end)
        self.is_writing = True
        return WriteSnapshotChunk(snapshot, position, response.chunk, is_last)

    def on_written(self) -> None:
        """The last write is complete."""
        self.is_writing = False
        self._update_high_watermark()

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark that this replica computed as leader."""
        self.high_watermark = max(self.high_watermark, high_watermark)

    def _update_high_watermark(self) -> None:
        known = min(self._leader_high_watermark, self._log.end.offset)
        self.high_watermark = max(self.high_watermark, self._log.start_offset, known)

    def _truncate(self, diverging: EpochEnd) -> Truncate | Fail:
        """Truncate to the end of the last epoch that both logs have, in the shorter log."""
        local = self._log.end_of_epoch(diverging.epoch)
        offset = min(local.offset, diverging.offset) if local.epoch == diverging.epoch else local.offset
        if offset < self.high_watermark:
            return Fail(
                f"The leader asks to truncate the metadata log at {offset}, but the batch before {self.high_watermark} is "
                "committed. One of the two logs was lost or changed by hand."
            )
        self.is_writing = True
        return Truncate(offset)

"""Replication of the leader's log to a follower: the next request, and the write for each response.

RULES    1. No request is built during a write: a fetch offset acknowledges that all records before it are durable.
         2. Committed records are never truncated. A leader that asks for it contradicts the local log: the node stops.
         3. The high watermark is the leader's, limited to the local log end, and does not decrease.
         4. Snapshot chunks arrive in order. A response about another snapshot or position restarts the download.
NOT HERE The choice of the peer and the time (`follower_fetch.py`).
"""

from __future__ import annotations

from protocol.messages.produce_fetch import FetchRequest, PartitionData
from protocol.messages.raft import FetchSnapshotPartitionResponse, FetchSnapshotRequest
from replication.raft import rpc_messages
from replication.raft.raft_log import AppendBatches, Effect, EpochEnd, RaftLog, Truncate, WriteSnapshotChunk
from replication.raft.voters import ReplicaKey


class LogDivergence(Exception):
    """The leader's log contradicts records that were committed here; the message explains it."""


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

    def next_request(self, cluster_id: str, local: ReplicaKey, epoch: int) -> FetchRequest | FetchSnapshotRequest:
        """The next request to the leader: Fetch, or FetchSnapshot during a download."""
        if self._fetching_snapshot is None:
            return self.fetch_request(cluster_id, local, epoch)
        snapshot, position = self._fetching_snapshot
        return rpc_messages.snapshot_request(cluster_id, local, epoch=epoch, snapshot=snapshot, position=position)

    def fetch_request(self, cluster_id: str, local: ReplicaKey, epoch: int) -> FetchRequest:
        """A Fetch for any peer; a peer that is not the leader names it in its response."""
        end, known = self._log.end, self.high_watermark
        return rpc_messages.fetch_request(cluster_id, local, epoch=epoch, end=end, high_watermark=known)

    def abandon_snapshot(self) -> None:
        """Stop the snapshot download: the leader no longer has this snapshot."""
        self._fetching_snapshot = None

    def on_fetch_response(self, partition: PartitionData, epoch: int) -> Effect | None:
        """Return the write for a Fetch response, if any; `on_written` follows it.

        Raises:
            LogDivergence: the response asks to truncate committed records (rule 2).
        """
        diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
        if diverging is not None and diverging.epoch >= 0:
            return self._begin_write(Truncate(self._truncation_offset(EpochEnd(diverging.epoch, diverging.end_offset))))
        if snapshot is not None and min(snapshot.epoch, snapshot.end_offset) >= 0:
            self._fetching_snapshot = (EpochEnd(snapshot.epoch, snapshot.end_offset), 0)
            return None
        self._leader_high_watermark = partition.high_watermark
        if partition.records:
            return self._begin_write(AppendBatches(partition.records, epoch))
        self._update_high_watermark()
        return None

    def on_snapshot_response(self, partition: FetchSnapshotPartitionResponse) -> Effect | None:
        """Return the write for a FetchSnapshot response, if it continues the download (rule 4)."""
        named = EpochEnd(partition.snapshot_id.epoch, partition.snapshot_id.end_offset)
        if self._fetching_snapshot != (named, partition.position):
            self._fetching_snapshot = None
            return None
        snapshot, position = self._fetching_snapshot
        end = position + len(partition.unaligned_records)
        is_last = end >= partition.size
        self._fetching_snapshot = None if is_last else (snapshot, end)
        return self._begin_write(WriteSnapshotChunk(snapshot, position, partition.unaligned_records, is_last))

    def on_written(self) -> None:
        """The last write is complete."""
        self.is_writing = False
        self._update_high_watermark()

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark that this replica computed as leader."""
        self.high_watermark = max(self.high_watermark, high_watermark)

    def _begin_write(self, effect: Effect) -> Effect:
        self.is_writing = True
        return effect

    def _update_high_watermark(self) -> None:
        known = min(self._leader_high_watermark, self._log.end.offset)
        self.high_watermark = max(self.high_watermark, self._log.start_offset, known)

    def _truncation_offset(self, diverging: EpochEnd) -> int:
        """The end of the last epoch that both logs have, in the shorter log."""
        local = self._log.end_of_epoch(diverging.epoch)
        offset = min(local.offset, diverging.offset) if local.epoch == diverging.epoch else local.offset
        if offset < self.high_watermark:
            raise LogDivergence(
                f"The leader asks to cut the metadata log at {offset}, but the batch before {self.high_watermark} is "
                "committed. One of the two logs was lost or changed by hand."
            )
        return offset

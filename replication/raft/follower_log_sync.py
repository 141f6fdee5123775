"""The follower's side of the metadata log: what to ask the leader for, and what to do with its answer.

RULES    1. One thing at a time: nothing is asked for while something is being written, for the next offset is this
            replica's word that all before it is durable (D12b).
         2. What is known to be committed is never cut off: that the leader asks for it is a fault that ends the node.
         3. The high watermark is the leader's, as far as this log goes, and does not go back.
         4. Pieces of a snapshot come one after the other; an answer about anything else begins it anew.
NOT HERE Whom to ask, and when (`follower_fetch.py`).
"""

from __future__ import annotations

from protocol.messages.produce_fetch import FetchRequest, PartitionData
from protocol.messages.raft import FetchSnapshotPartitionResponse, FetchSnapshotRequest
from replication.raft import rpc_messages
from replication.raft.raft_log import Append, Effect, EpochEnd, KeepSnapshot, ReplicaLog, Truncate
from replication.raft.voters import ReplicaKey


class ForkedLog(Exception):
    """The leader's log contradicts what was committed here; the message is a sentence."""


class Pull:
    """What one replica pulls; it goes on under every leader where it stood."""

    def __init__(self, log: ReplicaLog) -> None:
        self._log = log
        self._loading: tuple[EpochEnd, int] | None = None
        self._leader_watermark = -1
        self.high_watermark = log.start_offset
        self.is_writing = False

    def new_leader(self) -> None:
        """Whoever leads now may have other snapshots; its watermark is not known yet."""
        self._loading, self._leader_watermark = None, -1

    def request(self, cluster_id: str, own: ReplicaKey, epoch: int) -> FetchRequest | FetchSnapshotRequest:
        """What to ask the leader for next."""
        if self._loading is None:
            return self.fetch(cluster_id, own, epoch)
        snapshot, position = self._loading
        return rpc_messages.snapshot_request(cluster_id, own, epoch=epoch, snapshot=snapshot, position=position)

    def fetch(self, cluster_id: str, own: ReplicaKey, epoch: int) -> FetchRequest:
        """What to ask anybody for: the answer may be who leads."""
        end, known = self._log.end, self.high_watermark
        return rpc_messages.fetch_request(cluster_id, own, epoch=epoch, end=end, high_watermark=known)

    def forget_snapshot(self) -> None:
        """It is not to be had any more."""
        self._loading = None

    def took(self, answer: PartitionData, epoch: int) -> Effect | None:
        """What is to be done with a Fetch's answer; `written` is told when it is.

        Raises:
            ForkedLog: rule 2.
        """
        diverging, snapshot = answer.diverging_epoch, answer.snapshot_id
        if diverging is not None and diverging.epoch >= 0:
            return self._begun(Truncate(self._common_end(EpochEnd(diverging.epoch, diverging.end_offset))))
        if snapshot is not None and min(snapshot.epoch, snapshot.end_offset) >= 0:
            self._loading = (EpochEnd(snapshot.epoch, snapshot.end_offset), 0)
            return None
        self._leader_watermark = answer.high_watermark
        if answer.records:
            return self._begun(Append(answer.records, epoch))
        self._follow_watermark()
        return None

    def took_piece(self, answer: FetchSnapshotPartitionResponse) -> Effect | None:
        """What is to be done with a piece of a snapshot (rule 4)."""
        named = EpochEnd(answer.snapshot_id.epoch, answer.snapshot_id.end_offset)
        if self._loading != (named, answer.position):
            self._loading = None
            return None
        snapshot, position = self._loading
        end = position + len(answer.unaligned_records)
        is_last = end >= answer.size
        self._loading = None if is_last else (snapshot, end)
        return self._begun(KeepSnapshot(snapshot, position, answer.unaligned_records, is_last))

    def written(self) -> None:
        """What was to be done is durable."""
        self.is_writing = False
        self._follow_watermark()

    def committed(self, high_watermark: int) -> None:
        """A leader knows by itself what is committed."""
        self.high_watermark = max(self.high_watermark, high_watermark)

    def _begun(self, effect: Effect) -> Effect:
        self.is_writing = True
        return effect

    def _follow_watermark(self) -> None:
        known = min(self._leader_watermark, self._log.end.offset)
        self.high_watermark = max(self.high_watermark, self._log.start_offset, known)

    def _common_end(self, diverging: EpochEnd) -> int:
        """Behind the last epoch that both logs know, where the shorter one ends it."""
        own = self._log.end_of_epoch(diverging.epoch)
        offset = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
        if offset < self.high_watermark:
            raise ForkedLog(
                f"The leader asks to cut the metadata log at {offset}, but what lies before {self.high_watermark} is "
                "committed. One of the two logs was lost or changed by hand."
            )
        return offset

"""The invariants of a quorum, checked after every event, and after the faults ended.

RULES    1. At most one leader per epoch, and per process: unflushed records of an earlier process may be lost.
         2. Committed records are never lost or changed; every new leader has all of them.
         3. The high watermark of a process does not decrease, and its log reaches it.
         4. A node's epoch does not decrease, also over restarts. A replica votes once per epoch.
         5. Committed records are durable on a majority of the voters that the leader knows; a disk may be lost later.
         6. A snapshot covers the offsets below the log start.
         7. Consecutive voter sets differ by at most one replica.
         8. After the faults, one node leads, all nodes have all committed records, and no request is pending.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.raft.rpc_messages import Fetch
from replication.raft.voters import ReplicaKey, VoterSet
from tests.simulation.quorum.memory_log import Entry
from tests.simulation.quorum.node import Node


class Invariants:
    """Observes all nodes."""

    def __init__(self, nodes: Mapping[int, Node], voters: VoterSet) -> None:
        self._nodes = nodes
        self._voters = voters
        """The voters in the committed log."""
        self._leaders: dict[int, tuple[int, int]] = {}
        self.committed: list[Entry] = []
        self._watermarks: dict[tuple[int, int], int] = {}
        self._epochs: dict[ReplicaKey, int] = {}
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}

    def after_event(self, touched: set[int]) -> None:
        """Check rules 1 to 7 for the nodes that changed."""
        for node_id in touched:
            node = self._nodes[node_id]
            if node.raft is not None:
                self._check(node_id, node)

    def vote_granted(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        first = self._votes.setdefault((voter, epoch), candidate)
        assert first == candidate, f"{voter} voted twice in epoch {epoch}"

    def _check(self, node_id: int, node: Node) -> None:
        raft, log = node.raft, node.log
        assert raft is not None
        if node.is_leading:
            self._check_leader(node_id, node.process, raft.state.epoch, log.entries)
        assert node.state.epoch >= self._epochs.get(node.key, 0), f"node {node_id} went back in epochs"
        self._epochs[node.key] = node.state.epoch
        self._check_watermark(node_id, node, raft.state.high_watermark)
        if log.start_offset:
            oldest = log.oldest_snapshot
            assert oldest is not None, f"node {node_id} has no snapshot before {log.start_offset}"
            assert oldest.offset >= log.start_offset, f"node {node_id}'s snapshot does not reach the log's start"

    def _check_leader(self, node_id: int, process: int, epoch: int, entries: list[Entry]) -> None:
        if epoch > max(self._leaders, default=0):
            has_all = entries[: len(self.committed)] == self.committed
            assert has_all, f"node {node_id} leads epoch {epoch} without all committed records"
        first = self._leaders.setdefault(epoch, (node_id, process))
        assert first == (node_id, process), f"nodes {first[0]} and {node_id} both lead epoch {epoch}, or one does twice"

    def _check_watermark(self, node_id: int, node: Node, watermark: int) -> None:
        previous = self._watermarks.get((node_id, node.process), 0)
        assert watermark >= previous, f"node {node_id}'s high watermark went back from {previous} to {watermark}"
        if watermark == previous:
            return
        self._watermarks[node_id, node.process] = watermark
        entries = node.log.entries
        assert len(entries) >= watermark, f"node {node_id} has less than its high watermark"
        common = min(watermark, len(self.committed))
        assert entries[:common] == self.committed[:common], f"node {node_id} has other records than were committed"
        if watermark > len(self.committed):
            self._commit(entries[len(self.committed) : watermark])
            voters = node.log.voters.latest
            durable_count = sum(self._has_all(voter.key) for voter in voters)
            assert durable_count > len(voters) // 2, (
                f"{watermark} is committed, but durable on {durable_count} voters only"
            )

    def _commit(self, entries: list[Entry]) -> None:
        self.committed.extend(entries)
        for append_voters in (entry.append_voters for entry in entries if entry.append_voters is not None):
            before, after = ({voter.key for voter in voters} for voters in (self._voters, append_voters.voters))
            is_upgrade = append_voters.kraft_version is not None  # it adds the directory ids
            assert is_upgrade or len(before ^ after) <= 1, (
                f"voters {self._voters} became {append_voters.voters} at once"
            )
            self._voters = append_voters.voters

    def _has_all(self, key: ReplicaKey) -> bool:
        node, end = self._nodes[key.node_id], len(self.committed)
        if not key.matches(node.key):  # it was durable until the disk was lost
            return True
        return node.log.flushed_offset >= end and node.log.entries[:end] == self.committed

    def check_recovered(self) -> None:
        leaders = [node for node in self._nodes.values() if node.is_leading]
        epochs = {node_id: node.state.epoch for node_id, node in self._nodes.items()}
        assert len(leaders) == 1, f"{len(leaders)} nodes lead after the faults; epochs {epochs}"
        leader = leaders[0]
        for node_id, node in self._nodes.items():
            assert node.raft is not None
            behind = leader.log.end.offset - node.raft.state.high_watermark
            assert behind <= 100, f"node {node_id} is {behind} records behind after the faults; epochs {epochs}"
            pending = [request for request in node.undecided_requests if not isinstance(request, Fetch)]
            assert not pending, f"node {node_id} has pending requests after the faults: {pending}"
        assert set(epochs.values()) == {leader.state.epoch}, f"epochs differ after the faults: {epochs}"

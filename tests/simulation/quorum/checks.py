"""What must hold in a quorum after every event, and when all is well again.

RULES    1. At most one leader in an epoch, and in one life of its process: what it wrote before may be lost.
         2. What was committed anywhere is never lost or changed; whoever begins to lead has all of it.
         3. A live node's high watermark does not go back, and its log goes at least so far.
         4. A node's epoch does not go back, not even over a restart; a replica votes once in an epoch.
         5. What is committed is durable on a majority of the voters that the leader knows then; a disk may be lost since.
         6. A snapshot covers all that lies before the log's start.
         7. Two sets of voters that follow each other in the log differ by one replica at the most.
         8. In peace somebody leads, and all have all, committed; nobody waits for an answer any more.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.raft.voters import ReplicaKey, VoterSet
from tests.simulation.quorum.memory_log import Entry
from tests.simulation.quorum.node import Node


class Checks:
    """Looks at all nodes from outside."""

    def __init__(self, nodes: Mapping[int, Node], voters: VoterSet) -> None:
        self._nodes = nodes
        self._voters = voters
        """As of what is committed."""
        self._leaders: dict[int, tuple[int, int]] = {}
        self.committed: list[Entry] = []
        self._watermarks: dict[tuple[int, int], int] = {}
        self._epochs: dict[ReplicaKey, int] = {}
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}

    def after_event(self, touched: set[int]) -> None:
        """Rules 1 to 7, for the nodes that did something."""
        for node_id in touched:
            node = self._nodes[node_id]
            if node.raft is not None:
                self._check(node_id, node)

    def granted(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        """A vote has left."""
        first = self._votes.setdefault((voter, epoch), candidate)
        assert first == candidate, f"{voter} voted twice in epoch {epoch}"

    def _check(self, node_id: int, node: Node) -> None:
        raft, log = node.raft, node.log
        assert raft is not None
        if node.is_leading:
            self._check_leader(node_id, node.process, raft.epoch, log.entries)
        assert node.state.epoch >= self._epochs.get(node.key, 0), f"node {node_id} went back in epochs"
        self._epochs[node.key] = node.state.epoch
        self._check_watermark(node_id, node, raft.high_watermark)
        if log.start_offset:
            oldest = log.oldest_snapshot
            assert oldest is not None, f"node {node_id} has no snapshot before {log.start_offset}"
            assert oldest.offset >= log.start_offset, f"node {node_id}'s snapshot does not reach the log's start"

    def _check_leader(self, node_id: int, process: int, epoch: int, entries: list[Entry]) -> None:
        if epoch > max(self._leaders, default=0):
            has_all = entries[: len(self.committed)] == self.committed
            assert has_all, f"node {node_id} begins to lead epoch {epoch} without all that is committed"
        first = self._leaders.setdefault(epoch, (node_id, process))
        assert first == (node_id, process), f"nodes {first[0]} and {node_id} both lead epoch {epoch}, or one does twice"

    def _check_watermark(self, node_id: int, node: Node, watermark: int) -> None:
        known = self._watermarks.get((node_id, node.process), 0)
        assert watermark >= known, f"node {node_id}'s high watermark went back from {known} to {watermark}"
        if watermark == known:
            return
        self._watermarks[node_id, node.process] = watermark
        entries = node.log.entries
        assert len(entries) >= watermark, f"node {node_id} has less than its high watermark"
        common = min(watermark, len(self.committed))
        assert entries[:common] == self.committed[:common], f"node {node_id} has other records than were committed"
        if watermark > len(self.committed):
            self._commit(entries[len(self.committed) : watermark])
            voters = node.log.voters.latest
            having = sum(self._has_all(voter.key) for voter in voters)
            assert having > len(voters) // 2, f"{watermark} is committed, but durable on {having} voters only"

    def _commit(self, entries: list[Entry]) -> None:
        self.committed.extend(entries)
        for naming in (entry.naming for entry in entries if entry.naming is not None):
            before, after = ({voter.key for voter in voters} for voters in (self._voters, naming.voters))
            is_upgrade = naming.kraft_version is not None  # it names the directories, too
            assert is_upgrade or len(before ^ after) <= 1, f"voters {self._voters} became {naming.voters} at once"
            self._voters = naming.voters

    def _has_all(self, key: ReplicaKey) -> bool:
        node, end = self._nodes[key.node_id], len(self.committed)
        if not key.matches(node.key):  # it was there until the disk was lost
            return True
        return node.log.flushed_offset >= end and node.log.entries[:end] == self.committed

    def all_agree(self) -> None:
        """Rule 8."""
        leaders = [node for node in self._nodes.values() if node.is_leading]
        epochs = {node_id: node.state.epoch for node_id, node in self._nodes.items()}
        assert len(leaders) == 1, f"{len(leaders)} nodes lead in peace; epochs {epochs}"
        leader = leaders[0]
        for node_id, node in self._nodes.items():
            assert node.raft is not None
            behind = leader.log.end.offset - node.raft.high_watermark
            assert behind <= 100, f"node {node_id} is {behind} records behind in peace; epochs {epochs}"
            assert not node.unanswered, f"node {node_id} owes answers in peace: {node.unanswered}"
        assert set(epochs.values()) == {leader.state.epoch}, f"epochs differ in peace: {epochs}"

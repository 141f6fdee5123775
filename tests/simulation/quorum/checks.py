"""What must hold in a quorum after every event, and when all is well again.

RULES    1. At most one leader in an epoch.
         2. What was committed anywhere is never lost or changed; whoever begins to lead has all of it.
         3. A live node's high watermark does not go back, and its log goes at least so far.
         4. A node's epoch does not go back, not even over a restart; it votes once in an epoch.
         5. What is committed is durable on a majority of the voters.
         6. A snapshot covers all that lies before the log's start.
         7. In peace somebody leads, and all have all, committed.
"""

from __future__ import annotations

from replication.raft.roles import Leader
from tests.simulation.quorum.memory_log import Entry
from tests.simulation.quorum.node import Node


class Checks:
    """Looks at all nodes from outside."""

    def __init__(self, nodes: dict[int, Node], voters: set[int]) -> None:
        self._nodes = nodes
        self._voters = voters
        self._leaders: dict[int, int] = {}
        self._committed: list[Entry] = []
        self._watermarks: dict[tuple[int, int], int] = {}
        self._epochs: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}

    def after_event(self) -> None:
        """Rules 1 to 6."""
        for node_id, node in self._nodes.items():
            if node.raft is not None:
                self._check(node_id, node)

    def granted(self, node_id: int, epoch: int, candidate: int) -> None:
        """A vote has left."""
        first = self._votes.setdefault((node_id, epoch), candidate)
        assert first == candidate, f"node {node_id} voted twice in epoch {epoch}"

    def _check(self, node_id: int, node: Node) -> None:
        raft, log = node.raft, node.log
        assert raft is not None
        if isinstance(raft.role, Leader):
            self._check_leader(node_id, raft.epoch, log.entries)
        assert node.state.epoch >= self._epochs.get(node_id, 0), f"node {node_id} went back in epochs"
        self._epochs[node_id] = node.state.epoch
        self._check_watermark(node_id, node, raft.high_watermark)
        if log.start_offset:
            oldest = log.oldest_snapshot
            assert oldest is not None, f"node {node_id} has no snapshot before {log.start_offset}"
            assert oldest.offset >= log.start_offset, f"node {node_id}'s snapshot does not reach the log's start"

    def _check_leader(self, node_id: int, epoch: int, entries: list[Entry]) -> None:
        if epoch > max(self._leaders, default=0):
            has_all = entries[: len(self._committed)] == self._committed
            assert has_all, f"node {node_id} begins to lead epoch {epoch} without all that is committed"
        first = self._leaders.setdefault(epoch, node_id)
        assert first == node_id, f"nodes {first} and {node_id} both lead epoch {epoch}"

    def _check_watermark(self, node_id: int, node: Node, watermark: int) -> None:
        known = self._watermarks.get((node_id, node.process), 0)
        assert watermark >= known, f"node {node_id}'s high watermark went back from {known} to {watermark}"
        if watermark == known:
            return
        self._watermarks[node_id, node.process] = watermark
        entries = node.log.entries
        assert len(entries) >= watermark, f"node {node_id} has less than its high watermark"
        common = min(watermark, len(self._committed))
        assert entries[:common] == self._committed[:common], f"node {node_id} has other records than were committed"
        if watermark > len(self._committed):
            self._committed.extend(entries[len(self._committed) : watermark])
            having = sum(self._has_all(self._nodes[voter]) for voter in self._voters)
            assert having > len(self._voters) // 2, f"{watermark} is committed, but durable on {having} voters only"

    def _has_all(self, node: Node) -> bool:
        end = len(self._committed)
        return node.log.flushed_offset >= end and node.log.entries[:end] == self._committed

    def all_agree(self) -> None:
        """Rule 7."""
        leaders = [node for node in self._nodes.values() if node.is_leading]
        epochs = {node_id: node.state.epoch for node_id, node in self._nodes.items()}
        assert len(leaders) == 1, f"{len(leaders)} nodes lead in peace; epochs {epochs}"
        leader = leaders[0]
        for node_id, node in self._nodes.items():
            assert node.raft is not None
            behind = leader.log.end.offset - node.raft.high_watermark
            assert behind <= 1000, f"node {node_id} is {behind} records behind in peace; epochs {epochs}"
            assert set(epochs.values()) == {leader.state.epoch}, f"epochs differ in peace: {epochs}"

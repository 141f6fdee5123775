"""What goes wrong in a history of a quorum, and what its administrators do meanwhile.

RULES    1. One trouble at a time, and in between something is mended: a blink is a crash with a restart at once.
         2. A disk is lost, or an address changes, only where a quorum bears it: all nodes know the same voters as they are, and
            nothing has been asked of these for some seconds; there are three or more. A static quorum bears neither.
"""

from __future__ import annotations

from itertools import count

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest, VoterListener
from protocol.primitives import ZERO_UUID
from protocol.schema import Message
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.node import CLUSTER_ID, Node
from tests.simulation.quorum.world import PEACE_MS, TROUBLE_MS, World

SETTLED_MS = 5000

FAULTS = (
    "crash", "crash the leader", "blink", "blink", "blink of the leader", "start", "start", "start",
    "cut", "cut one way", "cut the leader", "mend", "mend", "mend and crash the leader", "summarize",
)  # fmt: skip
CHANGES = (
    "add",
    "add",
    "remove",
    "remove the leader",
    "change a leader that is cut off",
    "upgrade",
    "move",
    "lose",
    "lose",
)


class Troubles:
    """The course of one history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pace_ms = world.random.choice((100, 500, 2000))
        """How much time there is between two troubles, at the most."""
        self._kinds = FAULTS + CHANGES if world.random.random() < 0.7 else FAULTS
        self._directories = count(100)
        self._ports = count(1000)
        self._changed_ms = 0

    def play(self) -> None:
        """Trouble, then peace."""
        world = self._world
        world.begin()
        world.after(world.random.randrange(3000), self._next)
        world.run(TROUBLE_MS)
        world.end_trouble()
        world.run(PEACE_MS)
        world.checks.all_agree()

    def _next(self) -> None:
        world = self._world
        if not world.is_troubled:
            return
        node = world.random.choice(list(world.nodes.values()))
        kind = world.random.choice(self._kinds)
        if "leader" in kind and world.leaders:
            node = world.leaders[0]
        if kind in CHANGES:
            self._change(kind, node)
        else:
            self._break(kind, node)
        world.after(world.random.randrange(self._pace_ms), self._next)

    def _break(self, kind: str, node: Node) -> None:
        world = self._world
        if "mend" in kind:
            world.network.heal()
        if "crash" in kind or "blink" in kind:
            if node.raft is not None:
                node.crash()
            if "blink" in kind:
                world.after(world.random.randrange(50), lambda: world.start(node))
        elif kind == "start":
            world.start(node)
        elif "cut" in kind:
            self._cut(node.key.node_id, is_both_ways=kind != "cut one way")
        elif kind == "summarize":
            node.summarize()

    def _cut(self, node_id: int, *, is_both_ways: bool) -> None:
        world = self._world
        others = [other for other in world.nodes if other != node_id and world.random.random() < 0.7]
        world.network.cut(node_id, others, is_both_ways=is_both_ways)

    # ------------------------------------------------------------ changes of the quorum
    def _change(self, kind: str, node: Node) -> None:
        leader = self._world.leaders[0] if self._world.leaders else None
        if kind == "move":
            self._move(node)
        elif kind == "lose":
            self._lose_disk(node)
        elif leader is not None and leader.raft is not None:
            lost = self._untrue(leader.raft.voters)
            self._changed_ms = self._world.now_ms
            if lost:
                self._ask(leader, self._removal(lost[0].key))
            elif kind == "upgrade":
                leader.raft.upgrade(1)
                leader.tick()
            elif kind == "add":
                self._ask(leader, self._addition(node))
            elif "cut" in kind:
                self._change_apart(leader)
            elif len(leader.raft.voters) > 2:
                self._ask(leader, self._removal(node.key))

    def _change_apart(self, leader: Node) -> None:
        """A leader that nobody hears of is asked to make do with fewer voters."""
        world, process = self._world, leader.process
        self._cut(leader.key.node_id, is_both_ways=True)

        def remove() -> None:
            others = [voter.key for voter in leader.log.voters.latest if voter.key != leader.key]
            if leader.process == process and leader.is_leading and others:
                self._ask(leader, self._removal(world.random.choice(others)))

        for _ in range(4):
            world.after(world.random.randrange(1500), remove)

    @staticmethod
    def _removal(key: ReplicaKey) -> RemoveRaftVoterRequest:
        return RemoveRaftVoterRequest(cluster_id=CLUSTER_ID, voter_id=key.node_id, voter_directory_id=key.directory_id)

    def _addition(self, node: Node) -> AddRaftVoterRequest:
        name, host, port = node.own.addresses[0]
        return AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=1000,
            voter_id=node.key.node_id,
            voter_directory_id=node.key.directory_id,
            listeners=[VoterListener(name=name, host=host, port=port)],
            ack_when_committed=self._world.random.random() < 0.5,
        )

    @staticmethod
    def _ask(leader: Node, request: Message) -> None:
        leader.receive(request, lambda _: None)

    def _move(self, node: Node) -> None:
        """It listens somewhere else when it starts again (rule 2)."""
        if self._is_settled():
            self._changed_ms = self._world.now_ms
            if node.raft is not None:
                node.crash()
            node.move(next(self._ports))
            self._world.start(node)

    def _lose_disk(self, node: Node) -> None:
        """Rule 2."""
        world = self._world
        if self._is_settled():
            self._changed_ms = world.now_ms
            node.lose_disk(bytes([next(self._directories)] * 16), world.settings)
            world.after(world.random.randrange(500), lambda: world.start(node))

    def _untrue(self, voters: VoterSet) -> list[Voter]:
        """Voters that are not there any more, or not as they are known."""
        return [
            voter
            for voter in voters
            if voter.key.directory_id != ZERO_UUID and voter != self._world.nodes[voter.key.node_id].own
        ]

    def _is_settled(self) -> bool:
        world = self._world
        if world.is_static:
            return False
        voters = next(iter(world.nodes.values())).log.voters.latest
        is_known = all(node.log.voters.latest == voters for node in world.nodes.values())
        return (
            len(voters) >= 3 and is_known and not self._untrue(voters) and world.now_ms - self._changed_ms > SETTLED_MS
        )

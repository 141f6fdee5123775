"""A quorum of simulated nodes on a simulated network, and the seed that decides it all.

RULES    1. One seed, one history: whatever is drawn is drawn from one generator, in the order of simulated time.
         2. After every event the checks run (`checks.py`).
         3. Every history ends in peace: the network is whole, all nodes run, and in time all logs must be equal.
NOT HERE What goes wrong, and when (`troubles.py`); time and the network (`tests/simulation/network.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import count
from random import Random

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from protocol.messages.raft import VoteResponse
from protocol.schema import Message
from replication.raft.raft_log import Send
from replication.raft.replica_state import QuorumTimes
from replication.raft.rpc_messages import only_partition
from replication.raft.voters import Address, ReplicaKey, Voter, VoterSet
from tests.simulation.network import Answered, Network, Reply, Timeline
from tests.simulation.quorum.checks import Checks
from tests.simulation.quorum.memory_log import MemoryLog
from tests.simulation.quorum.node import Node

TIMES = QuorumTimes()
REQUEST_TIMEOUT_MS = 2000
TROUBLE_MS = 20_000
PEACE_MS = 12_000


def voter(node_id: int) -> Voter:
    """A node as it begins."""
    key = ReplicaKey(node_id, bytes([node_id] * 16))
    return Voter(key, (Address("CONTROLLER", "sim", node_id),), (0, 1))


def setting(node_id: int) -> Voter:
    """A node as controller.quorum.voters names it."""
    return Voter(ReplicaKey(node_id), voter(node_id).addresses)


class World:
    """Everything that happens, in the order of time."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self._timeline = Timeline()
        self._values = count()
        self.most_jitter_ms = random.choice((20, 1000))
        """Nodes that draw nearly the same times stand for election together."""
        self.is_static = random.random() < 0.3
        """Whether the voters are a setting, at first."""
        count_of_voters = random.choice((1, 3, 3, 3, 4, 5))
        ids = range(1, count_of_voters + random.choice((1, 2, 3)))
        joins = random.random() < 0.5
        self.settings = VoterSet(setting(node_id) for node_id in ids[:count_of_voters] if self.is_static)
        voters = self.settings if self.is_static else VoterSet(voter(node_id) for node_id in ids[:count_of_voters])
        self.nodes: dict[int, Node] = {}
        for node_id in ids:
            is_formatted = not self.is_static and node_id in voters.node_ids
            log = MemoryLog(voters, 1) if is_formatted else MemoryLog(self.settings)
            self.nodes[node_id] = Node(self, voter(node_id), log, TIMES, joins=joins)
        self.network = Network(self._timeline, random)
        self.slow_disk_ms = random.choice((20, 500))
        self.touched: set[int] = set()
        """Nodes that did something in this event."""
        self.checks = Checks(self.nodes, voters)

    # ------------------------------------------------------------ what nodes ask
    @property
    def now_ms(self) -> int:
        """The time."""
        return self._timeline.now_ms

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something later."""
        self._timeline.after(delay_ms, act)

    def send(self, source: int, effect: Send, answered: Answered) -> None:
        """Carry a request there and its answer back, unless one of them is lost."""
        target = self._node_at(effect)

        def deliver(reply: Reply) -> bool:
            if target is None or self.nodes[target].raft is None:
                return False
            self._deliver(self.nodes[target], effect.request, reply)
            return True

        towards = effect.to if target is None else target
        self.network.ask(source, towards, deliver, answered, REQUEST_TIMEOUT_MS)

    def _node_at(self, effect: Send) -> int | None:
        """Who listens where a request goes; bootstrap servers are the first nodes, wherever they are."""
        if effect.to < 0:
            return -1 - effect.to if -1 - effect.to in self.nodes else None
        assert effect.address is not None, f"node {effect.to} is asked at no address"
        port = effect.address.port
        return next((node_id for node_id, node in self.nodes.items() if node.port == port), None)

    def _deliver(self, node: Node, request: Message, answer: Reply) -> None:
        def reply(message: Message) -> None:
            if isinstance(message, VoteResponse):
                self._voted(node, request, message)
            answer(message)

        is_change = isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest)
        node.receive(copy.copy(request) if is_change else request, reply)

    def began_to_lead(self, node: Node) -> None:
        """The worst moment for a leader to crash is soon after it was elected."""
        self._perhaps_crash(node, within_ms=self.network.slowest_ms)

    def _voted(self, node: Node, request: Message, message: VoteResponse) -> None:
        asked, answer = only_partition(request), only_partition(message)
        if answer is not None and answer.vote_granted and not asked.pre_vote:
            candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
            self.checks.granted(node.key, asked.replica_epoch, candidate)
            self._perhaps_crash(node, within_ms=2)

    def _perhaps_crash(self, node: Node, *, within_ms: int) -> None:
        if not self.is_troubled or self.random.random() < 0.7:
            return
        process = node.process
        self.after(self.random.randint(0, within_ms), lambda: node.crash() if node.process == process else None)
        self.after(within_ms + self.random.choice((1, 20, 1000)), lambda: self.start(node))

    # ------------------------------------------------------------ a history
    def begin(self) -> None:
        """All nodes start, and somebody writes."""
        for node in self.nodes.values():
            node.start()
        self.after(self.random.randrange(50), self._write)

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        self._timeline.run(duration_ms, self._check)

    def _check(self) -> None:
        if self.touched:
            self.checks.after_event(self.touched)
            self.touched.clear()

    @property
    def is_troubled(self) -> bool:
        """Whether things go wrong."""
        return self.network.is_troubled

    def _write(self) -> None:
        """Somebody who leads, or thinks so, writes."""
        if self.leaders:  # clients of one that is cut off do not know it
            oldest = min(self.leaders, key=lambda node: node.state.epoch)
            writer = oldest if self.random.random() < 0.5 else self.random.choice(self.leaders)
            writer.write(next(self._values))
        self.after(self.random.choice((1, 20, 100, 400) if self.is_troubled else (100, 400)), self._write)

    @property
    def leaders(self) -> list[Node]:
        """Who leads, or thinks so."""
        return [node for node in self.nodes.values() if node.is_leading]

    def start(self, node: Node) -> None:
        """A process begins, if there is none."""
        if node.raft is None:
            node.start()

    def end_trouble(self) -> None:
        """Rule 3."""
        self.network.is_troubled = False
        self.network.heal()
        for node in self.nodes.values():
            self.start(node)

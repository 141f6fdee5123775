"""Simulation of a metadata quorum on a simulated network.

RULES    1. All random numbers come from one generator, in the order of simulated time: one seed, one simulation.
         2. The invariants are checked after every event (`invariants.py`).
         3. Every simulation ends without faults: the network is whole, all nodes run, and all logs must become equal.
NOT HERE The faults (`faults.py`), time and network (`tests/simulation/network.py`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from itertools import count
from random import Random

from replication.raft.events import SendRequest
from replication.raft.quorum_state import QuorumTimes
from replication.raft.rpc_messages import Request, Response, Vote, VoteResponse
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.simulation.network import Network, Reply, ResponseCallback, Timeline
from tests.simulation.quorum.faults import FaultInjector
from tests.simulation.quorum.invariants import Invariants
from tests.simulation.quorum.memory_log import MemoryLog
from tests.simulation.quorum.node import Node
from tests.simulation.runner import Failure

TIMES = QuorumTimes()
REQUEST_TIMEOUT_MS = 2000


def voter(node_id: int) -> Voter:
    key = ReplicaKey(node_id, bytes([node_id] * 16))
    return Voter(key, (ListenerAddress("CONTROLLER", "sim", node_id),), (0, 1))


def static_voter(node_id: int) -> Voter:
    """The voter on a node in controller.quorum.voters."""
    return Voter(ReplicaKey(node_id), voter(node_id).addresses)


class Simulation:
    """All nodes and scheduled events."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self._timeline = Timeline()
        self._values = count()
        self.max_jitter_ms = random.choice((20, 1000))
        """With a small jitter, nodes become candidates together."""
        self.is_static = random.random() < 0.3
        """Whether the voters are static at first."""
        count_of_voters = random.choice((1, 3, 3, 3, 4, 5))
        ids = range(1, count_of_voters + random.choice((1, 2, 3)))
        auto_join = random.random() < 0.5
        self.settings = VoterSet(static_voter(node_id) for node_id in ids[:count_of_voters] if self.is_static)
        voters = self.settings if self.is_static else VoterSet(voter(node_id) for node_id in ids[:count_of_voters])
        self.nodes: dict[int, Node] = {}
        for node_id in ids:
            is_formatted = not self.is_static and node_id in voters.node_ids
            log = MemoryLog(voters, 1) if is_formatted else MemoryLog(self.settings)
            self.nodes[node_id] = Node(self, voter(node_id), log, TIMES, auto_join=auto_join)
        self.network = Network(self._timeline, random)
        self.slow_disk_ms = random.choice((20, 500))
        self.touched: set[int] = set()
        """The nodes that changed in this event."""
        self.invariants = Invariants(self.nodes, voters)

    # ------------------------------------------------------------ interface of nodes
    @property
    def now_ms(self) -> int:
        return self._timeline.now_ms

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._timeline.after(delay_ms, act)

    def send(self, source: int, effect: SendRequest, on_response: ResponseCallback) -> None:
        """Send a request to a node, and its response back."""
        target = self._node_at(effect)

        def deliver(reply: Reply) -> bool:
            if target is None or self.nodes[target].raft is None:
                return False
            self._deliver(self.nodes[target], effect.request, reply)
            return True

        towards = effect.to if target is None else target
        self.network.request(source, towards, deliver, on_response, REQUEST_TIMEOUT_MS)

    def _node_at(self, effect: SendRequest) -> int | None:
        """The node at the address of a request; bootstrap servers are the first nodes."""
        if effect.to < 0:
            return -1 - effect.to if -1 - effect.to in self.nodes else None
        assert effect.address is not None, f"node {effect.to} is asked at no address"
        port = effect.address.port
        return next((node_id for node_id, node in self.nodes.items() if node.port == port), None)

    def _deliver(self, node: Node, request: Request, answer: Reply) -> None:
        def reply(response: Response) -> None:
            if isinstance(request, Vote) and isinstance(response, VoteResponse):
                self._on_vote(node, request, response)
            answer(response)

        node.receive(request, reply)

    def on_leader(self, node: Node) -> None:
        """A leader may crash soon after its election."""
        self._maybe_crash(node, within_ms=self.network.max_delay_ms)

    def _on_vote(self, node: Node, vote: Vote, response: VoteResponse) -> None:
        if response.is_granted and not vote.is_pre_vote:
            self.invariants.vote_granted(node.key, vote.epoch, vote.candidate)
            self._maybe_crash(node, within_ms=2)

    def _maybe_crash(self, node: Node, *, within_ms: int) -> None:
        if not self.has_faults or self.random.random() < 0.7:
            return
        process = node.process
        self.after(self.random.randint(0, within_ms), lambda: node.crash() if node.process == process else None)
        self.after(within_ms + self.random.choice((1, 20, 1000)), lambda: self.start(node))

    # ------------------------------------------------------------ phases
    def start_all(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.after(self.random.randrange(50), self._write)

    def run(self, duration_ms: int) -> None:
        self._timeline.run(duration_ms, self._check)

    def _check(self) -> None:
        if self.touched:
            self.invariants.after_event(self.touched)
            self.touched.clear()

    @property
    def has_faults(self) -> bool:
        return self.network.has_faults

    def _write(self) -> None:
        """A leader writes; there may be several that consider themselves leaders."""
        if self.leaders:  # clients of an isolated leader do not know the new one
            oldest = min(self.leaders, key=lambda node: node.state.epoch)
            writer = oldest if self.random.random() < 0.5 else self.random.choice(self.leaders)
            writer.write(next(self._values))
        self.after(self.random.choice((1, 20, 100, 400) if self.has_faults else (100, 400)), self._write)

    @property
    def leaders(self) -> list[Node]:
        """The nodes that consider themselves leaders."""
        return [node for node in self.nodes.values() if node.is_leading]

    def start(self, node: Node) -> None:
        """Start a node, unless it runs."""
        if node.raft is None:
            node.start()

    def end_faults(self) -> None:
        """End all faults (rule 3)."""
        self.network.has_faults = False
        self.network.heal()
        for node in self.nodes.values():
            self.start(node)


def simulate(seed: int) -> Failure | None:
    """Run the simulation of a seed; None if all invariants hold."""
    simulation = Simulation(seed)
    try:
        FaultInjector(simulation).run()
    except AssertionError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        summary = f"seed {seed}, after {simulation.now_ms} ms: {error or frame.line}"
        return Failure(f"make sim-quorum SEED={seed}", summary)
    return None

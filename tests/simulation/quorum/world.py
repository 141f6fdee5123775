"""A quorum of simulated nodes, a network that loses, delays, doubles and cuts, and the seed that decides it all.

RULES    1. One seed, one history: whatever is drawn is drawn from one generator, in the order of simulated time.
         2. After every event the checks run (`checks.py`).
         3. Every history ends in peace: the network is whole, all nodes run, and in time all logs must be equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from protocol.messages.raft import VoteResponse
from protocol.schema import Message
from replication.raft.letters import only_partition
from replication.raft.raft import QuorumTimes
from replication.raft.replica_log import Send
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.checks import Checks
from tests.simulation.quorum.node import Node

TIMES = QuorumTimes(election_timeout_ms=1000, fetch_timeout_ms=2000, election_backoff_max_ms=1000)
REQUEST_TIMEOUT_MS = 2000
TROUBLE_MS = 20_000
PEACE_MS = 10_000

TROUBLES = (
    "crash", "crash the leader", "blink", "blink", "blink of the leader", "start", "start", "start",
    "cut", "cut one way", "mend", "mend", "summarize",
)  # fmt: skip
"""A blink is a crash with a restart at once."""


class World:
    """Everything that happens, in the order of time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._values = count()
        self.most_jitter_ms = self.random.choice((20, 1000))
        """Nodes that draw nearly the same times stand for election together."""
        voter_count = self.random.choice((1, 3, 3, 3, 5))
        keys = [ReplicaKey(node_id, bytes([node_id] * 16)) for node_id in range(1, voter_count + 1)]
        observers = [ReplicaKey(101, bytes([101] * 16))] if self.random.random() < 0.5 else []
        voters = VoterSet(Voter(key) for key in keys)
        self.nodes = {key.node_id: Node(self, key, voters, TIMES) for key in (*keys, *observers)}
        self._cuts: set[tuple[int, int]] = set()
        """Directions in which nothing gets through."""
        self._loss = self.random.choice((0.0, 0.0, 0.05, 0.3))
        self._pace_ms = self.random.choice((100, 500, 2000))
        """How much time there is between two troubles, at the most."""
        self._slowest_ms = self.random.choice((20, 200, 1500))
        """What one message in ten may take."""
        self._checks = Checks(self.nodes, {key.node_id for key in keys})
        self.is_troubled = True

    # ------------------------------------------------------------ what nodes ask
    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), act))

    def send(self, source: int, effect: Send, answered: Callable[[Message | None], None]) -> None:
        """Carry a request there and its answer back, unless one of them is lost."""
        is_over = False

        def end(message: Message | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answered(message)

        def reply(message: Message) -> None:
            if isinstance(message, VoteResponse):
                self._voted(effect.to, effect.request, message)
            self._carry(effect.to, source, lambda: end(message))

        def arrive() -> None:
            if self.nodes[effect.to].raft is None:  # nobody listens, which is seen at once
                self._carry(effect.to, source, lambda: end(None))
            self.nodes[effect.to].receive(effect.request, reply)

        self._carry(source, effect.to, arrive)
        self.after(REQUEST_TIMEOUT_MS, lambda: end(None))

    def _carry(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        random = self.random
        for _ in range(2 if self.is_troubled and random.random() < 0.02 else 1):
            delay_ms = random.randint(0, 3) if random.random() < 0.9 else random.randrange(self._slowest_ms)
            if not self.is_troubled:
                delay_ms = min(delay_ms, 3)
            elif random.random() < self._loss:
                continue
            self.after(delay_ms, lambda: arrive() if (source, target) not in self._cuts else None)

    def began_to_lead(self, node: Node) -> None:
        """The worst moment for a leader to crash is soon after it was elected."""
        self._perhaps_crash(node, within_ms=self._slowest_ms)

    def _voted(self, voter: int, request: Message, message: VoteResponse) -> None:
        asked, answer = only_partition(request), only_partition(message)
        if answer is not None and answer.vote_granted and not asked.pre_vote:
            self._checks.granted(voter, asked.replica_epoch, asked.replica_id)
            self._perhaps_crash(self.nodes[voter], within_ms=2)

    def _perhaps_crash(self, node: Node, *, within_ms: int) -> None:
        if not self.is_troubled or self.random.random() < 0.7:
            return
        process = node.process
        self.after(self.random.randint(0, within_ms), lambda: node.crash() if node.process == process else None)
        self.after(within_ms + self.random.choice((1, 20, 1000)), lambda: self._start(node))

    # ------------------------------------------------------------ a history
    def play(self) -> None:
        """Trouble, then peace."""
        for node in self.nodes.values():
            node.start()
        self.after(self.random.randrange(50), self._write)
        self.after(self.random.randrange(3000), self._trouble)
        self._run(TROUBLE_MS)
        self._end_trouble()
        self._run(PEACE_MS)
        self._checks.all_agree()

    def _run(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, act = heapq.heappop(self._events)
            act()
            self._checks.after_event()
        self.now_ms = until_ms

    def _write(self) -> None:
        """Somebody who leads, or thinks so, writes."""
        leaders = [node for node in self.nodes.values() if node.is_leading]
        if leaders:
            self.random.choice(leaders).write(next(self._values))
        self.after(self.random.choice((1, 20, 100, 400) if self.is_troubled else (100, 400)), self._write)

    def _trouble(self) -> None:
        """Something goes wrong, and something else is mended."""
        random = self.random
        if not self.is_troubled:
            return
        node = random.choice(list(self.nodes.values()))
        kind = random.choice(TROUBLES)
        if "leader" in kind:
            node = next((one for one in self.nodes.values() if one.is_leading), node)
        if "crash" in kind or "blink" in kind:
            if node.raft is not None:
                node.crash()
            if "blink" in kind:
                self.after(random.randrange(50), lambda: self._start(node))
        elif kind == "start":
            self._start(node)
        elif kind == "cut":
            self._cut(node.key.node_id, is_both_ways=True)
        elif kind == "cut one way":
            self._cut(node.key.node_id, is_both_ways=False)
        elif kind == "mend":
            self._cuts.clear()
        elif kind == "summarize":
            node.summarize()
        self.after(random.randrange(self._pace_ms), self._trouble)

    def _start(self, node: Node) -> None:
        if node.raft is None:
            node.start()

    def _cut(self, node_id: int, *, is_both_ways: bool) -> None:
        for other in self.nodes:
            if other != node_id and self.random.random() < 0.7:
                self._cuts.add((node_id, other))
                if is_both_ways:
                    self._cuts.add((other, node_id))

    def _end_trouble(self) -> None:
        self.is_troubled = False
        self._cuts.clear()
        for node in self.nodes.values():
            self._start(node)

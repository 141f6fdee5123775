"""A cluster of simulated machines on a simulated network, and the seed that decides it all.

RULES    1. After every event the checks look at the nodes that did something (`checks.py`).
         2. A node is asked over the network, itself too; an answer goes the same way back.
         3. In some histories messages go as bytes.
         4. In some histories a voter crashes right after it voted, and is back soon.
         5. Of disks, a history has one kind. *Durable*: followers and leaders sync before they acknowledge, any crash may lose
            power. *Killed*: no power is lost. *Cached*: nothing is synced, and so few machines crash at a time that one is left
            that has everything.
NOT HERE What goes wrong, and when (`troubles.py`), time and the network (`tests/simulation/network.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from enum import Enum
from random import Random

from protocol.codec import decode, encode
from protocol.messages.raft import VoteResponse
from protocol.schema import Message
from tests.simulation.cluster.checks import Checks
from tests.simulation.cluster.machine import Machine, drawn, settings
from tests.simulation.cluster.process import Process
from tests.simulation.network import Answered, Network, Reply, Timeline
from tests.simulation.simulated_disk import Ended

MIN_ISR = 2
TOPOLOGIES = ((3, 0), (3, 0), (3, 0), (3, 0), (3, 1), (3, 2), (1, 2), (5, 0), (3, 4), (7, 0))
"""How many nodes are controllers and brokers, and how many brokers only."""


class Kind(Enum):
    """Rule 5."""

    DURABLE = "durable"
    KILLED = "killed"
    CACHED = "cached"


class World:
    """Everything that happens, in the order of time."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self._timeline = Timeline()
        self.network = Network(self._timeline, random)
        self.network.doubling = random.choice((0.02, 0.02, 0.2))
        self.kind = random.choice(list(Kind))
        self.is_wired = random.random() < 0.15
        self.slowest_disk_ms = random.choice((5, 100, 400))
        voters, brokers = random.choice(TOPOLOGIES)
        self._crashing_votes = random.choice((0.0, 0.0, 0.3))
        given = drawn(random, self.slowest_disk_ms)
        if self.kind is Kind.DURABLE:
            given["log.flush.interval.messages"] = "1"
        ids = range(1, voters + brokers + 1)
        self.machines = {node_id: Machine(self, settings(node_id, list(ids[:voters]), given)) for node_id in ids}
        self.story: list[str] = []
        """What went wrong, and what the cluster made of it."""
        self.checks = Checks(self)
        self._touched: set[int] = set()
        self.on_leader: Callable[[int], None] = lambda _: None

    # ------------------------------------------------------------ what processes ask
    @property
    def now_ms(self) -> int:
        """The time."""
        return self._timeline.now_ms

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something later."""
        self._timeline.after(delay_ms, act)

    def touched(self, node_id: int) -> None:
        """Something has happened to a node."""
        self._touched.add(node_id)

    def began_to_lead(self, node_id: int) -> None:
        """A node leads the quorum."""
        self.tell(f"node {node_id} leads the quorum")
        self.on_leader(node_id)

    def run(self, node_id: int, act: Callable[[], object]) -> None:
        """Have a process do something; its fuse may end it."""
        try:
            act()
        except Ended:
            self.checks.after_event([node_id])  # what it said before its end is heard
            self.crash(self.machines[node_id])

    def ask_broker(self, source: int, target: int, request: Message, answered: Answered, timeout_ms: int) -> None:
        """Ask another node's broker."""
        self._ask(source, target, request, answered, timeout_ms, Process.ask_broker)

    def ask_controller(self, source: int, target: int, request: Message, answered: Answered, timeout_ms: int) -> None:
        """Ask another node's controller."""
        self._ask(source, target, request, answered, timeout_ms, Process.ask_controller)

    def _ask(
        self,
        source: int,
        target: int,
        request: Message,
        answered: Answered,
        timeout_ms: int,
        take: Callable[[Process, Message, Reply], None],
    ) -> None:
        request = self._carried(request)

        def deliver(reply: Reply) -> bool:
            machine = self.machines.get(target)
            process = None if machine is None else machine.process
            if process is None:
                return False

            def answer(message: Message) -> None:
                reply(self._carried(message))
                if isinstance(message, VoteResponse):
                    self._voted(target, request, message)

            asked = copy.copy(request)
            process.do(lambda: take(process, asked, answer))
            return True

        self.network.ask(source, target, deliver, answered, timeout_ms)

    def _voted(self, voter_id: int, request: Message, answer: VoteResponse) -> None:
        """Rule 4."""
        if not self.checks.voted(voter_id, request, answer) or not self.is_troubled:
            return
        machine, random = self.machines[voter_id], self.random
        if random.random() < self._crashing_votes and self.may_crash(machine):
            self.after(random.randrange(20), lambda: self.blink(machine))

    def _carried(self, message: Message) -> Message:
        """Rule 3."""
        if not self.is_wired:
            return message
        version = message.MAX_VERSION
        return decode(type(message), version, encode(message, version))

    # ------------------------------------------------------------ machines
    def start(self, machine: Machine, fuse: int | None = None) -> None:
        """A process begins, if there is none."""
        if machine.is_up:
            return
        self.tell(f"node {machine.node_id} starts")
        try:
            machine.start(fuse)
        except Ended:
            self.crash(machine)
        self.touched(machine.node_id)

    def crash(self, machine: Machine, power_loss: float = 0.6) -> None:
        """A process ends amid whatever it does; where disks are durable, so likely with the power."""
        loses_power = self.kind is Kind.CACHED or (self.kind is Kind.DURABLE and self.random.random() < power_loss)
        self.tell(f"node {machine.node_id} {'loses power' if loses_power else 'is killed'}")
        machine.crash(loses_power=loses_power)
        self.checks.crashed(machine.node_id)

    def blink(self, machine: Machine) -> None:
        """A process ends amid whatever it does, if there is one, and another begins soon."""
        if machine.is_up and self.is_troubled:
            self.crash(machine)
            self.after(self.random.randrange(100), lambda: self.start(machine))

    def ended(self, node_id: int) -> None:
        """A process has ended, as it was asked to."""
        self.tell(f"node {node_id} has stopped")
        machine = self.machines[node_id]
        if machine.process is not None:
            self.checks.left(machine.process)
        machine.end()
        self.checks.crashed(node_id)
        self.after(self.random.randrange(2000) if self.is_troubled else 0, lambda: self.start(machine))

    def may_crash(self, machine: Machine) -> bool:
        """Rule 5."""
        if self.kind is not Kind.CACHED:
            return True
        self.forgive()
        return all(
            sum(other.owes or other.is_armed for other in self.machines.values() if other.node_id in replicas)
            < MIN_ISR - 1
            for replicas in self.checks.replicas_beside(machine.node_id)
        )

    def is_excused(self, node_id: int) -> bool:
        """Whether a node may lack what is committed, for it crashed and has not caught up since."""
        return self.kind is Kind.CACHED and self.machines[node_id].owes

    def forgive(self) -> None:
        """Who is in sync again everywhere owes nothing."""
        for machine in self.machines.values():
            if machine.owes and machine.is_up and self.checks.is_in_sync(machine.node_id):
                machine.owes = False

    # ------------------------------------------------------------ a history
    def run_for(self, duration_ms: int) -> None:
        """Let time pass."""
        self._timeline.run(duration_ms, self._check)

    def _check(self) -> None:
        if self._touched:
            touched, self._touched = self._touched, set()
            self.checks.after_event(touched)

    def tell(self, what: str) -> None:
        """A line of the story."""
        self.story.append(f"{self.now_ms:6} {what}")

    @property
    def is_troubled(self) -> bool:
        """Whether things go wrong."""
        return self.network.is_troubled

    def end_trouble(self) -> None:
        """From now on nothing goes wrong, and everybody runs."""
        self.tell("peace")
        self.network.is_troubled = False
        self.network.heal()
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.paused_until_ms = 0
                machine.process.disk.fuse = None
            self.start(machine)

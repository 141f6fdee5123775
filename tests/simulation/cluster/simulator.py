"""Simulation of a cluster: simulated machines on a simulated network.

RULES    1. After every event, the invariants are checked for the nodes that changed (`invariants.py`).
         2. Nodes are reached over the network, the local node too; responses return the same way.
         3. In some simulations, messages are encoded and decoded.
         4. In some simulations, a voter crashes soon after it voted and restarts soon.
         5. A simulation has one disk mode. *Durable*: leaders and followers flush before they acknowledge; any crash may lose
            power. *Killed*: no power loss. *Cached*: nothing is flushed; so few machines crash at a time that one replica has
            everything.
NOT HERE The faults (`faults.py`), time and network (`tests/simulation/network.py`).
"""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable
from enum import Enum
from random import Random

from protocol.codec import decode, encode
from protocol.messages.raft import VoteResponse
from protocol.schema import Message
from tests.simulation.cluster.faults import FaultInjector
from tests.simulation.cluster.invariants import Invariants
from tests.simulation.cluster.machine import Machine, node_config, random_configs
from tests.simulation.cluster.process import Handler
from tests.simulation.network import Network, Reply, ResponseCallback, Timeline
from tests.simulation.runner import Failure, log_level
from tests.simulation.simulated_disk import ProcessEnded

MIN_ISR = 2
TOPOLOGIES = ((3, 0), (3, 0), (3, 0), (3, 0), (3, 1), (3, 2), (1, 2), (5, 0), (3, 4), (7, 0))
"""The numbers of combined nodes and of additional brokers."""
ENGINE = "barnabas.log.storage.engine"
ENGINES = (("segments",), ("commitlog",), ("segments", "commitlog"))
"""The storage engines of the nodes: the same, or drawn for each."""


class DiskMode(Enum):
    """The disk modes (rule 5)."""

    DURABLE = "durable"
    KILLED = "killed"
    CACHED = "cached"


class Simulation:
    """All machines and scheduled events."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self._timeline = Timeline()
        self.network = Network(self._timeline, random)
        self.network.duplication = random.choice((0.02, 0.02, 0.2))
        self.disk_mode = random.choice(list(DiskMode))
        self.encodes_messages = random.random() < 0.15
        self.slowest_disk_ms = random.choice((5, 100, 400))
        voters, brokers = random.choice(TOPOLOGIES)
        self._crash_after_vote_rate = random.choice((0.0, 0.0, 0.3))
        common = random_configs(random, self.slowest_disk_ms)
        if self.disk_mode is DiskMode.DURABLE:
            common["log.flush.interval.messages"] = "1"
        ids = range(1, voters + brokers + 1)
        engines = random.choice(ENGINES)
        self.machines = {
            node_id: Machine(self, node_config(node_id, list(ids[:voters]), {**common, ENGINE: random.choice(engines)}))
            for node_id in ids
        }
        self.event_log: list[str] = []
        """Faults, elections and ISR changes."""
        self.invariants = Invariants(self)
        self._touched: set[int] = set()

    # ------------------------------------------------------------ interface of processes
    @property
    def now_ms(self) -> int:
        return self._timeline.now_ms

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._timeline.after(delay_ms, act)

    def touched(self, node_id: int) -> None:
        self._touched.add(node_id)

    def on_quorum_leader(self, node_id: int) -> None:
        self.log_event(f"node {node_id} leads the quorum")

    def run(self, node_id: int, act: Callable[[], object]) -> None:
        """Run an action of a process; the process may end in it."""
        try:
            act()
        except ProcessEnded:
            self.invariants.after_event([node_id])  # messages sent before the crash arrive
            self.crash(self.machines[node_id])

    def ask(
        self,
        source: int,
        target: int,
        request: Message,
        on_response: ResponseCallback,
        timeout_ms: int,
        handler: Handler,
    ) -> None:
        """Send a request to a node; `handler` is the listener."""
        request = self._transmit(request)

        def deliver(reply: Reply) -> bool:
            machine = self.machines.get(target)
            process = None if machine is None else machine.process
            if process is None:
                return False

            def answer(message: Message) -> None:
                reply(self._transmit(message))
                if isinstance(message, VoteResponse):
                    self._voted(target, request, message)

            request_copy = copy.copy(request)
            process.do(lambda: handler(process, request_copy, answer))
            return True

        self.network.request(source, target, deliver, on_response, timeout_ms)

    def _voted(self, voter_id: int, request: Message, answer: VoteResponse) -> None:
        if not self.invariants.voted(voter_id, request, answer) or not self.has_faults:
            return
        machine, random = self.machines[voter_id], self.random
        if random.random() < self._crash_after_vote_rate and self.can_crash(machine):
            self.after(random.randrange(20), lambda: self.restart_soon(machine))

    def _transmit(self, message: Message) -> Message:
        if not self.encodes_messages:
            return message
        version = message.MAX_VERSION
        return decode(type(message), version, encode(message, version))

    # ------------------------------------------------------------ machines
    def start(self, machine: Machine, fuse: int | None = None) -> None:
        """Start a machine's process, unless it runs."""
        if machine.is_up:
            return
        self.log_event(f"node {machine.node_id} starts")
        try:
            machine.start(fuse)
        except ProcessEnded:
            self.crash(machine)
        self.touched(machine.node_id)

    def crash(self, machine: Machine, power_loss: float = 0.6) -> None:
        """Crash a machine at any point; with durable disks, possibly with a power loss."""
        loses_power = self.disk_mode is DiskMode.CACHED or (
            self.disk_mode is DiskMode.DURABLE and self.random.random() < power_loss
        )
        self.log_event(f"node {machine.node_id} {'loses power' if loses_power else 'is killed'}")
        machine.crash(loses_power=loses_power)
        self.invariants.process_ended(machine.node_id)

    def restart_soon(self, machine: Machine) -> None:
        """Crash a machine, if it runs and others have not crashed meanwhile, and restart it soon."""
        if machine.is_up and self.has_faults and self.can_crash(machine):
            self.crash(machine)
            self.after(self.random.randrange(100), lambda: self.start(machine))

    def ended(self, node_id: int) -> None:
        """A process stopped as requested."""
        self.log_event(f"node {node_id} has stopped")
        machine = self.machines[node_id]
        if machine.process is not None:
            self.invariants.process_stopping(machine.process)
            if machine.process.lifecycle.epoch < 0:
                machine.may_lack_records = True  # a late registration makes the stop an unclean one
        machine.end()
        self.invariants.process_ended(node_id)
        self.after(self.random.randrange(2000) if self.has_faults else 0, lambda: self.start(machine))

    def can_crash(self, machine: Machine) -> bool:
        """Whether the disk mode tolerates a crash of this machine (rule 5)."""
        if self.disk_mode is not DiskMode.CACHED:
            return True
        self.clear_recovered()
        return all(
            sum(
                other.may_lack_records or other.is_armed
                for other in self.machines.values()
                if other.node_id in replicas
            )
            < MIN_ISR - 1
            for replicas in self.invariants.replica_sets(machine.node_id)
        )

    def may_lack_committed(self, node_id: int) -> bool:
        """Whether a node may lack committed records: it crashed and has not caught up."""
        return self.disk_mode is DiskMode.CACHED and self.machines[node_id].may_lack_records

    def clear_recovered(self) -> None:
        """Clear `may_lack_records` of machines whose replicas are all in sync again."""
        for machine in self.machines.values():
            if machine.may_lack_records and machine.is_up and self.invariants.is_in_sync(machine.node_id):
                machine.may_lack_records = False

    # ------------------------------------------------------------ phases
    def run_for(self, duration_ms: int) -> None:
        self._timeline.run(duration_ms, self._check)

    def _check(self) -> None:
        if self._touched:
            touched, self._touched = self._touched, set()
            self.invariants.after_event(touched)

    def log_event(self, what: str) -> None:
        self.event_log.append(f"{self.now_ms:6} {what}")

    @property
    def has_faults(self) -> bool:
        return self.network.has_faults

    def end_faults(self) -> None:
        """End all faults and start all nodes."""
        self.log_event("the faults end")
        self.network.has_faults = False
        self.network.heal()
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.paused_until_ms = 0
                machine.process.disk.fuse = None
                machine.process.do(machine.process.free_disk)
            self.start(machine)


def simulate(seed: int) -> Failure | None:
    """Run the simulation of a seed; None if all invariants hold."""
    simulation = Simulation(seed)
    try:
        with log_level(logging.CRITICAL + 1):
            FaultInjector(simulation).run()
    except Exception as error:  # noqa: BLE001  # any error belongs to this seed
        summary = f"seed {seed}, after {simulation.now_ms} ms: {type(error).__name__}: {error}"
        lines = list(simulation.event_log)
        if not isinstance(error, AssertionError):
            lines += traceback.format_exception(error)
        return Failure(f"make sim-cluster SEED={seed}", summary, "\n".join(lines))
    return None

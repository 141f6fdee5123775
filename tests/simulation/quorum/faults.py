"""The faults of a quorum simulation, and voter changes by administrators.

RULES    1. One fault at a time, with recoveries in between. A restart is a crash with an immediate start.
         2. A disk is lost or a port changes only if the quorum can tolerate it: all nodes know the same, current voters, no
            change was requested for some seconds, and there are at least three voters. A static quorum tolerates neither.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from protocol.primitives import ZERO_UUID
from replication.raft.events import UpgradeKraftVersion
from replication.raft.rpc_messages import AddVoter, RemoveVoter
from replication.raft.voters import Voter, VoterSet
from tests.simulation.quorum.node import Node

if TYPE_CHECKING:
    from tests.simulation.quorum.simulator import Simulation

FAULT_PHASE_MS = 20_000
RECOVERY_PHASE_MS = 12_000
STABLE_MS = 5000

FAULTS = (
    "crash", "crash the leader", "blink", "blink", "blink of the leader", "start", "start", "start",
    "cut", "cut one way", "cut the leader", "mend", "mend", "mend and crash the leader", "summarize",
)  # fmt: skip
CHANGES = (
    "add", "add", "remove", "remove the leader", "change a leader that is cut off", "upgrade", "move", "lose", "lose",
)  # fmt: skip


class FaultInjector:
    """The faults of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._max_pause_ms = simulation.random.choice((100, 500, 2000))
        """The maximum time between two faults."""
        self._faults = FAULTS + CHANGES if simulation.random.random() < 0.7 else FAULTS
        self._directories = count(100)
        self._ports = count(1000)
        self._last_change_ms = 0

    def run(self) -> None:
        """Run the fault phase and the recovery phase."""
        simulation = self._simulation
        simulation.start_all()
        simulation.after(simulation.random.randrange(3000), self._inject_next)
        simulation.run(FAULT_PHASE_MS)
        simulation.end_faults()
        simulation.run(RECOVERY_PHASE_MS)
        simulation.invariants.check_recovered()

    def _inject_next(self) -> None:
        simulation = self._simulation
        if not simulation.has_faults:
            return
        node = simulation.random.choice(list(simulation.nodes.values()))
        fault = simulation.random.choice(self._faults)
        if "leader" in fault and simulation.leaders:
            node = simulation.leaders[0]
        if fault in CHANGES:
            self._change(fault, node)
        else:
            self._inject(fault, node)
        simulation.after(simulation.random.randrange(self._max_pause_ms), self._inject_next)

    def _inject(self, fault: str, node: Node) -> None:
        simulation = self._simulation
        if "mend" in fault:
            simulation.network.heal()
        if "crash" in fault or "blink" in fault:
            if node.raft is not None:
                node.crash()
            if "blink" in fault:
                simulation.after(simulation.random.randrange(50), lambda: simulation.start(node))
        elif fault == "start":
            simulation.start(node)
        elif "cut" in fault:
            self._cut(node.key.node_id, is_both_ways=fault != "cut one way")
        elif fault == "summarize":
            node.take_snapshot()

    def _cut(self, node_id: int, *, is_both_ways: bool) -> None:
        simulation = self._simulation
        others = [other for other in simulation.nodes if other != node_id and simulation.random.random() < 0.7]
        simulation.network.cut(node_id, others, is_both_ways=is_both_ways)

    # ------------------------------------------------------------ changes of the quorum
    def _change(self, fault: str, node: Node) -> None:
        leader = self._simulation.leaders[0] if self._simulation.leaders else None
        if fault == "move":
            self._move(node)
        elif fault == "lose":
            self._lose_disk(node)
        elif leader is not None and leader.raft is not None:
            lost = self._stale_voters(leader.raft.state.voters)
            self._last_change_ms = self._simulation.now_ms
            if lost:
                self._request(leader, RemoveVoter(lost[0].key))
            elif fault == "upgrade":
                leader.step(UpgradeKraftVersion(1))
            elif fault == "add":
                self._request(leader, self._add_request(node))
            elif "cut" in fault:
                self._change_isolated_leader(leader)
            elif len(leader.raft.state.voters) > 2:
                self._request(leader, RemoveVoter(node.key))

    def _change_isolated_leader(self, leader: Node) -> None:
        """Ask an isolated leader to remove voters."""
        simulation, process = self._simulation, leader.process
        self._cut(leader.key.node_id, is_both_ways=True)

        def remove() -> None:
            others = [voter.key for voter in leader.log.voters.latest if voter.key != leader.key]
            if leader.process == process and leader.is_leading and others:
                self._request(leader, RemoveVoter(simulation.random.choice(others)))

        for _ in range(4):
            simulation.after(simulation.random.randrange(1500), remove)

    def _add_request(self, node: Node) -> AddVoter:
        return AddVoter(node.local, ack_when_committed=self._simulation.random.random() < 0.5, timeout_ms=1000)

    @staticmethod
    def _request(leader: Node, request: AddVoter | RemoveVoter) -> None:
        leader.receive(request, lambda _: None)

    def _move(self, node: Node) -> None:
        """Restart a node on another port (rule 2)."""
        if self._is_stable():
            self._last_change_ms = self._simulation.now_ms
            if node.raft is not None:
                node.crash()
            node.change_port(next(self._ports))
            self._simulation.start(node)

    def _lose_disk(self, node: Node) -> None:
        """Replace a node's disk (rule 2)."""
        simulation = self._simulation
        if self._is_stable():
            self._last_change_ms = simulation.now_ms
            node.lose_disk(bytes([next(self._directories)] * 16), simulation.settings)
            simulation.after(simulation.random.randrange(500), lambda: simulation.start(node))

    def _stale_voters(self, voters: VoterSet) -> list[Voter]:
        """Voters that no longer exist or have changed."""
        return [
            voter
            for voter in voters
            if voter.key.directory_id != ZERO_UUID and voter != self._simulation.nodes[voter.key.node_id].local
        ]

    def _is_stable(self) -> bool:
        simulation = self._simulation
        if simulation.is_static:
            return False
        voters = next(iter(simulation.nodes.values())).log.voters.latest
        is_known = all(node.log.voters.latest == voters for node in simulation.nodes.values())
        return (
            len(voters) >= 3
            and is_known
            and not self._stale_voters(voters)
            and simulation.now_ms - self._last_change_ms > STABLE_MS
        )

"""The faults of a cluster simulation.

RULES    1. Faults start when the topic exists and all its replicas are in sync.
         2. One fault at a time, with recoveries in between. Half of the crashes occur at a disk operation, some during startup.
         3. Every simulation ends without faults: the network is whole and all nodes run. Clients write at a rate that slow
            replicas can follow; then all nodes must agree.
         4. A stop before the registration counts as a crash: if the registration arrives afterwards, the controller takes the
            stop for an unclean one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.cluster.simulator import Simulation

START_PHASE_MS = 20_000
FAULT_PHASE_MS = 6_000
RECOVERY_PHASE_MS = 5_000
STEP_MS = 200

FAULTS = (
    "crash", "crash a leader", "crash the controller", "crash all", "blink", "blink", "blink of a leader", "stop",
    "start", "start", "start", "pause", "pause a leader", "pause the controller",
    "full disk", "full disk of a leader", "full disk of the controller", "full disks",
    "cut", "cut one way", "cut a leader", "cut the controller", "mend", "mend",
)  # fmt: skip


class FaultInjector:
    """The faults of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._clients = Clients(simulation)
        self._max_pause_ms = simulation.random.choice((200, 500, 1500))
        """The maximum time between two faults."""
        self._faults = FAULTS

    def run(self) -> None:
        """Run the start phase, the fault phase and the recovery phase."""
        simulation, clients = self._simulation, self._clients
        network, loss = simulation.network, simulation.network.loss
        network.has_faults = False
        for machine in simulation.machines.values():
            simulation.start(machine)
        clients.create()
        self._wait_until_in_sync()
        simulation.log_event(f"the faults start: disks {simulation.disk_mode.value}, {loss:.0%} of messages lost")
        network.has_faults = True
        simulation.after(0, clients.write)
        simulation.after(simulation.random.randrange(self._max_pause_ms), self._inject_next)
        simulation.run_for(FAULT_PHASE_MS)
        simulation.end_faults()
        clients.reduce_load()
        simulation.run_for(RECOVERY_PHASE_MS)
        clients.is_writing = False
        simulation.run_for(STEP_MS)
        simulation.run_for(RECOVERY_PHASE_MS // 3)
        simulation.invariants.check_recovered()
        assert clients.acknowledged, "no record was acknowledged"

    def _wait_until_in_sync(self) -> None:
        simulation = self._simulation
        for _ in range(START_PHASE_MS // STEP_MS):
            simulation.run_for(STEP_MS)
            if self._clients.is_created and all(map(simulation.invariants.is_in_sync, simulation.machines)):
                return
        raise AssertionError("the cluster does not become ready")

    def _inject_next(self) -> None:
        simulation = self._simulation
        if not simulation.has_faults:
            return
        fault = simulation.random.choice(self._faults)
        self._inject(fault, self._choose_machine(fault))
        simulation.after(simulation.random.randrange(self._max_pause_ms), self._inject_next)

    def _choose_machine(self, fault: str) -> Machine:
        simulation = self._simulation
        machine = simulation.random.choice(list(simulation.machines.values()))
        for other in simulation.machines.values():
            process = other.process
            if process is not None and (
                ("controller" in fault and process.node.quorum.is_leading)
                or ("leader" in fault and any(p.is_leader for p in process.replicas.partitions.values()))
            ):
                return other
        return machine

    def _inject(self, fault: str, machine: Machine) -> None:
        simulation = self._simulation
        if "mend" in fault:
            simulation.log_event("the network is restored")
            simulation.network.heal()
        elif fault == "crash all":
            for other in simulation.machines.values():
                if other.is_up and simulation.can_crash(other):
                    simulation.crash(other, power_loss=1.0)
                    simulation.after(simulation.random.randrange(1500), partial(simulation.start, other))
        elif "full" in fault:
            self._fill_disks(list(simulation.machines.values()) if fault == "full disks" else [machine])
        elif "crash" in fault or "blink" in fault:
            self._crash(machine, restarts_soon="blink" in fault)
        elif fault == "start":
            self._start(machine)
        elif fault == "stop":
            self._stop(machine)
        elif "pause" in fault:
            duration_ms = simulation.random.choice((50, 700, 2000))
            if machine.is_running:
                simulation.log_event(f"node {machine.node_id} pauses for {duration_ms} ms")
                machine.pause(duration_ms)
        else:
            self._cut(machine, is_both_ways=fault != "cut one way")

    def _fill_disks(self, machines: list[Machine]) -> None:
        simulation = self._simulation
        for machine in machines:
            duration_ms = simulation.random.choice((50, 700, 2000))
            if machine.process is not None and machine.is_running:
                simulation.log_event(f"the disk of node {machine.node_id} is full for {duration_ms} ms")
                process = machine.process
                process.do(process.fill_disk)
                simulation.after(duration_ms, partial(process.do, process.free_disk))

    def _crash(self, machine: Machine, *, restarts_soon: bool) -> None:
        simulation = self._simulation
        if machine.process is None or not simulation.can_crash(machine):
            return
        if machine.is_running and simulation.random.random() < 0.5:
            machine.process.disk.fuse = simulation.random.randrange(6)  # rule 2
        else:
            simulation.crash(machine)
        if restarts_soon:
            simulation.after(simulation.random.randrange(100), lambda: simulation.start(machine))

    def _start(self, machine: Machine) -> None:
        random = self._simulation.random
        is_short = random.random() < 0.3 and self._simulation.can_crash(machine)
        self._simulation.start(machine, random.randrange(40) if is_short else None)  # rule 2

    def _stop(self, machine: Machine) -> None:
        simulation = self._simulation
        process = machine.process
        if process is None or not machine.is_running:
            return
        if process.lifecycle.epoch >= 0 or simulation.can_crash(machine):  # rule 4
            simulation.log_event(f"node {machine.node_id} begins to stop")
            process.do(process.stop)

    def _cut(self, machine: Machine, *, is_both_ways: bool) -> None:
        simulation = self._simulation
        others = [
            other for other in simulation.machines if other != machine.node_id and simulation.random.random() < 0.7
        ]
        how = "is cut off from" if is_both_ways else "is not heard by"
        simulation.log_event(f"node {machine.node_id} {how} {others}")
        simulation.network.cut(machine.node_id, others, is_both_ways=is_both_ways)

"""What goes wrong in a history of a cluster, and when.

RULES    1. Trouble begins when the cluster serves: there is a topic, and all its replicas are in sync.
         2. One trouble at a time; in between something is mended. Half of the crashes fall amid a change of the disk, some of
            them in a start.
         3. Every history ends in peace: the network is whole and all nodes run. Something is written then, no more than those
            can take over who have much to catch up with, and all agree.
"""

from __future__ import annotations

from functools import partial

from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.world import World

BEGIN_MS = 20_000
TROUBLE_MS = 6_000
PEACE_MS = 5_000
STEP_MS = 200

FAULTS = (
    "crash", "crash a leader", "crash the controller", "crash all", "blink", "blink", "blink of a leader", "stop",
    "start", "start", "start", "pause", "pause a leader", "pause the controller",
    "cut", "cut one way", "cut a leader", "cut the controller", "mend", "mend",
)  # fmt: skip


class Troubles:
    """The course of one history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clients = Clients(world)
        self._pace_ms = world.random.choice((200, 500, 1500))
        """How much time there is between two troubles, at the most."""
        self._kinds = FAULTS

    def play(self) -> None:
        """A beginning, trouble, peace."""
        world, clients = self._world, self._clients
        network, loss = world.network, world.network.loss
        network.is_troubled = False
        for machine in world.machines.values():
            world.start(machine)
        clients.create()
        self._until_in_sync()
        world.tell(f"trouble: {world.kind.value}, {loss:.0%} are lost")
        network.is_troubled = True
        world.after(0, clients.write)
        world.after(world.random.randrange(self._pace_ms), self._next)
        world.run_for(TROUBLE_MS)
        world.end_trouble()
        clients.slow_down()
        world.run_for(PEACE_MS)
        clients.is_writing = False
        world.run_for(STEP_MS)
        world.run_for(PEACE_MS // 3)
        world.checks.all_agree()
        assert clients.acknowledged, "nothing was acknowledged"

    def _until_in_sync(self) -> None:
        """Rule 1."""
        world = self._world
        for _ in range(BEGIN_MS // STEP_MS):
            world.run_for(STEP_MS)
            if self._clients.is_created and all(map(world.checks.is_in_sync, world.machines)):
                return
        raise AssertionError("the cluster does not begin")

    def _next(self) -> None:
        world = self._world
        if not world.is_troubled:
            return
        kind = world.random.choice(self._kinds)
        self._break(kind, self._victim(kind))
        world.after(world.random.randrange(self._pace_ms), self._next)

    def _victim(self, kind: str) -> Machine:
        world = self._world
        machine = world.random.choice(list(world.machines.values()))
        for other in world.machines.values():
            process = other.process
            if process is not None and (
                ("controller" in kind and process.node.quorum.is_leading)
                or ("leader" in kind and any(p.is_leader for p in process.replicas.partitions.values()))
            ):
                return other
        return machine

    def _break(self, kind: str, machine: Machine) -> None:
        world = self._world
        if "mend" in kind:
            world.tell("the network is mended")
            world.network.heal()
        elif kind == "crash all":
            for other in world.machines.values():
                if other.is_up and world.may_crash(other):
                    world.crash(other, power_loss=1.0)
                    world.after(world.random.randrange(1500), partial(world.start, other))
        elif "crash" in kind or "blink" in kind:
            self._crash(machine, is_blink="blink" in kind)
        elif kind == "start":
            self._start(machine)
        elif kind == "stop":
            self._stop(machine)
        elif "pause" in kind:
            duration_ms = world.random.choice((50, 700, 2000))
            if machine.is_running:
                world.tell(f"node {machine.node_id} stands still for {duration_ms} ms")
                machine.pause(duration_ms)
        else:
            self._cut(machine, is_both_ways=kind != "cut one way")

    def _crash(self, machine: Machine, *, is_blink: bool) -> None:
        world = self._world
        if machine.process is None or not world.may_crash(machine):
            return
        if machine.is_running and world.random.random() < 0.5:
            machine.process.disk.fuse = world.random.randrange(6)  # rule 2
        else:
            world.crash(machine)
        if is_blink:
            world.after(world.random.randrange(100), lambda: world.start(machine))

    def _start(self, machine: Machine) -> None:
        random = self._world.random
        is_short = random.random() < 0.3 and self._world.may_crash(machine)
        self._world.start(machine, random.randrange(40) if is_short else None)  # rule 2

    def _stop(self, machine: Machine) -> None:
        world = self._world
        process = machine.process
        if process is not None and machine.is_running:
            world.tell(f"node {machine.node_id} is asked to stop")
            process.do(process.stop)

    def _cut(self, machine: Machine, *, is_both_ways: bool) -> None:
        world = self._world
        others = [other for other in world.machines if other != machine.node_id and world.random.random() < 0.7]
        how = "is cut off from" if is_both_ways else "is not heard by"
        world.tell(f"node {machine.node_id} {how} {others}")
        world.network.cut(machine.node_id, others, is_both_ways=is_both_ways)

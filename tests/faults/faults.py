"""What happens to a cluster: each fault begins with its `with` block, says whom it harms, and is mended where the block ends.

RULES    1. Chance is an argument: the same seed brings the same faults, to nodes with the same parts in the cluster.
         2. A fault that harms one node only leaves a cluster that works: min.insync.replicas is 2 of 3.
         3. To mend is to take away the cause, and to start a node that has ended. That the cluster gets over it is what is
            looked at afterwards.
NOT HERE What is played when (`playing.py`), lines (`network.py`), disks (`disks.py`).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from tests.faults import clocks, disks, moves
from tests.faults.cluster import Cluster
from tests.faults.machines import OUTSIDE
from tests.faults.network import between, of_clients
from tests.faults.nodes import CONTROLLER_PORT, DIRECTORIES, PORT, metadata_directory
from tests.support.waiting import until

STEADY, PYTHON = "steady", "python"
"""Topics to which something is written all the time: no coordinator is asked for them."""


class Harm(NamedTuple):
    """What was done."""

    words: str
    harmed: frozenset[int]
    """Who cannot do its part; of all the others it is expected."""


Fault = Callable[[Cluster, random.Random], AbstractContextManager[Harm]]


def victim(cluster: Cluster, dice: random.Random) -> tuple[int, str]:
    """A node, chosen for the part that it has, and what to call it."""
    part = dice.choice(("any", "controller", "leader", "coordinator of groups", "coordinator of transactions"))
    if part == "any":
        number = dice.choice(cluster.numbers)
    elif part == "controller":
        number = cluster.controller()
    else:
        internal = {
            "coordinator of groups": "__consumer_offsets",
            "coordinator of transactions": "__transaction_state",
        }.get(part)
        partitions = cluster.view().partitions
        wanted = [
            led.leader
            for (topic, _), led in sorted(partitions.items())
            if led.leader in cluster.nodes and (topic == internal if internal else not topic.startswith("__"))
        ]
        number = dice.choice(wanted or cluster.numbers)
    return number, f"node {number} ({part})"


@contextmanager
def killed(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """SIGKILL, and it is started again later."""
    number, name = victim(cluster, dice)
    cluster.kill(number)
    yield Harm(f"{name} is killed", frozenset({number}))
    cluster.start([number])


@contextmanager
def killed_for_a_moment(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """SIGKILL, and it is back before anybody misses it."""
    number, name = victim(cluster, dice)
    cluster.kill(number)
    cluster.start([number])
    yield Harm(f"{name} is killed and started at once", frozenset({number}))


@contextmanager
def all_killed(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """SIGKILL for all, one right after the other, and they are started at the same time."""
    order = dice.sample(cluster.numbers, len(cluster.numbers))
    for number in order:
        cluster.kill(number)
    yield Harm(f"all are killed: {order}", frozenset(order))
    cluster.start(cluster.numbers)


@contextmanager
def paused(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """SIGSTOP and SIGCONT: it does not know that time has passed."""
    number, name = victim(cluster, dice)
    cluster.pause(number)
    yield Harm(f"{name} is stopped", frozenset({number}))
    cluster.go_on(number)


@contextmanager
def several_paused(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """SIGSTOP for two or more, all perhaps, and SIGCONT at the same time."""
    chosen = dice.sample(cluster.numbers, dice.randint(2, len(cluster.numbers)))
    for number in chosen:
        cluster.pause(number)
    yield Harm(f"{chosen} are stopped", frozenset(chosen))
    for number in chosen:
        cluster.go_on(number)


@contextmanager
def restarted_in_turns(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """Every node is asked to stop and started again, one after the other."""
    first, *others = dice.sample(cluster.numbers, len(cluster.numbers))
    cluster.stop(first)
    yield Harm(f"rolling restart: {[first, *others]}", frozenset({first}))
    cluster.start([first])
    for number in others:
        cluster.wait_until_whole()
        cluster.stop(number)
        cluster.start([number])


@contextmanager
def cut_off(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """One node is cut off from the others: both ways or one; with the clients or without them."""
    number, name = victim(cluster, dice)
    ways = list(between([number], cluster.numbers))
    way = dice.choice(("both ways", "hears nothing", "is not heard"))
    if way != "both ways":
        at = 1 if way == "hears nothing" else 0
        ways = [one for one in ways if one[at] == number]
    clients = dice.random() < 0.4
    cluster.network.cut("cut off", [*ways, *(of_clients([number]) if clients else ())])
    words = f"{name} is cut off from the others{' and the clients' if clients else ''}: {way}"
    # A coordinator that knows of no successor keeps the clients that still reach it, here as with Apache Kafka.
    yield Harm(words, frozenset({number} if clients else cluster.numbers))
    cluster.network.mend("cut off")


@contextmanager
def split(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """The cluster falls into two; the clients reach both parts, or one."""
    order = dice.sample(cluster.numbers, len(cluster.numbers))
    at = dice.randint(1, len(order) - 1)
    parts = order[:at], order[at:]
    away = dice.choice((None, 0, 1))
    ways = [*between(*parts), *(of_clients(parts[away]) if away is not None else ())]
    cluster.network.cut("split", ways)
    told = "both" if away is None else f"{parts[1 - away]}"
    yield Harm(f"split into {parts[0]} and {parts[1]}, clients reach {told}", frozenset(order))
    cluster.network.mend("split")


@contextmanager
def bridge(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """The cluster falls into two halves, and one node reaches both; the clients reach all."""
    middle, *others = dice.sample(cluster.numbers, len(cluster.numbers))
    halves = others[: len(others) // 2], others[len(others) // 2 :]
    cluster.network.cut("bridge", between(*halves))
    yield Harm(f"node {middle} alone reaches both {halves[0]} and {halves[1]}", frozenset(cluster.numbers))
    cluster.network.mend("bridge")


@contextmanager
def one_port_cut(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """Of a node and the others only what controllers are asked gets lost, or only what brokers are; both ways or one."""
    number, name = victim(cluster, dice)
    port, what = dice.choice(((CONTROLLER_PORT, "controllers"), (PORT, "brokers")))
    ways = list(between([number], cluster.numbers))
    way = dice.choice(("both ways", "hears nothing", "is not heard"))
    if way != "both ways":
        at = 1 if way == "hears nothing" else 0
        ways = [one for one in ways if one[at] == number]
    cluster.network.cut("port", ways, port)
    # It goes on leading though others lead, or leads while nobody follows, and the clients reach it.
    yield Harm(f"{name} is cut off from the others' {what}: {way}", frozenset(cluster.numbers))
    cluster.network.mend("port")


@contextmanager
def line_cut(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """Two nodes do not reach each other, all others reach both; or only one of the two is not heard."""
    one, other = dice.sample(cluster.numbers, 2)
    ways = [(one, other), (other, one)][: dice.randint(1, 2)]
    cluster.network.cut("line", ways)
    # Markers of transactions go from a coordinator to leaders, and wait for the line, here as with Apache Kafka.
    yield Harm(f"nothing gets over {ways}", frozenset({one, other}))
    cluster.network.mend("line")


@contextmanager
def all_alone(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """No node reaches another; the clients reach all."""
    del dice
    cluster.network.cut("alone", between(cluster.numbers, cluster.numbers))
    yield Harm("every node is alone", frozenset(cluster.numbers))
    cluster.network.mend("alone")


@contextmanager
def bad_lines(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """On one node's lines or on all packets are lost, late, twice, out of order, all or none in turns, or only so many pass."""
    number, name = victim(cluster, dice)
    everybody = [*cluster.numbers, OUTSIDE]
    is_all = dice.random() < 0.4
    ways = list(between(everybody, everybody) if is_all else between([number], everybody))
    how = dice.choice(
        (
            {"loss": dice.uniform(0.02, 0.2)},
            {"delay_s": dice.uniform(0.01, 0.3)},
            {"delay_s": 0.005, "jitter_s": dice.uniform(0.02, 0.2), "twice": 0.1},
            {"bytes_per_s": dice.uniform(20_000, 200_000)},
            {"turns_s": dice.uniform(0.2, 1.5)},
        )
    )
    cluster.network.make_bad("bad", ways, **how)
    told = ", ".join(f"{what} {amount:.3g}" for what, amount in how.items())
    yield Harm(f"bad lines of {'all' if is_all else name}: {told}", frozenset(cluster.numbers if is_all else {number}))
    cluster.network.mend("bad")


@contextmanager
def full_disk(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """A node's disk is full."""
    number, name = victim(cluster, dice)
    cluster.may_end(number)
    disks.fill(cluster.disk_of(number))
    yield Harm(f"the disk of {name} is full", frozenset({number}))
    disks.make_well(cluster.disk_of(number))
    cluster.start([number])


@contextmanager
def all_disks_full(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """The disks of all nodes are full."""
    order = dice.sample(cluster.numbers, len(cluster.numbers))
    for number in order:
        cluster.may_end(number)
        disks.fill(cluster.disk_of(number))
    yield Harm(f"the disks of all are full: {order}", frozenset(order))
    for number in order:
        disks.make_well(cluster.disk_of(number))
    cluster.start(order)


@contextmanager
def full_directory(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """ENOSPC for what is written to one of a node's directories, as if it had a disk of its own."""
    number, name = victim(cluster, dice)
    where = dice.choice((*DIRECTORIES, metadata_directory(number)))
    cluster.may_end(number)
    disks.fail(cluster.disk_of(number), "w", cluster.network.disk / where, errno.ENOSPC)
    has_metadata = ", with its metadata," if where == metadata_directory(number) else ""
    yield Harm(f"directory {where} of {name}{has_metadata} is full", frozenset({number}))
    disks.make_well(cluster.disk_of(number))
    cluster.start([number])


@contextmanager
def slow_disk(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """Each write and each sync takes long, or only each sync."""
    number, name = victim(cluster, dice)
    kinds, after_s = dice.choice(("ws", "s")), dice.uniform(0.02, 1.0)
    disks.fail(cluster.disk_of(number), kinds, cluster.network.disk, 0, after_s)
    yield Harm(f"the disk of {name} takes {after_s:.2f} s: {kinds}", frozenset({number}))
    disks.make_well(cluster.disk_of(number))


@contextmanager
def clock_jumps(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """The time of day of a node is wrong by up to 20 minutes, and right again afterwards."""
    number, name = victim(cluster, dice)
    seconds = dice.choice((-1, 1)) * dice.randint(10, 1200)
    clocks.jump(cluster.disk_of(number), seconds)
    yield Harm(f"the clock of {name} jumps by {seconds} s", frozenset({number}))
    clocks.jump_back(cluster.disk_of(number))


@contextmanager
def failing_disk(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """EIO from a node's disk, or from one log directory; it is killed and started when it is well again."""
    number, name = victim(cluster, dice)
    kinds, where = dice.choice(("w", "s", "ws", "r", "wsr")), dice.choice((*DIRECTORIES, ""))
    cluster.may_end(number)
    disks.fail(cluster.disk_of(number), kinds, cluster.network.disk / where)
    yield Harm(f"the disk of {name} fails: {kinds} of {where or 'all'}", frozenset({number}))
    disks.make_well(cluster.disk_of(number))
    cluster.kill(number)
    cluster.start([number])


@contextmanager
def power_lost(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """SIGKILL, and what was not synced is gone when it is started again: at once or after a while."""
    number, name = victim(cluster, dice)
    cluster.kill(number)
    lost = sum(disks.lose_power(cluster.disk_of(number) / directory, dice) for directory in DIRECTORIES)
    is_soon = dice.random() < 0.5
    if is_soon:
        cluster.start([number])
    yield Harm(f"{name} has no power{' for a moment' if is_soon else ''}: {lost} logs cut", frozenset({number}))
    cluster.start([number])


@contextmanager
def last_in_sync(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """KIP-966: two followers do not follow until the leader is alone in sync, then it loses its power, and they come back.

    They are stopped where the quorum stays: if one controller at most is among the three. Else only what brokers ask each
    other is lost between them and the leader: who does not hear of new records only falls behind.
    """
    partitions = sorted(cluster.view().partitions.items())
    place, led = dice.choice([one for one in partitions if one[0][0] in (STEADY, PYTHON)])
    others = [number for number in led.replicas if number != led.leader]
    quorum_stays = len(set(led.replicas) & set(cluster.controllers)) < 2
    for count, number in enumerate(others, 1):
        if quorum_stays:
            cluster.pause(number)
        else:
            cluster.network.cut("last in sync", between([led.leader], others[:count]), PORT)
        until(lambda count=count: len(cluster.view().partitions[place].isr) <= 3 - count, "it leaves the ISR", 60)
    cluster.kill(led.leader)
    lost = sum(disks.lose_power(cluster.disk_of(led.leader) / directory, dice) for directory in DIRECTORIES)
    for number in others:
        cluster.go_on(number)
    cluster.network.mend("last in sync")
    how = "stopped" if quorum_stays else "cut off"
    words = (
        f"node {led.leader}, the last in sync of {place[0]}-{place[1]}, has lost its power: "
        f"{lost} logs cut; {how} were {others}"
    )
    yield Harm(words, frozenset({led.leader}))
    cluster.start([led.leader])


@contextmanager
def restarted(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """Asked to stop, and started later."""
    number, name = victim(cluster, dice)
    cluster.stop(number)
    yield Harm(f"{name} is asked to stop", frozenset({number}))
    cluster.start([number])


@contextmanager
def leaders_moved(cluster: Cluster, dice: random.Random) -> Iterator[Harm]:
    """Every partition gets its replicas in another order, or others, and is led by the first of them."""
    wanted = {
        place: dice.sample(cluster.brokers, len(led.replicas))
        for place, led in sorted(cluster.view().partitions.items())
    }
    refused = moves.give_replicas(cluster.any_bootstrap(dice), wanted)
    yield Harm(f"all {len(wanted)} partitions get other replicas, {refused} refused", frozenset())
    cluster.wait_until_whole()
    moves.elect_preferred(cluster.any_bootstrap(dice), list(wanted))


_LEAVE_NOBODY = ("all killed", "all alone", "several paused", "all disks full")
ALONE = frozenset({"power lost", "last in sync", "leaders moved", "restarted in turns", *_LEAVE_NOBODY})
"""Only one replica may lose what was acknowledged; some of these wait for a cluster that is whole but for them; and others
leave nobody who could say which node has which part."""

NODES = {"bridge": 4}
"""So many nodes some need."""

FAULTS: dict[str, Fault] = {
    "killed": killed,
    "killed for a moment": killed_for_a_moment,
    "all killed": all_killed,
    "paused": paused,
    "several paused": several_paused,
    "restarted in turns": restarted_in_turns,
    "cut off": cut_off,
    "split": split,
    "bridge": bridge,
    "line cut": line_cut,
    "one port cut": one_port_cut,
    "all alone": all_alone,
    "bad lines": bad_lines,
    "full disk": full_disk,
    "all disks full": all_disks_full,
    "full directory": full_directory,
    "failing disk": failing_disk,
    "slow disk": slow_disk,
    "power lost": power_lost,
    "clock jumps": clock_jumps,
    "last in sync": last_in_sync,
    "restarted": restarted,
    "leaders moved": leaders_moved,
}

"""The faults: each starts with its `with` block, names the nodes it affects, and is repaired at the end of the block.

RULES    1. The random source is an argument: the same seed gives the same faults, to nodes with the same roles.
         2. A fault that affects one node leaves a working cluster: min.insync.replicas is 2 of 3.
         3. A repair removes the cause and starts nodes that are down. The recovery of the cluster is checked afterwards.
NOT HERE The order of faults (`fault_run.py`), links (`network.py`), disks (`disks.py`).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from tests.faults import disks, preload, reassignments
from tests.faults.cluster import Cluster
from tests.faults.machines import OUTSIDE
from tests.faults.network import between, of_clients
from tests.faults.nodes import CONTROLLER_PORT, DIRECTORIES, PORT, metadata_directory
from tests.support.waiting import until

STEADY, PYTHON = "steady", "python"
"""Topics written without transactions and coordinators."""


class InjectedFault(NamedTuple):
    """What was done, and to which nodes."""

    words: str
    affected: frozenset[int]
    """All other nodes must keep working."""


Fault = Callable[[Cluster, random.Random], AbstractContextManager[InjectedFault]]
Choice = Callable[[Cluster, random.Random], tuple[list[int], str]]
"""Nodes, and how they are called."""
NodeAction = Callable[[Cluster, int], None]


def victim(cluster: Cluster, rng: random.Random) -> tuple[int, str]:
    """A node, chosen at random or by its role, and its description."""
    part = rng.choice(("any", "controller", "leader", "coordinator of groups", "coordinator of transactions"))
    if part == "any":
        number = rng.choice(cluster.numbers)
    elif part == "controller":
        number = cluster.controller()
    else:
        internal = {
            "coordinator of groups": "__consumer_offsets",
            "coordinator of transactions": "__transaction_state",
        }.get(part)
        partitions = cluster.view().partitions
        wanted = [
            state.leader
            for (topic, _), state in sorted(partitions.items())
            if state.leader in cluster.nodes and (topic == internal if internal else not topic.startswith("__"))
        ]
        number = rng.choice(wanted or cluster.numbers)
    return number, f"node {number} ({part})"


def one_node(cluster: Cluster, rng: random.Random) -> tuple[list[int], str]:
    number, name = victim(cluster, rng)
    return [number], name


def all_nodes(cluster: Cluster, rng: random.Random) -> tuple[list[int], str]:
    order = rng.sample(cluster.numbers, len(cluster.numbers))
    return order, str(order)


def two_nodes_or_more(cluster: Cluster, rng: random.Random) -> tuple[list[int], str]:
    chosen = rng.sample(cluster.numbers, rng.randint(2, len(cluster.numbers)))
    return chosen, str(chosen)


def fault_of(choose: Choice, words: str, begin: NodeAction, repair: NodeAction | None = None) -> Fault:
    """The same fault of each chosen node; at the end those that are down start together."""

    @contextmanager
    def fault(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
        numbers, names = choose(cluster, rng)
        for number in numbers:
            begin(cluster, number)
        yield InjectedFault(words.format(names), frozenset(numbers))
        if repair is not None:
            for number in numbers:
                repair(cluster, number)
        cluster.start(numbers)

    return fault


def kill_and_start(cluster: Cluster, number: int) -> None:
    """SIGKILL and an immediate start, before the node's session expires."""
    cluster.kill(number)
    cluster.start([number])


def fill_disk(cluster: Cluster, number: int) -> None:
    cluster.expect_exit(number)
    disks.fill(cluster.disk_of(number))


def clear_disk(cluster: Cluster, number: int) -> None:
    disks.clear_faults(cluster.disk_of(number))


@contextmanager
def on_disk(
    cluster: Cluster, number: int, words: str, kinds: str, below: str = "", error: int = errno.EIO, after_s: float = 0.0
) -> Iterator[InjectedFault]:
    """A fault of a node's disk or of one directory (`disks.fail`)."""
    disks.fail(cluster.disk_of(number), kinds, cluster.network.disk / below, error, after_s)
    yield InjectedFault(words, frozenset({number}))
    disks.clear_faults(cluster.disk_of(number))


@contextmanager
def restarted_in_turns(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """A rolling restart."""
    first, *others = rng.sample(cluster.numbers, len(cluster.numbers))
    cluster.stop(first)
    yield InjectedFault(f"rolling restart: {[first, *others]}", frozenset({first}))
    cluster.start([first])
    for number in others:
        cluster.wait_until_healthy()
        cluster.stop(number)
        cluster.start([number])


def _some_directions(number: int, cluster: Cluster, rng: random.Random) -> tuple[list[tuple[int, int]], str]:
    """The links between a node and the others: both directions, only to it, or only from it."""
    links = list(between([number], cluster.numbers))
    direction = rng.choice(("both directions", "receives nothing", "sends nothing"))
    if direction == "receives nothing":
        links = [link for link in links if link[1] == number]
    if direction == "sends nothing":
        links = [link for link in links if link[0] == number]
    return links, direction


@contextmanager
def cut_off(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """One node is partitioned from the others, in both directions or one, with or without the clients."""
    number, name = victim(cluster, rng)
    links, direction = _some_directions(number, cluster, rng)
    clients = rng.random() < 0.4
    words = f"{name} is cut off from the others{' and the clients' if clients else ''}: {direction}"
    # A coordinator without a successor keeps the clients that still reach it, as with Apache Kafka.
    with cluster.network.cut([*links, *(of_clients([number]) if clients else ())]):
        yield InjectedFault(words, frozenset({number} if clients else cluster.numbers))


@contextmanager
def split(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """A partition into two parts; the clients reach both, or one."""
    order = rng.sample(cluster.numbers, len(cluster.numbers))
    at = rng.randint(1, len(order) - 1)
    parts = order[:at], order[at:]
    away = rng.choice((None, 0, 1))
    links = [*between(*parts), *(of_clients(parts[away]) if away is not None else ())]
    response = "both" if away is None else f"{parts[1 - away]}"
    with cluster.network.cut(links):
        yield InjectedFault(f"split into {parts[0]} and {parts[1]}, clients reach {response}", frozenset(order))


@contextmanager
def bridge(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """A partition into two halves with one node that reaches both; the clients reach all nodes."""
    middle, *others = rng.sample(cluster.numbers, len(cluster.numbers))
    halves = others[: len(others) // 2], others[len(others) // 2 :]
    with cluster.network.cut(between(*halves)):
        yield InjectedFault(f"node {middle} alone reaches both {halves[0]} and {halves[1]}", frozenset(cluster.numbers))


@contextmanager
def one_port_cut(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """Only the controller port, or only the broker port, between a node and the others, in both directions or one."""
    number, name = victim(cluster, rng)
    port, what = rng.choice(((CONTROLLER_PORT, "controllers"), (PORT, "brokers")))
    links, direction = _some_directions(number, cluster, rng)
    # It keeps leading although another leader exists, or it leads without followers, and the clients reach it.
    with cluster.network.cut(links, port):
        yield InjectedFault(f"{name} is cut off from the others' {what}: {direction}", frozenset(cluster.numbers))


@contextmanager
def line_cut(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """The link between two nodes, in both directions or one."""
    one, other = rng.sample(cluster.numbers, 2)
    links = [(one, other), (other, one)][: rng.randint(1, 2)]
    # WriteTxnMarkers requests from the coordinator wait for the link, as with Apache Kafka.
    with cluster.network.cut(links):
        yield InjectedFault(f"nothing gets over {links}", frozenset({one, other}))


@contextmanager
def all_alone(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """No node reaches another; the clients reach all."""
    del rng
    with cluster.network.cut(between(cluster.numbers, cluster.numbers)):
        yield InjectedFault("every node is isolated", frozenset(cluster.numbers))


@contextmanager
def bad_lines(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """Packet loss, delay, duplication, reordering, intermittent loss or a low bandwidth on one node's links, or on all."""
    number, name = victim(cluster, rng)
    all_machines = [*cluster.numbers, OUTSIDE]
    is_all = rng.random() < 0.4
    links = list(between(all_machines, all_machines) if is_all else between([number], all_machines))
    kinds: tuple[dict[str, Any], ...] = (
        {"loss": rng.uniform(0.02, 0.2)},
        {"delay_s": rng.uniform(0.01, 0.3)},
        {"delay_s": 0.005, "jitter_s": rng.uniform(0.02, 0.2), "twice": 0.1},
        {"bytes_per_s": rng.uniform(20_000, 200_000)},
        {"turns_s": rng.uniform(0.2, 1.5)},
    )
    how = rng.choice(kinds)
    amounts = ", ".join(f"{what} {amount:.3g}" for what, amount in how.items())
    words = f"bad lines of {'all' if is_all else name}: {amounts}"
    with cluster.network.degrade(links, **how):
        yield InjectedFault(words, frozenset(cluster.numbers if is_all else {number}))


@contextmanager
def full_directory(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """ENOSPC for one of a node's log directories, as if it were a disk of its own."""
    number, name = victim(cluster, rng)
    where = rng.choice((*DIRECTORIES, metadata_directory(number)))
    cluster.expect_exit(number)
    has_metadata = ", with its metadata," if where == metadata_directory(number) else ""
    words = f"directory {where} of {name}{has_metadata} is full"
    with on_disk(cluster, number, words, "w", where, errno.ENOSPC) as injected:
        yield injected
    cluster.start([number])


def slow_disk(cluster: Cluster, rng: random.Random) -> AbstractContextManager[InjectedFault]:
    """Each write and flush, or each flush only, is delayed.

    With 0.73 s for each write of a controller, clients of Apache Kafka do not make progress within 60 s either.
    """
    number, name = victim(cluster, rng)
    kinds, after_s = rng.choice((("ws", 0.5), ("s", 1.0)))
    after_s *= rng.uniform(0.02, 1.0)
    words = f"the disk of {name} takes {after_s:.2f} s: {kinds}"
    return on_disk(cluster, number, words, kinds, error=0, after_s=after_s)


@contextmanager
def clock_jumps(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """A node's wall clock is wrong by up to 20 minutes until the repair."""
    number, name = victim(cluster, rng)
    seconds = rng.choice((-1, 1)) * rng.randint(10, 1200)
    preload.shift_clock(cluster.disk_of(number), seconds)
    yield InjectedFault(f"the clock of {name} jumps by {seconds} s", frozenset({number}))
    preload.restore_clock(cluster.disk_of(number))


@contextmanager
def failing_disk(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """EIO from a node's disk or one log directory; the repair kills and starts the node."""
    number, name = victim(cluster, rng)
    kinds, where = rng.choice(("w", "s", "ws", "r", "wsr")), rng.choice((*DIRECTORIES, ""))
    cluster.expect_exit(number)
    words = f"the disk of {name} fails: {kinds} of {where or 'all'}"
    with on_disk(cluster, number, words, kinds, where) as injected:
        yield injected
    kill_and_start(cluster, number)


def lose_power(cluster: Cluster, number: int, rng: random.Random) -> int:
    """SIGKILL and the loss of unflushed data; the number of logs that lost some."""
    cluster.kill(number)
    return sum(disks.lose_power(cluster.disk_of(number) / directory, rng) for directory in DIRECTORIES)


@contextmanager
def power_lost(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """SIGKILL and the loss of unflushed data; started at once or at the repair."""
    number, name = victim(cluster, rng)
    lost = lose_power(cluster, number, rng)
    is_soon = rng.random() < 0.5
    if is_soon:
        cluster.start([number])
    yield InjectedFault(
        f"{name} has no power{' for a moment' if is_soon else ''}: {lost} logs cut", frozenset({number})
    )
    cluster.start([number])


def _has_small_isr(cluster: Cluster, partition: tuple[str, int], limit: int) -> bool:
    return len(cluster.view().partitions[partition].isr) <= limit


@contextmanager
def last_in_sync(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """KIP-966: two followers leave the ISR, then the last in-sync replica loses its power, and they return.

    If at most one controller is among the three replicas they are paused. Otherwise only the broker port between them and the
    leader is cut, so that the quorum keeps working.
    """
    partitions = sorted(cluster.view().partitions.items())
    partition, state = rng.choice([one for one in partitions if one[0][0] in (STEADY, PYTHON)])
    others = [number for number in state.replicas if number != state.leader]
    quorum_stays = len(set(state.replicas) & set(cluster.controllers)) < 2
    with ExitStack() as cuts:
        for count, number in enumerate(others, 1):
            if quorum_stays:
                cluster.pause(number)
            else:
                cuts.enter_context(cluster.network.cut(between([state.leader], [number]), PORT))
            until(partial(_has_small_isr, cluster, partition, 3 - count), "it leaves the ISR", 60)
        lost = lose_power(cluster, state.leader, rng)
        for number in others:
            cluster.resume(number)
    how = "stopped" if quorum_stays else "cut off"
    words = (
        f"node {state.leader}, the last in sync of {partition[0]}-{partition[1]}, has lost its power: "
        f"{lost} logs cut; {how} were {others}"
    )
    yield InjectedFault(words, frozenset({state.leader}))
    cluster.start([state.leader])


@contextmanager
def leaders_moved(cluster: Cluster, rng: random.Random) -> Iterator[InjectedFault]:
    """Every partition gets another replica list, and its preferred leader."""
    wanted = {
        partition: rng.sample(cluster.brokers, len(state.replicas))
        for partition, state in sorted(cluster.view().partitions.items())
    }
    refused = reassignments.give_replicas(cluster.any_bootstrap(rng), wanted)
    yield InjectedFault(f"all {len(wanted)} partitions get other replicas, {refused} refused", frozenset())
    cluster.wait_until_healthy()
    reassignments.elect_preferred(cluster.any_bootstrap(rng), list(wanted))


_AFFECT_ALL = ("all killed", "all alone", "several paused", "all disks full")
ALONE = frozenset({"power lost", "last in sync", "leaders moved", "restarted in turns", *_AFFECT_ALL})
"""Never combined with another fault: only one replica may lose acknowledged data, some wait for a cluster that is otherwise
healthy, and some leave no node that could report the roles.
"""

NODES = {"bridge": 4}
"""The minimum numbers of nodes."""

FAULTS: dict[str, Fault] = {
    "killed": fault_of(one_node, "{} is killed", Cluster.kill),
    "killed for a moment": fault_of(one_node, "{} is killed and started at once", kill_and_start),
    "all killed": fault_of(all_nodes, "all are killed: {}", Cluster.kill),
    "paused": fault_of(one_node, "{} is stopped", Cluster.pause, Cluster.resume),
    "several paused": fault_of(two_nodes_or_more, "{} are stopped", Cluster.pause, Cluster.resume),
    "restarted in turns": restarted_in_turns,
    "cut off": cut_off,
    "split": split,
    "bridge": bridge,
    "line cut": line_cut,
    "one port cut": one_port_cut,
    "all alone": all_alone,
    "bad lines": bad_lines,
    "full disk": fault_of(one_node, "the disk of {} is full", fill_disk, clear_disk),
    "all disks full": fault_of(all_nodes, "the disks of all are full: {}", fill_disk, clear_disk),
    "full directory": full_directory,
    "failing disk": failing_disk,
    "slow disk": slow_disk,
    "power lost": power_lost,
    "clock jumps": clock_jumps,
    "last in sync": last_in_sync,
    "restarted": fault_of(one_node, "{} stops (SIGTERM)", Cluster.stop),
    "leaders moved": leaders_moved,
}

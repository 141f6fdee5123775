"""Several nodes on one host, one per core: make bench ARGS="cores"

The nodes of one cluster are loaded by one connection each, from a process of its own; topics have one replica unless a scene
says otherwise. CPU is that of the loaded nodes per request, which other programs on the host disturb little; the rate
includes their share of the cores. The scenes alternate in every round; a cell is lower quartile / median / upper quartile.

SCENES    alone: one node is loaded; it has core 0 and its clients have core 1.
          one, shared: node and clients share core 0.
          two, shared: both nodes are loaded; each shares a core with its clients. Twice the rate and the same CPU as
          "one, shared" mean that a second node on a second core adds a whole node.
          two, free: the same, and the scheduler chooses the cores.
          replicated: one node leads partitions with a second replica on the other one; acks=all.
REST      Clusters of several nodes without load, with a replicated topic: what each node costs, in the sum of all nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from protocol.messages.admin import CreateTopicsRequest
from tests.benchmark.builds import ROOT, Build, MeasuredBroker, prepare
from tests.benchmark.load import raw
from tests.benchmark.load.meter import Meter
from tests.benchmark.load.running_broker import RunningBroker, at_rest
from tests.benchmark.report.publish import FOLDER
from tests.benchmark.report.rows import Quartiles, machine
from tests.benchmark.report.terminal import show_progress
from tests.support.cluster import Cluster
from tests.support.loading import topic
from tests.support.raw_client import RawClient

ROUNDS, QUICK_ROUNDS = 7, 3
CORES = (0, 1)
SIZES = (1, 2, 4, 8, 16)
_SETTINGS = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
"""Kafka's defaults, where the clusters of tests have shorter times."""
_SETTLE_S, _WATCH_S = 10.0, 20.0
_PARTITIONS_PER_NODE, _REPLICAS = 6, 3


class Work(NamedTuple):
    """Requests of one size over one connection."""

    name: str
    request_bytes: int
    requests: int
    run: Callable[..., object]
    """A function of tests.benchmark.load.raw, which gets the broker, the topic, the size and the total size."""


WORKS = (
    Work("Produce 1 KiB, five in flight", 1 << 10, 15_000, raw.produce),
    Work("Produce 16 KiB, five in flight", 1 << 14, 3_000, raw.produce),
    Work("Fetch 64 KiB", 1 << 16, 6_000, raw.fetch),
)
REPLICATED = tuple(work._replace(requests=work.requests // 3, run=partial(raw.produce, acks=-1)) for work in WORKS[:2])


class Rows:
    """All samples by name."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[str, list[float]]] = {}

    def add(self, name: str, **figures: float) -> None:
        for figure, value in figures.items():
            self.samples.setdefault(name, {}).setdefault(figure.replace("_", " "), []).append(value)

    def markdown(self) -> str:
        lines = ["| load | figure | quartiles |", "|---|---|---:|"]
        for name, figures in self.samples.items():
            for figure, values in figures.items():
                cells = " / ".join(f"{value:,.4g}" for value in Quartiles.of(values))
                lines.append(f"| {name} | {figure} | {cells} |")
        return "\n".join(lines)


def pin(pid: int, cores: set[int]) -> None:
    """All threads of a process; those that it starts later inherit it."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def load(work: Work, broker: RunningBroker, topic: str, cores: set[int]) -> float:
    """In a client process: runs the load on these cores; the process' CPU seconds."""
    os.sched_setaffinity(0, cores)
    before_s = time.process_time()
    work.run(broker, topic, work.request_bytes, work.request_bytes * work.requests)
    return time.process_time() - before_s


class Scenes:
    """A cluster of two nodes, and a client process for each."""

    def __init__(self, cluster: Cluster, clients: Sequence[ProcessPoolExecutor]) -> None:
        self._clients = clients
        self._rows = Rows()
        self._brokers = [RunningBroker(str(number), node.bootstrap, node.pid) for number, node in cluster.nodes.items()]
        for number, node in cluster.nodes.items():
            with RawClient(node.bootstrap) as client:
                raw.create_topic(client, f"led-by-{number}", replicas=(number,))
            raw.fill(node.bootstrap, f"led-by-{number}", 64 << 10, 64 << 20)
        with RawClient(self._brokers[0].bootstrap) as client:
            raw.create_topic(client, "replicated", replicas=tuple(cluster.nodes), **{"min.insync.replicas": 2})

    def round(self, rows: Rows) -> None:
        """All scenes once."""
        self._rows = rows
        both = set(CORES)
        for work in WORKS:
            self._scene("alone", work, [{0}], [{1}])
            self._scene("one, shared", work, [{0}], [{0}])
            self._scene("two, shared", work, [{0}, {1}], [{0}, {1}])
            self._scene("two, free", work, [both, both], [both, both])
        for work in REPLICATED:
            self._replicated(work)

    def _scene(self, scene: str, work: Work, nodes: list[set[int]], clients: list[set[int]]) -> None:
        """The nodes and clients on these cores; without an entry a node is not loaded."""
        show_progress(f"{work.name}: {scene}")
        loaded = self._brokers[: len(nodes)]
        for broker, cores in zip(loaded, nodes, strict=True):
            pin(broker.pid, cores)
        with Meter(*(broker.pid for broker in loaded)) as meter:
            running = [
                pool.submit(load, work, broker, f"led-by-{broker.name}", cores)
                for pool, broker, cores in zip(self._clients, loaded, clients, strict=False)
            ]
            client_s = sum(one.result() for one in running)
        self._add(f"{work.name}: {scene}", work.requests * len(loaded), meter, client_s)

    def _replicated(self, work: Work) -> None:
        leader, follower = self._brokers
        for broker, core in zip(self._brokers, CORES, strict=True):
            pin(broker.pid, {core})
        with Meter(leader.pid) as meter, Meter(follower.pid) as follows:
            client_s = self._clients[0].submit(load, work, leader, "replicated", set(CORES)).result()
        name = f"{work.name}: replicated"
        self._add(name, work.requests, meter, client_s)
        self._rows.add(name, CPU_us_of_the_follower=follows.cpu_s * 1e6 / work.requests)

    def _add(self, name: str, requests: int, meter: Meter, client_s: float) -> None:
        self._rows.add(
            name,
            requests_per_s=requests / meter.wall_s,
            CPU_us=meter.cpu_s * 1e6 / requests,
            CPU_us_of_the_client=client_s * 1e6 / requests,
        )


@contextlib.contextmanager
def running_cluster(build: Build, nodes: int) -> Iterator[Cluster]:
    replicas = min(nodes, _REPLICAS)
    internal = {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": "1",
        "min.insync.replicas": "1",
    }
    with Cluster(nodes, {**_SETTINGS, **internal}, partial(MeasuredBroker, build)) as cluster:
        yield cluster


def measure_scenes(build: Build, rows: Rows, rounds: int) -> None:
    """All scenes in every round; a first round is discarded."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as held:
        cluster = held.enter_context(running_cluster(build, len(CORES)))
        clients = [held.enter_context(ProcessPoolExecutor(1, context)) for _ in CORES]
        scenes = Scenes(cluster, clients)
        scenes.round(Rows())
        for _ in range(rounds):
            scenes.round(rows)


def measure_rest(build: Build, rows: Rows, sizes: Sequence[int]) -> None:
    """The CPU and memory of clusters without load."""
    for nodes in sizes:
        show_progress(f"{nodes} nodes at rest")
        with running_cluster(build, nodes) as cluster:
            with RawClient(cluster.nodes[1].bootstrap) as client:
                made = topic("replicated", _PARTITIONS_PER_NODE * nodes, min(nodes, _REPLICAS))
                answer = client.ask(CreateTopicsRequest(topics=[made], timeout_ms=30_000), 7)
                assert answer.topics[0].error_code == 0, answer
            first, *others = (node.pid for node in cluster.nodes.values())
            every_node = RunningBroker("all", cluster.bootstrap, first, tuple(others))
            figures = at_rest([every_node], _SETTLE_S, _WATCH_S)["all"].figures
        rows.add(f"{nodes} nodes at rest", **{name.replace(" ", "_"): value for name, value in figures.items()})


def main() -> int:
    parser = argparse.ArgumentParser("cores", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"number of rounds; default: {ROUNDS}")
    parser.add_argument(
        "--nodes", type=int, action="append", metavar="N", help=f"sizes of the clusters at rest; default: {SIZES}"
    )
    parser.add_argument(
        "--python", type=Path, metavar="PATH", help="the CPython that runs Barnabas; default: an optimised one (PGO)"
    )
    wanted = parser.parse_args()
    if not set(CORES) <= os.sched_getaffinity(0):
        parser.error("two cores are needed")
    interpreter, python = prepare(wanted.python)
    build = Build(python, ROOT)
    before, rows = machine(), Rows()
    measure_scenes(build, rows, wanted.rounds or (QUICK_ROUNDS if wanted.quick else ROUNDS))
    measure_rest(build, rows, wanted.nodes or SIZES)
    show_progress("")
    path = FOLDER / "cores.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": before, "build": build.describe(), "interpreter": str(interpreter)}
    path.write_text(json.dumps({**about, "samples": rows.samples}, indent=1) + "\n")
    print(f"{about['build']}, on {interpreter}\n\n{rows.markdown()}\n\nevery sample: {path}")
    return 0

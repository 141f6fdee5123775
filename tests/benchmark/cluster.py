"""Three nodes beside three of Apache Kafka: make bench ARGS="cluster [OPTION]..."

    --rounds N           so many rounds; 3 unless said
    --only TEXT          what has this in its name: load, fail-over, masters, 1,000; may be repeated
    --quick              smaller loads, and 100 partitions instead of 1,000
    --alone              Barnabas alone
    --docs               the plot into docs/figures too, and the table in Markdown on the terminal

Each node is broker and controller; replicas are three, two must be in sync. In every round each load goes to one cluster and
then to the other, the first one changing. Processor time is that of all three nodes together. A fail-over is the SIGKILL of
who leads all partitions of a topic, until a record is acknowledged with acks=all; broker.session.timeout.ms is 3 s and a
heartbeat 0.5 s on both sides. Twice: the victim leads the controllers' quorum too, or another node does. With fixed masters
nobody is elected: each has a topic of one replica, and who cannot write to one writes to the next.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import psutil

from tests.benchmark.load import raw
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.clusters import NODES, Three, threes
from tests.benchmark.load.meter import Outcome, cpu_seconds
from tests.benchmark.report.publish import measured
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import only, options, results_name, say, wishes

MIB = 2**20
_LOAD, _WIDE = "load", "wide"
_SETTLE_S, _WATCH_S = 5.0, 5.0
_ACKS_ALL = -1


def at_rest(three: Three) -> Outcome:
    """What all nodes hold and do when nobody asks for anything."""
    pids = three.site(NODES[0]).pids
    time.sleep(_SETTLE_S)
    before = sum(map(cpu_seconds, pids))
    time.sleep(_WATCH_S)
    return Outcome(
        {
            "memory MiB": sum(psutil.Process(pid).memory_full_info().pss for pid in pids) / MIB,
            "CPU %": 100 * (sum(map(cpu_seconds, pids)) - before) / _WATCH_S,
        }
    )


class Run:
    """The measurements of one round after another."""

    def __init__(self, results: Results, wanted: argparse.Namespace, clusters: list[Three]) -> None:
        self._results = results
        self._wanted = wanted
        self._clusters = clusters
        self._width = 100 if wanted.quick else 1000

    def start(self) -> None:
        """Once: nodes that know nothing yet."""
        for three in self._clusters:
            three.prepare()
            self._add("start until each names all", three, three.start(), s=0.2)
            self._add("at rest after it", three, at_rest(three), **{"memory MiB": 0.15})

    def fill(self) -> None:
        for three in self._clusters:
            three.create(_LOAD, NODES[0])
            if self._is_wanted("1,000"):
                three.create(_WIDE, NODES[1], self._width, **SMALL_INDEXES)

    def round(self, turn: int) -> None:
        """All loads, to one cluster and then to the other."""
        clusters = self._clusters[:: 1 if turn % 2 else -1]
        if self._is_wanted("load"):
            for three in clusters:
                self._load(three)
        if self._is_wanted("fail-over"):
            for three in clusters:
                self._fail_over(three)
        if self._is_wanted("masters"):
            for three in clusters:
                self._move_on(three)
        if self._is_wanted("1,000"):
            for three in clusters:
                self._fail_over_of_many(three)

    def _load(self, three: Three) -> None:
        leader = three.partitions(three.nodes[NODES[0]], _LOAD)[0].leader_id
        site = three.site(leader)
        total = (64 if self._wanted.quick else 512) * MIB
        raw.produce(site, _LOAD, 128 << 10, total // 8, acks=_ACKS_ALL)
        outcome = raw.produce(site, _LOAD, 128 << 10, total, acks=_ACKS_ALL)
        self._add("Produce, acks=all, batches of 128 KiB", three, outcome, **{"MB/s": 1.0, "CPU s/GiB": 1.0})
        count = 500 if self._wanted.quick else 3000
        self._add(
            "Produce 1 record, acks=all", three, raw.produce_one(site, count, _LOAD, _ACKS_ALL), **{"p50 us": 1.0}
        )

    def _fail_over(self, three: Three) -> None:
        for which, is_controller in (("another node controls", False), ("it controls too", True)):
            controller = three.controller()
            victim = controller if is_controller else next(number for number in NODES if number != controller)
            topic = f"fails-{time.monotonic_ns()}"
            three.create(topic, victim)
            self._add(f"fail-over, {which}", three, three.fail_over(topic, victim), s=1.0)
            three.start()
            three.await_all_in_sync(topic)

    def _move_on(self, three: Three) -> None:
        """Instead of another leader for the same partition, another partition (seeds.md M3)."""
        topics = {node: f"master-{node}-{time.monotonic_ns()}" for node in NODES}
        for node, topic in topics.items():
            three.create_alone(topic, node)
        victim = next(number for number in NODES if number != three.controller())
        self._add("fixed masters: to another one", three, three.move_on(topics, victim))
        three.start()
        three.await_all_in_sync(_LOAD)

    def _fail_over_of_many(self, three: Three) -> None:
        """Who leads the partitions is asked each time: others do after the first."""
        led = [partition.leader_id for partition in three.partitions(three.nodes[NODES[0]], _WIDE).values()]
        victim = max(NODES, key=led.count)
        outcome = three.fail_over(_WIDE, victim)
        aims = {"s": 1.0, "s until all take it": 1.0}
        self._add(f"fail-over of {self._width:,} partitions", three, outcome, **aims)
        three.start()
        three.await_all_in_sync(_WIDE)

    def _is_wanted(self, name: str) -> bool:
        return not self._wanted.only or any(text in name for text in self._wanted.only)

    def _add(self, load: str, three: Three, outcome: Outcome, **aims: float) -> None:
        say(f"{load}: {three.name}")
        self._results.add(load, three.name, outcome, aims)


def main() -> int:
    wanted = wishes(only(options("cluster", __doc__)))
    results = Results(results_name("cluster", wanted), {"rounds": wanted.rounds})
    return measured(results, lambda: measure(results, wanted), docs=wanted.docs)


def measure(results: Results, wanted: argparse.Namespace) -> None:
    """Both clusters side by side, for all rounds."""
    with contextlib.ExitStack() as held:
        run = Run(results, wanted, [held.enter_context(three) for three in threes(alone=wanted.alone)])
        run.start()
        run.fill()
        for turn in range(1, wanted.rounds + 1):
            say(f"round {turn} of {wanted.rounds}")
            run.round(turn)


if __name__ == "__main__":
    sys.exit(main())

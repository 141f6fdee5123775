"""Three nodes compared with three of Apache Kafka: make bench ARGS="cluster"

Each node is broker and controller; there are three replicas, and min.insync.replicas is 2. In every round each load runs on
one cluster and then on the other, in alternating order. CPU time is that of all three nodes together. A fail-over is the
SIGKILL of the leader of all partitions of a topic, until a record is acknowledged with acks=all; broker.session.timeout.ms is
3 s and the heartbeat interval 0.5 s on both sides. Twice: the killed node is also the active controller, or another node is.
Fixed masters have no election: each node has a topic with one replica, and a producer switches to the next node's topic.
The names for --only are load, fail-over, masters and 1,000; --quick has 100 partitions instead of 1,000.
"""

from __future__ import annotations

import contextlib
import time

from tests.benchmark.load import raw
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.clusters import NODES, ThreeNodes, three_node_clusters
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.running_broker import at_rest, in_turn
from tests.benchmark.report.publish import compare
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import Wanted, options, show_progress

MIB = 2**20
_LOAD, _WIDE = "load", "wide"
_SETTLE_S, _WATCH_S = 5.0, 5.0
_ACKS_ALL = -1


class Run:
    def __init__(self, results: Results, wanted: Wanted, clusters: list[ThreeNodes]) -> None:
        self._results = results
        self._wanted = wanted
        self._clusters = clusters
        self._width = 100 if wanted.quick else 1000

    def start(self) -> None:
        """Once: nodes with empty directories."""
        for cluster in self._clusters:
            cluster.prepare()
            self._add("start until each names all", cluster, cluster.start(), s=0.2)
            rest = at_rest([cluster.broker(NODES[0])], _SETTLE_S, _WATCH_S)[cluster.name]
            self._add("at rest after it", cluster, rest, **{"memory MiB": 0.15})

    def fill(self) -> None:
        for cluster in self._clusters:
            cluster.create(_LOAD, NODES[0])
            if self._wanted.wants("1,000"):
                cluster.create(_WIDE, NODES[1], self._width, **SMALL_INDEXES)

    def round(self, turn: int) -> None:
        """All loads, on one cluster and then on the other."""
        for name, measure_load in (
            ("load", self._load),
            ("fail-over", self._fail_over),
            ("masters", self._switch_topics),
            ("1,000", self._fail_over_of_many),
        ):
            for cluster in in_turn(self._clusters, turn) if self._wanted.wants(name) else ():
                measure_load(cluster)

    def _load(self, cluster: ThreeNodes) -> None:
        leader = cluster.partitions(cluster.nodes[NODES[0]], _LOAD)[0].leader_id
        broker = cluster.broker(leader)
        total = (64 if self._wanted.quick else 512) * MIB
        raw.produce(broker, _LOAD, 128 << 10, total // 8, acks=_ACKS_ALL)
        outcome = raw.produce(broker, _LOAD, 128 << 10, total, acks=_ACKS_ALL)
        self._add("Produce, acks=all, batches of 128 KiB", cluster, outcome, **{"MB/s": 1.0, "CPU s/GiB": 1.0})
        count = 500 if self._wanted.quick else 3000
        self._add(
            "Produce 1 record, acks=all", cluster, raw.produce_one(broker, count, _LOAD, _ACKS_ALL), **{"p50 us": 1.0}
        )

    def _fail_over(self, cluster: ThreeNodes) -> None:
        for which, is_controller in (("another node controls", False), ("it controls too", True)):
            controller = cluster.controller()
            victim = controller if is_controller else next(number for number in NODES if number != controller)
            topic = f"fails-{time.monotonic_ns()}"
            cluster.create(topic, victim)
            self._add(f"fail-over, {which}", cluster, cluster.fail_over(topic, victim), s=1.0)
            cluster.start()
            cluster.await_all_in_sync(topic)

    def _switch_topics(self, cluster: ThreeNodes) -> None:
        """Without an election the producer uses another node's partition."""
        topics = {node: f"master-{node}-{time.monotonic_ns()}" for node in NODES}
        for node, topic in topics.items():
            cluster.create_on((node,), topic, **{"min.insync.replicas": 1})
        victim = next(number for number in NODES if number != cluster.controller())
        self._add("fixed masters: to another one", cluster, cluster.switch_topics(topics, victim))
        cluster.start()
        cluster.await_all_in_sync(_LOAD)

    def _fail_over_of_many(self, cluster: ThreeNodes) -> None:
        """The leader of most partitions is killed; it changes with every fail-over."""
        led = [partition.leader_id for partition in cluster.partitions(cluster.nodes[NODES[0]], _WIDE).values()]
        victim = max(NODES, key=led.count)
        outcome = cluster.fail_over(_WIDE, victim)
        aims = {"s": 1.0, "s until all take it": 1.0}
        self._add(f"fail-over of {self._width:,} partitions", cluster, outcome, **aims)
        cluster.start()
        cluster.await_all_in_sync(_WIDE)

    def _add(self, load: str, cluster: ThreeNodes, outcome: Outcome, **aims: float) -> None:
        show_progress(f"{load}: {cluster.name}")
        self._results.add(load, cluster.name, outcome, aims)


def measure(results: Results, wanted: Wanted) -> None:
    """Both clusters run side by side for all rounds."""
    with contextlib.ExitStack() as held:
        run = Run(results, wanted, [held.enter_context(cluster) for cluster in three_node_clusters(wanted)])
        run.start()
        run.fill()
        for turn in range(1, wanted.rounds + 1):
            show_progress(f"round {turn} of {wanted.rounds}")
            run.round(turn)


def main() -> int:
    return compare(options("cluster", __doc__), measure)

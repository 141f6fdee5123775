"""Both storage engines over many partitions, compared with Apache Kafka: make bench ARGS="engines"

Three nodes run in one run: Barnabas with segments, Barnabas with the commit log, and Apache Kafka.

ACKS      One producer (librdkafka, acks=all, five requests in flight, no linger) keeps records of 100 bytes in flight, as in
          `durable`, over 1 to 5,000 partitions of a new topic: synced before the acknowledgement (flush.messages=1) and
          not. `device bytes` are those that the block device wrote for one record, until everything was on it. From 100
          partitions on the same for requests with a record of 1 KiB for each partition, five in flight.
ONE       6 GiB in batches of 16 KiB to one partition without syncs; reads of 1 MiB of such batches between those of 99 others.
SETTLED   Reads of 1 MiB as in ONE after the first 4 GiB of the commit log were settled, on both engines; not part of --quick
          unless --only names it.
STARTS    The loads of `partitions`: creation, first use, starts after a clean stop and after SIGKILL, memory, descriptors.

--width selects numbers of partitions, --only parts by name (acks, one, settled, starts, and loads within them). --quick
measures 1, 100 and 1,000 partitions for a short time, starts with 2,000; about nine minutes; --width above 2,000 without Kafka.
Otherwise starts have 10,000 partitions, and 50,000 on the commit log only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from barnabas.embedded import Broker
from tests.benchmark.load import raw
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.durable import acknowledged, record_to_each
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.running_broker import RunningBroker, in_turn, nodes, start
from tests.benchmark.partitions import PartitionRestarts
from tests.benchmark.report.publish import measured
from tests.benchmark.report.rows import NO_AIMS, THEIRS, Results
from tests.benchmark.report.terminal import (
    Wanted,
    options,
    parse_arguments,
    results_name,
    results_settings,
    show_progress,
)
from tests.support.raw_client import RawClient
from tests.support.waiting import until

SEGMENTS, COMMIT_LOG = "segments", "commit log"
_READ = "100 partitions: Fetch 1 MiB of one, batches of 16 KiB"
_READ_SETTLED = "100 partitions: Fetch 1 MiB of one, batches of 16 KiB, settled"
VARIANTS = {SEGMENTS: {}, COMMIT_LOG: {"barnabas.log.storage.engine": "commitlog"}}
WIDTHS = (1, 10, 100, 1000, 5000)
QUICK_WIDTHS = (1, 100, 1000)
STARTS, QUICK_STARTS = (10_000, 50_000), (2000,)
WIDEST_OF_ALL, QUICK_WIDEST_OF_ALL = 10_000, 2000
"""Apache Kafka and segments do not run above the first, Apache Kafka in a quick run not above the second."""
SECONDS, QUICK_SECONDS = 10.0, 3.0
MANY = 100
_ACKS_AIMS = {"records/s": 6.0, "p99 ms": 0.1}
"""Of synced records over MANY partitions or more, as factors of Apache Kafka's figures."""
_START_AIMS = {"s": 0.05}
_INDEXES = {name.replace(".", "_"): value for name, value in SMALL_INDEXES.items()}
_BATCH_BYTES, _READ_BYTES = 16 << 10, 1 << 20
_FILE_BYTES, _READ_TOTAL = 256 << 20, 1 << 30
_WRITTEN_BYTES = (
    6 << 30
)  # more than the kernel keeps in memory before it writes back, so that the rows contain write-back
_SETTLING = {
    SEGMENTS: {},
    COMMIT_LOG: {
        "barnabas.log.storage.engine": "commitlog",
        "barnabas.commitlog.settle": "always",
        "barnabas.commitlog.clean.max.bytes.per.second": "1073741824",
    },
}
_SETTLED_BYTES = 19 * _FILE_BYTES  # 16 files are settled, which is more than the offsets that are read
_CPU = "CPU s/GiB"
_PATIENCE_S = 300.0


class EngineRun:
    """The loads on all nodes."""

    def __init__(self, results: Results, wanted: Wanted, widths: list[int]) -> None:
        self._results = results
        self._wanted = wanted
        self._widths = widths
        self._seconds = QUICK_SECONDS if wanted.quick else SECONDS

    def measure(self) -> None:
        if self._wanted.wants("acks") or self._wanted.wants("one"):
            with nodes(self._wanted, VARIANTS) as made:
                brokers = [start(name, node)[0] for name, node in made.items()]
                for turn in range(self._wanted.rounds):
                    self._measure_running(brokers, turn)
        if self._wanted.wants("settled") and (self._wanted.only or not self._wanted.quick):
            self._measure_settled()
        for width in self._widths or (QUICK_STARTS if self._wanted.quick else STARTS):
            if self._wanted.wants("starts"):
                self._measure_starts(width)

    def _measure_running(self, brokers: list[RunningBroker], turn: int) -> None:
        for width in self._widths or (QUICK_WIDTHS if self._wanted.quick else WIDTHS):
            if self._wanted.wants("acks"):
                for broker in in_turn(self._able(brokers, width), turn):
                    self._measure_acks(broker, width)
        if self._wanted.wants("one"):
            reads = {broker.name: self._measure_one(broker) for broker in in_turn(brokers, turn)}
            self._add_shares(_READ, reads, 1.5)

    def _able(self, brokers: list[RunningBroker], width: int) -> list[RunningBroker]:
        is_wide = width > QUICK_WIDEST_OF_ALL and self._wanted.quick
        return [broker for broker in brokers if not (is_wide and broker.name == THEIRS)]

    def _measure_acks(self, broker: RunningBroker, width: int) -> None:
        count = f"{width:,} partition{'s' if width > 1 else ''}"
        records = partial(acknowledged, broker, partitions=width, seconds=self._seconds)
        self._add_both(count, "records/s", broker, records, _ACKS_AIMS if width >= MANY else NO_AIMS)
        if width >= MANY:
            requests = partial(record_to_each, broker, partitions=width)
            self._add_both(f"requests for {count}", "MB/s", broker, requests, NO_AIMS)

    def _add_both(
        self, count: str, rate: str, broker: RunningBroker, load: Callable[..., Outcome], aims: Mapping[str, float]
    ) -> None:
        """A load with a new topic that is synced, then with one that is not, and the ratio of both."""
        rates = {}
        for kind, settings in {"synced": {"flush_messages": 1}, "unsynced": {}}.items():
            show_progress(f"{count}, {kind}: {broker.name}")
            topic = f"acks-{time.monotonic_ns()}"
            outcome = load(topic=topic, **settings, **_INDEXES)
            self._results.add(f"{count}, {kind}", broker.name, outcome, aims if kind == "synced" else NO_AIMS)
            rates[kind] = outcome.figures[rate]
            self._delete(broker, topic)
        share = Outcome({"of the unsynced rate": rates["synced"] / rates["unsynced"]})
        self._results.add(f"{count}, synced", broker.name, share)

    def _add_shares(self, load: str, reads: Mapping[str, Outcome], aim: float) -> None:
        """The CPU of each node, as a share of that with segments."""
        for name, read in reads.items():
            share = read.figures[_CPU] / reads[SEGMENTS].figures[_CPU]
            self._results.add(load, name, Outcome({f"CPU, of segments, at most {aim}": share}))

    def _measure_settled(self) -> None:
        with nodes(self._wanted, _SETTLING) as made:
            brokers = [start(name, made[name])[0] for name in _SETTLING]
            for broker in brokers:
                show_progress(f"settled: {broker.name}")
                with RawClient(broker.bootstrap, _PATIENCE_S) as admin:
                    raw.create_topic(admin, "settled", 100, **SMALL_INDEXES)
                raw.fill(broker.bootstrap, "settled", _BATCH_BYTES, _SETTLED_BYTES, 100)
            log = made[COMMIT_LOG]
            assert isinstance(log, Broker)
            until(lambda: any(log.data_dir.rglob("*-*.queue")), "files are settled", within_s=_PATIENCE_S)
            for turn in range(self._wanted.rounds):
                reads = {broker.name: self._read(_READ_SETTLED, broker, "settled") for broker in in_turn(brokers, turn)}
                self._add_shares(_READ_SETTLED, reads, 1.1)

    def _read(self, load: str, broker: RunningBroker, topic: str) -> Outcome:
        read = raw.fetch(broker, topic, _READ_BYTES, _READ_TOTAL)
        self._results.add(load, broker.name, read)
        return read

    def _measure_one(self, broker: RunningBroker) -> Outcome:
        """Writes and reads; returns the figures of the reads."""
        for name, partitions in {"one": 1, "read": 100}.items():
            show_progress(f"{name}: {broker.name}")
            topic = f"{name}-{time.monotonic_ns()}"
            with RawClient(broker.bootstrap, _PATIENCE_S) as admin:
                raw.create_topic(admin, topic, partitions, **SMALL_INDEXES)
            if partitions == 1:
                written = raw.produce(broker, topic, _BATCH_BYTES, _WRITTEN_BYTES)
                self._results.add("one partition: Produce 16 KiB", broker.name, written)
            else:
                raw.fill(broker.bootstrap, topic, _BATCH_BYTES, 4 * _FILE_BYTES, partitions)
                read = self._read(_READ, broker, topic)
            self._delete(broker, topic)
        return read

    def _measure_starts(self, width: int) -> None:
        with nodes(self._wanted, VARIANTS) as made:
            chosen = {name: node for name, node in made.items() if name == COMMIT_LOG or width <= WIDEST_OF_ALL}
            restarts = PartitionRestarts(chosen, self._results, width, _START_AIMS)
            show_progress(f"starts with {width:,} partitions")
            restarts.fill()
            for turn in range(1, self._wanted.rounds + 1):
                restarts.restart_clean(turn)
                restarts.restart_killed(turn)

    @staticmethod
    def _delete(broker: RunningBroker, topic: str) -> None:
        with RawClient(broker.bootstrap, _PATIENCE_S) as admin:
            raw.delete_topic(admin, topic)


def settings_of(wanted: Wanted) -> Mapping[str, object]:
    """The settings of the results, with the names of the nodes."""
    return {**results_settings(wanted), "brokers": [*VARIANTS, THEIRS]}


def main() -> int:
    parser = options("engines", __doc__, quick_rounds=1, has_builds=False)
    parser.add_argument(
        "--width", type=int, action="append", default=[], help="only this number of partitions; may be repeated"
    )
    wanted = parse_arguments(parser)
    results = Results(results_name("engines", wanted, is_part=bool(wanted.width)), settings_of(wanted))
    return measured(results, EngineRun(results, wanted, wanted.width).measure, docs=wanted.docs)

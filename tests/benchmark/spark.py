"""Spark with Barnabas and with Apache Kafka, alternating in one session: make bench ARGS="spark"

5 M records of 200 B and 1 M of 1 KiB in six partitions, local[2]. A batch adds up counts and lengths; a stream ignores
its rows, in five triggers; the sink writes a tenth of the records. CPU is the broker's, by size of the values.
`segments` is the batch again, by the segment source from the log directory of the same broker, right after the batch:
besides its rate its row has the factor to the Kafka source's rate, which should be at least 1.3.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.pipeline.session import SessionSettings, start_session
from barnabas.pipeline.sources.segments import NAME, register
from tests.benchmark.load import librdkafka, raw
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.running_broker import Node, RunningBroker, in_turn, nodes, start
from tests.benchmark.report.publish import compare
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import Wanted, options, show_progress
from tests.support.raw_client import RawClient

PARTITIONS = 6
TRIGGERS = 5
SINK_SHARE = 10
TOUCH_BYTES = 100
"""The first record in each partition of a new topic, which waits for its leader."""
AIMS = {"records/s": 1.0, "CPU s/GiB": 1.0}
TIMES = "times the Kafka source"


class WindowSpec(NamedTuple):
    name: str
    records: int
    value_bytes: int

    @property
    def topic(self) -> str:
        return f"records-of-{self.value_bytes}"


SHAPES = (WindowSpec("5 M x 200 B", 5_000_000, 200), WindowSpec("1 M x 1 KiB", 1_000_000, 1024))


class Loads:
    def __init__(self, spark: Any, scratch: Path, broker: RunningBroker, node: Node) -> None:
        self._spark = spark
        self._scratch = scratch
        self._broker = broker
        self._data_dir = node.data_dir

    def fill(self, shape: WindowSpec) -> None:
        with RawClient(self._broker.bootstrap) as client:
            raw.create_topic(client, shape.topic, PARTITIONS)
        librdkafka.produce(self._broker, shape.topic, shape.records, shape.value_bytes)

    def batch(self, shape: WindowSpec) -> Outcome:
        """All records, from the broker."""
        return self._added_up(shape, self._spark.read.format("kafka").options(**self._source(shape)).load())

    def segments(self, shape: WindowSpec) -> Outcome:
        """All records, from the segment files; right after the Kafka source."""
        through = self.batch(shape).figures["records/s"]
        frame = self._spark.read.format(NAME).options(**self._source(shape)).load(str(self._data_dir))
        outcome = self._added_up(shape, frame)
        return Outcome({**outcome.figures, TIMES: outcome.figures["records/s"] / through})

    def stream(self, shape: WindowSpec) -> Outcome:
        """All records, in several triggers."""
        source = {**self._source(shape), "maxOffsetsPerTrigger": str(shape.records // TRIGGERS + 1)}
        frame = self._spark.readStream.format("kafka").options(**source).load()
        with tempfile.TemporaryDirectory(dir=self._scratch) as checkpoint, Meter(self._broker.pid) as meter:
            query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            running = query.trigger(availableNow=True).start()
            running.awaitTermination()
            rows = sum(progress["numInputRows"] for progress in running.recentProgress)
        assert rows == shape.records + PARTITIONS, f"the stream saw {rows} of {shape.records + PARTITIONS} records"
        return self._outcome(meter, shape.records, shape.value_bytes)

    def sink(self, shape: WindowSpec) -> Outcome:
        """A tenth of the records, into another topic."""
        topic, count = f"sink-{time.monotonic_ns()}", shape.records // SINK_SHARE
        with RawClient(self._broker.bootstrap) as client:
            raw.create_topic(client, topic, PARTITIONS)
        rows = self._spark.range(0, count, 1, PARTITIONS)
        frame = rows.selectExpr(f"cast(rpad(cast(id as string), {shape.value_bytes}, 'x') as binary) as value")
        with Meter(self._broker.pid) as meter:
            frame.write.format("kafka").options(**self._bootstrap(), topic=topic).save()
        with RawClient(self._broker.bootstrap) as client:
            raw.delete_topic(client, topic)
        return self._outcome(meter, count, shape.value_bytes)

    def _added_up(self, shape: WindowSpec, frame: Any) -> Outcome:
        with Meter(self._broker.pid) as meter:
            row = frame.selectExpr("count(1) as records", "sum(length(value)) as bytes").first()
        everything = (shape.records + PARTITIONS, shape.records * shape.value_bytes + PARTITIONS * TOUCH_BYTES)
        assert (row.records, row.bytes) == everything, f"{row}, and not {everything}"
        return self._outcome(meter, shape.records, shape.value_bytes)

    @staticmethod
    def _outcome(meter: Meter, count: int, value_bytes: int) -> Outcome:
        return meter.records(count / meter.wall_s, count * value_bytes)

    def _bootstrap(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._broker.bootstrap}

    def _source(self, shape: WindowSpec) -> dict[str, str]:
        return {**self._bootstrap(), "subscribe": shape.topic, "startingOffsets": "earliest"}


def measure_loads(results: Results, wanted: Wanted, all_loads: dict[str, Loads]) -> None:
    """Every load on every broker, in every round."""
    for shape in (shape._replace(records=shape.records // 10) if wanted.quick else shape for shape in SHAPES):
        chosen: dict[str, Callable[[Loads, WindowSpec], Outcome]] = {
            f"{shape.name}, {kind.__name__}": kind
            for kind in (Loads.batch, Loads.stream, Loads.sink, Loads.segments)
            if wanted.wants(f"{shape.name}, {kind.__name__}")
        }
        if not chosen:
            continue
        for name, loads in all_loads.items():
            show_progress(f"filling {name} with {shape.name}")
            loads.fill(shape)
        for turn in range(wanted.rounds + 1):
            for name, kind in chosen.items():
                for broker in in_turn(all_loads, turn):
                    show_progress(f"round {turn} of {wanted.rounds}: {name}: {broker}")
                    outcome = kind(all_loads[broker], shape)
                    if turn:
                        results.add(name, broker, outcome, AIMS if kind is not Loads.segments else {})


@contextlib.contextmanager
def session_and_brokers(wanted: Wanted) -> Iterator[dict[str, Loads]]:
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder, nodes(wanted) as made:
        scratch = Path(folder)
        session_settings = SessionSettings(master="local[2]", driver_memory="3g")
        spark, _ = start_session("bench", scratch, scratch / "spark.log", session_settings=session_settings)
        try:
            register(spark)
            yield {name: Loads(spark, scratch, start(name, node)[0], node) for name, node in made.items()}
        finally:
            spark.stop()


def main() -> int:
    def measure(results: Results, wanted: Wanted) -> None:
        with session_and_brokers(wanted) as all_loads:
            measure_loads(results, wanted, all_loads)

    return compare(options("spark", __doc__), measure)

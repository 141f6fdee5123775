"""The environment of a scenario: a Spark session, a broker, topics, and errors by name.

RULES    1. A scenario is a function of a rig. Its result is plain values that depend neither on the broker nor on the time.
         2. Topics are named after the scenario: both brokers have the same names.
         3. An error is represented by the names of its causes, outermost first, and Spark's condition, not by its message,
            which contains ports.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.settings import BrokerSettings
from tests.pipeline.topics import FOR_EVER, MINUTE_MS, START_MS, dotted, send
from tests.support.waiting import until

LIMIT_S = 300
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 50,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
"""The settings of all nodes."""

AVAILABLE: dict[str, Any] = {"availableNow": True}
OFTEN: dict[str, Any] = {"processingTime": "100 milliseconds"}
"""Triggers."""

Answer = Any
OnBatch = Callable[[DataFrame, int], None]
Scenario = Callable[["Rig"], Answer]
SCENARIOS: dict[str, Scenario] = {}
"""Scenarios for one node, by name."""
CLUSTER_SCENARIOS: dict[str, Scenario] = {}
"""Scenarios for three nodes."""


def scenario(play: Scenario) -> Scenario:
    """Registers a scenario for one node."""
    SCENARIOS[play.__name__] = play
    return play


def cluster_scenario(play: Scenario) -> Scenario:
    """Registers a scenario for three nodes."""
    CLUSTER_SCENARIOS[play.__name__] = play
    return play


class Rig:
    """The environment of one scenario on one broker."""

    def __init__(self, spark: SparkSession, node: Any, folder: Path, name: str) -> None:
        self.spark = spark
        self.node = node
        self.folder = folder
        self.name = name
        self._numbers = itertools.count()

    @property
    def bootstrap(self) -> str:
        return str(self.node.bootstrap)

    @cached_property
    def brokers(self) -> Brokers:
        return Brokers(BrokerSettings(bootstrap=self.bootstrap))

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    # --- topics ---

    def topic(
        self, partitions: int = 1, records: Iterable[dict[str, Any]] = (), *, replication: int = 1, **settings: str
    ) -> str:
        """Creates a topic without retention and with these records; `_` in a config name stands for a dot."""
        name = f"{self.name}-{next(self._numbers)}"
        self.create(name, partitions, replication=replication, **settings)
        self.send(name, records)
        return name

    def create(self, name: str, partitions: int = 1, *, replication: int = 1, **settings: str) -> None:
        self.brokers.create_topic(name, partitions, replication, {**FOR_EVER, **dotted(settings)})
        until(lambda: self.brokers.exists(name), f"{name} is known")

    def delete(self, name: str) -> None:
        self.brokers.delete_topic(name)
        until(lambda: not self.brokers.exists(name), f"{name} is gone")

    def recreate(self, name: str, partitions: int, records: Iterable[dict[str, Any]]) -> None:
        """Deletes a topic, creates it again and sends these records."""
        self.delete(name)
        self.create(name, partitions)
        self.send(name, records)

    def grow(self, name: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(LIMIT_S)
        until(lambda: self.brokers.find_topics([name])[name].partitions == partitions, f"{name} has grown")

    def trim(self, name: str, before: Mapping[int, int]) -> None:
        self.brokers.delete_records({TopicPartition(name, number): offset for number, offset in before.items()})

    def await_markers(self, topic: str) -> None:
        """Waits for transaction markers, which brokers write after the response to EndTxn."""
        brokers = Brokers(BrokerSettings(bootstrap=self.bootstrap))  # a cached client may wait for a stopped node
        topic_partitions = brokers.find_topics([topic])[topic].topic_partitions()
        until(
            lambda: brokers.end_offsets(topic_partitions) == brokers.high_watermarks(topic_partitions),
            f"{topic} has settled",
            60,
        )

    def send(self, topic: str, records: Iterable[dict[str, Any]], **settings: Any) -> None:
        """Sends records in the form of confluent_kafka and waits for the acknowledgements."""
        send(self.bootstrap, topic, records, linger_ms=50, **settings)

    # --- the source ---

    def options(self, topic: str | None, options: Mapping[str, Any]) -> dict[str, str]:
        """The source's options; `topic` is None if the options select the topics."""
        which = {} if topic is None else {"subscribe": topic}
        as_text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **which, **as_text}

    def read(self, topic: str | None, **options: Any) -> DataFrame:
        """A batch; options that are not strings are sent as JSON."""
        return self.spark.read.format("kafka").options(**self.options(topic, options)).load()

    def stream(self, topic: str | None, **options: Any) -> DataFrame:
        """A stream, by default from the earliest offset."""
        config = {**({} if "startingTimestamp" in options else {"startingOffsets": "earliest"}), **options}
        return self.spark.readStream.format("kafka").options(**self.options(topic, config)).load()

    @contextmanager
    def copying(self, source: str, target: str) -> Iterator[Any]:
        """A query that copies a topic ten times a second until the block ends."""
        query = self.sink(self.stream(source).select("key", "value"), target, trigger=OFTEN)
        try:
            yield query
        finally:
            query.stop()

    def rows(self, topic: str | None, **options: Any) -> list[tuple[Any, ...]]:
        return rows(self.read(topic, **options))

    def offsets(self, topic: str | None, **options: Any) -> list[tuple[int, int]]:
        return offsets(self.read(topic, **options))

    def values(self, topic: str, **options: Any) -> list[bytes | None]:
        """The values of a batch, ordered by partition and offset."""
        return [row[4] for row in self.rows(topic, **options)]

    def await_values(self, topic: str, count: int) -> list[bytes]:
        """Waits for this number of different values in a topic and returns them."""

        def look() -> set[bytes | None] | None:
            found = set(self.values(topic))
            return found if len(found) >= count else None

        return sorted(value or b"" for value in until(look, f"{count} values in {topic}", LIMIT_S, 0.2))

    # --- streams ---

    def query(
        self, frame: DataFrame, checkpoint: str = "checkpoint", on_batch: OnBatch = lambda *_: None, **trigger: Any
    ) -> tuple[Any, list[Any]]:
        """A running query, and a list that receives its batches; `on_batch` is called after each."""
        batches: list[Any] = []

        def take(batch: DataFrame, number: int) -> None:
            batches.append(rows(batch))
            on_batch(batch, number)

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(**trigger).start(), batches

    def read_available(
        self, frame: DataFrame, checkpoint: str = "checkpoint", on_batch: OnBatch = lambda *_: None
    ) -> list[Any]:
        """The batches of a stream that ends with the current records."""
        query, batches = self.query(frame, checkpoint, on_batch, **AVAILABLE)
        self.await_end(query)
        return batches

    @contextmanager
    def running(
        self, frame: DataFrame, checkpoint: str = "checkpoint", **trigger: Any
    ) -> Iterator[tuple[Any, list[Any]]]:
        """A query that runs until the block ends."""
        query, batches = self.query(frame, checkpoint, **(trigger or OFTEN))
        commits = self.folder / checkpoint / "commits"
        try:
            yield query, batches
            # a batch that is not committed would be read again by the next run
            until(
                lambda: not query.isActive or len(list(commits.glob("[0-9]*"))) >= len(batches), "it is committed", 60
            )
        finally:
            query.stop()

    def await_end(self, query: Any) -> None:
        """Waits until a query ends by itself."""
        if not query.awaitTermination(LIMIT_S):
            query.stop()
            raise AssertionError("the query did not end")

    # --- the sink ---

    def sink(
        self,
        frame: DataFrame,
        topic: str | None,
        checkpoint: str = "c",
        mode: str = "append",
        trigger: Mapping[str, Any] = AVAILABLE,
        **options: str,
    ) -> Any:
        """A query that streams a frame into the sink, by default up to its end."""
        which = {} if topic is None else {"topic": topic}
        writer = frame.writeStream.format("kafka").outputMode(mode)
        writer = writer.options(**{"kafka.bootstrap.servers": self.bootstrap, **which, **options})
        return writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(**trigger).start()

    def rows_to_send(self, columns: str, *values: tuple[Any, ...]) -> DataFrame:
        return self.spark.createDataFrame(list(values), columns)

    def write(self, frame: DataFrame, topic: str | None = None, **options: Any) -> None:
        """Writes a batch to the sink."""
        which = {} if topic is None else {"topic": topic}
        as_text = {key: str(value) for key, value in options.items()}
        config = {"kafka.bootstrap.servers": self.bootstrap, **which, **as_text}
        frame.write.format("kafka").options(**config).save()


def numbered(count: int, partitions: int = 1, start: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Records a minute apart, round robin over the partitions."""
    return [
        {
            "key": b"k%d" % (number % 5),
            "value": b"v%d" % number,
            "partition": number % partitions,
            "timestamp": START_MS + number * MINUTE_MS,
            **more,
        }
        for number in range(start, start + count)
    ]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a frame, ordered by topic, partition and offset; with headers if the frame has them."""
    names = ["topic", "partition", "offset", "key", "value", *(["headers"] if "headers" in frame.columns else [])]
    return [_plain(row) for row in sorted(frame.select(*names).collect(), key=lambda row: tuple(row)[:3])]


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    """Partition and offset of each row."""
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def failure_of(act: Callable[..., Any], *words: Any, **more: Any) -> Any:
    """The names of an error (rule 3), or the result if there is no error."""
    try:
        return act(*words, **more)
    except PySparkException as failure:
        return {"condition": failure.getCondition(), "causes": _causes(getattr(failure, "_origin", None))}
    except Py4JJavaError as failure:
        return {"causes": _causes(failure.java_exception)}


def _causes(cause: Any) -> list[str]:
    names = []
    while cause is not None:
        names.append(str(cause.getClass().getSimpleName()))
        cause = cause.getCause()
    return names


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(one) for one in value) if type(value) is list else tuple(_plain(o) for o in value)
    return value

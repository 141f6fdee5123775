"""What a scenario works with: a Spark session, a broker, topics of its own, and errors by name.

RULES    1. A scenario is a function of a rig; its answer is plain values that depend neither on the broker nor on the time.
         2. Topics are named after the scenario: two brokers that play it have the same names.
         3. An error is the names of its causes, outermost first, and Spark's condition: never its words, which hold ports.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from barnabas.pipeline.brokers import Brokers, TopicPartition
from barnabas.pipeline.settings import BrokerSettings
from tests.pipeline.topics import MINUTE_MS, START_MS
from tests.support.waiting import until

LIMIT_S = 300
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 50,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
"""What the nodes are told, both alike."""

Answer = Any
Scenario = Callable[["Rig"], Answer]
SCENARIOS: dict[str, Scenario] = {}
"""What one node plays, by name."""
CLUSTER_SCENARIOS: dict[str, Scenario] = {}
"""What three nodes play."""


def scenario(play: Scenario) -> Scenario:
    """One for a single node."""
    SCENARIOS[play.__name__] = play
    return play


def cluster_scenario(play: Scenario) -> Scenario:
    """One for three."""
    CLUSTER_SCENARIOS[play.__name__] = play
    return play


class Node(Protocol):
    """A broker, as far as a scenario handles it."""

    @property
    def bootstrap(self) -> str:
        """Where it listens."""
        ...

    def stop(self) -> None:
        """End it in peace."""
        ...

    def kill(self) -> None:
        """End it by SIGKILL."""
        ...

    def start(self) -> object:
        """Start it again, with its data and its port."""
        ...


class Rig:
    """One scenario on one broker."""

    def __init__(self, spark: SparkSession, node: Any, folder: Path, name: str) -> None:
        self.spark = spark
        self.node = node
        self.folder = folder
        self.name = name
        self._numbers = itertools.count()

    @property
    def bootstrap(self) -> str:
        """Where the broker listens."""
        return str(self.node.bootstrap)

    @cached_property
    def brokers(self) -> Brokers:
        """The broker, to be asked."""
        return Brokers(BrokerSettings(bootstrap=self.bootstrap))

    @cached_property
    def admin(self) -> AdminClient:
        """The same, for what a job never asks."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    # --- topics ---

    def topic(
        self, partitions: int = 1, records: Iterable[dict[str, Any]] = (), *, replication: int = 1, **settings: str
    ) -> str:
        """A new topic that keeps old timestamps, with these records; `_` in a setting's name stands for a dot."""
        name = f"{self.name}-{next(self._numbers)}"
        self.create(name, partitions, replication=replication, **settings)
        self.send(name, records)
        return name

    def create(self, name: str, partitions: int = 1, *, replication: int = 1, **settings: str) -> None:
        """A topic of this name."""
        said = {key.replace("_", "."): value for key, value in settings.items()}
        self.brokers.create_topic(name, partitions, replication, {"retention.ms": "-1", **said})
        until(lambda: self.brokers.exists(name), f"{name} is known")

    def delete(self, name: str) -> None:
        """Remove a topic, and see that it is gone."""
        self.admin.delete_topics([name])[name].result(LIMIT_S)
        until(lambda: not self.brokers.exists(name), f"{name} is gone")

    def grow(self, name: str, partitions: int) -> None:
        """Have so many partitions."""
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(LIMIT_S)
        until(lambda: self.brokers.find_topics([name])[name].partitions == partitions, f"{name} has grown")

    def trim(self, name: str, before: Mapping[int, int]) -> None:
        """DeleteRecords."""
        self.brokers.delete_records({TopicPartition(name, number): offset for number, offset in before.items()})

    def settle(self, topic: str) -> None:
        """Wait for the markers of transactions that have ended: EndTxn is answered before they are written."""
        brokers = Brokers(BrokerSettings(bootstrap=self.bootstrap))  # a client of before waits for a node that is gone
        places = [TopicPartition(topic, number) for number in range(brokers.find_topics([topic])[topic].partitions)]
        until(lambda: brokers.ends(places) == brokers.high_watermarks(places), f"{topic} has settled", 60)

    def send(self, topic: str, records: Iterable[dict[str, Any]], **settings: Any) -> None:
        """Send records as confluent_kafka takes them, and wait for all; `_` stands for a dot here too."""
        said = {key.replace("_", "."): value for key, value in settings.items()}
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 50, **said})
        failures: list[Any] = []
        for record in records:
            producer.produce(
                topic, **record, on_delivery=lambda failure, _: failures.append(failure) if failure else None
            )
        assert producer.flush(LIMIT_S) == 0
        assert not failures, failures

    # --- the source ---

    def options(self, topic: str | None, options: Mapping[str, Any]) -> dict[str, str]:
        """The source's options, of a topic unless the options name what is read."""
        which = {} if topic is None else {"subscribe": topic}
        as_text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **which, **as_text}

    def read(self, topic: str | None, **options: Any) -> DataFrame:
        """A batch; options that are no texts are said as JSON."""
        return self.spark.read.format("kafka").options(**self.options(topic, options)).load()

    def stream(self, topic: str | None, **options: Any) -> DataFrame:
        """A stream, from the earliest offset unless it is said."""
        said = {**({} if "startingTimestamp" in options else {"startingOffsets": "earliest"}), **options}
        return self.spark.readStream.format("kafka").options(**self.options(topic, said)).load()

    @contextmanager
    def copying(self, source: str, target: str) -> Iterator[Any]:
        """A query that sends on what comes, ten times a second, until this ends."""
        writer = self.stream(source).select("key", "value").writeStream.format("kafka")
        writer = writer.options(**{"kafka.bootstrap.servers": self.bootstrap, "topic": target})
        writer = writer.option("checkpointLocation", str(self.folder / "c"))
        query = writer.trigger(processingTime="100 milliseconds").start()
        try:
            yield query
        finally:
            query.stop()

    def rows(self, topic: str | None, **options: Any) -> list[tuple[Any, ...]]:
        """What a batch holds."""
        return rows(self.read(topic, **options))

    def offsets(self, topic: str | None, **options: Any) -> list[tuple[int, int]]:
        """Partitions and offsets of what a batch holds."""
        return offsets(self.read(topic, **options))

    def values(self, topic: str, **options: Any) -> list[bytes | None]:
        """The values of a batch, in the order of partitions and offsets."""
        return [row[4] for row in self.rows(topic, **options)]

    def different(self, topic: str, count: int) -> list[bytes]:
        """The values of a topic, each once, as soon as there are so many."""

        def look() -> set[bytes | None] | None:
            found = set(self.values(topic))
            return found if len(found) >= count else None

        return sorted(value or b"" for value in until(look, f"{count} values in {topic}", LIMIT_S, 0.2))

    # --- streams ---

    def query(self, frame: DataFrame, checkpoint: str = "checkpoint", **trigger: Any) -> tuple[Any, list[Any]]:
        """A running query, and the batches that come of it: each its records in order."""
        batches: list[Any] = []

        def take(batch: DataFrame, _number: int) -> None:
            batches.append(rows(batch))

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(**trigger).start(), batches

    def drain(self, frame: DataFrame, checkpoint: str = "checkpoint") -> list[Any]:
        """The batches of a stream that ends with what is there now."""
        query, batches = self.query(frame, checkpoint, availableNow=True)
        self.ended(query)
        return batches

    @contextmanager
    def running(
        self, frame: DataFrame, checkpoint: str = "checkpoint", **trigger: Any
    ) -> Iterator[tuple[Any, list[Any]]]:
        """A query that goes on until the block ends."""
        query, batches = self.query(frame, checkpoint, **(trigger or {"processingTime": "100 milliseconds"}))
        commits = self.folder / checkpoint / "commits"
        try:
            yield query, batches
            # what was taken is committed a moment later, and would be taken again by the next run
            until(
                lambda: not query.isActive or len(list(commits.glob("[0-9]*"))) >= len(batches), "it is committed", 60
            )
        finally:
            query.stop()

    def ended(self, query: Any) -> None:
        """Wait for a query's own end."""
        if not query.awaitTermination(LIMIT_S):
            query.stop()
            raise AssertionError("the query did not end")

    # --- the sink ---

    def rows_to_send(self, columns: str, *values: tuple[Any, ...]) -> DataFrame:
        """Rows for the sink."""
        return self.spark.createDataFrame(list(values), columns)

    def write(self, frame: DataFrame, topic: str | None = None, **options: Any) -> None:
        """A batch into the sink."""
        which = {} if topic is None else {"topic": topic}
        as_text = {key: str(value) for key, value in options.items()}
        said = {"kafka.bootstrap.servers": self.bootstrap, **which, **as_text}
        frame.write.format("kafka").options(**said).save()


def numbered(count: int, partitions: int = 1, start: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Records a minute apart, dealt to the partitions in turn."""
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
    """What a frame of the source holds, in the order of topics, partitions and offsets; headers where they are asked for."""
    names = ["topic", "partition", "offset", "key", "value", *(["headers"] if "headers" in frame.columns else [])]
    return [_plain(row) for row in sorted(frame.select(*names).collect(), key=lambda row: tuple(row)[:3])]


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    """Partitions and offsets of what a frame holds."""
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def failure_of(act: Callable[..., Any], *words: Any, **more: Any) -> Any:
    """The names of what went wrong (rule 3), or what came when nothing did."""
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

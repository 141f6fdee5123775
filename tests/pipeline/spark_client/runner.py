"""Runs scenarios against Barnabas and Apache Kafka at the same time, in one Spark session, and compares the results."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from barnabas import Broker
from tests.pipeline.spark_client import (
    batches,
    bounds,
    changing_topics,
    data_loss,
    leaders,
    outages,
    queries,
    sink,
    streaming,
    transactions,
)
from tests.pipeline.spark_client.rig import CLUSTER_SCENARIOS, SCENARIOS, SETTINGS, Rig, Scenario
from tests.support.cluster import DEFAULTS, Cluster
from tests.support.kafka import ApacheKafka
from tests.support.kafka_cluster import ApacheCluster
from tests.support.waiting import until

MODULES = (bounds, batches, transactions, data_loss, streaming, changing_topics, sink, queries, outages, leaders)
"""Importing these modules registers their scenarios."""
NODES = 3
OURS, THEIRS = "Barnabas", "Apache Kafka"


class Comparison(NamedTuple):
    """A scenario's two results and durations."""

    name: str
    ours: Any
    theirs: Any
    seconds: tuple[float, float]

    @property
    def agree(self) -> bool:
        return bool(self.ours == self.theirs) and not isinstance(self.ours, Failure)


class Failure(NamedTuple):
    """A scenario that raised an exception."""

    trace: str


class Nodes:
    """Three nodes, of Barnabas or of Apache Kafka."""

    numbers = tuple(range(1, NODES + 1))

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.bootstrap: str = cluster.bootstrap

    def stop(self, number: int) -> None:
        if isinstance(self._cluster, Cluster):
            self._cluster.nodes[number].stop()
        else:
            self._cluster.stop(number)

    def start(self, number: int) -> None:
        if isinstance(self._cluster, Cluster):
            self._cluster.nodes[number].start()
        else:
            self._cluster.start(number)

    def wait_for_replicas(self, topic: str) -> None:
        """Waits until all replicas are in sync."""
        until(
            lambda: all(len(one.isrs) == NODES for one in self._partitions(topic)),
            f"all replicas of {topic} are in sync",
            60,
            0.1,
        )

    def wait_until_away(self, topic: str, number: int) -> None:
        """Waits until the stopped node is no leader in the others' metadata."""
        away = (number, -1)
        until(
            lambda: all(one.leader not in away for one in self._partitions(topic)),
            f"{number} leads nothing",
            60,
        )

    def _partitions(self, topic: str) -> list[Any]:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return list(admin.list_topics(topic, timeout=30).topics[topic].partitions.values())


@contextmanager
def two_brokers(*, clusters: bool = False) -> Iterator[tuple[Any, Any]]:
    """Barnabas and Apache Kafka, with the same settings."""
    if clusters:
        settings = {**DEFAULTS, **{name: str(value) for name, value in SETTINGS.items()}}
        with Cluster(NODES, settings) as ours, ApacheCluster(NODES, settings) as theirs:
            yield Nodes(ours), Nodes(theirs)
    else:
        with Broker(settings=SETTINGS, start_timeout_s=120) as ours, ApacheKafka(SETTINGS) as theirs:
            yield ours, theirs


def select_scenarios(names: Iterable[str] = (), *, clusters: bool = False) -> dict[str, Scenario]:
    """Returns the scenarios whose name or module contains one of these words; without words all."""
    table = CLUSTER_SCENARIOS if clusters else SCENARIOS
    filters = list(names)
    module_names = {name: f"{scenario.__module__}.{name}" for name, scenario in table.items()}
    return {
        name: scenario
        for name, scenario in table.items()
        if not filters or any(word in module_names[name] for word in filters)
    }


def row_of(name: str, scenario: Scenario) -> str:
    """The scenario's row in docs/spark-client.md."""
    summary = (scenario.__doc__ or "").strip().splitlines()[0]
    return f"| `{name}` | {summary} |"


def run_scenarios(
    spark: SparkSession, brokers: tuple[Any, Any], scenarios: dict[str, Scenario]
) -> Iterator[Comparison]:
    """Runs each scenario against both brokers at the same time."""
    with ThreadPoolExecutor(2) as pool:
        for name, scenario in scenarios.items():
            alone = partial(_alone, spark, name, scenario)
            (ours, our_seconds), (theirs, their_seconds) = pool.map(alone, brokers)
            yield Comparison(name, ours, theirs, (our_seconds, their_seconds))


def _alone(spark: SparkSession, name: str, scenario: Scenario, node: Any) -> tuple[Any, float]:
    started = time.monotonic()
    topic = name.replace("_", "-")
    with tempfile.TemporaryDirectory(prefix=f"{topic}-", ignore_cleanup_errors=True) as folder:
        rig = Rig(spark.newSession(), node, Path(folder), topic)
        try:
            answer: Any = scenario(rig)
        except Exception:  # noqa: BLE001 - whatever it was, it is the scenario's outcome, and is shown
            answer = Failure(traceback.format_exc())
    return answer, time.monotonic() - started

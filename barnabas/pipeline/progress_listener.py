"""What a stream of Spark's has read, where people look for it: as a group's offsets, as metrics in a file, on the terminal.

    from barnabas.pipeline.progress_listener import follow
    follow(spark, BrokerSettings(bootstrap="localhost:9092"), metrics=Path("/var/lib/node_exporter/spark.prom"), show=True)

RULES    1. After each batch the end of what it read is committed for a group that nobody is a member of, so that any tool
            shows the lag. The place that counts stays the stream's checkpoint.
         2. The group is the one that was said, else `spark-` and the query's name, or its id where it has none.
         3. Metrics are Prometheus' text, a file that is replaced as a whole: node_exporter's textfile collector takes it.
         4. With `show` each query has a line with a bar: records, what is behind, records/s, and how long that will take.
         5. A broker that does not answer, or a full disk, costs the news and never the stream: it is logged.
NOT HERE The archive, whose job commits by itself (`jobs/archive/archive.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from rich.console import Console

from barnabas.pipeline.brokers import Brokers, Place
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.reporting.metrics_file import Sample, metrics_text, replace_file
from barnabas.pipeline.reporting.progress import Bars, Progress
from barnabas.pipeline.settings import BrokerSettings

KAFKA_SOURCE = "KafkaV2["
GAUGES = {
    "input_rows_per_second": "inputRowsPerSecond",
    "processed_rows_per_second": "processedRowsPerSecond",
    "input_rows": "numInputRows",
    "batch_id": "batchId",
    "batch_seconds": "batchDuration",
}
PREFIX = "barnabas_stream_"

log = logging.getLogger(__name__)


class Group(Protocol):
    """Who commits, as far as this is concerned."""

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Let a group stand at these offsets."""
        ...


def follow(
    spark: SparkSession,
    settings: BrokerSettings,
    *,
    group: str | None = None,
    metrics: Path | None = None,
    show: bool = False,
) -> Follower:
    """Follow all streams of a session from now on; hand the answer to `spark.streams.removeListener` to end it."""
    follower = Follower(Brokers(settings), group, metrics, Console() if show else None)
    spark.streams.addListener(follower)
    return follower


class Follower(StreamingQueryListener):
    """Hears of each batch of each query."""

    def __init__(
        self,
        brokers: Group,
        group: str | None = None,
        metrics: Path | None = None,
        console: Console | None = None,
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._metrics = metrics
        self._bars = None if console is None else Bars(console)
        self._seen: dict[str, dict[str, Any]] = {}
        self._progress: dict[str, Progress] = {}

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A batch is done."""
        self.take(json.loads(event.progress.json))

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """There is nothing to tell before the first batch."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has moved."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Its group stays where it is; its metrics go with the next ones that are written."""
        self._seen.pop(str(event.id), None)
        if self._bars is not None and not self._seen:
            self._bars.close()

    def take(self, progress: dict[str, Any]) -> None:
        """What Spark reports of a batch."""
        name = str(progress.get("name") or progress["id"])
        offsets = ends_of(progress)
        self._seen[str(progress["id"])] = progress
        self._show(name, progress)
        try:
            if offsets:
                self._brokers.commit(self._group or f"spark-{name}", offsets)
            if self._metrics is not None:
                replace_file(self._metrics, metrics_text(_samples(self._seen.values())))
        except (JobError, OSError) as failure:
            log.warning("The progress of %s could not be told: %s", name, failure)

    def _show(self, name: str, progress: Mapping[str, Any]) -> None:
        if self._bars is not None:
            far = self._progress.setdefault(str(progress["id"]), Progress())
            records, seconds = progress.get("numInputRows", 0), progress.get("batchDuration", 0) / 1000
            far.take({"records": records, "seconds": seconds, "behind": sum(behind_of(progress).values())})
            self._bars.show(name, far)


def behind_of(progress: Mapping[str, Any]) -> dict[Place, int]:
    """How much of each partition was there and not read, when a batch ended."""
    found: dict[Place, int] = {}
    for source in progress["sources"]:
        if source["description"].startswith(KAFKA_SOURCE) and source.get("latestOffset") and source["endOffset"]:
            for topic, latest in source["latestOffset"].items():
                ends = source["endOffset"].get(topic, {})
                found.update({Place(topic, int(n)): end - ends[n] for n, end in latest.items() if n in ends})
    return found


def ends_of(progress: Mapping[str, Any]) -> dict[Place, int]:
    """How far a batch has read its topics."""
    found = {}
    for source in progress["sources"]:
        if source["description"].startswith(KAFKA_SOURCE) and source["endOffset"]:
            for topic, ends in source["endOffset"].items():
                found.update({Place(topic, int(number)): int(end) for number, end in ends.items()})
    return found


def _samples(seen: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    """The last report of each query, as far as Spark said it."""
    for progress in seen:
        query = {"query": str(progress.get("name") or progress["id"])}
        for name, field in GAUGES.items():
            if (value := progress.get(field)) is not None:
                yield Sample(PREFIX + name, query, value / 1000 if name == "batch_seconds" else value)
        for phase, ms in (progress.get("durationMs") or {}).items():
            yield Sample(f"{PREFIX}phase_seconds", {**query, "phase": phase}, ms / 1000)
        for place, behind in sorted(behind_of(progress).items()):
            where = {"topic": place.topic, "partition": str(place.partition)}
            yield Sample(f"{PREFIX}partition_records_behind", {**query, **where}, behind)
        for source in progress["sources"]:
            if (most := (source.get("metrics") or {}).get("maxOffsetsBehindLatest")) is not None:
                yield Sample(f"{PREFIX}records_behind", {**query, "source": source["description"]}, most)

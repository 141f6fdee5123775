"""What a stream of Spark's has read, where people look for it: as a consumer group's offsets, and as metrics in a file.

    from barnabas.pipeline.following import follow
    follow(spark, BrokerSettings(bootstrap="localhost:9092"), metrics=Path("/var/lib/node_exporter/spark.prom"))

RULES    1. After each batch the end of what it read is committed for a group that nobody is a member of, so that any tool
            shows the lag. The place that counts stays the stream's checkpoint.
         2. The group is the one that was said, else `spark-` and the query's name, or its id where it has none.
         3. Metrics are Prometheus' text, a file that is replaced as a whole: node_exporter's textfile collector takes it.
         4. A broker that does not answer, or a full disk, costs the news and never the stream: it is logged.
NOT HERE The archive, whose job commits by itself (`jobs/archive.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from barnabas.pipeline.brokers import Brokers, Place
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.trouble import JobError

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
    spark: SparkSession, settings: BrokerSettings, *, group: str | None = None, metrics: Path | None = None
) -> Follower:
    """Follow all streams of a session from now on; hand the answer to `spark.streams.removeListener` to end it."""
    follower = Follower(Brokers(settings), group, metrics)
    spark.streams.addListener(follower)
    return follower


class Follower(StreamingQueryListener):
    """Hears of each batch of each query."""

    def __init__(self, brokers: Group, group: str | None = None, metrics: Path | None = None) -> None:
        self._brokers = brokers
        self._group = group
        self._metrics = metrics
        self._seen: dict[str, dict[str, Any]] = {}

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

    def take(self, progress: dict[str, Any]) -> None:
        """What Spark reports of a batch."""
        name = str(progress.get("name") or progress["id"])
        offsets = ends_of(progress)
        self._seen[str(progress["id"])] = progress
        try:
            if offsets:
                self._brokers.commit(self._group or f"spark-{name}", offsets)
            if self._metrics is not None:
                _replace(self._metrics, metrics_text(self._seen.values()))
        except (JobError, OSError) as failure:
            log.warning("The progress of %s could not be told: %s", name, failure)


def ends_of(progress: Mapping[str, Any]) -> dict[Place, int]:
    """How far a batch has read its topics."""
    found = {}
    for source in progress["sources"]:
        if source["description"].startswith(KAFKA_SOURCE) and source["endOffset"]:
            for topic, ends in source["endOffset"].items():
                found.update({Place(topic, int(number)): int(end) for number, end in ends.items()})
    return found


def metrics_text(seen: Any) -> str:
    """The last report of each query as Prometheus' text."""
    values: dict[str, list[str]] = {f"{PREFIX}{name}": [] for name in (*GAUGES, "records_behind")}
    for progress in seen:
        label = _escaped(str(progress.get("name") or progress["id"]))
        for name, field in GAUGES.items():
            if (value := progress.get(field)) is not None:
                value = value / 1000 if name == "batch_seconds" else value
                values[f"{PREFIX}{name}"].append(f'{{query="{label}"}} {value}')
        for source in progress["sources"]:
            if (behind := (source.get("metrics") or {}).get("maxOffsetsBehindLatest")) is not None:
                where = _escaped(source["description"])
                values[f"{PREFIX}records_behind"].append(f'{{query="{label}",source="{where}"}} {behind}')
    lines = [
        line
        for name, samples in values.items()
        if samples
        for line in (f"# TYPE {name} gauge", *(f"{name}{sample}" for sample in samples))
    ]
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)

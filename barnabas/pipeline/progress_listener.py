"""Publishes the progress of Spark's streaming queries: as a group's offsets, as metrics in a file, in the terminal.

    from barnabas.pipeline.progress_listener import follow
    follow(spark, BrokerSettings(bootstrap="localhost:9092"), metrics=Path("/var/lib/node_exporter/spark.prom"), show=True)

RULES    1. After each batch its end offsets are committed for a group without members, which makes the lag visible. The
            query still restarts from its checkpoint.
         2. The group is the given one, else `spark-` and the query's name, or its id.
         3. Metrics are in Prometheus' text format; the file is replaced atomically, for node_exporter's textfile collector.
         4. With `show` each query has a progress bar: records, lag, records/s, and the remaining time.
         5. If the broker or the disk fails, a warning is logged; the query continues.
NOT HERE The archive job, which commits by itself (`jobs/archive/archive.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from rich.console import Console

from barnabas.client.errors import ClientError
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.reporting.metrics_file import Sample, write_metrics
from barnabas.pipeline.reporting.progress import Bars, JobProgress
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


def follow(
    spark: SparkSession,
    settings: BrokerSettings,
    *,
    group: str | None = None,
    metrics: Path | None = None,
    show: bool = False,
) -> ProgressListener:
    """Listens to all streaming queries of a session. `spark.streams.removeListener` ends it."""
    listener = ProgressListener(Brokers(settings), group, metrics, Console() if show else None)
    spark.streams.addListener(listener)
    return listener


class ProgressListener(StreamingQueryListener):
    """Handles the progress events of streaming queries."""

    def __init__(
        self, brokers: Brokers, group: str | None = None, metrics: Path | None = None, console: Console | None = None
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._metrics = metrics
        self._bars = None if console is None else Bars(console)
        self._last_reports: dict[str, dict[str, Any]] = {}
        self._progress: dict[str, JobProgress] = {}

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A batch has ended."""
        self.on_batch(json.loads(event.progress.json))

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Does nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Drops the query: the next metrics file is written without it."""
        self._last_reports.pop(str(event.id), None)
        if self._bars is not None and not self._last_reports:
            self._bars.close()

    def on_batch(self, progress: dict[str, Any]) -> None:
        """Publishes the progress that Spark reports for a batch."""
        name = str(progress.get("name") or progress["id"])
        offsets = end_offsets_of(progress)
        self._last_reports[str(progress["id"])] = progress
        self._show(name, progress)
        try:
            if offsets:
                self._brokers.commit(self._group or f"spark-{name}", offsets)
            if self._metrics is not None:
                write_metrics(self._metrics, _samples(self._last_reports.values()))
        except (ClientError, OSError) as failure:
            log.warning("The progress of %s could not be published: %s", name, failure)

    def _show(self, name: str, progress: Mapping[str, Any]) -> None:
        if self._bars is not None:
            job_progress = self._progress.setdefault(str(progress["id"]), JobProgress())
            records, seconds = progress.get("numInputRows", 0), progress.get("batchDuration", 0) / 1000
            job_progress.add_step({"records": records, "seconds": seconds, "behind": sum(lag_of(progress).values())})
            self._bars.show(name, job_progress)


def lag_of(progress: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Returns the lag of each partition at the end of a batch."""
    ends, latest = end_offsets_of(progress), _offsets(progress, "latestOffset")
    return {tp: latest[tp] - end for tp, end in ends.items() if tp in latest}


def end_offsets_of(progress: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Returns the end offsets of a batch."""
    return _offsets(progress, "endOffset")


def _offsets(progress: Mapping[str, Any], field: str) -> dict[TopicPartition, int]:
    """Offsets of the Kafka sources; a source may report none."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for source in progress["sources"]
        if source["description"].startswith(KAFKA_SOURCE)
        for topic, offsets in (source.get(field) or {}).items()
        for number, offset in offsets.items()
    }


def _samples(reports: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    """The metrics of each query's last report."""
    for progress in reports:
        query = {"query": str(progress.get("name") or progress["id"])}
        for name, field in GAUGES.items():
            if (value := progress.get(field)) is not None:
                yield Sample(PREFIX + name, query, value / 1000 if name == "batch_seconds" else value)
        for phase, ms in (progress.get("durationMs") or {}).items():
            yield Sample(f"{PREFIX}phase_seconds", {**query, "phase": phase}, ms / 1000)
        for tp, behind in sorted(lag_of(progress).items()):
            where = {"topic": tp.topic, "partition": str(tp.partition)}
            yield Sample(f"{PREFIX}partition_records_behind", {**query, **where}, behind)
        for source in progress["sources"]:
            if (most := (source.get("metrics") or {}).get("maxOffsetsBehindLatest")) is not None:
                yield Sample(f"{PREFIX}records_behind", {**query, "source": source["description"]}, most)

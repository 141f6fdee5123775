"""A stream's progress as a group's offsets and as metrics."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rich.console import Console

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.progress_listener import ProgressListener, end_offsets_of, follow
from barnabas.pipeline.settings import BrokerSettings
from tests.pipeline.topics import minutes, send
from tests.support.waiting import until


def report(name: str | None = "q", **changes: Any) -> dict[str, Any]:
    """A report of Spark 4.0, reduced to the fields in use."""
    source = {
        "description": "KafkaV2[Subscribe[t]]",
        "endOffset": {"t": {"0": 17, "1": 4}},
        "metrics": {"maxOffsetsBehindLatest": "3"},
    }
    files = {"description": "FileStreamSource[file:/x]", "endOffset": {"logOffset": 5}, "metrics": {}}
    rates = {"inputRowsPerSecond": 20.5, "numInputRows": 41, "batchId": 6, "batchDuration": 1500}
    return {"name": name, "id": "abc", "sources": [source, files], **rates, **changes}


class Groups(Brokers):
    """Stores commits."""

    def __init__(self) -> None:
        self.commits: dict[str, Mapping[TopicPartition, int]] = {}
        self.failure: Exception | None = None

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self.failure is not None:
            raise self.failure
        self.commits[group] = offsets


def test_end_offsets_of_kafka_sources_are_committed() -> None:
    ends = {TopicPartition("t", 0): 17, TopicPartition("t", 1): 4}
    assert end_offsets_of(report()) == ends
    groups = Groups()
    ProgressListener(groups).on_batch(report())
    ProgressListener(groups).on_batch(report(name=None))
    ProgressListener(groups, "mine").on_batch(report())
    assert groups.commits == {"spark-q": ends, "spark-abc": ends, "mine": ends}


def test_the_metrics_file_has_one_line_per_query_and_metric(tmp_path: Path) -> None:
    path = tmp_path / "spark.prom"
    listener = ProgressListener(Groups(), metrics=path)
    listener.on_batch(report())
    listener.on_batch(report(name='two "b"', id="def", numInputRows=1))
    lines = path.read_text().splitlines()
    assert 'barnabas_stream_input_rows{query="q"} 41' in lines
    assert 'barnabas_stream_input_rows{query="two \\"b\\""} 1' in lines
    assert 'barnabas_stream_batch_seconds{query="q"} 1.5' in lines
    assert 'barnabas_stream_records_behind{query="q",source="KafkaV2[Subscribe[t]]"} 3' in lines
    assert lines.count("# TYPE barnabas_stream_input_rows gauge") == 1
    assert not any("processed" in line for line in lines)
    assert [one.name for one in tmp_path.iterdir()] == ["spark.prom"]


def test_lag_is_published_by_partition_and_shown_as_a_bar(tmp_path: Path) -> None:
    path, screen = tmp_path / "spark.prom", io.StringIO()
    listener = ProgressListener(Groups(), metrics=path, console=Console(file=screen, force_terminal=True, width=120))
    progress = report(durationMs={"addBatch": 900})
    progress["sources"][0]["latestOffset"] = {"t": {"0": 20, "1": 4, "2": 7}}
    listener.on_batch(progress)
    lines = path.read_text().splitlines()
    assert 'barnabas_stream_partition_records_behind{query="q",topic="t",partition="0"} 3' in lines
    assert 'barnabas_stream_partition_records_behind{query="q",topic="t",partition="1"} 0' in lines
    assert 'barnabas_stream_phase_seconds{query="q",phase="addBatch"} 0.9' in lines
    assert not any('partition="2"' in line for line in lines), "nothing was read of it yet"
    assert "41 records, 3 behind, 27 records/s, about 0 s left" in screen.getvalue()


def test_an_unavailable_broker_does_not_end_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    groups = Groups()
    groups.failure = JobError("No broker answers.")
    ProgressListener(groups).on_batch(report())
    assert "could not be published: No broker answers." in caplog.text


@pytest.mark.long
def test_a_stream_commits_offsets_for_its_group(spark: Any, kafka_broker: Any, topic: str, tmp_path: Path) -> None:
    send(kafka_broker.bootstrap, topic, minutes(50))
    settings = BrokerSettings(bootstrap=kafka_broker.bootstrap)
    listener = follow(spark, settings, group=f"shown-{topic}")
    try:
        source = {"kafka.bootstrap.servers": kafka_broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format("kafka").options(**source).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        topic_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        found = until(lambda: Brokers(settings).committed(f"shown-{topic}", topic_partitions), "the group has offsets")
        assert found == dict.fromkeys(topic_partitions, 25)
    finally:
        spark.streams.removeListener(listener)

"""A stream's progress as a group's offsets and as metrics: Spark's reports by hand, then a stream on a broker."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rich.console import Console

from barnabas.pipeline.brokers import Place
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.progress_listener import Follower, ends_of, follow
from barnabas.pipeline.settings import BrokerSettings
from tests.pipeline.topics import create, minutes, send
from tests.support.waiting import until


def report(name: str | None = "q", **changes: Any) -> dict[str, Any]:
    """A report as Spark 4.0 makes it, as far as it is read."""
    source = {
        "description": "KafkaV2[Subscribe[t]]",
        "endOffset": {"t": {"0": 17, "1": 4}},
        "metrics": {"maxOffsetsBehindLatest": "3"},
    }
    files = {"description": "FileStreamSource[file:/x]", "endOffset": {"logOffset": 5}, "metrics": {}}
    rates = {"inputRowsPerSecond": 20.5, "numInputRows": 41, "batchId": 6, "batchDuration": 1500}
    return {"name": name, "id": "abc", "sources": [source, files], **rates, **changes}


class Groups:
    """Remembers what was committed."""

    def __init__(self) -> None:
        self.committed: dict[str, Mapping[Place, int]] = {}
        self.failure: Exception | None = None

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        if self.failure is not None:
            raise self.failure
        self.committed[group] = offsets


def test_the_ends_of_kafka_sources_are_committed() -> None:
    """following.py rules 1 and 2."""
    ends = {Place("t", 0): 17, Place("t", 1): 4}
    assert ends_of(report()) == ends
    groups = Groups()
    Follower(groups).take(report())
    Follower(groups).take(report(name=None))
    Follower(groups, "mine").take(report())
    assert groups.committed == {"spark-q": ends, "spark-abc": ends, "mine": ends}


def test_metrics_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """following.py rule 3: one line for each query and figure; what Spark did not say is not there."""
    path = tmp_path / "spark.prom"
    follower = Follower(Groups(), metrics=path)
    follower.take(report())
    follower.take(report(name='two "b"', id="def", numInputRows=1))
    lines = path.read_text().splitlines()
    assert 'barnabas_stream_input_rows{query="q"} 41' in lines
    assert 'barnabas_stream_input_rows{query="two \\"b\\""} 1' in lines
    assert 'barnabas_stream_batch_seconds{query="q"} 1.5' in lines
    assert 'barnabas_stream_records_behind{query="q",source="KafkaV2[Subscribe[t]]"} 3' in lines
    assert lines.count("# TYPE barnabas_stream_input_rows gauge") == 1
    assert not any("processed" in line for line in lines)
    assert [one.name for one in tmp_path.iterdir()] == ["spark.prom"]


def test_what_is_behind_is_told_by_partition_and_shown_as_a_bar(tmp_path: Path) -> None:
    """following.py rules 3 and 4."""
    path, screen = tmp_path / "spark.prom", io.StringIO()
    follower = Follower(Groups(), metrics=path, console=Console(file=screen, force_terminal=True, width=120))
    said = report(durationMs={"addBatch": 900})
    said["sources"][0]["latestOffset"] = {"t": {"0": 20, "1": 4, "2": 7}}
    follower.take(said)
    lines = path.read_text().splitlines()
    assert 'barnabas_stream_partition_records_behind{query="q",topic="t",partition="0"} 3' in lines
    assert 'barnabas_stream_partition_records_behind{query="q",topic="t",partition="1"} 0' in lines
    assert 'barnabas_stream_phase_seconds{query="q",phase="addBatch"} 0.9' in lines
    assert not any('partition="2"' in line for line in lines), "nothing was read of it yet"
    assert "41 records, 3 behind, 27 records/s, about 0 s left" in screen.getvalue()


def test_a_broker_that_is_away_does_not_end_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    """following.py rule 4."""
    groups = Groups()
    groups.failure = JobError("No broker answers.")
    Follower(groups).take(report())
    assert "could not be told: No broker answers." in caplog.text


def test_a_stream_shows_as_a_group(spark: Any, kafka_broker: Any, tmp_path: Path) -> None:
    """The whole way: Spark calls, the broker keeps the group's offsets."""
    topic = f"followed-{tmp_path.name}"
    brokers = create(kafka_broker.bootstrap, topic)
    send(kafka_broker.bootstrap, topic, minutes(50))
    follower = follow(spark, BrokerSettings(bootstrap=kafka_broker.bootstrap), group=f"shown-{tmp_path.name}")
    try:
        source = {"kafka.bootstrap.servers": kafka_broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format("kafka").options(**source).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        places = [Place(topic, 0), Place(topic, 1)]
        found = until(lambda: brokers.committed(f"shown-{tmp_path.name}", places), "the group has offsets")
        assert found == dict.fromkeys(places, 25)
    finally:
        spark.streams.removeListener(follower)

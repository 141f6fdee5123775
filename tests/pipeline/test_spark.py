"""The demo's Spark steps on literal rows and on a topic."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kafka import KafkaConsumer, KafkaProducer

from barnabas import Broker
from barnabas.pipeline.demo.flights import Delay, count_delays, read_flights
from barnabas.pipeline.demo.produce import PARTITIONS, produce_flights
from barnabas.pipeline.demo.spark_jobs import (
    TRIGGERS,
    as_delays,
    delays_by_carrier_and_month,
    parse_flights,
    read_batch,
    read_stream,
)
from tests.pipeline.topics import create

pytestmark = pytest.mark.long

ROWS = 5_000


def literal(spark: Any, *values: tuple[str, bytes]) -> Any:
    rows = [(0, offset, None, key.encode(), value) for offset, (key, value) in enumerate(values)]
    return spark.createDataFrame(rows, "partition int, offset long, timestamp timestamp, key binary, value binary")


def test_a_session_restores_the_environment(spark: Any) -> None:
    """A later session on a cluster needs another Python."""
    assert spark.sparkContext.pythonExec == sys.executable
    assert os.environ.get("PYSPARK_PYTHON") != sys.executable


PROGRAM = """
import sys
from pathlib import Path
from barnabas.pipeline.session import start_session
folder = Path(sys.argv[1])
spark, _ = start_session("notebook", folder, folder / "spark.log")
print(spark.sparkContext.parallelize([1, 2], 1).map(str).count())
"""


def test_a_program_that_does_not_stop_its_session_ends_without_a_traceback(tmp_path: Path) -> None:
    """As the one in docs/pipeline.md: its JVM ends with it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_delays_are_averaged_without_the_rows_that_have_none(spark: Any) -> None:
    records = literal(
        spark,
        ("UA", b'{"carrier":"UA","month":1,"dep_delay":5,"origin":"EWR"}'),
        ("UA", b'{"carrier":"UA","month":1,"dep_delay":null}'),
        ("UA", b'{"carrier":"UA","month":1,"dep_delay":-4}'),
        ("AA", b'{"carrier":"AA","month":12,"dep_delay":null}'),
    )
    rows = delays_by_carrier_and_month(parse_flights(records)).collect()
    assert as_delays(rows) == {("UA", 1): Delay(3, 2, 1), ("AA", 12): Delay(1, 0, 0)}


def test_an_invalid_flight_fails_the_job(spark: Any) -> None:
    records = literal(spark, ("UA", b'{"carrier":"UA","month":'))
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        delays_by_carrier_and_month(parse_flights(records)).collect()


def test_batch_and_stream_agree_with_the_csv(spark: Any, kafka_broker: Any, tmp_path: Path) -> None:
    """A restarted stream reads nothing again."""
    topic = f"flights-{tmp_path.name}"
    create(kafka_broker.bootstrap, topic, PARTITIONS)
    produced = produce_flights(kafka_broker.bootstrap, topic, read_flights(ROWS), lambda _: None)
    assert produced.records == ROWS
    assert produced.delays == count_delays(read_flights(ROWS))

    assert read_batch(spark, kafka_broker.bootstrap, topic) == produced.delays

    checkpoint = tmp_path / "checkpoint"
    stream = read_stream(spark, kafka_broker.bootstrap, topic, checkpoint, ROWS)
    assert stream.delays == produced.delays
    assert stream.rows == ROWS
    assert stream.triggers >= TRIGGERS
    assert read_stream(spark, kafka_broker.bootstrap, topic, checkpoint, ROWS).rows == 0


def test_the_compose_files_job_counts_words(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker/count_words.py in the test's session."""
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        for line in (b"to be or not to be", b"Be that word our sign"):
            producer.send("lines", line).get(30)
        for name, text in {"KAFKA_BOOTSTRAP": broker.bootstrap, "CHECKPOINT": str(tmp_path), "ONCE": "1"}.items():
            monkeypatch.setenv(name, text)
        runpy.run_path(str(Path(__file__).parents[2] / "docker" / "count_words.py"), run_name="__main__")
        consumer = KafkaConsumer(
            "words", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=3000
        )
        counts = {record.key: record.value for record in consumer}
        assert (counts[b"be"], counts[b"to"], counts[b"sign"], len(counts)) == (b"3", b"2", b"1", 8)

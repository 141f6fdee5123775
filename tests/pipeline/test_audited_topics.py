"""Audits of unusual topics and of topics that change after they were archived."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from barnabas import Broker
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import ArchiveSettings, AuditSettings, archive, audit
from barnabas.pipeline.brokers import Span
from barnabas.pipeline.errors import JobError
from tests.pipeline.topics import START_MS, create, minutes, send
from tests.support.waiting import until

pytestmark = pytest.mark.long

ROUND = 60
KINDS = ("lost", "doubled", "altered", "unexpected")
FILES = ("missing_files", "unknown_files", "altered_files", "unreadable_files")
SOON = {"log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 200}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SOON) as started:
        yield started


def files_of(settings: AuditSettings, topic: str) -> list[Path]:
    return sorted(settings.archive.glob(f"topic={topic}/date=*/*.parquet"))


def faults_of(spark: Any, settings: AuditSettings) -> dict[str, Any]:
    report = audit(spark, settings)
    faults = {name: getattr(report, name) for name in (*KINDS, *FILES) if getattr(report, name)}
    assert report.agrees == (not faults)
    verified = json.loads((settings.archive / "_barnabas" / "audit.json").read_text())["verified"]
    assert bool(verified) == report.agrees, "only what agrees may be trimmed"
    return faults


def names(settings: AuditSettings, *paths: Path) -> list[str]:
    return sorted(str(path.relative_to(settings.archive)) for path in paths)


def test_a_year_of_five_digits_is_archived_and_audited(spark: Any, broker: Broker, tmp_path: Path) -> None:
    create(broker.bootstrap, "far", 1, message_timestamp_after_max_ms=str(2**63 - 1))
    audited = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    for _ in range(2):
        send(broker.bootstrap, "far", [{"value": b"x", "timestamp": START_MS * 1000}])
        archive(spark, ArchiveSettings(bootstrap=broker.bootstrap, into=audited.archive, topic=("far",)))
    assert [path.parent.name for path in files_of(audited, "far")] == ["date=+57971-02-25"] * 2
    assert faults_of(spark, audited) == {}


def test_altered_decoded_data_is_found(spark: Any, broker: Broker, tmp_path: Path) -> None:
    create(broker.bootstrap, "decoded", 1)
    texts = [b'{"a": %d, "m": {"x": %d, "y": null}, "t": "2026-01-01T00:00:00.123456Z"}' % (n, n) for n in range(10)]
    values = [*texts, b"no JSON", b'{"a": "b"}', b'{"a": null}', b"{}", None]
    send(broker.bootstrap, "decoded", [{"value": value, "timestamp": START_MS} for value in values])
    (schema := tmp_path / "schema.ddl").write_text("a int, m map<string, int>, t timestamp")
    audited = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    archiving = ArchiveSettings(bootstrap=broker.bootstrap, into=audited.archive, topic=("decoded",))
    assert archive(spark, replace(archiving, decode="json", schema=schema)).malformed == 2
    assert faults_of(spark, audited) == {}
    [path] = files_of(audited, "decoded")
    good = path.read_bytes()
    table = pq.ParquetFile(path).read()
    changes: list[tuple[int, str, Any]] = [
        (1, "data", {"a": 99, "m": [("x", 1), ("y", None)], "t": table["data"][1].as_py()["t"]}),
        (2, "data", None),
        (3, "data", {**table["data"][3].as_py(), "m": [("x", 3)]}),
        (4, "data", {**table["data"][4].as_py(), "t": table["data"][4].as_py()["t"].replace(microsecond=123457)}),
        (10, "data", {"a": 1, "m": None, "t": None}),
        (11, "error", None),
        (12, "error", "made up"),
        (14, "data", {"a": None, "m": None, "t": None}),
    ]
    rows = table.to_pylist()
    for at, column, value in changes:
        rows[at][column] = value
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    report = audit(spark, audited)
    assert (report.agrees, report.misdecoded) == (False, len(changes))
    assert report.altered_files == names(audited, path)
    assert sum(getattr(report, kind) for kind in KINDS) == 0, "the records are what they were"
    path.write_bytes(good)
    file = audited.archive / "_barnabas" / "archive.json"
    file.write_text(file.read_text().replace("integer", "string"))
    assert audit(spark, audited).unreadable_files == names(audited, path), "another schema than it was written with"


def test_empty_topics_are_archived(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """The manifest holds their start offsets, so records lost before the next run are noticed."""
    brokers = create(broker.bootstrap, "silent")
    settings = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    archiving = ArchiveSettings(bootstrap=broker.bootstrap, into=settings.archive, topic=("silent",))
    assert (archive(spark, archiving).records, archive(spark, archiving).rounds) == (0, 0)
    assert faults_of(spark, settings) == {}
    send(broker.bootstrap, "silent", minutes(ROUND))
    brokers.delete_records({TopicPartition("silent", number): 30 for number in range(2)})
    with pytest.raises(JobError, match="The broker deleted the offsets 0 to 29 of silent-0"):
        archive(spark, archiving)


def test_a_topic_that_is_trimmed_extended_or_replaced(spark: Any, broker: Broker, tmp_path: Path) -> None:
    brokers = create(broker.bootstrap, "moving")
    send(broker.bootstrap, "moving", minutes(ROUND))
    settings = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    archive(spark, ArchiveSettings(bootstrap=broker.bootstrap, into=settings.archive, topic=("moving",)))
    send(broker.bootstrap, "moving", minutes(ROUND, start=ROUND))
    brokers.delete_records({TopicPartition("moving", 0): 10, TopicPartition("moving", 1): 40})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions("moving", 3)])["moving"].result(30)
    send(broker.bootstrap, "moving", [{"value": b"x", "partition": 2, "timestamp": START_MS}] * 4)
    report = audit(spark, settings)
    assert report.agrees
    assert [(one["topic_records"], one["pending"]) for one in report.partitions] == [(20, 30), (0, 30), (0, 4)]
    table = pq.ParquetFile(path := files_of(settings, "moving")[0]).read()
    pq.write_table(table.slice(1), path)
    assert faults_of(spark, settings) == {"altered_files": names(settings, path)}, "of what the broker has no more"
    brokers.delete_topic("moving")
    with pytest.raises(JobError, match="There is no topic moving"):
        audit(spark, settings)
    create(broker.bootstrap, "moving")
    with pytest.raises(JobError, match="deleted and created again"):
        audit(spark, settings)


def test_records_that_the_broker_compacts_are_not_faults(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """A record that is missing from the archive is one."""
    bootstrap = broker.bootstrap
    brokers = create(
        bootstrap, "squeezed", cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01"
    )
    records = [{**record, "key": b"key %d" % (number % 5)} for number, record in enumerate(minutes(2 * ROUND))]
    send(broker.bootstrap, "squeezed", records[:ROUND])
    audited = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    archive(spark, ArchiveSettings(bootstrap=broker.bootstrap, into=audited.archive, topic=("squeezed",)))
    send(broker.bootstrap, "squeezed", records[ROUND:])
    spans = {TopicPartition("squeezed", number): Span(0, ROUND // 2) for number in range(2)}
    until(lambda: len(list(brokers.consume(spans))) < ROUND // 4, "the cleaner", 60)
    report = audit(spark, audited)
    assert report.agrees, report
    assert sum(one["compacted_since"] for one in report.partitions) > ROUND // 2
    path = files_of(audited, "squeezed")[0]
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(1), path)
    faults = faults_of(spark, audited)
    assert faults["altered_files"] == names(audited, path)

"""The comparison of an audit on literal rows, the audit of an intact archive, and what it permits to trim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.client.batch_header import CONTROL, BatchHeader
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import ArchiveSettings, AuditSettings, archive, audit
from barnabas.pipeline.brokers import Span
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.audit.comparison import differences, gaps, steps_back
from barnabas.pipeline.jobs.audit.files_check import AuditedFiles
from barnabas.pipeline.kafka.batch_lookup import GapCounts, count_gap
from tests.pipeline.topics import create, minutes, send, send_transaction, transactional

pytestmark = pytest.mark.long

HASHED = "topic string, partition int, offset bigint, hash bigint"


def test_each_kind_of_difference_is_classified(spark: Any) -> None:
    topic = spark.createDataFrame([("t", 0, offset, offset * 10) for offset in range(6)], HASHED)
    kept = [(0, 0), (2, 20), (2, 20), (3, 31), (4, 40), (4, 41), (5, 50), (9, 90)]
    held = spark.createDataFrame([("t", 0, *row) for row in kept], HASHED)
    found = {row.offset: (row.kind, row.copies) for row in differences(topic, held).collect()}
    assert found == {1: ("lost", 0), 2: ("doubled", 2), 3: ("altered", 1), 4: ("altered", 2), 9: ("unexpected", 1)}


def test_gaps_and_decreasing_timestamps_are_found(spark: Any) -> None:
    rows = [("t", 0, 3, 1000), ("t", 0, 4, 900), ("t", 0, 8, 2000), ("t", 0, 9, 500), ("t", 1, 7, 1)]
    records = spark.createDataFrame(rows, "topic string, partition int, offset bigint, ms bigint").selectExpr(
        "*", "timestamp_millis(ms) as timestamp"
    )
    assert [tuple(row) for row in gaps(records).collect()] == [("t", 0, 5, 8)]
    assert [tuple(row) for row in steps_back(records.drop("ms")).collect()] == [("t", 0, 2, 1500)]


def test_missing_offsets_are_explained_by_the_batches_that_cover_them() -> None:
    nothing = BatchHeader(*(0,) * len(BatchHeader._fields))
    heads = [
        nothing._replace(base_offset=0, last_offset_delta=4),
        nothing._replace(base_offset=5, attributes=CONTROL),
        nothing._replace(base_offset=8, last_offset_delta=1),
    ]
    assert count_gap(iter(heads), Span(3, 9)) == GapCounts(markers=1, removed=3, holes=2)


@pytest.fixture(scope="module")
def archived(spark: Any, kafka_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A topic with transactions, one of them aborted, and its archive; tests restore what they damage."""
    folder = tmp_path_factory.mktemp("audited")
    topic = f"audited-{folder.name}"
    brokers = create(kafka_broker.bootstrap, topic)
    producer = transactional(kafka_broker.bootstrap, topic)
    for number, commits in enumerate((True, False, True)):
        send_transaction(producer, topic, minutes(100, start=100 * number), commit=commits)
    archive(spark, ArchiveSettings(bootstrap=kafka_broker.bootstrap, into=folder / "a", topic=(topic,)))
    return AuditSettings(bootstrap=kafka_broker.bootstrap, archive=folder / "a"), brokers


def test_an_intact_archive_agrees(spark: Any, archived: tuple[AuditSettings, Any]) -> None:
    """Aborted records and markers explain every offset without a record."""
    report = audit(spark, archived[0])
    assert report.agrees, report
    assert report.records == 200
    assert [one["gaps"] for one in report.partitions] == [{"aborted": 50, "markers": 3}] * 2
    page = Path(report.page).read_text()
    assert "agree." in page
    assert "<svg" in page


def test_only_verified_records_are_trimmed(spark: Any, archived: tuple[AuditSettings, Any]) -> None:
    """The trimmed archive still agrees, checked against the manifest alone."""
    settings, brokers = archived
    [topic] = {path.name.partition("=")[2] for path in Path(settings.archive).glob("topic=*")}
    archiving = ArchiveSettings(bootstrap=settings.bootstrap, into=settings.archive, topic=(topic,), trim=True)
    assert audit(spark, settings).agrees
    producer = transactional(settings.bootstrap, topic)
    send_transaction(producer, topic, minutes(20), commit=True)
    [path] = Path(settings.archive).glob("topic=*/date=*/*.parquet")
    good = path.read_bytes()
    path.write_bytes(good + b"!")
    with pytest.raises(JobError, match="or its size has changed, since it was written"):
        archive(spark, archiving)
    path.write_bytes(good)
    assert archive(spark, archiving).trimmed == 2
    topic_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert set(brokers.beginning_offsets(topic_partitions).values()) == {153}, "the last twenty were not audited"
    report = audit(spark, replace(settings, topic=(topic,)))
    assert (report.agrees, report.records) == (True, 20)


def test_an_audit_of_files_that_are_compacted_meanwhile_has_no_result(
    spark: Any, archiving: ArchiveSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(archiving.bootstrap, topic, minutes(30))
    archive(spark, replace(archiving, compact_above=0, max_offsets_per_trigger=10))
    settings = AuditSettings(bootstrap=archiving.bootstrap, archive=archiving.into)
    check = AuditedFiles.check

    def check_after_compaction(files: AuditedFiles) -> None:
        assert archive(spark, replace(archiving, compact_above=1)).compacted
        check(files)

    with monkeypatch.context() as patched:
        patched.setattr(AuditedFiles, "check", check_after_compaction)
        with pytest.raises(JobError, match="were compacted during the audit"):
            audit(spark, settings)
    assert audit(spark, settings).agrees

"""Rounds without records: an empty topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline import ArchiveSettings, AuditSettings, archive, audit
from barnabas.pipeline.jobs.archive import sinks
from barnabas.pipeline.store.archive_reader import read_archive
from tests.pipeline.crashes import Crash, crash
from tests.pipeline.test_lakes import PARTITIONS, expected_rows, needs_jars, table_rows
from tests.pipeline.topics import create, minutes, send


@pytest.mark.parametrize(
    "kind", [pytest.param("delta", marks=pytest.mark.long), pytest.param("iceberg", marks=pytest.mark.long)]
)
def test_an_interrupted_empty_round_does_not_hide_later_records(
    spark: Any, kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A table accepts a round number once; the number of an empty round is used again."""
    needs_jars(kind)
    topic = f"empty-{tmp_path.name}"
    create(kafka_broker.bootstrap, topic, PARTITIONS)
    settings = ArchiveSettings(bootstrap=kafka_broker.bootstrap, into=tmp_path / "a", topic=(topic,), format=kind)
    with monkeypatch.context() as patched:
        patched.setattr(sinks.TableSink, "commit", crash)
        with pytest.raises(Crash):
            archive(spark, settings)
    send(kafka_broker.bootstrap, topic, minutes(20, PARTITIONS))
    assert archive(spark, settings).records == 20
    assert table_rows(spark, kind, settings.into) == expected_rows(20)
    second = f"joined-{tmp_path.name}"
    create(kafka_broker.bootstrap, second, PARTITIONS)
    both = ArchiveSettings(bootstrap=kafka_broker.bootstrap, into=tmp_path / "a", topic=(topic, second))
    assert (archive(spark, both).rounds, archive(spark, both).rounds) == (1, 0)
    assert read_archive(spark, settings.into).count() == 20
    finding = audit(spark, AuditSettings(bootstrap=kafka_broker.bootstrap, archive=settings.into))
    assert (finding.agrees, finding.records) == (True, 20)

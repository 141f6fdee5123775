"""Rounds of an archive that hold no record: of a topic that is empty as yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline import ArchiveSettings, AuditSettings, archive, audit
from barnabas.pipeline.jobs.archive import sinks
from barnabas.pipeline.store.archive_reader import read_archive
from tests.pipeline.test_lakes import PARTITIONS, Killed, found, killed, needs_jars, sent
from tests.pipeline.topics import create, minutes, send


@pytest.mark.parametrize(
    "kind", [pytest.param("delta", marks=pytest.mark.turn(1)), pytest.param("iceberg", marks=pytest.mark.turn(3))]
)
def test_a_round_without_records_that_is_cut_hides_none_that_come(
    spark: Any, kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """store/lakes.py rule 2: a table takes a number once, and that of an empty topic's first round comes again."""
    needs_jars(kind)
    topic = f"empty-{tmp_path.name}"
    create(kafka_broker.bootstrap, topic, PARTITIONS)
    settings = ArchiveSettings(bootstrap=kafka_broker.bootstrap, into=tmp_path / "a", topic=(topic,), format=kind)
    with monkeypatch.context() as patched:
        patched.setattr(sinks.Table, "commit", killed)
        with pytest.raises(Killed):
            archive(spark, settings)
    send(kafka_broker.bootstrap, topic, minutes(20, PARTITIONS))
    assert archive(spark, settings).records == 20
    assert found(spark, kind, settings.into) == sent(20)
    joined = f"joined-{tmp_path.name}"
    create(kafka_broker.bootstrap, joined, PARTITIONS)
    both = ArchiveSettings(bootstrap=kafka_broker.bootstrap, into=tmp_path / "a", topic=(topic, joined))
    assert (archive(spark, both).rounds, archive(spark, both).rounds) == (1, 0)
    assert read_archive(spark, settings.into).count() == 20
    finding = audit(spark, AuditSettings(bootstrap=kafka_broker.bootstrap, archive=settings.into))
    assert (finding.agrees, finding.records) == (True, 20)

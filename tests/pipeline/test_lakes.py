"""Archives in Delta and Iceberg tables: every record once, after a crash in any step of a round, also of an empty one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import ArchiveSettings, AuditSettings, archive, audit
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.archive import sinks
from barnabas.pipeline.store import lakes
from barnabas.pipeline.store.archive_reader import read_archive
from barnabas.pipeline.store.folder import ArchiveFolder
from tests.pipeline.crashes import Crash, crash
from tests.pipeline.topics import create, minutes, read_all, send

PARTITIONS = 2
FOUND = ("lost", "doubled", "altered", "unexpected", "unknown_files", "altered_files", "unreadable_files", "misdecoded")


def needs_jars(kind: str) -> None:
    from barnabas.pipeline.spark.jars import find_connector

    if "spark.jars" not in find_connector([kind]).settings:
        pytest.skip(f"the jars of {kind} cannot be had here")


def table_rows(spark: Any, kind: str, folder: Path) -> list[tuple[int, int, bytes | None]]:
    """The table's rows, read with Spark's reader of the format."""
    rows = spark.read.format(kind).load(str(folder / "records")).select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, row.value and bytes(row.value)) for row in rows)


def finding_of(spark: Any, settings: ArchiveSettings) -> Any:
    return audit(spark, AuditSettings(bootstrap=settings.bootstrap, archive=settings.into))


def expected_rows(count: int) -> list[tuple[int, int, bytes | None]]:
    records = minutes(count, PARTITIONS)
    return sorted((r["partition"], number // PARTITIONS, r["value"]) for number, r in enumerate(records))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "decode"), [("delta", "raw"), ("iceberg", "json")])
def test_a_round_interrupted_at_any_step_is_appended_once(
    spark: Any,
    archiving: ArchiveSettings,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    decode: str,
) -> None:
    """After the plan, after the table's commit, after the manifest entry. New records arrive before each retry."""
    needs_jars(kind)
    (schema := tmp_path / "schema.ddl").write_text("a int, c struct<d: string>")
    settings = replace(archiving, format=kind, decode=decode, dead_letters=f"{topic}-malformed")
    if decode == "json":
        settings = replace(settings, schema=schema)
    steps = ((lakes.LAKES[kind], "append"), (sinks, "in_spans"), (Brokers, "commit"))
    for number, (where, step) in enumerate(steps):
        send(settings.bootstrap, topic, minutes(40, PARTITIONS, 40 * number))
        with monkeypatch.context() as patched:
            patched.setattr(where, step, crash)
            with pytest.raises(Crash):
                archive(spark, settings)
        entered = sum(ArchiveFolder(settings.into).manifest().end_offsets().values())
        assert entered == (0, 0, 40)[number]
        assert read_archive(spark, settings.into).count() == entered, "what is not committed is not read"
    report = archive(spark, settings)
    assert (report.records, report.behind) == (80, 0)
    if decode == "json":
        letters = [letter.value() for letter in read_all(settings.bootstrap, f"{topic}-malformed", 1)[0]]
        assert sorted(letters) == sorted(value for _, _, value in expected_rows(120) if value is not None), (
            "none of them is JSON"
        )
    assert table_rows(spark, kind, settings.into) == expected_rows(120)
    finding = finding_of(spark, settings)
    assert (finding.agrees, finding.records) == (True, 120)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_interrupted_empty_round_does_not_hide_later_records(
    spark: Any, archiving: ArchiveSettings, topic: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A table accepts a round number once; the number of an empty round is used again."""
    needs_jars(kind)
    settings = replace(archiving, format=kind)
    with monkeypatch.context() as patched:
        patched.setattr(sinks.TableSink, "commit", crash)
        with pytest.raises(Crash):
            archive(spark, settings)
    send(settings.bootstrap, topic, minutes(20, PARTITIONS))
    assert archive(spark, settings).records == 20
    assert table_rows(spark, kind, settings.into) == expected_rows(20)
    create(settings.bootstrap, second := f"joined-{topic}", PARTITIONS)
    both = replace(archiving, topic=(topic, second))
    assert (archive(spark, both).rounds, archive(spark, both).rounds) == (1, 0)
    assert read_archive(spark, settings.into).count() == 20
    finding = finding_of(spark, settings)
    assert (finding.agrees, finding.records) == (True, 20)


@pytest.fixture
def lake(spark: Any, archiving: ArchiveSettings, tmp_path: Path, request: pytest.FixtureRequest) -> ArchiveSettings:
    """Twenty decoded records in two rounds."""
    needs_jars(request.param)
    (schema := tmp_path / "schema.ddl").write_text("a int")
    values = [{**record, "value": b'{"a": %d}' % number} for number, record in enumerate(minutes(20, PARTITIONS))]
    settings = replace(archiving, format=request.param, decode="json", schema=schema)
    for half in (values[:10], values[10:]):
        send(settings.bootstrap, settings.topic[0], half)
        assert archive(spark, settings).records == 10
    return settings


def faults(report: Any) -> dict[str, Any]:
    table_rows = {name: getattr(report, name) for name in FOUND if getattr(report, name)}
    assert report.agrees == (not table_rows)
    return table_rows


@pytest.mark.long
@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_an_audit_finds_changes_of_a_table(spark: Any, lake: ArchiveSettings) -> None:
    [topic] = lake.topic
    for wrong_settings, message in (
        (replace(lake, format="iceberg"), "was created with --format delta"),
        (replace(lake, format="hudi"), "takes parquet, delta, iceberg"),
    ):
        with pytest.raises(JobError, match=message):
            archive(spark, wrong_settings)
    path = str(lake.into / "records")
    table, one, other = f"delta.`{path}`", f"{topic}-0", f"{topic}-1"
    spark.sql(f"UPDATE {table} SET date = date'2030-01-01' WHERE partition = 1 AND offset = 4")
    assert faults(finding_of(spark, lake)) == {"altered_files": [other]}
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")
    for offset, change in {5: "value = X'00'", 6: "data = named_struct('a', 99)", 7: "error = 'bad'"}.items():
        spark.sql(f"UPDATE {table} SET {change} WHERE partition = 1 AND offset = {offset}")
    spark.sql(f"DELETE FROM {table} WHERE partition = 1 AND offset = 4")
    row = spark.read.format("delta").load(path).where("partition = 0 AND offset = 0").localCheckpoint()
    for added in ({}, {"offset": "99L"}, {"topic": "'ghost'"}, {"topic": "string(null)"}):
        made = [f"{added.get(name, name)} as {name}" for name in row.columns]
        row.selectExpr(*made).write.format("delta").mode("append").save(path)
    assert faults(finding_of(spark, lake)) == {
        "lost": 1,
        "altered": 1,
        "doubled": 1,
        "unexpected": 2,
        "altered_files": [one, other],
        "unknown_files": ["ghost-0"],
        "unreadable_files": ["1 records without topic, partition or offset"],
        "misdecoded": 3,
    }


@pytest.mark.long
@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_an_audit_finds_a_missing_delta_commit(spark: Any, lake: ArchiveSettings) -> None:
    forget = spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache
    commits = sorted((lake.into / "records" / "_delta_log").glob("*.json"))
    assert len(commits) == 2
    held = commits[1].read_bytes()
    for path in (lake.into / "records" / "_delta_log").glob(f"*{commits[1].stem}.*"):
        path.unlink()
    forget()
    report = finding_of(spark, lake)
    assert (report.agrees, report.lost, len(report.altered_files)) == (False, 10, PARTITIONS)
    commits[1].write_bytes(held)
    commits[0].unlink()
    forget()
    with pytest.raises(JobError, match=r"The table of .* cannot be read: .*DELTA_TRUNCATED_TRANSACTION_LOG"):
        finding_of(spark, lake)


@pytest.mark.long
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_an_audit_finds_an_iceberg_rollback(spark: Any, lake: ArchiveSettings) -> None:
    assert finding_of(spark, lake).agrees
    catalog = f"spark.sql.catalog.{lakes.CATALOG}"
    session = spark.newSession()
    session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{catalog}.type", "hadoop")
    session.conf.set(f"{catalog}.warehouse", str(lake.into))
    history = session.read.format("iceberg").load(f"{lake.into / 'records'}#history")
    _, before, _ = [row.snapshot_id for row in history.orderBy("made_current_at").collect()]
    session.sql(f"CALL {lakes.CATALOG}.system.rollback_to_snapshot('records', {before})")
    report = finding_of(spark, lake)
    assert (report.agrees, report.lost, len(report.altered_files)) == (False, 10, PARTITIONS)


def test_a_manifest_without_planned_rounds_is_refused(archive_folder: ArchiveFolder) -> None:
    assert not lakes.is_under_way(archive_folder, 0)
    lakes.write_plan(archive_folder, 0, {TopicPartition("t", 0): 5})
    assert lakes.is_under_way(archive_folder, 0)
    assert lakes.read_plan(archive_folder, 0) == {TopicPartition("t", 0): 5}
    assert lakes.read_plan(archive_folder, 1) == {}
    lakes.write_plan(archive_folder, 2, {TopicPartition("t", 0): 5})
    for look in (lakes.is_under_way, lakes.read_plan):
        with pytest.raises(JobError, match="ends before entry 0, but round 2 was started: entries are missing"):
            look(archive_folder, 0)
    for text in ("{", "[]", '{"round": 0}', '{"round": null, "ends": []}'):
        archive_folder.round_file.write_text(text)
        with pytest.raises(JobError, match=r"round.json is damaged"):
            lakes.is_under_way(archive_folder, 0)

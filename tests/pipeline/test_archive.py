"""The archive job on a broker: the records of each run, what readers find, and refused settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import ArchiveSettings, archive
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.archive_reader import read_archive
from barnabas.pipeline.store.folder import ArchiveFolder
from tests.pipeline.topics import START_MS, create, minutes, read_all, send

DAY_MINUTES = 1440


def as_sent(row: Any) -> tuple[Any, ...]:
    headers = None if row.headers is None else [(one.key, one.value and bytes(one.value)) for one in row.headers]
    key, value = (None if part is None else bytes(part) for part in (row.key, row.value))
    return row.partition, key, value, round(row.timestamp.timestamp() * 1000), headers


@pytest.mark.long
def test_runs_archive_every_record_once(spark: Any, archiving: ArchiveSettings, topic: str) -> None:
    """Three runs, several rounds, one compaction; bytes and nulls are unchanged."""
    brokers = Brokers(archiving)
    sent = minutes(2 * DAY_MINUTES)
    send(archiving.bootstrap, topic, sent[:1000])
    settings = replace(archiving, max_offsets_per_trigger=700, compact_above=2)
    steps: list[dict[str, Any]] = []
    first = archive(spark, settings, steps.append)
    assert (first.records, first.rounds, first.behind) == (1000, 2, 0)
    assert [step["behind"] for step in steps] == [300, 0]
    send(archiving.bootstrap, topic, sent[1000:])
    second = archive(spark, replace(settings, max_offsets_per_trigger=1_000_000))
    assert second.records == len(sent) - 1000
    assert second.compacted == 3, "the first day had a file of each round"
    group = f"barnabas-archive-{ArchiveFolder(settings.into).metadata().id}"
    brokers.commit(group, {TopicPartition(topic, 0): 7})  # as if the run before was killed at its last commit
    assert archive(spark, settings).rounds == 0

    listed = sorted(str(path.relative_to(settings.into)) for path in settings.into.glob("topic=*/date=*/*"))
    assert listed == sorted(ArchiveFolder(settings.into).manifest().files), (
        "any reader sees exactly the committed files"
    )
    assert {path.split("/")[1] for path in listed} == {"date=2026-01-01", "date=2026-01-02"}
    rows = read_archive(spark, settings.into).orderBy("partition", "offset").collect()
    wanted = [(r["partition"], r["key"], r["value"], r["timestamp"], r["headers"]) for r in sent]
    assert [as_sent(row) for row in rows] == sorted(wanted, key=lambda one: (one[0], one[3]))
    foreign = spark.read.parquet(str(settings.into))
    assert foreign.select("partition", "offset").distinct().count() == foreign.count() == len(sent)

    half = len(sent) // 2
    assert brokers.committed(group, [TopicPartition(topic, 0), TopicPartition(topic, 1)]) == {
        TopicPartition(topic, 0): half,
        TopicPartition(topic, 1): half,
    }, "any tool shows the lag"


@pytest.mark.long
def test_malformed_records_are_counted_archived_and_sent_once(
    spark: Any, archiving: ArchiveSettings, topic: str, tmp_path: Path
) -> None:
    """A round that is repeated after a crash sends nothing again, also with smaller rounds and another group."""
    values = [b"no json %d" % n if n % 10 == 0 else b'{"n": %d}' % n for n in range(100)]
    send(archiving.bootstrap, topic, [{"value": value, "timestamp": START_MS, "partition": 0} for value in values])
    settings = replace(archiving, decode="json", dead_letters=f"{topic}-dlq")
    report = archive(spark, settings)
    assert (report.records, report.malformed, report.dead_letters) == (100, 10, 10)
    folder = ArchiveFolder(settings.into)
    (folder.manifest_folder / f"{0:012d}.json").unlink()  # as if killed between the letters and the commit
    for path in settings.into.glob("topic=*/date=*/*"):
        path.unlink()
    again = archive(spark, replace(settings, group=f"another-{topic}", max_offsets_per_trigger=35))
    assert (again.rounds, again.malformed, again.dead_letters) == (3, 10, 10)
    schema = tmp_path / "schema.ddl"
    schema.write_text("m string")
    with pytest.raises(JobError, match=r"created with another schema than .*schema.ddl"):
        archive(spark, replace(settings, schema=schema))
    schema.write_text("n bigint")
    assert archive(spark, replace(settings, schema=schema)).records == 0, "it is the schema that was inferred"
    letters = read_all(archiving.bootstrap, f"{topic}-dlq", 1)[0]
    assert [letter.value() for letter in letters] == values[::10]
    assert dict(letters[3].headers())["dead-letter.offset"] == b"30"
    data = spark.read.parquet(str(settings.into)).where("error is null").selectExpr("sum(data.n)").first()[0]
    assert data == sum(n for n in range(100) if n % 10)


def test_another_topic_cluster_or_folder_is_refused(spark: Any, archiving: ArchiveSettings, topic: str) -> None:
    settings = archiving
    create(settings.bootstrap, other := f"other-{topic}")
    for name in (topic, other):
        send(settings.bootstrap, name, minutes(3))
    archive(spark, settings)
    for wrong_settings, message in (
        (replace(settings, topic=(other,)), f"also holds {topic}: name all its topics"),
        (replace(settings, topic=("no-such",)), "There is no topic no-such"),
        (replace(settings, topic=()), "needs --topic or --pattern"),
        (replace(settings, decode="json"), "was created with --decode raw"),
        (replace(settings, trim=True), "no audit has verified"),
        (replace(settings, bootstrap="127.0.0.1:1"), "No broker answers at 127.0.0.1:1"),
    ):
        with pytest.raises(JobError, match=message):
            archive(spark, wrong_settings)
    both = archive(spark, replace(settings, topic=(topic, other)))
    assert (both.records, both.behind) == (3, 0), "what was archived before is not behind"
    metadata = settings.into / "_barnabas" / "archive.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "cluster": "elsewhere"}))
    with pytest.raises(JobError, match="the archive of another cluster"):
        archive(spark, replace(settings, pattern=".*"))

"""Audits of damaged archives and of changed topics: a fault or an error, never "agrees"."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from barnabas import Broker
from barnabas.pipeline import ArchiveSettings, AuditSettings, archive, audit
from barnabas.pipeline.brokers import Brokers, TopicPartition
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.trim import write_verified
from barnabas.pipeline.store.folder import ArchiveFolder
from tests.pipeline.topics import MINUTE_MS, START_MS, create, send
from tests.support.waiting import until

pytestmark = pytest.mark.long

ROUND = 60
KINDS = ("lost", "doubled", "altered", "strange")
FILES = ("missing_files", "unknown_files", "altered_files", "unreadable_files")
SOON = {"log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 200}


def hours(start: int) -> list[dict[str, Any]]:
    """Records an hour apart: a round covers three days."""
    return [
        {
            "key": b"key %d" % (number % 5),
            "value": b"value %d" % number if number % 7 else None,
            "partition": number % 2,
            "timestamp": START_MS + 60 * number * MINUTE_MS,
            "headers": [("a", b"%d" % number), ("b", None)],
        }
        for number in range(start, start + ROUND)
    ]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SOON) as started:
        yield started


@pytest.fixture(scope="module")
def intact(spark: Any, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> AuditSettings:
    """Two topics, archived in two rounds; three files per topic and round."""
    folder = tmp_path_factory.mktemp("intact") / "archive"
    for topic in ("one", "two"):
        create(broker.bootstrap, topic)
    for start in (0, ROUND):
        for topic in ("one", "two"):
            send(broker.bootstrap, topic, hours(start))
        archive(spark, ArchiveSettings(bootstrap=broker.bootstrap, into=folder, topic=("one", "two")))
    return AuditSettings(bootstrap=broker.bootstrap, archive=folder)


@pytest.fixture
def copy(intact: AuditSettings, tmp_path: Path) -> AuditSettings:
    """A copy of the archive."""
    shutil.copytree(intact.archive, tmp_path / "archive")
    return replace(intact, archive=tmp_path / "archive")


def files_of(settings: AuditSettings, topic: str = "one") -> list[Path]:
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


def test_a_copy_of_an_intact_archive_agrees(spark: Any, intact: AuditSettings, copy: AuditSettings) -> None:
    assert len(files_of(intact)) == 6
    assert faults_of(spark, copy) == {}


def test_a_change_in_any_part_of_a_record_is_found(spark: Any, copy: AuditSettings) -> None:
    path = files_of(copy)[0]
    table = pq.ParquetFile(path).read()
    rows = table.to_pylist()
    rows[1]["headers"][1]["value"] = b""
    rows[3]["timestamp"] = rows[2]["timestamp"]
    rows[5]["headers"].reverse()
    rows[6]["key"], rows[6]["value"] = rows[6]["value"], rows[6]["key"]
    rows[8]["offset"], rows[9]["offset"] = rows[9]["offset"], rows[8]["offset"]
    rows[10]["timestampType"] = 1
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    report = audit(spark, copy)
    named = [(one["kind"], one["partition"], one["offset"]) for one in report.examples]
    changed = sorted((rows[at]["partition"], rows[at]["offset"]) for at in (1, 3, 5, 6, 8, 9, 10))
    assert named == [("altered", *position) for position in changed]
    assert report.altered_files == names(copy, path)


def test_a_rewritten_file_is_altered(spark: Any, copy: AuditSettings) -> None:
    """The same records in another order."""
    path = files_of(copy)[0]
    table = pq.ParquetFile(path).read()
    pq.write_table(table.take(list(reversed(range(table.num_rows)))), path)
    assert faults_of(spark, copy) == {"altered_files": names(copy, path)}


def test_exchanged_and_moved_files_are_reported(spark: Any, copy: AuditSettings) -> None:
    first, second, third, fourth, *_ = files_of(copy)
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)
    day, topic = first.with_name("moved.parquet"), files_of(copy, "two")[0].with_name("moved.parquet")
    count = pq.ParquetFile(fourth).metadata.num_rows
    third.rename(day)
    fourth.rename(topic)
    assert faults_of(spark, copy) == {
        "missing_files": names(copy, third, fourth),
        "unknown_files": names(copy, day, topic),
        "altered_files": names(copy, first, second),
        "lost": count,
        "doubled": count,  # the other topic has the same records
    }


def test_foreign_files_are_reported_and_the_others_are_read(spark: Any, copy: AuditSettings) -> None:
    data, damaged, *_ = files_of(copy)
    day = data.parent
    foreign_files = {
        day / "notes.txt": b"not Parquet",
        day / "empty.parquet": b"",
        day / "deeper" / "copy.parquet": data.read_bytes(),
        copy.archive / "topic=three" / "date=2026-01-01" / "x.parquet": data.read_bytes(),
        copy.archive / "topic=one" / "date=soon" / "x.parquet": data.read_bytes(),
        copy.archive / "README": b"hello",
    }
    for path, content in foreign_files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    tables = {
        day / "other columns.parquet": pa.table({"colour": ["red"], "partition": [0]}),
        day / "other types.parquet": pa.table({"partition": ["zero"], "offset": ["zero"]}),
    }
    for path, table in tables.items():
        pq.write_table(table, path)
    (day / "_hidden").write_text("a reader leaves it out")
    count = pq.ParquetFile(damaged).metadata.num_rows
    content = bytearray(damaged.read_bytes())
    content[40:400] = bytes(360)
    damaged.write_bytes(content)
    assert faults_of(spark, copy) == {
        "unknown_files": names(copy, *foreign_files, *tables),
        "unreadable_files": names(copy, damaged, day / "notes.txt", *tables),
        "lost": count,
    }


def test_a_missing_last_entry_is_found(spark: Any, copy: AuditSettings) -> None:
    entries = sorted((copy.archive / "_barnabas" / "manifest").glob("*.json"))
    fields = json.loads(entries[-1].read_text())
    entries[-1].unlink()
    faults = faults_of(spark, copy)
    assert faults["unknown_files"] == sorted(file["path"] for file in fields["files"])
    assert faults["strange"] == sum(read["count"] for read in fields["ranges"])
    for entry in entries[:-1]:
        entry.unlink()
    with pytest.raises(JobError, match="has no entry: there is nothing to compare"):
        audit(spark, copy)


def test_a_manifest_with_altered_counts_is_found(spark: Any, copy: AuditSettings) -> None:
    """Altered ranges contradict the files' contents; altered contents contradict the files."""
    [*_, path] = sorted((copy.archive / "_barnabas" / "manifest").glob("*.json"))
    fields = json.loads(path.read_text())
    fields["ranges"][0]["count"] += 1
    path.write_text(json.dumps(fields))
    with pytest.raises(JobError, match=r"contradicts itself in entry 1: of one-0 it has 31 records from 30 to 60"):
        audit(spark, copy)
    fields["ranges"][0]["count"] -= 1
    fields["ranges"][0]["checksum"] += 1
    file = next(one for one in fields["files"] if "topic=one" in one["path"])
    next(one for one in file["contents"] if one["partition"] == 0)["checksum"] += 1
    path.write_text(json.dumps(fields))
    assert faults_of(spark, copy) == {"altered_files": [file["path"]]}


def test_a_manifest_with_altered_offsets_is_found(spark: Any, copy: AuditSettings) -> None:
    entries = sorted((copy.archive / "_barnabas" / "manifest").glob("*.json"))
    good = [path.read_text() for path in entries]
    fields = json.loads(good[0])
    next(read for read in fields["ranges"] if (read["topic"], read["partition"]) == ("one", 0))["start"] += 5
    entries[0].write_text(json.dumps(fields))
    with pytest.raises(JobError, match=r"contradicts itself in entry 0: of one-0 it has 30 records from 5 to 30"):
        audit(spark, copy)
    for path, text in zip(entries, good, strict=True):
        fields = json.loads(text)
        fields["ranges"] = [read for read in fields["ranges"] if (read["topic"], read["partition"]) != ("two", 1)]
        path.write_text(json.dumps(fields))
    with pytest.raises(
        JobError, match=r"contradicts itself in entry 0: of two-1 its files and its ranges do not add up"
    ):
        audit(spark, copy)


def test_links_and_special_files_are_reported(spark: Any, copy: AuditSettings, tmp_path: Path) -> None:
    """A day that was moved and linked is intact; a day linked twice is doubled."""
    first, second, third, *_ = files_of(copy)
    first.parent.rename(tmp_path / "moved")
    first.parent.symlink_to(tmp_path / "moved")
    assert faults_of(spark, copy) == {}
    twin = copy.archive / "topic=one" / "date=2027-01-01"
    twin.symlink_to(tmp_path / "moved")
    hidden = second.with_name("_hidden.parquet")
    shutil.copyfile(second, hidden)
    shutil.copyfile(second, copy.archive / "_barnabas" / "copy.parquet")
    count = pq.ParquetFile(first).metadata.num_rows
    third.unlink()
    os.mkfifo(third)
    lost = ROUND - sum(pq.ParquetFile(path).metadata.num_rows for path in (first, second))
    assert faults_of(spark, copy) == {
        "unknown_files": names(copy, hidden, *(twin / path.name for path in first.parent.iterdir())),
        "unreadable_files": names(copy, third),
        "doubled": count,
        "lost": lost,
    }


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


def test_another_cluster_topic_or_damaged_metadata_is_an_error(spark: Any, copy: AuditSettings) -> None:
    file = copy.archive / "_barnabas" / "archive.json"
    fields = json.loads(file.read_text())
    for text, sentence in (
        (json.dumps({**fields, "cluster": "other"}), "is the archive of another cluster"),
        (json.dumps({**fields, "format": 9}), "is of format 9"),
        (json.dumps({**fields, "cluster": 5}), "is damaged: cluster is 5"),
        (json.dumps([fields]), "is damaged"),
        ("{", "is damaged"),
    ):
        file.write_text(text)
        with pytest.raises(JobError, match=sentence):
            audit(spark, copy)
    file.write_text(json.dumps(fields))
    with pytest.raises(JobError, match="holds no topic three"):
        audit(spark, replace(copy, topic=("three",)))
    file.unlink()
    with pytest.raises(JobError, match="There is no archive in"):
        audit(spark, copy)


def test_a_report_that_cannot_be_written_is_an_error(spark: Any, copy: AuditSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match="The report cannot be written to"):
        audit(spark, replace(copy, page=tmp_path / "file" / "audit.html"))
    (copy.archive / "_barnabas" / "audit.json").unlink()
    (copy.archive / "_barnabas" / "audit.json").mkdir()
    with pytest.raises(JobError, match="The result cannot be written to"):
        write_verified(ArchiveFolder(copy.archive), "now", [], {})


def test_empty_topics_are_archived(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """The manifest holds their start offsets, so records lost before the next run are noticed."""
    brokers = create(broker.bootstrap, "silent")
    settings = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    archiving = ArchiveSettings(bootstrap=broker.bootstrap, into=settings.archive, topic=("silent",))
    assert (archive(spark, archiving).records, archive(spark, archiving).rounds) == (0, 0)
    assert faults_of(spark, settings) == {}
    send(broker.bootstrap, "silent", hours(0))
    brokers.delete_records({TopicPartition("silent", number): 30 for number in range(2)})
    with pytest.raises(JobError, match="The offsets 0 to 29 of silent-0 are gone"):
        archive(spark, archiving)


def test_a_topic_that_is_trimmed_extended_or_replaced(spark: Any, broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions

    brokers = create(broker.bootstrap, "moving")
    send(broker.bootstrap, "moving", hours(0))
    settings = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    archive(spark, ArchiveSettings(bootstrap=broker.bootstrap, into=settings.archive, topic=("moving",)))
    send(broker.bootstrap, "moving", hours(ROUND))
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
    admin.delete_topics(["moving"])["moving"].result(30)
    with pytest.raises(JobError, match="There is no topic moving"):
        audit(spark, settings)
    create(broker.bootstrap, "moving")
    with pytest.raises(JobError, match="deleted and created again"):
        audit(spark, settings)


def test_records_that_the_broker_compacts_are_not_faults(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """A record that is missing from the archive is one."""
    settings = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    brokers = create(broker.bootstrap, "squeezed", **settings)
    send(broker.bootstrap, "squeezed", hours(0))
    audited = AuditSettings(bootstrap=broker.bootstrap, archive=tmp_path / "archive")
    archive(spark, ArchiveSettings(bootstrap=broker.bootstrap, into=audited.archive, topic=("squeezed",)))
    send(broker.bootstrap, "squeezed", hours(ROUND))
    until(lambda: left_of(brokers, 30) < ROUND // 4, "the cleaner", 60)
    report = audit(spark, audited)
    assert report.agrees, report
    assert sum(one["compacted_since"] for one in report.partitions) > ROUND // 2
    path = files_of(audited, "squeezed")[0]
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(1), path)
    faults = faults_of(spark, audited)
    assert faults["altered_files"] == names(audited, path)


def left_of(brokers: Brokers, end: int) -> int:
    """The number of records below an offset of each partition."""
    from barnabas.pipeline.brokers import Span

    return sum(1 for _ in brokers.records({TopicPartition("squeezed", number): Span(0, end) for number in range(2)}))

"""Damage planted in copies of one archive: an audit reports each kind, and nothing in an intact copy.

The archive is decoded, with two topics (one has aborted transactions), two rounds, and dead letters. Some kinds of damage
also adapt the manifest, so that files and manifest agree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from barnabas import Broker
from barnabas.pipeline import ArchiveSettings, AuditSettings, archive, audit
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.trim import write_verified
from barnabas.pipeline.store.durable_files import digests
from barnabas.pipeline.store.folder import ArchiveFolder
from tests.pipeline.topics import MINUTE_MS, START_MS, create, send, send_transaction, transactional

pytestmark = pytest.mark.long

HALF = 20
DAY = 24 * 60 * MINUTE_MS
Row = dict[str, Any]
Fields = dict[str, Any]


def values(start: int) -> list[Row]:
    """Records of two partitions and two days; every third without a key, every fifth malformed."""
    return [
        {
            "key": b"key %d" % number if number % 3 else None,
            "value": b"no JSON" if number % 5 == 0 else b'{"a": %d}' % number,
            "partition": number % 2,
            "timestamp": START_MS + (number % 4 // 2) * DAY + number * MINUTE_MS,
            "headers": [("a", b"%d" % number), ("b", None)],
        }
        for number in range(start, start + HALF)
    ]


class DamagedCopy:
    """A copy of the archive to be damaged."""

    def __init__(self, settings: AuditSettings) -> None:
        self.settings = settings
        self.path: Path = settings.archive
        self.internal: Path = self.path / "_barnabas"

    def files(self, topic: str = "one", sequence: int = 0) -> list[Path]:
        """The data files of a round."""
        return sorted(self.path.glob(f"topic={topic}/date=*/{sequence:012d}-*.parquet"))

    def name(self, path: Path) -> str:
        """The path in the manifest."""
        return str(path.relative_to(self.path))

    def positions(self, path: Path) -> list[str]:
        """The positions of a file's records, as in fault lines."""
        topic = path.parts[-3].removeprefix("topic=")
        rows = pq.ParquetFile(path).read(["partition", "offset"]).to_pylist()
        return [f"{topic}-{row['partition']}, offset {row['offset']}" for row in rows]

    def change(self, path: Path, change: Callable[[list[Row]], object]) -> None:
        """Rewrites a file."""
        table = pq.ParquetFile(path).read()
        rows = table.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, table.schema), path)

    def entry(self, sequence: int) -> Path:
        return self.internal / "manifest" / f"{sequence:012d}.json"

    def change_entry(self, sequence: int, change: Callable[[Fields], object]) -> None:
        fields = json.loads(self.entry(sequence).read_text())
        change(fields)
        self.entry(sequence).write_text(json.dumps(fields))

    def remove_round(self, sequence: int, *, is_first: bool = False) -> None:
        """Removes a round's files and entry; renumbers the second entry if the first is removed."""
        for topic in ("one", "two"):
            for path in self.files(topic, sequence):
                path.unlink()
        self.entry(sequence).unlink()
        if is_first:
            self.entry(1).rename(self.entry(0))
            self.change_entry(0, lambda fields: fields.update(sequence=0))


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditSettings]:
    """The archive; an audit has checked it."""
    folder = tmp_path_factory.mktemp("whole")
    (schema := folder / "schema.ddl").write_text("a int")
    with Broker() as broker:
        settings = ArchiveSettings(
            bootstrap=broker.bootstrap,
            into=folder / "archive",
            topic=("one", "two"),
            decode="json",
            schema=schema,
            dead_letters="letters",
        )
        for topic in (*settings.topic, "other-letters"):
            create(broker.bootstrap, topic)
        producer = transactional(broker.bootstrap, "two")
        for start in (0, HALF):
            send(broker.bootstrap, "one", values(start))
            for commit in (True, False):
                send_transaction(producer, "two", values(start), commit=commit)
            archive(spark, settings)
        audited = AuditSettings(bootstrap=broker.bootstrap, archive=folder / "archive")
        report = audit(spark, audited)
        assert (report.agrees, report.malformed, report.missing_dead_letters, report.lines) == (True, 16, 0, [])
        assert report.dead_letter_topics == [{"topic": "letters", "sent": 16, "missing": 0}]
        yield audited


@pytest.fixture
def damaged(whole: AuditSettings, tmp_path: Path) -> Damage:
    shutil.copytree(whole.archive, tmp_path / "archive")
    return Damage(replace(whole, archive=tmp_path / "archive"))


def exchange(rows: list[Row], column: str, one: int, other: int) -> None:
    rows[one][column], rows[other][column] = rows[other][column], rows[one][column]


class Exactly(list[str]):
    """All expected fault lines, not only some of them."""


class Damage(DamagedCopy):
    """Each method damages the copy and returns patterns of the expected fault lines."""

    def a_removed_record(self) -> list[str]:
        self.change(self.files()[0], lambda rows: rows.pop(1))
        return Exactly(["lost: one-0, offset 2", f"altered file: {self.name(self.files()[0])}"])

    def a_change_in_each_part_of_a_record(self) -> list[str]:
        one, two = self.files()

        def change(rows: list[Row]) -> None:
            assert rows[0]["key"] is None
            rows[0]["key"] = b""
            rows[1]["headers"][1]["value"] = b""
            rows[2]["timestamp"] += timedelta(milliseconds=1)
            rows[3]["headers"].reverse()
            rows[4]["key"], rows[4]["value"] = rows[4]["value"], rows[4]["key"]
            exchange(rows, "value", 5, 6)
            exchange(rows, "offset", 7, 8)
            rows[9]["timestampType"] = 1

        self.change(one, change)
        self.change(two, lambda rows: rows[0]["headers"][0].update(key=""))
        positions = [*self.positions(one)[:10], self.positions(two)[0]]
        return Exactly(
            [
                *(f"altered: {position}" for position in positions),
                *(f"altered file: {self.name(path)}" for path in (one, two)),
            ]
        )

    def records_at_other_positions(self) -> list[str]:
        def change(rows: list[Row]) -> None:
            rows[0]["partition"] = 1
            rows[1]["partition"] = 7
            rows[2]["offset"] = 1000

        self.change(self.files()[0], change)
        records = ["lost: one-0, offset 0", "altered: one-1, offset 0", "unexpected: one-7, offset 2"]
        return [*records, "lost: one-0, offset 2", "lost: one-0, offset 4", "unexpected: one-0, offset 1000"]

    def a_duplicate_instead_of_another_record(self) -> list[str]:
        path = self.files("two")[0]
        self.change(path, lambda rows: rows.__setitem__(1, rows[0]))
        records = ["lost: two-0, offset 2", "doubled: two-0, offset 0"]
        return Exactly([*records, f"altered file: {self.name(path)}", "miscounted: round 0"])

    def rows_in_another_order(self) -> list[str]:
        self.change(self.files()[0], lambda rows: rows.reverse())
        return Exactly([f"altered file: {self.name(self.files()[0])}"])

    def a_missing_column(self) -> list[str]:
        one, two = self.files()
        for path, column in ((one, "headers"), (two, "offset")):
            pq.write_table(pq.ParquetFile(path).read().drop_columns([column]), path)
        return [f"altered file: {self.name(one)}", f"unreadable file: {self.name(two)}"]

    def a_file_of_an_older_round(self) -> list[str]:
        new = self.files(sequence=1)[0]
        shutil.copyfile(self.files()[0], new)
        return [f"altered file: {self.name(new)}", "doubled: one-0, offset 0", "lost: one-0, offset 10"]

    def exchanged_and_moved_files(self) -> list[str]:
        first, second = self.files(sequence=1)
        held = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(held)
        third, fourth = self.files()
        positions = self.positions(fourth)
        here, elsewhere = third.with_name("moved.parquet"), self.files("two")[1].with_name("moved.parquet")
        third.rename(here)
        fourth.rename(elsewhere)
        return Exactly(
            [
                *(f"missing file: {self.name(path)}" for path in (third, fourth)),
                *(f"unknown file: {self.name(path)}" for path in (here, elsewhere)),
                *(f"altered file: {self.name(path)}" for path in (first, second)),
                *(f"lost: {one}" for one in positions),
                *(f"doubled: {one.replace('one', 'two')}" for one in positions),  # topic two has the same records
            ]
        )

    def foreign_and_damaged_files(self) -> list[str]:
        data, damaged = self.files()
        day = data.parent
        ignored = {
            day / "empty.parquet": b"",
            day / "deeper" / "copy.parquet": data.read_bytes(),
            self.path / "topic=three" / "date=2026-01-01" / "x.parquet": data.read_bytes(),
            self.path / "topic=One" / "date=2026-01-01" / "x.parquet": data.read_bytes(),
            self.path / "topic=one" / "date=soon" / "x.parquet": data.read_bytes(),
            self.path / "topic=one" / "date=__HIVE_DEFAULT_PARTITION__" / "x.parquet": data.read_bytes(),
            self.path / "README": b"hello",
        }
        for path, content in ignored.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        unreadable = [day / "notes.txt", day / "other columns.parquet", day / "other types.parquet"]
        unreadable[0].write_bytes(b"not Parquet")
        pq.write_table(pa.table({"colour": ["red"], "partition": [0]}), unreadable[1])
        pq.write_table(pa.table({"partition": ["zero"], "offset": ["zero"]}), unreadable[2])
        (day / "_hidden").write_text("a reader leaves it out")
        lost = self.positions(damaged)
        content = damaged.read_bytes()
        damaged.write_bytes(content[:40] + bytes(360) + content[400:])
        return Exactly(
            [
                *(f"unknown file: {self.name(path)}" for path in (*ignored, *unreadable)),
                *(f"unreadable file: {self.name(path)}" for path in (*unreadable, damaged)),
                *(f"lost: {one}" for one in lost),
                "miscounted: round 0",
            ]
        )

    def a_folder_linked_twice_and_special_files(self) -> list[str]:
        first, second = self.files()
        twin = first.parent.with_name("date=2027-01-01")
        twin.symlink_to(first.parent)
        hidden = first.with_name("_hidden.parquet")
        shutil.copyfile(first, hidden)
        shutil.copyfile(first, self.internal / "copy.parquet")
        lost = self.positions(second)
        doubled = [one for path in first.parent.glob("0*.parquet") for one in self.positions(path)]
        second.unlink()
        os.mkfifo(second)
        return Exactly(
            [
                *(f"unknown file: {self.name(twin / path.name)}" for path in first.parent.iterdir()),
                f"unknown file: {self.name(hidden)}",
                f"unreadable file: {self.name(second)}",
                *(f"doubled: {one}" for one in doubled),
                *(f"lost: {one}" for one in lost),
                "miscounted: round 1",
            ]
        )

    def truncated_files(self) -> list[str]:
        one, two = self.files()
        one.write_bytes(one.read_bytes()[:-1])
        two.write_bytes(b"")
        return [f"unreadable file: {self.name(one)}", f"altered file: {self.name(two)}", "lost: one-0, offset 0"]

    def a_changed_footer(self) -> list[str]:
        path = self.files()[0]
        whole = path.read_bytes()
        at_name = whole.rindex(b"parquet-mr")
        path.write_bytes(whole[:at_name] + b"parquet-mR" + whole[at_name + 10 :])
        return [f"altered file: {self.name(path)}"]

    def a_folder_renamed_in_the_manifest_as_well(self) -> list[str]:
        day = self.files()[0].parent
        day.rename(day.with_name("date=2026-03-01"))
        for sequence in (0, 1):
            text = self.entry(sequence).read_text()
            self.entry(sequence).write_text(text.replace(f"topic=one/{day.name}/", "topic=one/date=2026-03-01/"))
        [one, *_] = self.path.glob("topic=one/date=2026-03-01/*-*.parquet")
        return [f"altered file: {self.name(one)}"]

    def a_removed_file_with_an_adapted_manifest(self) -> list[str]:
        path = self.files()[0]
        path.unlink()

        def change(fields: Fields) -> None:
            [file] = [one for one in fields["files"] if one["path"] == self.name(path)]
            fields["files"].remove(file)
            for part in file["contents"]:
                [read] = [r for r in fields["ranges"] if (r["topic"], r["partition"]) == ("one", part["partition"])]
                read["count"] -= part["count"]
                read["checksum"] = (read["checksum"] - part["checksum"]) % 2**64

        self.change_entry(0, change)
        return ["lost: one-0, offset 0", "miscounted: round 0"]

    def altered_checksums_in_the_manifest(self) -> list[str]:
        def change(fields: Fields) -> None:
            [file] = [one for one in fields["files"] if one["path"] == self.name(self.files()[0])]
            [part] = [one for one in file["contents"] if one["partition"] == 0]
            [read] = [one for one in fields["ranges"] if (one["topic"], one["partition"]) == ("one", 0)]
            part["checksum"] += 1
            read["checksum"] += 1

        self.change_entry(0, change)
        return Exactly([f"altered file: {self.name(self.files()[0])}"])

    def removed_records_recorded_as_lost(self) -> list[str]:
        for path in self.files(sequence=1):
            path.unlink()

        def change(fields: Fields) -> None:
            fields["files"] = [file for file in fields["files"] if "topic=two" in file["path"]]
            for read in fields["ranges"]:
                if read["topic"] == "one":
                    read.update(count=0, checksum=0, lost_before=read["start"], start=read["end"])
            fields["malformed"] = fields["dead_letters"] = 4

        self.change_entry(1, change)
        return ["lost: one-0, offset 10", "lost: one-1, offset 19"]

    def a_missing_first_round(self) -> list[str]:
        self.remove_round(0, is_first=True)
        return ["lost: one-0, offset 0", "lost: two-1, offset 0"]

    def a_missing_last_round(self) -> list[str]:
        self.remove_round(1)
        return ["cut off: one-0, which was archived up to 20, and ends at 10"]

    def a_missing_topic(self) -> list[str]:
        def change(fields: Fields) -> None:
            fields["ranges"] = [read for read in fields["ranges"] if read["topic"] == "one"]
            fields["files"] = [file for file in fields["files"] if file["path"].startswith("topic=one/")]
            fields["malformed"] = fields["dead_letters"] = fields["malformed"] // 2

        shutil.rmtree(self.path / "topic=two")
        for sequence in (0, 1):
            self.change_entry(sequence, change)
        return ["cut off: two-0, which was archived up to"]

    def exchanged_rounds(self) -> list[str]:
        one, two = self.entry(0).read_text(), self.entry(1).read_text()
        self.entry(0).write_text(two.replace('"sequence": 1', '"sequence": 0'))
        self.entry(1).write_text(one.replace('"sequence": 0', '"sequence": 1'))
        return ["contradicts itself in entry 1: the range of one-0 does not continue the previous one"]

    def an_end_above_the_log_end(self) -> list[str]:
        self.change_entry(1, lambda fields: fields["ranges"][0].update(end=99))
        return ["one-0 ends at 20, but is archived up to 99"]

    def wrong_counts_of_malformed_records(self) -> list[str]:
        self.change_entry(0, lambda fields: fields.update(malformed=7, dead_letters=7))
        self.change_entry(1, lambda fields: fields.update(malformed=9, dead_letters=9))
        return [
            "miscounted: round 0 counted 7 malformed records, and the archive has 8",
            "miscounted: round 1 counted 9",
        ]

    def letters_in_another_topic(self) -> list[str]:
        self.change_entry(1, lambda fields: fields.update(dead_letters_topic="other-letters"))
        return ["letter missing: one-0, offset 10"]

    def an_archive_without_decoding(self) -> list[str]:
        file = self.internal / "archive.json"
        fields = json.loads(file.read_text())
        file.write_text(json.dumps({**fields, "decoding": {"format": "raw", "schema": "", "framing": "plain"}}))
        return ["miscounted: round 0 counted 8 malformed records, and nothing is decoded"]

    def another_archive_format(self) -> list[str]:
        file = self.internal / "archive.json"
        file.write_text(file.read_text().replace('"parquet"', '"delta"'))
        return ["The table of .* cannot be read"]

    def added_aborted_records(self) -> list[str]:
        path = self.files("two")[0]
        self.change(path, lambda rows: rows.append({**rows[-1], "partition": 0, "offset": 12}))
        return ["unexpected: two-0, offset 12", f"altered file: {self.name(path)}"]


KINDS = [name for name in vars(Damage) if not name.startswith("_")]


@pytest.mark.parametrize("kind", KINDS)
def test_planted_damage_is_reported(spark: Any, damaged: Damage, kind: str) -> None:
    """As lines of the report, or as the sentence of the JobError."""
    expected = getattr(damaged, kind)()
    reported = faults_of(spark, damaged.settings)
    missing = [pattern for pattern in expected if not any(re.search(pattern, line) for line in reported)]
    assert not missing, reported
    assert len(reported) == len(expected) or not isinstance(expected, Exactly), reported


def faults_of(spark: Any, settings: AuditSettings) -> list[str]:
    try:
        report = audit(spark, replace(settings, examples=1000))
    except JobError as failure:
        return [str(failure)]
    assert report.agrees == (not report.lines)
    verified = json.loads((settings.archive / "_barnabas" / "audit.json").read_text())["verified"]
    assert bool(verified) == report.agrees, "only what agrees may be trimmed"
    return [f"{line['fault']}: {line['where']}" for line in report.lines]


def test_an_intact_copy_agrees(spark: Any, damaged: DamagedCopy) -> None:
    """Also one topic alone, a day that was moved and linked, a renamed file, and a manifest without digests."""
    assert faults_of(spark, damaged.settings) == []
    assert faults_of(spark, replace(damaged.settings, topic=("two",))) == []
    old = damaged.files()[0]
    moved = old.parent.rename(damaged.path.with_name("moved"))
    old.parent.symlink_to(moved)
    new = old.rename(old.with_name("000000000000-77777.parquet"))
    for sequence in (0, 1):
        text = damaged.entry(sequence).read_text().replace(old.name, new.name, 1)
        damaged.entry(sequence).write_text(text)
        damaged.change_entry(
            sequence,
            lambda fields: (fields.pop("dead_letters_topic"), [file.pop("sha256") for file in fields["files"]]),
        )
    report = audit(spark, damaged.settings)
    assert (report.agrees, report.dead_letter_topics) == (True, []), report.lines
    assert len(set(digests(damaged.files()).values())) == len(damaged.files())


def test_a_missing_last_entry_is_found(spark: Any, damaged: DamagedCopy) -> None:
    """Its files are unknown and its records unexpected; without any entry there is nothing to compare."""
    fields = json.loads(damaged.entry(1).read_text())
    damaged.entry(1).unlink()
    report = audit(spark, damaged.settings)
    assert report.unknown_files == sorted(file["path"] for file in fields["files"])
    assert report.unexpected == sum(read["count"] for read in fields["ranges"])
    damaged.entry(0).unlink()
    with pytest.raises(JobError, match="has no entry: there is nothing to compare"):
        audit(spark, damaged.settings)


def test_another_cluster_topic_or_damaged_metadata_is_an_error(spark: Any, damaged: DamagedCopy) -> None:
    file = damaged.internal / "archive.json"
    fields = json.loads(file.read_text())
    for text, sentence in (
        (json.dumps({**fields, "cluster": "other"}), "is the archive of another cluster"),
        (json.dumps({**fields, "format": 9}), "has format 9"),
        (json.dumps({**fields, "cluster": 5}), "is damaged: cluster is 5"),
        (json.dumps([fields]), "is damaged"),
        ("{", "is damaged"),
    ):
        file.write_text(text)
        with pytest.raises(JobError, match=sentence):
            audit(spark, damaged.settings)
    file.write_text(json.dumps(fields))
    with pytest.raises(JobError, match="holds no topic three"):
        audit(spark, replace(damaged.settings, topic=("three",)))
    file.unlink()
    with pytest.raises(JobError, match="There is no archive in"):
        audit(spark, damaged.settings)


def test_a_report_that_cannot_be_written_is_an_error(spark: Any, damaged: DamagedCopy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match="The report cannot be written to"):
        audit(spark, replace(damaged.settings, page=tmp_path / "file" / "audit.html"))
    (damaged.internal / "audit.json").unlink()
    (damaged.internal / "audit.json").mkdir()
    with pytest.raises(JobError, match="The result cannot be written to"):
        write_verified(ArchiveFolder(damaged.path), "now", [], {})

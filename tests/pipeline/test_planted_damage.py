"""Damage planted in copies of one archive, way by way: an audit names each, and finds nothing in a copy that is whole.

The archive is decoded, of two topics (one of them with transactions, some of them aborted) in two rounds, with letters
for what is malformed. Whoever damages it may mend the manifest, too, so that files and manifest fit each other.
"""

from __future__ import annotations

import json
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
from barnabas.pipeline.store.digests import digests
from tests.pipeline.topics import MINUTE_MS, START_MS, create, send, send_transaction, transactional

pytestmark = pytest.mark.turn(3)

HALF = 20
DAY = 24 * 60 * MINUTE_MS
Row = dict[str, Any]
Said = dict[str, Any]


def values(start: int) -> list[Row]:
    """Records of two partitions and two days, every fifth of them malformed."""
    return [
        {
            "key": b"key %d" % number,
            "value": b"no JSON" if number % 5 == 0 else b'{"a": %d}' % number,
            "partition": number % 2,
            "timestamp": START_MS + (number % 4 // 2) * DAY + number * MINUTE_MS,
            "headers": [("a", b"%d" % number), ("b", None)],
        }
        for number in range(start, start + HALF)
    ]


class Damaged:
    """A copy of the archive, to be damaged."""

    def __init__(self, settings: AuditSettings) -> None:
        self.settings = settings
        self.path = settings.archive
        self.own = self.path / "_barnabas"

    def files(self, topic: str = "one", sequence: int = 0) -> list[Path]:
        """The data files of a round."""
        return sorted(self.path.glob(f"topic={topic}/date=*/{sequence:012d}-*.parquet"))

    def name(self, path: Path) -> str:
        """A path as the manifest has it."""
        return str(path.relative_to(self.path))

    def change(self, path: Path, change: Callable[[list[Row]], object]) -> None:
        """Write a file anew."""
        table = pq.ParquetFile(path).read()
        rows = table.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, table.schema), path)

    def entry(self, sequence: int) -> Path:
        """A file of the manifest."""
        return self.own / "manifest" / f"{sequence:012d}.json"

    def said(self, sequence: int, change: Callable[[Said], object]) -> None:
        """Change an entry."""
        said = json.loads(self.entry(sequence).read_text())
        change(said)
        self.entry(sequence).write_text(json.dumps(said))

    def forget(self, sequence: int, *, is_first: bool = False) -> None:
        """A round is gone, its files and its entry; the others are numbered anew."""
        for topic in ("one", "two"):
            for path in self.files(topic, sequence):
                path.unlink()
        self.entry(sequence).unlink()
        if is_first:
            self.entry(1).rename(self.entry(0))
            self.said(0, lambda said: said.update(sequence=0))

    def leave_out(self, sequence: int, is_gone: Callable[[Said], bool]) -> None:
        """Take ranges out of an entry, with their files."""

        def change(said: Said) -> None:
            gone = [read for read in said["ranges"] if is_gone(read)]
            said["ranges"] = [read for read in said["ranges"] if not is_gone(read)]
            topics = {read["topic"] for read in gone}
            for file in [file for file in said["files"] if file["path"].split("/")[0][6:] in topics]:
                (self.path / file["path"]).unlink()
                said["files"].remove(file)
            left = sum(read["count"] for read in said["ranges"])
            said["malformed"] = said["dead_letters"] = min(said["malformed"], left) // 2

        self.said(sequence, change)


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditSettings]:
    """The archive, which an audit has seen."""
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
        assert (report.agrees, report.malformed, report.missing_letters, report.lines) == (True, 16, 0, [])
        assert report.letters == [{"topic": "letters", "sent": 16, "missing": 0}]
        yield audited


@pytest.fixture
def damaged(whole: AuditSettings, tmp_path: Path) -> Damaged:
    shutil.copytree(whole.archive, tmp_path / "archive")
    return Damaged(replace(whole, archive=tmp_path / "archive"))


def exchange(rows: list[Row], column: str, one: int = 1, other: int = 2) -> None:
    rows[one][column], rows[other][column] = rows[other][column], rows[one][column]


def shift(column: str, by: Any) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        for row in rows:
            row[column] += by

    return change


# --- the ways; each says what the audit must name --------------------------------------------------------------------


def values_exchanged(at: Damaged) -> list[str]:
    at.change(at.files()[0], lambda rows: exchange(rows, "value"))
    return ["altered: one-0, offset 2", "altered: one-0, offset 4", f"altered file: {at.name(at.files()[0])}"]


def timestamps_shifted(at: Damaged) -> list[str]:
    at.change(at.files()[1], shift("timestamp", timedelta(milliseconds=1)))
    return ["altered: one-0, offset 1", "altered: one-1, offset 1"]


def a_key_that_is_empty_instead_of_null(at: Damaged) -> list[str]:
    at.change(at.files()[0], lambda rows: rows[0].update(key=b""))
    return ["altered: one-0, offset 0"]


def a_header_that_lost_its_name(at: Damaged) -> list[str]:
    at.change(at.files()[0], lambda rows: rows[0].update(headers=[{"key": "", "value": b"0"}, *rows[0]["headers"][1:]]))
    return ["altered: one-0, offset 0"]


def another_partition(at: Damaged) -> list[str]:
    at.change(at.files()[0], lambda rows: (rows[0].update(partition=1), rows[1].update(partition=7)))
    return ["lost: one-0, offset 0", "altered: one-1, offset 0", "lost: one-0, offset 2", "strange: one-7, offset 2"]


def offsets_shifted(at: Damaged) -> list[str]:
    at.change(at.files()[0], shift("offset", 1000))
    return ["lost: one-0, offset 0", "strange: one-1, offset 1000"]


def a_record_twice_instead_of_another(at: Damaged) -> list[str]:
    at.change(at.files("two")[0], lambda rows: rows.__setitem__(1, rows[0]))
    return ["lost: two-0, offset 2", "doubled: two-0, offset 0"]


def rows_in_another_order(at: Damaged) -> list[str]:
    at.change(at.files()[0], lambda rows: rows.reverse())
    return [f"altered file: {at.name(at.files()[0])}"]


def a_column_gone(at: Damaged) -> list[str]:
    one, two = at.files()
    for path, column in ((one, "headers"), (two, "offset")):
        pq.write_table(pq.ParquetFile(path).read().drop_columns([column]), path)
    return [f"altered file: {at.name(one)}", f"unreadable file: {at.name(two)}"]


def a_file_of_an_older_round(at: Damaged) -> list[str]:
    new = at.files(sequence=1)[0]
    shutil.copyfile(at.files()[0], new)
    return [f"altered file: {at.name(new)}", "doubled: one-0, offset 0", "lost: one-0, offset 10"]


def files_cut_and_emptied(at: Damaged) -> list[str]:
    one, two = at.files()
    one.write_bytes(one.read_bytes()[:-1])
    two.write_bytes(b"")
    return [f"unreadable file: {at.name(one)}", f"altered file: {at.name(two)}", "lost: one-0, offset 0"]


def a_figure_in_a_foot(at: Damaged) -> list[str]:
    path = at.files()[0]
    whole = path.read_bytes()
    at_name = whole.rindex(b"parquet-mr")
    path.write_bytes(whole[:at_name] + b"parquet-mR" + whole[at_name + 10 :])
    return [f"altered file: {at.name(path)}"]


def a_folder_renamed(at: Damaged) -> list[str]:
    path = at.files()[0]
    path.parent.rename(path.parent.with_name("date=2026-03-01"))
    moved = path.parent.with_name("date=2026-03-01") / path.name
    return [f"missing file: {at.name(path)}", f"unknown file: {at.name(moved)}"]


def a_folder_renamed_in_the_manifest_too(at: Damaged) -> list[str]:
    day = at.files()[0].parent
    day.rename(day.with_name("date=2026-03-01"))
    for sequence in (0, 1):
        text = at.entry(sequence).read_text()
        at.entry(sequence).write_text(text.replace(f"topic=one/{day.name}/", "topic=one/date=2026-03-01/"))
    [one, *_] = at.path.glob("topic=one/date=2026-03-01/*-*.parquet")
    return [f"altered file: {at.name(one)}"]


def folders_that_are_no_days(at: Damaged) -> list[str]:
    found = []
    for folder in ("topic=one/date=__HIVE_DEFAULT_PARTITION__", "topic=One/date=2026-01-01"):
        path = at.path / folder / "x.parquet"
        path.parent.mkdir(parents=True)
        shutil.copyfile(at.files()[0], path)
        found.append(f"unknown file: {at.name(path)}")
    return found


def a_file_gone_and_the_manifest_mended(at: Damaged) -> list[str]:
    path = at.files()[0]
    path.unlink()

    def change(said: Said) -> None:
        [file] = [one for one in said["files"] if one["path"] == at.name(path)]
        said["files"].remove(file)
        for part in file["contents"]:
            [read] = [r for r in said["ranges"] if (r["topic"], r["partition"]) == ("one", part["partition"])]
            read["count"] -= part["count"]
            read["checksum"] = (read["checksum"] - part["checksum"]) % 2**64

    at.said(0, change)
    return ["lost: one-0, offset 0", "miscounted: round 0"]


def a_file_copied_and_the_manifest_mended(at: Damaged) -> list[str]:
    path = at.files()[0]
    shutil.copyfile(path, copy := path.with_name("000000000000-99999.parquet"))

    def change(said: Said) -> None:
        [file] = [one for one in said["files"] if one["path"] == at.name(path)]
        said["files"].append({**file, "path": at.name(copy)})

    at.said(0, change)
    return ["contradicts itself in entry 0: of one-0 its files and its ranges do not add up"]


def a_removed_stretch_that_is_said_to_be_lost(at: Damaged) -> list[str]:
    for path in at.files(sequence=1):
        path.unlink()

    def change(said: Said) -> None:
        said["files"] = [file for file in said["files"] if "topic=two" in file["path"]]
        for read in said["ranges"]:
            if read["topic"] == "one":
                read.update(count=0, checksum=0, lost_before=read["start"], start=read["end"])
        said["malformed"] = said["dead_letters"] = 4

    at.said(1, change)
    return ["lost: one-0, offset 10", "lost: one-1, offset 19"]


def the_first_round_gone(at: Damaged) -> list[str]:
    at.forget(0, is_first=True)
    return ["lost: one-0, offset 0", "lost: two-1, offset 0"]


def the_last_round_gone(at: Damaged) -> list[str]:
    at.forget(1)
    return ["cut off: one-0, which was archived up to 20, and ends at 10"]


def a_topic_gone(at: Damaged) -> list[str]:
    for sequence in (0, 1):
        at.leave_out(sequence, lambda read: bool(read["topic"] == "two"))
    return ["cut off: two-0, which was archived up to"]


def rounds_exchanged(at: Damaged) -> list[str]:
    one, two = at.entry(0).read_text(), at.entry(1).read_text()
    at.entry(0).write_text(two.replace('"sequence": 1', '"sequence": 0'))
    at.entry(1).write_text(one.replace('"sequence": 0', '"sequence": 1'))
    return ["contradicts itself in entry 1: of one-0 it does not go on"]


def a_border_between_rounds_moved(at: Damaged) -> list[str]:
    at.said(0, lambda said: said["ranges"][0].update(end=said["ranges"][0]["end"] + 5))
    at.said(1, lambda said: said["ranges"][0].update(start=said["ranges"][0]["start"] + 5))
    return ["contradicts itself in entry 1: of one-0 it has 10 records from 15 to 20"]


def more_than_there_is(at: Damaged) -> list[str]:
    at.said(1, lambda said: said["ranges"][0].update(end=99))
    return ["one-0 ends at 20, and it is archived up to 99"]


def malformed_counted_otherwise(at: Damaged) -> list[str]:
    at.said(0, lambda said: said.update(malformed=7, dead_letters=7))
    at.said(1, lambda said: said.update(malformed=9, dead_letters=9))
    return ["miscounted: round 0 counted 7 malformed records, and the archive has 8", "miscounted: round 1 counted 9"]


def letters_in_another_topic(at: Damaged) -> list[str]:
    at.said(1, lambda said: said.update(letters_topic="other-letters"))
    return ["letter missing: one-0, offset 10"]


def decoded_by_nothing(at: Damaged) -> list[str]:
    file = at.own / "archive.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "decoding": {"format": "raw", "schema": "", "framing": "plain"}}))
    return ["miscounted: round 0 counted 8 malformed records, and nothing is decoded"]


def another_kind_of_archive(at: Damaged) -> list[str]:
    file = at.own / "archive.json"
    file.write_text(file.read_text().replace('"parquet"', '"delta"'))
    return ["The table of .* cannot be read"]


def a_manifest_of_another_archive(at: Damaged) -> list[str]:
    shutil.rmtree(at.path / "topic=two")
    for path in at.files():
        path.rename(path.with_name(path.name.replace("-0", "-1")))
    return ["missing file: topic=two/", "unknown file: topic=one/", "lost: two-0, offset 0"]


def aborted_records_put_in(at: Damaged) -> list[str]:
    path = at.files("two")[0]
    at.change(path, lambda rows: rows.append({**rows[-1], "partition": 0, "offset": 12}))
    return ["strange: two-0, offset 12", f"altered file: {at.name(path)}"]


WAYS = [
    values_exchanged,
    timestamps_shifted,
    a_key_that_is_empty_instead_of_null,
    a_header_that_lost_its_name,
    another_partition,
    offsets_shifted,
    a_record_twice_instead_of_another,
    rows_in_another_order,
    a_column_gone,
    a_file_of_an_older_round,
    files_cut_and_emptied,
    a_figure_in_a_foot,
    a_folder_renamed,
    a_folder_renamed_in_the_manifest_too,
    folders_that_are_no_days,
    a_file_gone_and_the_manifest_mended,
    a_file_copied_and_the_manifest_mended,
    a_removed_stretch_that_is_said_to_be_lost,
    the_first_round_gone,
    the_last_round_gone,
    a_topic_gone,
    rounds_exchanged,
    a_border_between_rounds_moved,
    more_than_there_is,
    malformed_counted_otherwise,
    letters_in_another_topic,
    decoded_by_nothing,
    another_kind_of_archive,
    a_manifest_of_another_archive,
    aborted_records_put_in,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_planted_damage_is_named(spark: Any, damaged: Damaged, way: Callable[[Damaged], list[str]]) -> None:
    """audit.py rule 6, manifest.py rules 4 and 5: each is a line of the report, or the one sentence of a job that ends."""
    wanted = way(damaged)
    said = said_of(spark, damaged.settings)
    absent = [words for words in wanted if not any(re.search(words, line) for line in said)]
    assert not absent, said


def said_of(spark: Any, settings: AuditSettings) -> list[str]:
    """The faults that an audit names, or the sentence with which it ends."""
    try:
        report = audit(spark, replace(settings, examples=1000))
    except JobError as failure:
        return [str(failure)]
    assert report.agrees == (not report.lines)
    return [f"{line['fault']}: {line['where']}" for line in report.lines]


def test_what_is_whole_agrees(spark: Any, damaged: Damaged) -> None:
    """audit.py: a copy, one topic of it, and one with a manifest of before digests, and another name of a file."""
    assert audit(spark, damaged.settings).agrees
    assert audit(spark, replace(damaged.settings, topic=("two",))).lines == []
    old = damaged.files()[0]
    new = old.rename(old.with_name("000000000000-77777.parquet"))
    for sequence in (0, 1):
        text = damaged.entry(sequence).read_text().replace(old.name, new.name, 1)
        damaged.entry(sequence).write_text(text)
        damaged.said(sequence, lambda said: (said.pop("letters_topic"), [file.pop("sha256") for file in said["files"]]))
    report = audit(spark, damaged.settings)
    assert (report.agrees, report.letters) == (True, []), report.lines
    assert len(set(digests(damaged.files()).values())) == len(damaged.files())

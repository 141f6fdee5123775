"""A damaged manifest: an error that names the file or the entry."""

from __future__ import annotations

import json
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.manifest import Contents, DataFile, Entry, Range, read_manifest, write_entry


def entry(sequence: int) -> Entry:
    start = 10 * sequence
    path = f"topic=t/date=2026-01-01/{sequence:012d}-00000.parquet"
    file = DataFile(path, 100, (Contents(0, 10, start, start + 9, 7),))
    return Entry(sequence, "append", "now", (Range("t", "id", 0, start, start + 10, 10, 7),), (file,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three rounds, and the compaction of the first two."""
    for sequence in range(3):
        write_entry(tmp_path, entry(sequence))
    compacted = DataFile("topic=t/date=2026-01-01/000000000003-00000.parquet", 200, (Contents(0, 20, 0, 19, 14),))
    old = tuple(file.path for sequence in range(2) for file in entry(sequence).files)
    write_entry(tmp_path, Entry(3, "compact", "now", (), (compacted,), old))
    assert read_manifest(tmp_path).next_sequence == 4
    return tmp_path


def name(sequence: int) -> str:
    return f"{sequence:012d}.json"


def test_a_valid_manifest_is_read(folder: Path) -> None:
    """Also a range after a recorded gap."""
    write_entry(folder, Entry(4, "append", "now", (Range("t", "id", 0, 90, 95, 5, 1, lost_before=30),)))
    ranges = read_manifest(folder).ranges["t", 0]  # type: ignore[index]
    assert [(read.start, read.end) for read in ranges] == [(0, 10), (10, 20), (20, 30), (90, 95)]


@pytest.mark.parametrize(
    ("sequence", "sentence"), [(0, "entry 1, but entry 0 is missing"), (1, "entry 2, but entry 1 is missing")]
)
def test_a_missing_entry_is_found(folder: Path, sequence: int, sentence: str) -> None:
    (folder / name(sequence)).unlink()
    with pytest.raises(JobError, match=sentence):
        read_manifest(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "17", "{}", "\x00\x01", '{"ranges": 3}', "[" * 5000])
def test_a_file_that_is_not_an_entry_is_refused(folder: Path, text: str) -> None:
    (folder / name(1)).write_text(text)
    with pytest.raises(JobError, match=r"000000000001\.json is damaged"):
        read_manifest(folder)


def test_binary_content_and_folders_are_refused(folder: Path) -> None:
    (folder / name(1)).write_bytes(b"\xff\xfe{")
    with pytest.raises(JobError, match="is damaged"):
        read_manifest(folder)
    (folder / name(1)).unlink()
    (folder / name(1)).mkdir()
    with pytest.raises(JobError, match=r"000000000001\.json cannot be read: Is a directory"):
        read_manifest(folder)
    with pytest.raises(JobError, match="nowhere cannot be read: No such file"):
        read_manifest(folder / "nowhere")


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("sequence", 2, "its content is that of entry 2"),
        ("sequence", "1", "sequence is '1'"),
        ("kind", "delete", "unknown kind delete"),
        ("unknown", 1, "unexpected keyword argument 'unknown'"),
        ("ranges.0.start", 9, "entry 1: the range of t-0 does not continue"),
        ("ranges.0.start", 11, "entry 1: the range of t-0 does not continue"),
        ("ranges.0.end", 21, "entry 2: the range of t-0 does not continue"),
        ("ranges.0.end", 19, "entry 1: of t-0 it has 10 records from 10 to 19"),
        ("ranges.0.count", -1, "entry 1: of t-0 it has -1 records from 10 to 20"),
        ("ranges.0.count", 9, "entry 1: of t-0 the records of its files are not those of its ranges"),
        ("ranges.0.checksum", 8, "entry 1: of t-0 the records of its files are not those of its ranges"),
        ("files.0.contents.0.checksum", 8, "entry 1: of t-0 the records of its files are not those of its ranges"),
        ("files.0.contents.0.partition", 1, "entry 1: of t-0 the records of its files are not those of its ranges"),
        ("files.0.contents.0.last", 20, "entry 1: .* goes beyond what was read of t-0"),
        ("files.0.contents.0.first", 9, "entry 1: .* goes beyond what was read of t-0"),
        ("malformed", 11, "entry 1: 11 of its records are malformed"),
        ("malformed", -1, "entry 1: -1 of its records are malformed"),
        ("dead_letters_topic", "x", "entry 1: it names the dead letter topic x"),
        ("letters_topic", "former", "entry 1: it names the dead letter topic former"),
        ("dead_letters", 1, "entry 1: it has 1 dead letters for 0 malformed records"),
        ("ranges.0.end", 3, "entry 1: the range of t-0 does not continue"),
        ("ranges.0.lost_before", 4, "entry 1: the range of t-0 does not continue"),
        ("ranges.0.topic_id", "other", "entry 1: the range of t-0 does not continue"),
        ("ranges.0.end", "20", "end is '20'"),
        ("ranges.0.checksum", None, "checksum is None"),
        ("ranges.0", 5, "is damaged"),
        ("files.0.contents.0.count", 1.5, "count is 1.5"),
        ("files.0.path", entry(0).files[0].path, "entry 1: .* exists already"),
        ("files.0.path", "../../etc/passwd.parquet", "not the path of a data file"),
        ("files.0.path", "/tmp/topic=t/date=2026-01-01/x.parquet", "not the path of a data file"),
        (
            "replaces",
            ["topic=t/date=2026-01-01/x.parquet"],
            "entry 1: .* is replaced, but is not a file of the archive",
        ),
        ("replaces", ["../x"], "not the path of a data file"),
        ("replaces", [7], "is damaged"),
    ],
)
def test_an_inconsistent_entry_is_refused(folder: Path, path: str, value: object, sentence: str) -> None:
    """`path` leads to the changed field, as in ranges.0.start."""
    fields = json.loads((folder / name(1)).read_text())
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    reduce(getitem, parents, fields)[last] = value
    (folder / name(1)).write_text(json.dumps(fields))
    with pytest.raises(JobError, match=sentence):
        read_manifest(folder)


def test_a_compaction_that_lost_records_is_refused(folder: Path) -> None:
    fields = json.loads((folder / name(3)).read_text())
    fields["files"][0]["contents"][0]["count"] = 19
    (folder / name(3)).write_text(json.dumps(fields))
    with pytest.raises(JobError, match="entry 3: of t-0 the records of its files are not those of its ranges"):
        read_manifest(folder)


def test_a_year_of_five_digits_is_accepted(folder: Path) -> None:
    """Some producers use microseconds instead of milliseconds."""
    fields = json.loads((folder / name(2)).read_text())
    fields["files"][0]["path"] = path = "topic=t/date=+57971-02-25/000000000002-00000.parquet"
    (folder / name(2)).write_text(json.dumps(fields))
    assert path in read_manifest(folder).files


def test_a_duplicate_entry_is_refused(folder: Path) -> None:
    last = (folder / name(2)).read_text()
    (folder / name(4)).write_text(last)
    with pytest.raises(JobError, match="its content is that of entry 2"):
        read_manifest(folder)
    (folder / name(4)).write_text(last.replace('"sequence": 2', '"sequence": 4'))
    with pytest.raises(JobError, match=r"entry 4: .* exists already"):
        read_manifest(folder)

"""The manifest of an archive: one small file per round. Its creation commits the round.

FORMAT   _barnabas/manifest/<sequence, 12 digits>.json, numbered from 0 without gaps:
             sequence, kind (append, compact), written (UTC)
             ranges   [{topic, topic_id, partition, start, end, lost_before, count, checksum}]   offsets read (append only)
             files    [{path, bytes, sha256, contents: [{partition, count, first, last, checksum}]}]    files added
             replaces [path]                                                                     files removed
             malformed, dead_letters, dead_letters_topic     numbers of records and of dead letters, and the topic of these
         Entries written before 2026-11-22 have no `sha256` and no `dead_letters_topic`; until 2026-11-28 it was named
         `letters_topic`.
RULES    1. An entry is written to a temporary file, synced and renamed. It never changes.
         2. The ranges of a partition are contiguous. `lost_before` is the first offset of a gap that the broker had deleted.
         3. A checksum is a sum over records: independent of their order, and additive.
         4. Entries are validated when they are read: types, data paths inside the archive, consistency with earlier entries.
            An error names the file.
         5. An append entry's files hold the records of its ranges; a compact entry's files those of the replaced files.
            Malformed records are at most all records. Dead letters are none or one for each malformed record.
NOT HERE Moving data files (`publish.py`), checksums (`barnabas/pipeline/checksums.py`).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.checksums import add_checksums
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_files import RESTORE, from_fields, read_json, write_durably

NAME = re.compile(r"(\d{12})\.json")
DATA_PATH = re.compile(r"topic=[^/]+/date=[+-]?\d{4,}-\d\d-\d\d/[^/]+\.parquet")
"""A timestamp in microseconds instead of milliseconds has a five-digit year, which Spark writes with a sign."""
KINDS = ("append", "compact")
FORMER_NAMES = {"letters_topic": "dead_letters_topic"}


@dataclass(frozen=True)
class Contents:
    """The records of one partition in a file."""

    partition: int
    count: int
    first: int
    last: int
    checksum: int


class Total(NamedTuple):
    """Number of records of a partition, and their checksum."""

    records: int = 0
    checksum: int = 0


@dataclass(frozen=True)
class DataFile:
    """A data file; the path is relative to the archive."""

    path: str
    bytes: int
    contents: tuple[Contents, ...]
    sha256: str = ""

    @property
    def folder(self) -> str:
        """The folder of the topic and date."""
        return self.path.rpartition("/")[0]

    @property
    def topic(self) -> str:
        """The topic of the records."""
        return topic_of(self.path)

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(part.count for part in self.contents)


@dataclass(frozen=True)
class Range:
    """The offsets that a round read of one partition; `end` is exclusive."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    count: int
    checksum: int
    lost_before: int | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class Entry:
    """One round."""

    sequence: int
    kind: str
    written: str
    ranges: tuple[Range, ...] = ()
    files: tuple[DataFile, ...] = ()
    replaces: tuple[str, ...] = ()
    malformed: int = 0
    dead_letters: int = 0
    dead_letters_topic: str = ""

    def as_text(self) -> str:
        """Returns the entry as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Entry:
        """Validates an entry. Raises ValueError, KeyError or TypeError."""
        files = [
            {**part, "contents": tuple(from_fields(Contents, contents) for contents in part["contents"])}
            for part in fields["files"]
        ]
        entry = from_fields(
            cls,
            {
                **fields,
                "ranges": tuple(from_fields(Range, part) for part in fields["ranges"]),
                "files": tuple(from_fields(DataFile, part) for part in files),
                "replaces": tuple(fields["replaces"]),
            },
            FORMER_NAMES,
        )
        if entry.kind not in KINDS:
            raise ValueError(f"unknown kind {entry.kind}")
        for path in (*(file.path for file in entry.files), *entry.replaces):
            if not DATA_PATH.fullmatch(path):
                raise ValueError(f"{path} is not the path of a data file")
        return entry


@dataclass
class Manifest:
    """The state of the archive after all entries."""

    next_sequence: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    ranges: dict[TopicPartition, list[Range]] = field(default_factory=dict)
    rounds: list[Entry] = field(default_factory=list)
    last: Entry | None = None

    def add(self, entry: Entry) -> None:
        """Applies the next entry. Raises JobError if it contradicts earlier ones."""
        if entry.sequence != self.next_sequence:
            raise JobError(
                f"The manifest has entry {entry.sequence}, but entry {self.next_sequence} is missing: {RESTORE}."
            )
        old = []
        for path in entry.replaces:
            if (file := self.files.pop(path, None)) is None:
                raise _contradiction(entry, f"{path} is replaced, but is not a file of the archive")
            old.append(file)
        for file in entry.files:
            if self.files.setdefault(file.path, file) is not file:
                raise _contradiction(entry, f"{file.path} exists already")
        for read in entry.ranges:
            before = self.ranges.setdefault(read.tp, [])
            if not _follows(read, before):
                raise _contradiction(entry, f"the range of {read.tp} does not continue the previous one")
            before.append(read)
        if inconsistency := _inconsistency(entry, old):
            raise _contradiction(entry, inconsistency)
        if entry.kind == "append":
            self.rounds.append(entry)
        self.last = entry
        self.next_sequence += 1

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Returns the offset at which the next round starts, by partition."""
        return {tp: ranges[-1].end for tp, ranges in self.ranges.items()}

    def topic_ids(self) -> dict[str, str]:
        """Returns the archived topics with their last known topic ids."""
        return {tp.topic: ranges[-1].topic_id for tp, ranges in self.ranges.items()}


def topic_of(path: str) -> str:
    """Returns the topic of a data file's path."""
    return path.partition("/")[0].partition("=")[2]


def _follows(read: Range, before: list[Range]) -> bool:
    """Whether a range continues the earlier ones (rule 2)."""
    if not 0 <= read.start <= read.end:
        return False
    if not before:
        return read.lost_before is None
    last = before[-1]
    resumes_at = read.start if read.lost_before is None else read.lost_before
    return resumes_at == last.end <= read.start and read.topic_id == last.topic_id


def _inconsistency(entry: Entry, old: Iterable[DataFile]) -> str:
    """Describes what violates rule 5; empty if nothing does. A round of a table has no files."""
    read = {span.tp: span for span in entry.ranges}
    for tp, span in read.items():
        if not 0 <= span.count <= span.end - span.start:
            return f"of {tp} it has {span.count} records from {span.start} to {span.end}"
    if not 0 <= entry.malformed <= sum(read.count for read in entry.ranges):
        return f"{entry.malformed} of its records are malformed"
    if entry.dead_letters not in (0, entry.malformed):
        return f"it has {entry.dead_letters} dead letters for {entry.malformed} malformed records"
    if entry.dead_letters_topic and not entry.dead_letters:
        return f"it names the dead letter topic {entry.dead_letters_topic}, but has no dead letters"
    if not entry.files:
        return ""
    appended = {tp: (total.count, total.checksum) for tp, total in read.items() if total.count}
    expected = totals_of(old) if entry.replaces else appended
    present = totals_of(entry.files)
    for tp in sorted(expected.keys() | present.keys()):
        if expected.get(tp) != present.get(tp):
            return f"of {tp} the records of its files are not those of its ranges"
    for file in () if entry.replaces else entry.files:
        for part in file.contents:
            span = read[TopicPartition(file.topic, part.partition)]
            if not span.start <= part.first <= part.last < span.end:
                return f"{file.path} goes beyond what was read of {span.tp}"
    return ""


def totals_of(files: Iterable[DataFile]) -> dict[TopicPartition, Total]:
    """Returns the number of records in these files and their checksum, by partition."""
    found: dict[TopicPartition, Total] = {}
    for file in files:
        for part in file.contents:
            tp = TopicPartition(file.topic, part.partition)
            before = found.get(tp, Total())
            found[tp] = Total(before.records + part.count, add_checksums((before.checksum, part.checksum)))
    return found


def _contradiction(entry: Entry, reason: str) -> JobError:
    return JobError(f"The manifest contradicts itself in entry {entry.sequence}: {reason}; {RESTORE}.")


def read_entries(folder: Path) -> list[Entry]:
    """Reads all entries, in order."""
    try:
        names = sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name))
    except OSError as failure:
        raise JobError(f"The manifest {folder} cannot be read: {failure.strerror}.") from failure
    return [_read(folder / name) for name in names]


def read_manifest(folder: Path) -> Manifest:
    """Reads all entries and applies them."""
    manifest = Manifest()
    for entry in read_entries(folder):
        manifest.add(entry)
    return manifest


def _read(path: Path) -> Entry:
    entry = read_json(path, Entry.from_json, f"The manifest file {path}")
    if entry.sequence != int(path.stem):
        raise JobError(
            f"The manifest file {path} is damaged: its content is that of entry {entry.sequence}; {RESTORE}."
        )
    return entry


def write_entry(folder: Path, entry: Entry) -> None:
    """Writes an entry durably: this commits the round (rule 1)."""
    write_durably(folder / f"{entry.sequence:012d}.json", entry.as_text())

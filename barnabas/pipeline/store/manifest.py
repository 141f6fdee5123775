"""The manifest of an archive: one small file for each round, whose appearance is what commits the round.

FORMAT   _barnabas/manifest/<sequence, 12 digits>.json, numbered from 0 without gaps:
             sequence, kind (append, compact), written (UTC)
             ranges   [{topic, topic_id, partition, start, end, lost_before, count, checksum}]   what was read (append only)
             files    [{path, bytes, sha256, contents: [{partition, count, first, last, checksum}]}]     what it added
             replaces [path]                                                                      what it took away
             malformed, dead_letters, letters_topic            how many records, how many letters, and where these went
         Entries of before 2026-11-22 have neither `sha256` nor `letters_topic`.
RULES    1. A file of the manifest is written beside its place, synced, and renamed; then the folder is synced. It is there
            whole or not at all, and it never changes afterwards.
         2. The ranges of a partition follow each other: a round starts where the one before it ended. Where records had
            gone before they could be read, `lost_before` says from which offset.
         3. A checksum is a sum over records, so that it does not depend on their order, and those of parts add up.
         4. Somebody may have damaged it: what an entry says must be of the right kinds and fit what the entries before it
            say, else one sentence names the file. No path leads out of the archive.
         5. An entry's files hold what its ranges say, or what the files held that they replace; no round has more malformed
            records than records, nor letters for some of them only.
NOT HERE Moving data files (`publish.py`), the sums (`barnabas/pipeline/checksums.py`).
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from barnabas.pipeline.brokers import Place, Span
from barnabas.pipeline.checksums import add_up
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_write import write_durably

T = TypeVar("T")
NAME = re.compile(r"(\d{12})\.json")
DATA_PATH = re.compile(r"topic=[^/]+/date=[+-]?\d{4,}-\d\d-\d\d/[^/]+\.parquet")
"""A timestamp of microseconds where milliseconds were meant lies in a year of five digits, which Spark writes with a sign."""
KINDS = ("append", "compact")


@dataclass(frozen=True)
class Contents:
    """What a file holds of one partition."""

    partition: int
    count: int
    first: int
    last: int
    checksum: int


@dataclass(frozen=True)
class DataFile:
    """A file of the archive, by its path inside it."""

    path: str
    bytes: int
    contents: tuple[Contents, ...]
    sha256: str = ""

    @property
    def folder(self) -> str:
        """The folder of its topic and date."""
        return self.path.rpartition("/")[0]

    @property
    def topic(self) -> str:
        """Whose records it holds."""
        return topic_of(self.path)

    @property
    def count(self) -> int:
        """How many records it holds."""
        return sum(part.count for part in self.contents)


@dataclass(frozen=True)
class Range:
    """What a round read of one partition: every record from `start` to `end`."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    count: int
    checksum: int
    lost_before: int | None = None

    @property
    def place(self) -> Place:
        """The partition."""
        return Place(self.topic, self.partition)


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
    letters_topic: str = ""

    def as_text(self) -> str:
        """The entry as it stands in its file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Entry:
        """The entry of a file."""
        said: dict[str, Any] = json.loads(text)
        files = [
            {**part, "contents": tuple(made_of(Contents, one) for one in part["contents"])} for part in said["files"]
        ]
        entry = made_of(
            cls,
            {
                **said,
                "ranges": tuple(made_of(Range, part) for part in said["ranges"]),
                "files": tuple(made_of(DataFile, part) for part in files),
                "replaces": tuple(said["replaces"]),
            },
        )
        if entry.kind not in KINDS:
            raise ValueError(f"there is no kind {entry.kind}")
        for path in (*(file.path for file in entry.files), *entry.replaces):
            if not DATA_PATH.fullmatch(path):
                raise ValueError(f"{path} is no path of a data file")
        return entry


def made_of(kind: type[T], said: dict[str, Any]) -> T:
    """The dataclass with these values, each of which must be of its field's kind (rule 4)."""
    made: Any = kind(**said)
    for name, wanted in _kinds_of(typing.cast("Any", kind)):
        if not isinstance(getattr(made, name), wanted):
            raise TypeError(f"{name} is {said[name]!r}")
    return typing.cast("T", made)


@cache
def _kinds_of(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, origin if (origin := typing.get_origin(hint)) in {tuple, dict} else hint)
        for name, hint in typing.get_type_hints(kind).items()
    )


@dataclass
class Manifest:
    """All entries taken together: what the archive holds now."""

    next_sequence: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    ranges: dict[Place, list[Range]] = field(default_factory=dict)
    rounds: list[Entry] = field(default_factory=list)
    last: Entry | None = None

    def add(self, entry: Entry) -> None:
        """Take the next entry in."""
        if entry.sequence != self.next_sequence:
            raise JobError(
                f"The manifest goes from entry {self.next_sequence - 1} to {entry.sequence}: one is missing."
            )
        old = []
        for path in entry.replaces:
            if (file := self.files.pop(path, None)) is None:
                raise _contradiction(entry, f"{path} is replaced, and it was not there")
            old.append(file)
        for file in entry.files:
            if self.files.setdefault(file.path, file) is not file:
                raise _contradiction(entry, f"{file.path} is there already")
        for read in entry.ranges:
            before = self.ranges.setdefault(read.place, [])
            if not _follows(read, before):
                raise _contradiction(entry, f"of {read.place} it does not go on where the entry before it ended")
            before.append(read)
        if misfit := _misfit(entry, old):
            raise _contradiction(entry, misfit)
        if entry.kind == "append":
            self.rounds.append(entry)
        self.last = entry
        self.next_sequence += 1

    def ends(self) -> dict[Place, int]:
        """Where the next round starts."""
        return {place: ranges[-1].end for place, ranges in self.ranges.items()}

    def topic_ids(self) -> dict[str, str]:
        """The topics that are held, with the ids that they had when they were read last."""
        return {place.topic: ranges[-1].topic_id for place, ranges in self.ranges.items()}

    def spans(self, place: Place) -> list[Span]:
        """What was read of a partition, joined where nothing was lost between two rounds."""
        spans: list[Span] = []
        for read in self.ranges.get(place, []):
            if spans and spans[-1].end == read.start:
                spans[-1] = Span(spans[-1].start, read.end)
            else:
                spans.append(Span(read.start, read.end))
        return spans


def contents_of(files: Iterable[DataFile], place: Place) -> list[Contents]:
    """What these files hold of one partition."""
    return [
        part
        for file in files
        if file.topic == place.topic
        for part in file.contents
        if part.partition == place.partition
    ]


def topic_of(path: str) -> str:
    """The topic of a data file, from its path inside the archive."""
    return path.partition("/")[0].partition("=")[2]


def _follows(read: Range, before: list[Range]) -> bool:
    """Rule 2."""
    if not 0 <= read.start <= read.end:
        return False
    if not before:
        return read.lost_before is None
    last = before[-1]
    came_to = read.start if read.lost_before is None else read.lost_before
    return came_to == last.end <= read.start and read.topic_id == last.topic_id


def _misfit(entry: Entry, old: Iterable[DataFile]) -> str:
    """What of an entry does not fit (rule 5); a round of a table has no files."""
    read = {span.place: span for span in entry.ranges}
    for place, span in read.items():
        if not 0 <= span.count <= span.end - span.start:
            return f"of {place} it has {span.count} records from {span.start} to {span.end}"
    if not 0 <= entry.malformed <= sum(read.count for read in entry.ranges):
        return f"{entry.malformed} of its records are malformed"
    if entry.dead_letters not in (0, entry.malformed):
        return f"it has {entry.dead_letters} letters for {entry.malformed} malformed records"
    if entry.letters_topic and not entry.dead_letters:
        return f"it has no letters, and they are in {entry.letters_topic}"
    if not entry.files:
        return ""
    wanted = (
        _sums(old) if entry.replaces else {place: (one.count, one.checksum) for place, one in read.items() if one.count}
    )
    there = _sums(entry.files)
    for place in sorted(wanted.keys() | there.keys()):
        if wanted.get(place) != there.get(place):
            return f"of {place} its files and its ranges do not add up"
    for file in () if entry.replaces else entry.files:
        for part in file.contents:
            span = read[Place(file.topic, part.partition)]
            if not span.start <= part.first <= part.last < span.end:
                return f"{file.path} goes beyond what was read of {span.place}"
    return ""


def _sums(files: Iterable[DataFile]) -> dict[Place, tuple[int, int]]:
    """How many records files hold of each partition, and their checksum (rule 3)."""
    found: dict[Place, tuple[int, int]] = {}
    for file in files:
        for part in file.contents:
            place = Place(file.topic, part.partition)
            count, checksum = found.get(place, (0, 0))
            found[place] = count + part.count, add_up((checksum, part.checksum))
    return found


def _contradiction(entry: Entry, words: str) -> JobError:
    return JobError(f"The manifest contradicts itself in entry {entry.sequence}: {words}.")


def read_entries(folder: Path) -> list[Entry]:
    """Every entry there is, the oldest first."""
    try:
        names = sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name))
    except OSError as failure:
        raise JobError(f"The manifest {folder} cannot be read: {failure.strerror}.") from failure
    return [_read(folder / name) for name in names]


def read_manifest(folder: Path) -> Manifest:
    """What all entries come to."""
    manifest = Manifest()
    for entry in read_entries(folder):
        manifest.add(entry)
    return manifest


def _read(path: Path) -> Entry:
    try:
        entry = Entry.from_text(path.read_text())
    except OSError as failure:
        raise JobError(f"The manifest file {path} cannot be read: {failure.strerror}.") from failure
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as failure:
        raise JobError(f"The manifest file {path} is damaged: {failure}.") from failure
    if entry.sequence != int(path.stem):
        raise JobError(f"The manifest file {path} is damaged: it says that it is entry {entry.sequence}.")
    return entry


def write_entry(folder: Path, entry: Entry) -> None:
    """Commit a round (rule 1)."""
    write_durably(folder / f"{entry.sequence:012d}.json", entry.as_text())

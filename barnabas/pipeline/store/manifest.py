"""The manifest of an archive: one small file for each round, whose appearance is what commits the round.

FORMAT   _barnabas/manifest/<sequence, 12 digits>.json, numbered from 0 without gaps:
             sequence, kind (append, compact), written (UTC)
             ranges   [{topic, topic_id, partition, start, end, lost_before, count, checksum}]   what was read (append only)
             files    [{path, bytes, contents: [{partition, count, first, last, checksum}]}]      what it added
             replaces [path]                                                                      what it took away
             malformed, dead_letters                                                              how many records
RULES    1. A file of the manifest is written beside its place, synced, and renamed; then the folder is synced. It is there
            whole or not at all, and it never changes afterwards.
         2. The ranges of a partition follow each other: a round starts where the one before it ended. Where records had
            gone before they could be read, `lost_before` says from which offset.
         3. A checksum is a sum over records, so that it does not depend on their order, and those of parts add up.
NOT HERE Moving data files (`publish.py`), the sums (`barnabas/pipeline/checksums.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from barnabas.pipeline.brokers import Place, Span
from barnabas.pipeline.trouble import JobError

NAME = re.compile(r"(\d{12})\.json")
WRAP = 1 << 64


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

    @property
    def folder(self) -> str:
        """The folder of its topic and date."""
        return self.path.rpartition("/")[0]

    @property
    def topic(self) -> str:
        """Whose records it holds."""
        return self.path.partition("/")[0].partition("=")[2]

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

    def as_text(self) -> str:
        """The entry as it stands in its file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Entry:
        """The entry of a file."""
        said: dict[str, Any] = json.loads(text)
        said["ranges"] = tuple(Range(**part) for part in said["ranges"])
        said["files"] = tuple(
            DataFile(part["path"], part["bytes"], tuple(Contents(**one) for one in part["contents"]))
            for part in said["files"]
        )
        said["replaces"] = tuple(said["replaces"])
        return cls(**said)


@dataclass
class Manifest:
    """All entries taken together: what the archive holds now."""

    next_sequence: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    ranges: dict[Place, list[Range]] = field(default_factory=dict)
    last: Entry | None = None

    def add(self, entry: Entry) -> None:
        """Take the next entry in."""
        if entry.sequence != self.next_sequence:
            raise JobError(
                f"The manifest goes from entry {self.next_sequence - 1} to {entry.sequence}: one is missing."
            )
        for path in entry.replaces:
            self.files.pop(path)
        self.files.update((file.path, file) for file in entry.files)
        for read in entry.ranges:
            self.ranges.setdefault(read.place, []).append(read)
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


def add_up(checksums: Iterable[int]) -> int:
    """The checksum of several parts together."""
    return sum(checksums) % WRAP


def read_entries(folder: Path) -> list[Entry]:
    """Every entry there is, the oldest first."""
    names = sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name))
    return [_read(folder / name) for name in names]


def read_manifest(folder: Path) -> Manifest:
    """What all entries come to."""
    manifest = Manifest()
    for entry in read_entries(folder):
        manifest.add(entry)
    return manifest


def _read(path: Path) -> Entry:
    try:
        return Entry.from_text(path.read_text())
    except (ValueError, KeyError, TypeError) as failure:
        raise JobError(f"The manifest file {path} is damaged: {failure}.") from failure


def write_entry(folder: Path, entry: Entry) -> None:
    """Commit a round (rule 1)."""
    write_durably(folder / f"{entry.sequence:012d}.json", entry.as_text())


def write_durably(path: Path, text: str) -> None:
    """A file that is there whole or not at all, also after the machine went down."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

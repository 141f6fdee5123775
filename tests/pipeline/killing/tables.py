"""Tables and aggregates that are killed: folders that change as a whole.

RULES    1. After every kill the version that counts is what the records up to the offsets that it names come to, and `current`
            is that version or the one before it.
         2. In the end `current` is what all records come to.
         3. A table is the latest value of each key; windows and what came late for them count every record once.
"""

from __future__ import annotations

import json
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.pipeline.killing.story import MINUTE_MS, Moment, Story, counted
from tests.pipeline.killing.topics import PARTITIONS, At, Record, make, send

RECORDS = 900
ROUND = 450
KEYS = 400
WINDOW_MS = 6 * 60 * MINUTE_MS


class Versioned(Story):
    """A job that keeps a folder of versions (`store/versions.py`)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: dict[At, Record] = {}
        make(self.bootstrap, self.topic)

    @abstractmethod
    def found(self, version: Path) -> dict[Any, Any]:
        """What a stranger reads."""

    @abstractmethod
    def wanted(self, records: Iterator[tuple[At, Record]]) -> dict[Any, Any]:
        """What these records, in the order of partitions and offsets, come to."""

    def send_more(self) -> None:
        """A fifth has no value; a key has its partition, as Kafka's partitioners have it."""
        portion = []
        for _ in range(RECORDS):
            ms = self.next_ms()
            key = b"key %d" % self.rng.randrange(KEYS)
            value = b"value %d" % self.count if self.rng.random() < 0.8 else None
            portion.append((zlib.crc32(key) % PARTITIONS, Record(key, value, ms)))
        self.sent |= send(self.bootstrap, self.topic, portion)

    def words(self) -> list[str]:
        """Small rounds."""
        where = ["--bootstrap", self.bootstrap, "--topic", self.topic, "--into", str(self.into)]
        return [self.name, *where, "--max-offsets-per-trigger", str(ROUND)]

    def moments(self) -> dict[str, Moment]:
        """By what lies in the folder."""
        staging = self.into / "_barnabas" / "staging"
        return {
            "staging": Moment(counted(staging, "*"), 1),
            "writing": Moment(counted(staging, "**/_temporary/0/*/*"), 2),
            "written": Moment(lambda: max((int(path.name) for path in self.into.glob("versions/*")), default=0), 3),
            "committed": Moment(lambda: int(self._state().get("version", 0)), 3),
        }

    def check(self) -> int:
        """Rule 1."""
        state = self._state()
        number = int(state.get("version", 0))
        if not number:
            return 0
        ends = {int(partition): int(end) for partition, end in state["ends"].items()}
        records = ((at, record) for at, record in self._in_order() if at[1] < ends.get(at[0], 0))
        assert self.found(self._version(number)) == self.wanted(records), f"version {number} is not that up to {ends}"
        if number > 1:
            current = (self.into / "current").resolve()
            assert current in {self._version(number).resolve(), self._version(number - 1).resolve()}
            self.found(current)
        return sum(ends.values())

    def check_all(self) -> None:
        """Rule 2."""
        assert self.found(self.into / "current") == self.wanted(self._in_order())

    def _in_order(self) -> Iterator[tuple[At, Record]]:
        return iter(sorted(self.sent.items(), key=lambda one: one[0]))

    def _version(self, number: int) -> Path:
        return self.into / "versions" / f"{number:08d}"

    def _state(self) -> dict[str, Any]:
        file = self.into / "_barnabas" / f"{self.name}.json"
        said: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return said


class Table(Versioned):
    """Keys that are set, set again, and deleted."""

    name = "table"

    def found(self, version: Path) -> dict[Any, Any]:
        """Rows by their keys."""
        rows: dict[Any, Any] = {}
        for row in _rows(version):
            assert row["key"] not in rows, f"{row['key']!r} has two rows"
            rows[row["key"]] = (row["value"], row["partition"], row["offset"], _ms(row["timestamp"]))
        return rows

    def wanted(self, records: Iterator[tuple[At, Record]]) -> dict[Any, Any]:
        """The last one of each key, unless it deletes."""
        rows: dict[Any, Any] = {}
        for (partition, offset), record in records:
            rows.pop(record.key, None)
            if record.value is not None:
                rows[record.key] = (record.value, partition, offset, record.ms)
        return rows


class Aggregate(Versioned):
    """Windows of some hours, by a group, with less lateness than partitions are apart."""

    name = "aggregate"

    def words(self) -> list[str]:
        """Windows by whether there is a value."""
        shape = ["--window", "6 hours", "--lateness", "1 hour", "--by", "value is null as is_empty"]
        return [*super().words(), *shape]

    def found(self, version: Path) -> dict[Any, Any]:
        """How many records each window has, those that came late for it among them."""
        rows: Counter[Any] = Counter()
        windows = [(_ms(row["window_start"]), row["is_empty"]) for row in _rows(version / "windows")]
        assert len(windows) == len(set(windows)), "a window is there twice"
        for kind in ("windows", "late"):
            for row in _rows(version / kind):
                rows[_ms(row["window_start"]), row["is_empty"]] += row["records"]
        return dict(rows)

    def wanted(self, records: Iterator[tuple[At, Record]]) -> dict[Any, Any]:
        """The same in plain Python."""
        return dict(Counter((record.ms // WINDOW_MS * WINDOW_MS, record.value is None) for _, record in records))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.parquet")):
        yield from pq.ParquetFile(path).read().to_pylist()


def _ms(moment: Any) -> int:
    return round(moment.timestamp() * 1000)

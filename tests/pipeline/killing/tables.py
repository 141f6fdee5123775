"""Tables and aggregates that are killed: versioned folders.

RULES    1. After every kill the committed version equals the result for the records up to its offsets, and `current` is that
            version or the previous one.
         2. In the end `current` equals the result for all records.
         3. A table holds the latest value of each key; windows and their late rows count every record once.
"""

from __future__ import annotations

import json
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.pipeline.killing.scenario import Scenario, Trigger, count_matches
from tests.pipeline.killing.topics import PARTITIONS, Position, Record
from tests.pipeline.topics import MINUTE_MS

RECORDS = 900
ROUND = 450
KEYS = 400
WINDOW_MS = 6 * 60 * MINUTE_MS


class VersionedFolder(Scenario):
    """A job with a versioned folder (`store/versions.py`)."""

    @abstractmethod
    def found(self, version: Path) -> dict[Any, Any]:
        """Returns the content of a version."""

    @abstractmethod
    def wanted(self, records: Iterator[tuple[Position, Record]]) -> dict[Any, Any]:
        """Returns the expected content for these records, ordered by partition and offset."""

    def send_more(self) -> None:
        """Sends records; a fifth has no value; the key determines the partition."""
        portion = []
        for _ in range(RECORDS):
            ms = self.next_ms()
            key = b"key %d" % self.rng.randrange(KEYS)
            value = b"value %d" % self.count if self.rng.random() < 0.8 else None
            portion.append((zlib.crc32(key) % PARTITIONS, Record(key, value, ms)))
        self.send(portion)

    def words(self) -> list[str]:
        where = ["--bootstrap", self.bootstrap, "--topic", self.topic, "--into", str(self.into)]
        return [self.name, *where, "--max-offsets-per-trigger", str(ROUND)]

    def triggers(self) -> dict[str, Trigger]:
        staging = self.into / "_barnabas" / "staging"
        return {
            "staging": Trigger(count_matches(staging, "*"), 1),
            "writing": Trigger(count_matches(staging, "**/_temporary/0/*/*"), 2),
            "written": Trigger(lambda: max((int(path.name) for path in self.into.glob("versions/*")), default=0), 3),
            "committed": Trigger(lambda: int(self._state().get("version", 0)), 3),
        }

    def check(self) -> int:
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

    def check_complete(self) -> None:
        assert self.found(self.into / "current") == self.wanted(self._in_order())

    def _in_order(self) -> Iterator[tuple[Position, Record]]:
        return iter(sorted(self.sent.items(), key=lambda one: one[0]))

    def _version(self, number: int) -> Path:
        return self.into / "versions" / f"{number:08d}"

    def _state(self) -> dict[str, Any]:
        file = self.into / "_barnabas" / f"{self.name}.json"
        fields: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return fields


class Table(VersionedFolder):
    """Keys that are set, changed and deleted."""

    name = "table"

    def found(self, version: Path) -> dict[Any, Any]:
        rows: dict[Any, Any] = {}
        for row in _rows(version):
            assert row["key"] not in rows, f"{row['key']!r} has two rows"
            rows[row["key"]] = (row["value"], row["partition"], row["offset"], _ms(row["timestamp"]))
        return rows

    def wanted(self, records: Iterator[tuple[Position, Record]]) -> dict[Any, Any]:
        rows: dict[Any, Any] = {}
        for (partition, offset), record in records:
            rows.pop(record.key, None)
            if record.value is not None:
                rows[record.key] = (record.value, partition, offset, record.ms)
        return rows


class Aggregate(VersionedFolder):
    """Windows of six hours by group; the allowed lateness is smaller than the distance between partitions."""

    name = "aggregate"

    def words(self) -> list[str]:
        spec = ["--window", "6 hours", "--lateness", "1 hour", "--by", "value is null as is_empty"]
        return [*super().words(), *spec]

    def found(self, version: Path) -> dict[Any, Any]:
        """Returns the number of records of each window, including late ones."""
        rows: Counter[Any] = Counter()
        windows = [(_ms(row["window_start"]), row["is_empty"]) for row in _rows(version / "windows")]
        assert len(windows) == len(set(windows)), "a window is there twice"
        for kind in ("windows", "late"):
            for row in _rows(version / kind):
                rows[_ms(row["window_start"]), row["is_empty"]] += row["records"]
        return dict(rows)

    def wanted(self, records: Iterator[tuple[Position, Record]]) -> dict[Any, Any]:
        return dict(Counter((record.ms // WINDOW_MS * WINDOW_MS, record.value is None) for _, record in records))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.parquet")):
        yield from pq.ParquetFile(path).read().to_pylist()


def _ms(trigger: datetime) -> int:
    return round(trigger.timestamp() * 1000)

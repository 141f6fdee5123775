"""Archives that are killed: raw with compaction, and decoded with dead letters.

RULES    1. After every kill the folder, read by Arrow without the manifest, has no duplicate and no unknown record.
         2. In the end every record exists once, with its key, value, timestamp and headers.
         3. A malformed record's letter is in its topic once, in the order of its partition; a decoded record has its data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.pipeline.killing.scenario import Scenario, Trigger, count_matches, headers_of
from tests.pipeline.killing.topics import PARTITIONS, Position, Record, high_watermarks, read_from

RECORDS = 900
ROUND = 450


class Archive(Scenario):
    """A raw archive whose days of small files are compacted."""

    name = "archive"
    is_archive = True

    def send_more(self) -> None:
        self.send([(self.rng.randrange(PARTITIONS), self.record(self.next_ms())) for _ in range(RECORDS)])

    def record(self, ms: int) -> Record:
        number = self.count
        return Record(b"%d" % (number % 50), b"value %d" % number if number % 9 else None, ms, headers_of(number))

    def words(self) -> list[str]:
        options = {
            "--bootstrap": self.bootstrap,
            "--topic": self.topic,
            "--into": str(self.into),
            "--max-offsets-per-trigger": str(ROUND),
            "--compact-above": "2",
        }
        return ["archive", *(word for pair in options.items() for word in pair)]

    def triggers(self) -> dict[str, Trigger]:
        own = self.into / "_barnabas"
        return {
            "begun": Trigger(self._rounds_begun, 4),
            "staging": Trigger(count_matches(own / "staging", "*"), 1),
            "writing": Trigger(count_matches(own / "staging", "*/_temporary/0/*/*"), 2),
            "staged": Trigger(count_matches(own / "staging", "*/topic=*/date=*/0*.parquet"), 2),
            "committed": Trigger(count_matches(own / "manifest", "*.json"), 3),
            "moved": Trigger(count_matches(self.into, "topic=*/date=*/*.parquet"), 4),
        }

    def _rounds_begun(self) -> int:
        """The number of rounds, including the one whose files are being written."""
        own = self.into / "_barnabas"
        written = (int(path.name.partition(".")[0]) for path in (own / "staging").glob("*"))
        return max(1 + max(written, default=-1), count_matches(own / "manifest", "*.json")())

    def files(self) -> list[Path]:
        return sorted(self.into.glob("topic=*/date=*/*.parquet"))

    def listed(self) -> dict[Position, dict[str, Any]]:
        """The rows that a foreign reader finds (rule 1)."""
        found: dict[Position, dict[str, Any]] = {}
        for path in self.files():
            for row in pq.ParquetFile(path).read().to_pylist():
                position = (row["partition"], row["offset"])
                assert position not in found, f"{position} is there twice"
                found[position] = row
        unknown = [position for position, row in found.items() if self.sent.get(position) != _as_sent(row)]
        assert not unknown, f"{len(unknown)} records differ from those sent: {unknown[:3]}"
        return found

    def check(self) -> int:
        return len(self.listed())

    def check_complete(self) -> None:
        missing = self.sent.keys() - self.listed().keys()
        assert not missing, f"{len(missing)} records are not there: {sorted(missing)[:3]}"


class DecodedArchive(Archive):
    """A JSON archive; every tenth record is malformed."""

    name = "decoded"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._schema = self.folder / "schema.ddl"
        self._schema.write_text("n int")
        self._letters: list[Record] = []
        self._read = {0: 0}

    @property
    def dead_letters(self) -> str:
        return f"{self.topic}-dead"

    def record(self, ms: int) -> Record:
        number = self.count
        value = b"no json %d" % number if number % 10 == 0 else b'{"n": %d}' % number
        return Record(b"%d" % number, value, ms, headers_of(number))

    def words(self) -> list[str]:
        own = ["--decode", "json", "--schema", str(self._schema), "--dead-letters", self.dead_letters]
        return [*super().words(), *own]

    def triggers(self) -> dict[str, Trigger]:
        letters = Trigger(lambda: high_watermarks(self.brokers, self.dead_letters, 1), 100)
        return {**super().triggers(), "letters": letters}

    def check(self) -> int:
        if self.brokers.exists(self.dead_letters):
            self._letters += [letter for _, letter in read_from(self.bootstrap, self.dead_letters, self._read)]
        for partition in range(PARTITIONS):
            due = self._due(partition)
            found = [letter for letter in self._letters if _origin(letter)[0] == partition]
            assert found == due[: len(found)], f"the letters of partition {partition} are not what was malformed"
        return super().check()

    def check_complete(self) -> None:
        super().check_complete()
        assert len(self._letters) == sum(len(self._due(number)) for number in range(PARTITIONS)), "letters are missing"
        for row in self.listed().values():
            is_malformed = row["value"].startswith(b"no")
            assert (row["error"] is not None) == is_malformed
            assert is_malformed or b'{"n": %d}' % row["data"]["n"] == row["value"]

    def _due(self, partition: int) -> list[Record]:
        """The letters expected for this partition's records, in order."""
        return [
            _letter(self.topic, position, record)
            for position, record in sorted(self.sent.items())
            if position[0] == partition and (record.value or b"").startswith(b"no")
        ]


def _as_sent(row: dict[str, Any]) -> Record:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return Record(row["key"], row["value"], round(row["timestamp"].timestamp() * 1000), headers)


def _letter(topic: str, position: Position, record: Record) -> Record:
    extra = (
        ("dead-letter.reason", b"the value is not JSON of the schema"),
        ("dead-letter.topic", topic.encode()),
        ("dead-letter.partition", b"%d" % position[0]),
        ("dead-letter.offset", b"%d" % position[1]),
    )
    return record._replace(headers=(*record.headers, *extra))


def _origin(letter: Record) -> Position:
    headers = {name: value for name, value in letter.headers if value is not None}
    return int(headers["dead-letter.partition"]), int(headers["dead-letter.offset"])

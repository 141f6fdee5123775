"""Archives that are killed: raw with compaction, and decoded with dead letters.

RULES    1. After every kill the folder, read by Arrow without any manifest, holds no record twice and none that was not sent.
         2. In the end every record is there once, with its key, value, timestamp and headers.
         3. A malformed record's letter is in its topic once, in the order of its partition; a decoded one has its data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.pipeline.killing.story import Moment, Story, counted, headers_of
from tests.pipeline.killing.topics import PARTITIONS, At, Record, high_watermarks, make, read_on, send

RECORDS = 900
ROUND = 450


class Archive(Story):
    """Raw, with days of small files that are put together."""

    name = "archive"
    is_archive = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: dict[At, Record] = {}
        make(self.bootstrap, self.topic)

    def send_more(self) -> None:
        """About a day of records."""
        portion = [(self.rng.randrange(PARTITIONS), self.record(self.next_ms())) for _ in range(RECORDS)]
        self.sent |= send(self.bootstrap, self.topic, portion)

    def record(self, ms: int) -> Record:
        """The next record."""
        number = self.count
        return Record(b"%d" % (number % 50), b"value %d" % number if number % 9 else None, ms, headers_of(number))

    def words(self) -> list[str]:
        """Small rounds, and compaction after few files."""
        options = {
            "--bootstrap": self.bootstrap,
            "--topic": self.topic,
            "--into": str(self.into),
            "--max-offsets-per-trigger": str(ROUND),
            "--compact-above": "2",
        }
        return ["archive", *(word for pair in options.items() for word in pair)]

    def moments(self) -> dict[str, Moment]:
        """By what lies in the folder."""
        own = self.into / "_barnabas"
        return {
            "begun": Moment(self._rounds_begun, 4),
            "staging": Moment(counted(own / "staging", "*"), 1),
            "writing": Moment(counted(own / "staging", "*/_temporary/0/*/*"), 2),
            "staged": Moment(counted(own / "staging", "*/topic=*/date=*/0*.parquet"), 2),
            "committed": Moment(counted(own / "manifest", "*.json"), 3),
            "moved": Moment(counted(self.into, "topic=*/date=*/*.parquet"), 4),
        }

    def _rounds_begun(self) -> int:
        """How many rounds, the one whose files are being written among them, which is under way for sure."""
        own = self.into / "_barnabas"
        written = (int(path.name.partition(".")[0]) for path in (own / "staging").glob("*"))
        return max(1 + max(written, default=-1), counted(own / "manifest", "*.json")())

    def files(self) -> list[Path]:
        """Where a stranger looks."""
        return sorted(self.into.glob("topic=*/date=*/*.parquet"))

    def listed(self) -> dict[At, dict[str, Any]]:
        """The rows that a stranger finds (rule 1)."""
        found: dict[At, dict[str, Any]] = {}
        for path in self.files():
            for row in pq.ParquetFile(path).read().to_pylist():
                place = (row["partition"], row["offset"])
                assert place not in found, f"{place} is there twice"
                found[place] = row
        strangers = [place for place, row in found.items() if self.sent.get(place) != _as_sent(row)]
        assert not strangers, f"{len(strangers)} records were never sent so: {strangers[:3]}"
        return found

    def check(self) -> int:
        """Rule 1."""
        return len(self.listed())

    def check_all(self) -> None:
        """Rule 2."""
        missing = self.sent.keys() - self.listed().keys()
        assert not missing, f"{len(missing)} records are not there: {sorted(missing)[:3]}"


class Decoded(Archive):
    """JSON, every tenth record malformed."""

    name = "decoded"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._schema = self.folder / "schema.ddl"
        self._schema.write_text("n int")
        self._letters: list[Record] = []
        self._read = {0: 0}

    @property
    def dead_letters(self) -> str:
        """The topic of the malformed."""
        return f"{self.topic}-dead"

    def record(self, ms: int) -> Record:
        """The next record."""
        number = self.count
        value = b"no json %d" % number if number % 10 == 0 else b'{"n": %d}' % number
        return Record(b"%d" % number, value, ms, headers_of(number))

    def words(self) -> list[str]:
        """With a schema, and a topic for what does not fit."""
        own = ["--decode", "json", "--schema", str(self._schema), "--dead-letters", self.dead_letters]
        return [*super().words(), *own]

    def moments(self) -> dict[str, Moment]:
        """Besides: letters that are sent, committed or not."""
        letters = Moment(lambda: high_watermarks(self.brokers, self.dead_letters, 1), 100)
        return {**super().moments(), "letters": letters}

    def check(self) -> int:
        """Rules 1 and 3: letters so far."""
        if self.brokers.exists(self.dead_letters):
            self._letters += [letter for _, letter in read_on(self.bootstrap, self.dead_letters, self._read)]
        for partition in range(PARTITIONS):
            due = self._due(partition)
            found = [letter for letter in self._letters if _origin(letter)[0] == partition]
            assert found == due[: len(found)], f"the letters of partition {partition} are not what was malformed"
        return super().check()

    def check_all(self) -> None:
        """Rules 2 and 3."""
        super().check_all()
        assert len(self._letters) == sum(len(self._due(number)) for number in range(PARTITIONS)), "letters are missing"
        for row in self.listed().values():
            is_malformed = row["value"].startswith(b"no")
            assert (row["error"] is not None) == is_malformed
            assert is_malformed or b'{"n": %d}' % row["data"]["n"] == row["value"]

    def _due(self, partition: int) -> list[Record]:
        """The letters that this partition's records make, in their order."""
        return [
            _letter(self.topic, place, record)
            for place, record in sorted(self.sent.items())
            if place[0] == partition and (record.value or b"").startswith(b"no")
        ]


def _as_sent(row: dict[str, Any]) -> Record:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return Record(row["key"], row["value"], round(row["timestamp"].timestamp() * 1000), headers)


def _letter(topic: str, place: At, record: Record) -> Record:
    said = (
        ("dead-letter.reason", b"the value is not JSON of the schema"),
        ("dead-letter.topic", topic.encode()),
        ("dead-letter.partition", b"%d" % place[0]),
        ("dead-letter.offset", b"%d" % place[1]),
    )
    return record._replace(headers=(*record.headers, *said))


def _origin(letter: Record) -> At:
    headers = {name: value for name, value in letter.headers if value is not None}
    return int(headers["dead-letter.partition"]), int(headers["dead-letter.offset"])

"""Replays that are killed, of a topic and of an archive.

RULES    1. At any moment a partition of the target holds the beginning of the source's partition: nothing twice, nothing left
            out, in its order, with keys, headers and timestamps.
         2. In the end it holds all of it.
"""

from __future__ import annotations

from typing import Any

from barnabas.pipeline.kafka.sender import RECORDS_PER_TRANSACTION
from tests.pipeline.killing.job import Job
from tests.pipeline.killing.story import Moment, Story, headers_of
from tests.pipeline.killing.topics import PARTITIONS, Record, high_watermarks, make, read_on, send

RECORDS = 4 * RECORDS_PER_TRANSACTION
"""A partition's: some transactions of it. They are of three days, so that their archive is few files."""


class Replay(Story):
    """Straight from the topic."""

    name = "replay"
    has_steps = False
    apart_ms = 1000
    source: tuple[str, ...] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make(self.bootstrap, self.topic)
        self.sent: dict[int, list[Record]] = {number: [] for number in range(PARTITIONS)}
        self._arrived = dict.fromkeys(range(PARTITIONS), 0)
        self._read = dict.fromkeys(range(PARTITIONS), 0)

    @property
    def target(self) -> str:
        """Where it goes."""
        return f"{self.topic}-again"

    @property
    def is_done(self) -> bool:
        """Whether all has arrived."""
        return self.count > 0 and sum(self._arrived.values()) == self.count

    def send_more(self) -> None:
        """All of it, once: a replay is of a window that is over."""
        if self.count:
            return
        portion = [(partition, self._record()) for partition in range(PARTITIONS) for _ in range(RECORDS)]
        sent = send(self.bootstrap, self.topic, portion)
        for (partition, _), record in sorted(sent.items(), key=lambda one: one[0]):
            self.sent[partition].append(record)

    def _record(self) -> Record:
        ms = self.next_ms()
        number = self.count
        key = b"%d" % number if number % 7 else None
        return Record(key, b"value %d" % number if number % 11 else None, ms, headers_of(number))

    def words(self) -> list[str]:
        """The whole topic."""
        named = ["--topic", self.topic, "--to", self.target, "--name", self.target]
        return ["replay", "--bootstrap", self.bootstrap, *named, *self.source]

    def moments(self) -> dict[str, Moment]:
        """By what has arrived, committed or not."""
        return {"arrived": Moment(lambda: high_watermarks(self.brokers, self.target), PARTITIONS * RECORDS // 3)}

    def check(self) -> int:
        """Rule 1, of what has arrived since the last time."""
        if self.brokers.exists(self.target):
            for partition, record in read_on(self.bootstrap, self.target, self._read):
                at = self._arrived[partition]
                assert at < len(self.sent[partition]), f"partition {partition} has more than was sent: {record}"
                wanted = self.sent[partition][at]
                assert record == wanted, f"partition {partition}, record {at}: {record}, not {wanted}"
                self._arrived[partition] = at + 1
        return sum(self._arrived.values())

    def check_all(self) -> None:
        """Rule 2."""
        assert self._arrived == {partition: len(records) for partition, records in self.sent.items()}


class ReplayOfArchive(Replay):
    """From an archive that nobody disturbed."""

    name = "replay-archive"

    def send_more(self) -> None:
        """The records, and their archive."""
        if self.count:
            return
        super().send_more()
        words = ["archive", "--bootstrap", self.bootstrap, "--topic", self.topic, "--into", str(self.into)]
        job = Job([*words, "--master", "local[2]"], self.folder / "archive", environment=self.environment)
        try:
            assert job.wait() == 0, job.complaints
        finally:
            job.kill()
        self.source = ("--archive", str(self.into))

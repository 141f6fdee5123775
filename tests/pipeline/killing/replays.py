"""Replays that are killed, of a topic and of an archive.

RULES    1. At any time a partition of the target is a prefix of the source's partition: same order, keys, headers, timestamps.
         2. In the end it is equal to it.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from barnabas.pipeline.kafka.sender import RECORDS_PER_TRANSACTION
from tests.pipeline.killing.job import Job
from tests.pipeline.killing.scenario import Scenario, Trigger, headers_of
from tests.pipeline.killing.topics import PARTITIONS, Record, high_watermarks, read_from

RECORDS = 4 * RECORDS_PER_TRANSACTION
"""Per partition: several transactions. They span three days, so that their archive has few files."""


class Replay(Scenario):
    """A replay of a topic."""

    name = "replay"
    has_steps = False
    apart_ms = 1000
    source: tuple[str, ...] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._arrived = dict.fromkeys(range(PARTITIONS), 0)
        self._read = dict.fromkeys(range(PARTITIONS), 0)

    @property
    def target(self) -> str:
        return f"{self.topic}-again"

    @property
    def is_done(self) -> bool:
        return self.count > 0 and sum(self._arrived.values()) == self.count

    def send_more(self) -> None:
        """Sends all records at the first call."""
        if not self.count:
            self.send([(partition, self._record()) for partition in range(PARTITIONS) for _ in range(RECORDS)])

    def _record(self) -> Record:
        ms = self.next_ms()
        number = self.count
        key = b"%d" % number if number % 7 else None
        return Record(key, b"value %d" % number if number % 11 else None, ms, headers_of(number))

    def words(self) -> list[str]:
        named = ["--topic", self.topic, "--to", self.target, "--name", self.target]
        return ["replay", "--bootstrap", self.bootstrap, *named, *self.source]

    def triggers(self) -> dict[str, Trigger]:
        return {"arrived": Trigger(lambda: high_watermarks(self.brokers, self.target), PARTITIONS * RECORDS // 3)}

    def check(self) -> int:
        if self.brokers.exists(self.target):
            for partition, record in read_from(self.bootstrap, self.target, self._read):
                at = self._arrived[partition]
                wanted = self.sent.get((partition, at))
                assert record == wanted, f"partition {partition}, record {at}: {record}, not {wanted}"
                self._arrived[partition] = at + 1
        return sum(self._arrived.values())

    def check_complete(self) -> None:
        assert sum(self._arrived.values()) == len(self.sent)


class ArchiveReplay(Replay):
    """A replay of an archive."""

    name = "replay-archive"

    def send_more(self) -> None:
        if self.count:
            return
        super().send_more()
        words = ["archive", "--bootstrap", self.bootstrap, "--topic", self.topic, "--into", str(self.into)]
        with closing(
            Job([*words, "--master", "local[2]"], self.folder / "archive", environment=self.environment)
        ) as job:
            assert job.wait() == 0, job.stderr
        self.source = ("--archive", str(self.into))

"""What a broker has acknowledged to its clients, for comparison after a crash.

FORMAT   a record's value is `<writer>-<number>|` and a filler that is derived from them; its key is derived from the number.
         So every record can be identified and checked.
RULES    1. A record that was acknowledged or read at an offset stays at that offset, as long as the log starts before it and
            the topic is not compacted. No other record is there.
         2. In a compacted topic the last acknowledged record of a key, or a later one of that key, is there.
         3. The records of an idempotent producer are in order and unique. Those of others may repeat, but none is missing.
         4. The log start offset and the committed offset of a group never decrease.
NOT HERE The clients (`killed_clients.py`), the kills (`killing.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

KEYS = 40
_FILLER = bytes(range(256)) * 2


class ReadRecord(NamedTuple):
    """A record as it was read."""

    offset: int
    key: bytes | None
    value: bytes | None


def key_of(number: int) -> bytes:
    """The key of a writer's record."""
    return b"k%d" % (number % KEYS)


def value_of(writer: str, number: int) -> bytes:
    """The value of a writer's record."""
    return b"%s-%d|" % (writer.encode(), number) + _FILLER[number % 256 :][: number * 7 % 256]


def name_of(value: bytes) -> tuple[str, int]:
    """Writer and number of a value; fails if it is incomplete."""
    writer, _, number = value.partition(b"|")[0].decode().rpartition("-")
    assert value == value_of(writer, int(number)), f"a value is not what its name says: {value!r}"
    return writer, int(number)


class PartitionRecords:
    """The known records of one partition."""

    def __init__(self, name: str, *, is_compacted: bool) -> None:
        self.name = name
        self.is_compacted = is_compacted
        self.known: dict[int, tuple[str, int]] = {}
        """What was acknowledged or read, by offset."""
        self.acknowledged: set[int] = set()
        self.last_of_key: dict[bytes, int] = {}
        self.start = 0
        """The log start offset that a kill cannot undo any more."""

    def acknowledge(self, offset: int, value: bytes) -> None:
        """A value was acknowledged at an offset."""
        self.see(ReadRecord(offset, None, value))
        self.acknowledged.add(offset)
        key = key_of(name_of(value)[1])
        self.last_of_key[key] = max(offset, self.last_of_key.get(key, -1))

    def see(self, record: ReadRecord) -> None:
        """A record was read."""
        assert record.value is not None, f"{self.name}: unexpected tombstone at {record.offset}"
        name = name_of(record.value)
        known = self.known.setdefault(record.offset, name)
        assert known == name, f"{self.name}: {name} at offset {record.offset}, where {known} was"
        assert record.key in {None, key_of(name[1])}, f"{self.name}: key {record.key!r} at {record.offset}"

    def check(self, begin: int, start: int, end: int, found: list[ReadRecord], acknowledged: set[int]) -> None:
        """Checks the records that were read from `begin` on, of a log from `start` to `end`.

        `acknowledged` is what had been acknowledged before.
        """
        assert start >= self.start, f"{self.name} began at {self.start} and begins at {start} now"
        offsets = [record.offset for record in found]
        assert all(one < other for one, other in pairwise(offsets)), f"{self.name}: out of order"
        for record in found:
            self.see(record)
        there = set(offsets)
        if self.is_compacted:
            latest = {record.key: record.offset for record in found}
            for key, offset in self.last_of_key.items():
                if begin <= offset < end and offset >= start and offset in acknowledged:
                    assert latest.get(key, -1) >= offset, f"{self.name}: {key!r} at {offset} is lost"
            return
        lost = sorted(offset for offset in acknowledged - there if max(begin, start) <= offset)
        assert not lost, f"{self.name}: {len(lost)} acknowledged records are lost, such as {lost[:3]}; it ends at {end}"
        self._check_order(found)

    def _check_order(self, found: Iterable[ReadRecord]) -> None:
        last: dict[str, int] = {}
        for record in found:
            writer, number = self.known[record.offset]
            if writer.startswith("once"):
                before = last.get(writer, -1)
                assert number > before, f"{self.name}: {writer} {number} at {record.offset} behind {before}"
                last[writer] = number


class AcknowledgedState:
    """The known state of a broker; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ledgers: dict[tuple[str, int], PartitionRecords] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        """By group, topic and partition: what was acknowledged last; a group here only goes forward."""
        self.topics: dict[str, dict[str, str] | None] = {}
        """Configs of created and deleted topics; None: deleted; missing: unknown."""
        self.failures: list[str] = []

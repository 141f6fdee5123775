"""Plays the life of a transactional id, kills its broker amid it, and looks at what is left.

RULES    1. Everything comes from the dice; `kills` says before which changes of files the broker is killed.
         2. After a kill the producer goes on, or is gone and another life of it begins. A producer that is gone may come
            back for one request: it is refused.
         3. In the end nothing is open, no anomaly is in the history (`tests/exactly_once/anomalies.py`), and the group stands
            where the last transaction left it that can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from broker.coordinators.transactions.transaction import LAST_EPOCH
from protocol.errors import ErrorCode
from protocol.messages.groups import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from protocol.schema import Message
from tests.exactly_once.anomalies import Event, anomalies
from tests.simulation.transactions.node import PARTITIONS, TOPIC, Node
from tests.simulation.transactions.producer import GROUP, NAME, TIMEOUT_MS, Producer, Refused
from tests.support.crashing_disk import PowerLoss

TRANSACTIONS = 4
OVERDUE_MS = TIMEOUT_MS + 2000
FOR_EVER = 1 << 40


class Gone(Exception):
    """The producer was killed with its broker."""


class Life:
    """One history, from its dice."""

    def __init__(self, path: Path, dice: Random, kills: list[int], *, has_version_2: bool) -> None:
        self.node = Node(path, 2 if has_version_2 else 0)
        self.history: list[Event] = []
        self.changes = 0
        """Of files, so far."""
        self._dice = dice
        self._kills = list(kills)
        self._has_version_2 = has_version_2
        self._lives = 0
        self._overdue = False
        self._offsets: dict[str, int] = {}
        self._arm()

    def _arm(self) -> None:
        self._armed = self._kills.pop(0) if self._kills else FOR_EVER
        self.node.disk.fuse = self._armed

    def _disarm(self) -> None:
        fuse, self.node.disk.fuse = self.node.disk.fuse, None
        assert fuse is not None
        self.changes += self._armed - max(fuse, 0)

    def _ask(self, make: Callable[[], Message], version: int) -> Any:
        """What a client does whose broker is killed: ask again, or be gone too."""
        try:
            return self.node.ask(make(), version)
        except PowerLoss:
            self._disarm()
            self.node.boot()
            self._arm()
            if self._dice.random() < 0.3:
                raise Gone from None
        return self._ask(make, version)

    # ---- what happens

    def run(self) -> None:
        """The whole life."""
        producer = self._begin()
        if self._dice.random() < 0.3:
            producer = self._grow_old()
        for number in range(TRANSACTIONS):
            before = producer
            try:
                self._transact(producer, number)
            except Refused:
                if not self._overdue:
                    raise
                producer = self._begin()
            except Gone:
                producer = self._begin()
            self._overdue = False
            if producer is not before and self._dice.random() < 0.5:
                self._come_back(before)
        if self._dice.random() < 0.5:
            self._begin()
        self._disarm()
        self.node.pass_time(OVERDUE_MS)
        self._judge()

    def _begin(self) -> Producer:
        while True:
            self._lives += 1
            try:
                return Producer(self._ask, self.history, self._lives, has_version_2=self._has_version_2)
            except Gone:
                continue

    def _grow_old(self) -> Producer:
        """Near the last epoch that a producer id has: what comes next needs another id."""
        fuse, self.node.disk.fuse = self.node.disk.fuse, None
        self.node.age(NAME, LAST_EPOCH - self._dice.randint(1, 3))
        self.node.disk.fuse = fuse
        return self._begin()

    def _transact(self, producer: Producer, number: int) -> None:
        dice = self._dice
        for record in range(dice.randint(1, 3)):
            producer.send(dice.randrange(PARTITIONS), f"{producer.transaction}-{record}")
        if dice.random() < 0.8:
            self._offsets[producer.transaction] = number
            producer.commit_offset(number)
        fate = dice.random()
        if fate < 0.1:
            raise Gone
        if fate < 0.2:
            self._overdue = True
            fuse, self.node.disk.fuse = self.node.disk.fuse, None
            self.node.pass_time(OVERDUE_MS)
            self.node.disk.fuse = fuse
        producer.end(commit=dice.random() < 0.7)

    def _come_back(self, producer: Producer) -> None:
        """One that was given up is not as dead as it seemed."""
        try:
            if self._dice.random() < 0.5:
                producer.forget()
                producer.send(0, f"{producer.transaction}-late")
            else:
                producer.end(commit=True)
        except (Refused, Gone):
            return
        raise AssertionError(f"{producer.transaction} has come back and was let in")

    # ---- what is left

    def _judge(self) -> None:
        assert not self.node.hanging()
        for partition in range(PARTITIONS):
            for offset, value in self.node.committed(partition):
                self.history.append(Event("reader", "polled", "", TOPIC, partition, offset, value))
        found = anomalies(self.history)
        assert not found, found
        seen = {event.value for event in self.history if event.what == "polled"}
        last = -1
        for transaction, offset in self._offsets.items():
            values = {
                event.value for event in self.history if event.what == "sends" and event.transaction == transaction
            }
            if values & seen:
                last = offset
        assert self._committed_offset() == last, (self._offsets, last)

    def _committed_offset(self) -> int:
        topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
        asked = OffsetFetchRequest(require_stable=True, groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])
        (one,) = self.node.ask(asked, 8).groups[0].topics[0].partitions
        assert one.error_code == 0, ErrorCode(one.error_code)
        offset: int = one.committed_offset
        return offset

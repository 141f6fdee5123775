"""What a world of coordinators has written, in the order of all its logs, with what it knew at each boundary.

RULES    1. A batch is there as a whole or not at all: a crash falls between two batches, whatever the decision was that
            wrote them.
         2. What is known is looked at right before a batch is taken: then every batch before it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from broker.coordinators.classic.group_records import committed_of
from broker.coordinators.transactions.transaction import NO_EPOCH
from protocol.errors import ErrorCode
from protocol.records import headers, patch
from replication.metadata.image import TopicImage
from tests.support.group_harness import FakeLog, LocalWorld

Known = dict[str, Any]


class Entry(NamedTuple):
    """A batch, and which log took it."""

    log: tuple[str, int]
    batch: bytes


class Moment(NamedTuple):
    """A boundary: so many batches are written."""

    written: int
    known: Known
    mono_ms: int
    topics: dict[str, TopicImage]


class Journal:
    """All batches of a world."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.moments: list[Moment] = []
        self._world: LocalWorld | None = None

    def watch(self, world: LocalWorld) -> None:
        """Follow a world from now on."""
        self._world = world
        for kind, logs in (("groups", world.logs), ("transactions", world.transaction_logs)):
            logs[:] = [JournalLog(self, (kind, index)) for index in range(len(logs))]

    def look(self) -> None:
        """Note what is known now, if anything was written since it was noted last."""
        world = self._world
        if world is not None and (not self.moments or self.moments[-1].written < len(self.entries)):
            topics = dict(world.holder.image.topics_by_name)
            self.moments.append(Moment(len(self.entries), durable(world), world.clock.now_mono_ms, topics))


class JournalLog(FakeLog):
    """One partition."""

    def __init__(self, journal: Journal, name: tuple[str, int]) -> None:
        super().__init__()
        self._journal = journal
        self._name = name

    def append(self, batch: bytearray, done: Callable[[ErrorCode], None]) -> None:
        """Take a batch, or refuse it."""
        if self.refusal is not None:
            done(self.refusal)
            return
        self._journal.look()
        patch(batch, 0, self.end_offset, 0)
        self.batches.append(bytes(batch))
        self.end_offset = headers(batch)[0][1].next_offset
        self._journal.entries.append(Entry(self._name, self.batches[-1]))
        done(ErrorCode.NONE)


def durable(world: LocalWorld) -> Known:
    """All that records say: offsets, those of open transactions, consumer groups, transactions."""
    known: Known = {}
    for index, shard in world.runtime.shards.items():
        machine = shard.machine
        for group, topics in machine.offsets.by_group.items():
            for topic, partitions in topics.items():
                for partition, stored in partitions.items():
                    known[f"offset {group} {topic} {partition}"] = committed_of(stored)
        for producer, pending in machine.offsets.open_transactions.items():
            for key, committed in pending.items():
                known[f"pending {index} {producer} {key}"] = None if committed is None else committed_of(committed)
        for group, one in machine.consumer_groups.items():
            known[f"group {group}"] = (one.epoch, one.metadata_hash, one.assignment_epoch, one.assignment_wall_ms)
            known[f"group {group}: members"] = dict(one.members)
            known[f"group {group}: targets"] = dict(one.targets)
            known[f"group {group}: owners"] = dict(one.owners)
            known[f"group {group}: static members"] = dict(one.static_members)
    for transactions in world.transactions.shards.values():
        for name, one in transactions.machine.transactions.items():
            known[f"transaction {name}"] = one._replace(
                last_epoch=NO_EPOCH
            )  # no record holds it, in Apache Kafka either
    return known

"""The batches that coordinators append to all their logs, in order, with the state at each boundary.

RULES    1. A batch is written completely or not at all: a crash occurs between two batches.
         2. The state is recorded right before an append: then all earlier batches are applied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.coordinators.classic.group_records import to_offset_and_metadata
from broker.coordinators.transactions.transaction import NO_EPOCH
from replication.completion import Completion
from replication.metadata.image import TopicImage
from tests.support.group_harness import FakeLog, LocalGroupHarness

CoordinatorState = dict[str, Any]


class Entry(NamedTuple):
    """A batch and its log."""

    log: tuple[str, int]
    batch: bytes


class Boundary(NamedTuple):
    """The state after a number of batches."""

    written: int
    known: CoordinatorState
    mono_ms: int
    topics: dict[str, TopicImage]


class Journal:
    """All batches of a harness."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.boundaries: list[Boundary] = []
        self._world: LocalGroupHarness | None = None

    def watch(self, harness: LocalGroupHarness) -> None:
        self._world = harness
        for kind, logs in (("groups", harness.logs), ("transactions", harness.transaction_logs)):
            logs[:] = [JournalLog(self, (kind, index)) for index in range(len(logs))]

    def record_boundary(self) -> None:
        """Record the current state, unless it is recorded."""
        harness = self._world
        if harness is not None and (not self.boundaries or self.boundaries[-1].written < len(self.entries)):
            topics = dict(harness.holder.image.topics_by_name)
            self.boundaries.append(
                Boundary(len(self.entries), durable_state(harness), harness.clock.now_mono_ms, topics)
            )


class JournalLog(FakeLog):
    """One partition."""

    def __init__(self, journal: Journal, name: tuple[str, int]) -> None:
        super().__init__()
        self._journal = journal
        self._name = name

    def append(self, batch: bytearray) -> Completion[None]:
        if self.refusal is None:
            self._journal.record_boundary()
        return super().append(batch)

    def store(self, batch: bytearray) -> None:
        super().store(batch)
        self._journal.entries.append(Entry(self._name, self.batches[-1]))


def durable_state(harness: LocalGroupHarness) -> CoordinatorState:
    """The state that records contain: offsets, pending transactional offsets, consumer groups, transactions."""
    known: CoordinatorState = {}
    for index, shard in harness.runtime.shards.items():
        coordinator = shard.coordinator
        for group, topics in coordinator.offsets.by_group.items():
            for topic, partitions in topics.items():
                for partition, stored in partitions.items():
                    known[f"offset {group} {topic} {partition}"] = to_offset_and_metadata(stored)
        for producer, pending in coordinator.offsets.open_transactions.by_producer.items():
            for key, (_, committed) in pending.items():
                known[f"pending {index} {producer} {key}"] = (
                    None if committed is None else to_offset_and_metadata(committed)
                )
        for group, item in coordinator.consumer_groups.items():
            known[f"group {group}"] = (item.epoch, item.metadata_hash, item.assignment_epoch, item.assignment_wall_ms)
            known[f"group {group}: members"] = dict(item.members)
            known[f"group {group}: targets"] = dict(item.targets)
            known[f"group {group}: owners"] = dict(item.owners)
            known[f"group {group}: static members"] = dict(item.static_members)
    for transactions in harness.transactions.shards.values():
        for name, metadata in transactions.coordinator.transactions.items():
            # No record contains the last epoch, in Apache Kafka neither.
            known[f"transaction {name}"] = metadata._replace(last_epoch=NO_EPOCH)
    return known

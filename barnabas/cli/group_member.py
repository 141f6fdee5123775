"""Membership in a consumer group: which partitions this verb reads, from where, and how far it has come.

RULES    1. kafka-python is the member: it joins, sends heartbeats, commits. Its partitions are paused: our own reader reads
            them, byte for byte (docs/decisions/0080-clients-of-the-verbs.md).
         2. Printed offsets are committed before each poll, and a rebalance takes effect in a poll: a record is printed twice
            only if the group expels the member, or gives its partition to another one, or the verb is killed, between
            printing and committing. A commit that a rebalance refuses is repeated after it, for the partitions that remain.
         3. A partition without a committed offset begins at the range of --offset.
NOT HERE Reading and printing (`consuming.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka import TopicPartition as ClientPartition
from kafka.errors import CommitFailedError, RebalanceInProgressError
from kafka.structs import OffsetAndMetadata

from barnabas.cli.connection import Connection
from barnabas.cli.output import note
from barnabas.client.topic_partition import TopicPartition

POLL_S = 0.1
REBALANCE_MS = 60_000
LEAVE_MS = 5_000
METADATA_MS = 5_000
"""How soon a member finds new partitions."""
JOIN_S = 15.0
"""An idle member of the group gives up its partitions at its next heartbeat, three seconds later by default."""

_LOST = "barnabas: the group has given partitions to other members: some records may be printed twice."


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Called by kafka-python's thread while `poll` waits."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[ClientPartition]) -> None:
        """Nothing to save: see rule 2."""

    def on_partitions_assigned(self, assigned: Iterable[ClientPartition]) -> None:
        """Notes the new assignment."""
        self._member.on_assigned(assigned)


class GroupMember:
    """A member of a group."""

    def __init__(self, connection: Connection, group: str, topics: Iterable[str]) -> None:
        self._consumer = KafkaConsumer(
            **connection.for_kafka_python(),
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            metadata_max_age_ms=METADATA_MS,
        )
        names = list(topics)
        for name in names:
            self._consumer.partitions_for_topic(name)  # a leader that does not know the partitions would assign none
        self._consumer.subscribe(names, listener=_Listener(self))
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._committed: dict[TopicPartition, int] = {}
        self.is_joined = False
        """Whether the last rebalance is complete."""

    def on_assigned(self, assigned: Iterable[ClientPartition]) -> None:
        """Takes an assignment."""
        partitions = list(assigned)
        self._consumer.pause(*partitions)
        self._assigned = frozenset(TopicPartition(partition.topic, partition.partition) for partition in partitions)

    def join(self) -> frozenset[TopicPartition]:
        """Joins the group; returns the partitions of this member, which may be none after JOIN_S. Raises KafkaError.

        `is_joined` says whether the group has given it none, or has not admitted it.
        """
        deadline = time.monotonic() + JOIN_S
        while not self.poll() and time.monotonic() < deadline:
            pass
        return self._assigned

    def poll(self) -> frozenset[TopicPartition]:
        """Takes part in the group; returns the partitions of this member. Raises KafkaError."""
        # Not KafkaConsumer.poll: it has one timeout for the rebalance and for records, which never arrive (rule 1), and
        # kafka-python 3.0.12 never gets out of a rebalance that such a timeout has interrupted.
        self.is_joined = bool(self._consumer._coordinator.poll(timeout_ms=REBALANCE_MS))  # noqa: SLF001
        time.sleep(POLL_S)
        return self._assigned

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of those that have one. Raises KafkaError."""
        found = {partition: self._consumer.committed(ClientPartition(*partition)) for partition in partitions}
        self._committed = {partition: offset for partition, offset in found.items() if offset is not None}
        return dict(self._committed)

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commits offsets that have changed. Raises KafkaError."""
        changed = {
            partition: offset for partition, offset in positions.items() if self._committed.get(partition) != offset
        }
        deadline = time.monotonic() + JOIN_S
        while changed:
            try:
                self._consumer.commit(
                    {ClientPartition(*partition): OffsetAndMetadata(end) for partition, end in changed.items()}
                )
            except CommitFailedError:
                note(_LOST)
            except RebalanceInProgressError:
                if time.monotonic() > deadline:
                    raise
                kept = self.poll()  # completes the rebalance
                if not changed.keys() <= kept:
                    note(_LOST)
                changed = {partition: end for partition, end in changed.items() if partition in kept}
                continue
            self._committed.update(changed)
            return

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close(autocommit=False, timeout_ms=LEAVE_MS)

"""Membership in a consumer group: which partitions this verb reads, from where, and how far it has come.

RULES    1. kafka-python is the member: it joins, sends heartbeats, commits. Its partitions are paused: our own reader reads
            them, byte for byte (docs/decisions/0080-clients-of-the-verbs.md).
         2. Printed offsets are committed before each poll, and a rebalance takes effect in a poll: a record is printed twice
            only if the group expels the member, or the verb is killed, between printing and committing.
         3. A partition without a committed offset begins at the range of --offset.
NOT HERE Reading and printing (`consuming.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import CommitFailedError
from kafka.structs import OffsetAndMetadata

from barnabas.cli.connection import Connection
from barnabas.cli.output import note
from barnabas.client.cluster import Partition

POLL_MS = 100
JOIN_S = 15.0
"""An idle member of the group gives up its partitions at its next heartbeat, three seconds later by default."""


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Called by kafka-python's thread while `poll` waits."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Nothing to save: see rule 2."""

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Notes the new assignment."""
        self._member.on_assigned(assigned)


class GroupMember:
    """A member of a group."""

    def __init__(self, connection: Connection, group: str, topics: Iterable[str]) -> None:
        self._consumer = KafkaConsumer(
            **connection.for_kafka_python(), group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        names = list(topics)
        for name in names:
            self._consumer.partitions_for_topic(name)  # a leader that does not know the partitions would assign none
        self._consumer.subscribe(names, listener=_Listener(self))
        self._assigned: frozenset[Partition] = frozenset()
        self._committed: dict[Partition, int] = {}

    def on_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Takes an assignment."""
        partitions = list(assigned)
        self._consumer.pause(*partitions)
        self._assigned = frozenset(Partition(one.topic, one.partition) for one in partitions)

    def join(self) -> frozenset[Partition]:
        """Joins the group; returns the partitions of this member, which may be none after JOIN_S. Raises KafkaError."""
        deadline = time.monotonic() + JOIN_S
        while not self.poll() and time.monotonic() < deadline:
            pass
        return self._assigned

    def poll(self) -> frozenset[Partition]:
        """Takes part in the group; returns the partitions of this member. Raises KafkaError."""
        self._consumer.poll(timeout_ms=POLL_MS)
        return self._assigned

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The committed offsets of those that have one. Raises KafkaError."""
        found = {one: self._consumer.committed(TopicPartition(*one)) for one in partitions}
        self._committed = {one: offset for one, offset in found.items() if offset is not None}
        return dict(self._committed)

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Commits offsets that have changed. Raises KafkaError."""
        changed = {one: offset for one, offset in positions.items() if self._committed.get(one) != offset}
        if not changed:
            return
        try:
            self._consumer.commit({TopicPartition(*one): OffsetAndMetadata(offset) for one, offset in changed.items()})
        except CommitFailedError:
            note("barnabas: the group has given the partitions to other members: some records may be printed twice.")
        self._committed.update(changed)

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close(autocommit=False)

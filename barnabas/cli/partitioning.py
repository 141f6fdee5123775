"""Which partition a record goes to.

RULES    1. With --partition N all go there. A record that names its partition goes there, unless --partition by-key.
         2. Others go by their key, as with Java's default partitioner: murmur2 of the key, modulo the partitions.
         3. Records without key go in turn to the partitions that have a leader when the verb starts, if any has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.cli.number_options import whole_number
from barnabas.cli.records.parsed_record import ParsedRecord
from barnabas.client.cluster import Cluster
from barnabas.client.errors import ArgumentError, ClientError
from barnabas.client.topic_partition import TopicPartition

BY_KEY: Final = "by-key"


class Partitioner:
    """Chooses topic and partition of records."""

    def __init__(self, cluster: Cluster, topic: str | None, choice: str | None, *, may_create: bool) -> None:
        self._cluster = cluster
        self._topic = topic
        self._may_create = may_create
        self._is_by_key = choice == BY_KEY
        self._fixed = _number(choice) if choice not in (None, BY_KEY) else None
        self._partitions: dict[str, Mapping[int, TopicPartition]] = {}
        self._led: dict[str, list[int]] = {}
        self._turn = 0
        if topic is not None:
            self._partitions_of(topic)

    def partition(self, record: ParsedRecord) -> TopicPartition:
        """The partition of a record. Raises ClientError."""
        topic = self._topic or record.topic
        if not topic:
            raise ClientError("A record names no topic: give one, as in barnabas produce TOPIC.")
        partitions = self._partitions.get(topic) or self._partitions_of(topic)
        wanted = self._fixed
        if wanted is None and not self._is_by_key:
            wanted = record.partition
        if wanted is None and record.key is not None:
            wanted = partition_of_key(record.key, len(partitions))
        if wanted is None:
            led = self._led[topic]
            self._turn = (self._turn + 1) % len(led)
            wanted = led[self._turn]
        found = partitions.get(wanted) or self._partitions_of(topic).get(wanted)  # created a moment ago
        if found is None:
            raise ClientError(
                f"The topic {topic} has {len(partitions)} partitions, and a record wants partition {wanted}: "
                "give the topic more, or let --partition by-key choose."
            )
        return found

    def _partitions_of(self, topic: str) -> Mapping[int, TopicPartition]:
        leaders = self._cluster.leaders(topic, (), may_create=self._may_create)
        self._partitions[topic] = {number: TopicPartition(topic, number) for number in leaders}
        self._led[topic] = [number for number, leader in leaders.items() if leader >= 0] or list(leaders)
        return self._partitions[topic]


def _number(choice: str | None) -> int:
    number = whole_number(choice or "")
    if number is None:
        raise ArgumentError(f"--partition takes a number or {BY_KEY}, not {choice}.")
    return number


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner chooses."""
    from confluent_kafka import murmur2  # only for records with keys: its library takes 20 ms to load

    found: int = murmur2(key, partitions)
    return found

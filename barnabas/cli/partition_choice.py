"""Which partitions `consume` reads: those of the named topics, or of all that match, as far as --partition lists them.

RULES    1. `find` wants every topic and partition that was named to exist. `find_new` returns those that are created later:
            partitions that a topic gets, and with --regex topics too; it asks the cluster every `PERIOD_S`.
         2. Expressions match no internal topics, as in Java's clients: a group that reads __consumer_offsets would read its
            own commits for ever.
NOT HERE Which of their records (`offset_ranges.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from barnabas.cli.number_options import number_ranges
from barnabas.client.cluster import Cluster
from barnabas.client.errors import BAD_EXPRESSION, ArgumentError, ClientError
from barnabas.client.topic_partition import TopicPartition

PERIOD_S = 2.0


class PartitionChoice:
    """The partitions of one run."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], *, is_regex: bool, partitions: str | None) -> None:
        """Raises ClientError: an expression or the list of partitions is malformed."""
        self._cluster = cluster
        self._topics = list(dict.fromkeys(topics))
        self._expressions = _compiled(topics) if is_regex else None
        self._ranges = None if partitions is None else number_ranges(partitions)
        self._found: set[TopicPartition] = set()
        self._next_s = 0.0

    def find(self) -> list[TopicPartition]:
        """All partitions. Raises ClientError."""
        topics = self._topics
        if self._expressions is not None:
            topics = [name for name in self._cluster.topics() if self._is_chosen(name)]
            if not topics:
                raise ClientError("No topic matches: barnabas topics list shows all.")
        leaders = self._cluster.leaders_of(dict.fromkeys(topics, ()))
        found = self._listed({topic: list(partitions) for topic, partitions in leaders.items()})
        existing = {partition.partition for partition in found}
        for numbers in self._ranges or ():
            for number in numbers:
                if number not in existing:
                    raise ClientError(f"There is no partition {number} of {', '.join(topics)}.")
        self._next_s = time.monotonic() + PERIOD_S
        return found

    def find_new(self) -> list[TopicPartition]:
        """The partitions that were created since the last call, if it is time to ask for them. Raises ClientError."""
        if time.monotonic() < self._next_s:
            return []
        known = set(self._found)
        topics = self._cluster.partition_numbers(self._topics if self._expressions is None else None)
        found = self._listed({topic: partitions for topic, partitions in topics.items() if self._is_chosen(topic)})
        self._next_s = time.monotonic() + PERIOD_S
        return [partition for partition in found if partition not in known]

    def forget(self, topic: str) -> None:
        """Makes a topic that was deleted new, if it is created again."""
        self._found = {partition for partition in self._found if partition.topic != topic}

    def _listed(self, topics: dict[str, list[int]]) -> list[TopicPartition]:
        found = [
            TopicPartition(topic, number)
            for topic, partitions in topics.items()
            for number in partitions
            if self._ranges is None or any(number in numbers for numbers in self._ranges)
        ]
        self._found.update(found)
        return found

    def _is_chosen(self, topic: str) -> bool:
        if self._expressions is None:
            return True
        return not self._cluster.is_internal(topic) and any(found.fullmatch(topic) for found in self._expressions)


def _compiled(topics: Sequence[str]) -> list[re.Pattern[str]]:
    try:
        return [re.compile(text) for text in topics]
    except BAD_EXPRESSION as failure:
        raise ArgumentError(f"{' '.join(topics)} is not a regular expression: {failure}.") from failure

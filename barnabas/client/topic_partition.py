"""The name of a partition, for verbs, jobs and the verbs' client."""

from __future__ import annotations

from typing import Any, NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def of(cls, row: Any) -> TopicPartition:
        """Returns the partition of a row with the columns topic and partition."""
        return cls(row["topic"], row["partition"])

"""Requests list partitions by topic: an array of topics, each with an array of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from barnabas.client.topic_partition import TopicPartition


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partitions of each topic."""
    found: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        found.setdefault(tp.topic, []).append(tp.partition)
    return found


def topic_array(kind: Any, partitions: Iterable[TopicPartition], item: Callable[[TopicPartition], Any]) -> list[Any]:
    """Returns the array of topics in a request.

    Args:
        kind: The class of a topic in the request; its fields are `name` and `partitions`.
        partitions: The partitions.
        item: Makes a partition of the request.
    """
    return [
        kind(name=topic, partitions=[item(TopicPartition(topic, number)) for number in numbers])
        for topic, numbers in by_topic(partitions).items()
    ]

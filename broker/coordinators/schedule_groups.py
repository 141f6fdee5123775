"""The groups that have the positions of schedule topics.

RULES    1. While records of a schedule topic are delivered, its group is used by the deliverers: its committed offsets do not
            expire, only their transactions commit those of the schedule topic, and neither they nor the group can be deleted.
            Otherwise delivered records would be delivered again.
         2. After `barnabas.deliver.to` was deleted it is an ordinary group.
NOT HERE What a position means (`delivery/progress.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.messages.transactions import TxnOffsetCommitRequest
from replication.metadata.image import MetadataImage
from storage.config.log_config import DELIVER_TO

_PREFIX: Final = "schedule-"
_TRANSACTIONAL_PREFIX: Final = "barnabas-schedule-"


def group_of(topic: str) -> str:
    """The group of a schedule topic."""
    return f"{_PREFIX}{topic}"


def transactional_id_of(topic: str, partition: int) -> str:
    """The transactional id of the deliverer of a partition of a schedule topic."""
    return f"{_TRANSACTIONAL_PREFIX}{topic}-{partition}"


def is_deliverer(request: TxnOffsetCommitRequest) -> bool:
    """Whether the transaction of a commit to a schedule topic's group is that of the deliverer of all its partitions."""
    return all(
        request.transactional_id == transactional_id_of(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )


def has_schedule_positions(group_id: str, image: MetadataImage) -> bool:
    """Whether this is the group of a schedule topic."""
    return group_id.startswith(_PREFIX) and bool(image.topic_config(group_id.removeprefix(_PREFIX)).get(DELIVER_TO))


def has_schedule_topic(group_id: str, image: MetadataImage, partitions: Iterable[tuple[bytes, int]]) -> bool:
    """Whether some partitions, with the topic's id, are of the schedule topic whose group this is."""
    topic = image.topics_by_name.get(group_id.removeprefix(_PREFIX))
    return topic is not None and any(topic_id == topic.topic_id for topic_id, _ in partitions)

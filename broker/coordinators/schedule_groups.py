"""The groups that have the positions of schedule topics.

RULES    1. The committed offsets of a schedule topic's group do not expire while the topic exists: without them delivered
            records would be delivered again.
NOT HERE What a position means (`delivery/progress.py`).
"""

from __future__ import annotations

from typing import Final

from replication.metadata.image import MetadataImage
from storage.config.log_config import DELIVER_TO

_PREFIX: Final = "schedule-"


def group_of(topic: str) -> str:
    """The group of a schedule topic."""
    return f"{_PREFIX}{topic}"


def has_schedule_positions(group_id: str, image: MetadataImage) -> bool:
    """Whether this is the group of an existing schedule topic."""
    topic = group_id.removeprefix(_PREFIX)
    return topic != group_id and bool(image.topic_config(topic).get(DELIVER_TO))

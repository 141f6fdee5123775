"""What the handlers of OffsetCommit, TxnOffsetCommit and OffsetDelete have in common.

RULES    1. Unknown and unauthorized partitions fail before the group decides on the rest.
NOT HERE The decisions (`coordinators/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.offset_manager import partition_errors
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    OffsetCommitResponseTopic,
    TxnOffsetCommitResponseTopic,
)
from replication.metadata.image import MetadataImage

T = TypeVar("T", OffsetCommitResponseTopic, TxnOffsetCommitResponseTopic)


class OffsetHandlers(AuthorizingHandlers):
    """Handlers with the coordinators of groups and the metadata image."""

    def __init__(
        self, runtime: CoordinatorRuntime[GroupCoordinator], image: Callable[[], MetadataImage], authorizer: Authorizer
    ) -> None:
        super().__init__(authorizer)
        self._runtime = runtime
        self._image = image

    def _keep_valid_partitions(
        self, context: RequestContext, topic: Any, failed: list[TxnOffsetCommitResponseTopic]
    ) -> bool:
        """Move invalid partitions of a topic to `failed`; returns whether valid ones are left."""
        topic_image = self._image().topics_by_name.get(topic.name)
        error = self._denial(context, Operation.READ, Resource.TOPIC, topic.name)
        existing = () if topic_image is None or error else topic_image.partitions
        missing = [one for one in topic.partitions if one.partition_index not in existing]
        if missing:
            topic.partitions = [one for one in topic.partitions if one.partition_index in existing]
            code = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            failed.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partition_errors(missing, code)))
        return bool(topic.partitions)


def with_failed_topics(failed: list[T], topics: list[T]) -> list[T]:
    """The failed topics first, then the others; the partitions of a topic in both lists are merged."""
    by_name = {topic.name: topic for topic in failed}
    merged = list(failed)
    for topic in topics:
        failed_topic = by_name.get(topic.name)
        if failed_topic is None:
            merged.append(topic)
        else:
            failed_topic.partitions += topic.partitions
    return merged

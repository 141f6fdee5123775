"""ListOffsets and OffsetForLeaderEpoch.

RULES    1. A consumer (replica id -1) sees offsets up to its isolation level's limit, others up to the log end offset; only the
            debugging consumer (-2) may query a follower.
         2. If no record has the timestamp or a later one, offset and timestamp are -1, without an error.
         3. A look-up that needs the disk, such as most timestamps, runs on a thread; the response waits for all.
         4. A repeated partition in ListOffsets gets INVALID_REQUEST; a special timestamp unknown in the request's
            version gets UNSUPPORTED_VERSION.
NOT HERE Finding an offset (`replication/partition/partition.py`, `storage/log/log_reader.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.common import Topic, TopicPartitions
from protocol.messages.produce_fetch import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
)
from replication.completion import Completion, all_done
from replication.partition.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from replication.partition.partition import CONSUMER, DEBUGGING_CONSUMER, Partition
from replication.partition.replica_manager import ReplicaManager
from storage.io.disk_lookup import DiskLookup
from storage.log.log_reader import Isolation

_FIRST_VERSION: Final = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
_FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE: Final = 5
_NEVER: Final = 0x7FFF

_Answer = ListOffsetsPartitionResponse | OffsetForLeaderEpochEpochEndOffset


class ListOffsetsHandler(AuthorizingHandlers):
    """Handles ListOffsets and OffsetForLeaderEpoch."""

    def __init__(self, replicas: ReplicaManager, authorizer: Authorizer) -> None:
        self._replicas = replicas
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.LIST_OFFSETS, 1, 11, self.list_offsets),
            Route(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, self.offset_for_leader_epoch),
        ]

    # ------------------------------------------------------------ ListOffsets
    def list_offsets(self, ctx: RequestContext, request: ListOffsetsRequest) -> Completion[ListOffsetsResponse]:
        """Handle ListOffsets."""
        isolation = Isolation.LOG_END
        if request.replica_id == CONSUMER:
            isolation = Isolation.LAST_STABLE if request.isolation_level else Isolation.HIGH_WATERMARK
        leader_only = request.replica_id != DEBUGGING_CONSUMER
        duplicates = _duplicates(request)
        response = ListOffsetsResponse(topics=[])
        lookups: list[Completion[None]] = []
        for topic in request.topics:
            refusal = ErrorCode.NONE
            if not self._is_authorized(ctx, Operation.DESCRIBE, Resource.TOPIC, topic.name):
                refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answers = []
            for requested in topic.partitions:
                answer = ListOffsetsPartitionResponse(partition_index=requested.partition_index, error_code=refusal)
                answers.append(answer)
                if (topic.name, requested.partition_index) in duplicates:
                    answer.error_code = ErrorCode.INVALID_REQUEST
                elif not refusal and _is_unsupported(ctx.api_version, requested.timestamp):
                    answer.error_code = ErrorCode.UNSUPPORTED_VERSION
                elif not refusal:
                    find = partial(_find, ctx.api_version, requested, isolation, answer, leader_only=leader_only)
                    lookups.append(self._look_up(ctx, topic.name, requested.partition_index, find, answer))
            response.topics.append(Topic(name=topic.name, partitions=answers))
        return all_done(lookups).map(lambda _: response)

    # ------------------------------------------------------------ OffsetForLeaderEpoch
    def offset_for_leader_epoch(
        self, ctx: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> Completion[OffsetForLeaderEpochResponse]:
        """Handle OffsetForLeaderEpoch; brokers may query every topic, clients the topics that they may describe."""
        is_broker = self._is_authorized(ctx, Operation.CLUSTER_ACTION, log_denied=False)
        response = OffsetForLeaderEpochResponse(topics=[])
        lookups: list[Completion[None]] = []
        for topic in request.topics:
            is_allowed = is_broker or self._is_authorized(ctx, Operation.DESCRIBE, Resource.TOPIC, topic.topic)
            answers = []
            for requested in topic.partitions:
                answer = OffsetForLeaderEpochEpochEndOffset(error_code=0, partition=requested.partition)
                answers.append(answer)
                if is_allowed:
                    find = partial(_end_of_epoch, requested, answer)
                    lookups.append(self._look_up(ctx, topic.topic, requested.partition, find, answer))
                else:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            response.topics.append(TopicPartitions(topic=topic.topic, partitions=answers))
        return all_done(lookups).map(lambda _: response)

    def _look_up(
        self,
        ctx: RequestContext,
        topic: str,
        index: int,
        find: Callable[[Partition], DiskLookup | None],
        answer: _Answer,
    ) -> Completion[None]:
        """Fill in the response of a partition, now or after the disk read."""
        lookup = self._replicas.lookup(topic, index, find)
        lookup.then(partial(_set_error, ctx.api_version, answer))
        return lookup


def _is_unsupported(version: int, timestamp: int) -> bool:
    """Whether the version does not have this special timestamp."""
    return timestamp < 0 and version < _FIRST_VERSION.get(timestamp, _NEVER)


def _find(
    version: int,
    requested: ListOffsetsPartition,
    isolation: Isolation,
    answer: ListOffsetsPartitionResponse,
    partition: Partition,
    *,
    leader_only: bool,
) -> DiskLookup | None:
    found = partition.find_offset(
        requested.timestamp, isolation, requested.current_leader_epoch, leader_only=leader_only
    )
    if isinstance(found, DiskLookup):
        return found
    answer.timestamp = found.timestamp
    answer.offset = found.offset
    if version >= 4:
        answer.leader_epoch = found.leader_epoch
    return None


def _end_of_epoch(
    requested: OffsetForLeaderPartition, answer: OffsetForLeaderEpochEpochEndOffset, partition: Partition
) -> DiskLookup | None:
    found = partition.end_offset_for_epoch(requested.leader_epoch, requested.current_leader_epoch)
    if isinstance(found, DiskLookup):
        return found
    answer.leader_epoch, answer.end_offset = found
    return None


def _duplicates(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    """The partitions that the request contains more than once."""
    seen: set[tuple[str, int]] = set()
    duplicates: set[tuple[str, int]] = set()
    for topic in request.topics:
        for requested in topic.partitions:
            key = (topic.name, requested.partition_index)
            if key in seen:
                duplicates.add(key)
            seen.add(key)
    return duplicates


def _set_error(version: int, answer: _Answer, lookup: Completion[None]) -> None:
    if lookup.error is None:
        return
    assert isinstance(lookup.error, KafkaError)
    code = lookup.error.code
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < _FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    answer.error_code = code

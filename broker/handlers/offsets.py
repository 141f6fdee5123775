"""ListOffsets and OffsetForLeaderEpoch: offsets by time, and where an epoch ended.

RULES    1. A consumer (replica id -1) sees up to its isolation's end, others to the log's end; only the debugging
            consumer (-2) may ask a replica that does not lead.
         2. A time with no record at or after it has offset -1 and timestamp -1, and no error.
         3. A partition that ListOffsets names twice is INVALID_REQUEST; a stand-in for a time that the version does not
            know is UNSUPPORTED_VERSION.
NOT HERE Finding an offset (`replication/partition.py`, `storage/log.py`).
"""

from __future__ import annotations

from typing import Final

from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce_fetch import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from replication.partition import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from replication.replica_manager import ReplicaManager
from storage.disk import StorageError
from storage.log import Isolation

CONSUMER: Final = -1
DEBUGGING_CONSUMER: Final = -2
_FIRST_VERSION: Final = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
_FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE: Final = 5
_NEVER: Final = 0x7FFF


class OffsetsHandler:
    """Answers ListOffsets and OffsetForLeaderEpoch requests."""

    def __init__(self, replicas: ReplicaManager, authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._authorizer = authorizer

    # ------------------------------------------------------------ by time
    def list_offsets(self, ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Answer one ListOffsets."""
        isolation = Isolation.LOG_END
        if request.replica_id == CONSUMER:
            isolation = Isolation.LAST_STABLE if request.isolation_level else Isolation.HIGH_WATERMARK
        leader_only = request.replica_id != DEBUGGING_CONSUMER
        repeated = _repeated(request)
        topics = []
        for topic in request.topics:
            refusal = ErrorCode.NONE
            if not self._may_describe(ctx, topic.name):
                refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answers = []
            for asked in topic.partitions:
                answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=refusal)
                answers.append(answer)
                if (topic.name, asked.partition_index) in repeated:
                    answer.error_code = ErrorCode.INVALID_REQUEST
                elif not refusal:
                    try:
                        self._find(ctx.api_version, topic.name, asked, isolation, answer, leader_only=leader_only)
                    except KafkaError as error:
                        answer.error_code = _code_for(ctx.api_version, error.code)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)

    def _find(
        self,
        version: int,
        topic: str,
        asked: ListOffsetsPartition,
        isolation: Isolation,
        answer: ListOffsetsPartitionResponse,
        *,
        leader_only: bool,
    ) -> None:
        if asked.timestamp < 0 and version < _FIRST_VERSION.get(asked.timestamp, _NEVER):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        partition = self._replicas.find(topic, asked.partition_index)
        try:
            found = partition.find_offset(
                asked.timestamp, isolation, asked.current_leader_epoch, leader_only=leader_only
            )
        except StorageError as error:
            raise self._replicas.guard(partition, error) from error
        answer.timestamp = found.timestamp
        answer.offset = found.offset
        if version >= 4:
            answer.leader_epoch = found.leader_epoch

    # ------------------------------------------------------------ by epoch
    def offset_for_leader_epoch(
        self, ctx: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Answer one OffsetForLeaderEpoch; a broker may ask about every topic, a client about what it may describe."""
        is_broker = self._authorizer.authorize(ctx.principal, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self._end_of_epoch(
                            topic.topic, asked, is_allowed=is_broker or self._may_describe(ctx, topic.topic)
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _end_of_epoch(
        self, topic: str, asked: OffsetForLeaderPartition, *, is_allowed: bool
    ) -> OffsetForLeaderEpochEpochEndOffset:
        answer = OffsetForLeaderEpochEpochEndOffset(error_code=0, partition=asked.partition)
        if not is_allowed:
            answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return answer
        try:
            partition = self._replicas.find(topic, asked.partition)
            try:
                end = partition.end_offset_for_epoch(asked.leader_epoch, asked.current_leader_epoch)
            except StorageError as error:
                raise self._replicas.guard(partition, error) from error
        except KafkaError as error:
            answer.error_code = error.code
        else:
            answer.leader_epoch, answer.end_offset = end
        return answer

    def _may_describe(self, ctx: RequestContext, topic: str) -> bool:
        return self._authorizer.authorize(ctx.principal, Operation.DESCRIBE, Resource.TOPIC, topic)


def _repeated(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    """The partitions that are named more than once."""
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            if key in seen:
                repeated.add(key)
            seen.add(key)
    return repeated


def _code_for(version: int, code: ErrorCode) -> ErrorCode:
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < _FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code


def routes(handler: OffsetsHandler) -> list[Route]:
    """The rows of the API table."""
    return [
        Route(ApiKey.LIST_OFFSETS, 1, 11, handler.list_offsets),
        Route(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handler.offset_for_leader_epoch),
    ]

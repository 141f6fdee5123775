"""ListOffsets and OffsetForLeaderEpoch: offsets by time, and where an epoch ended.

RULES    1. A consumer (replica id -1) sees up to its isolation's end, others to the log's end; only the debugging
            consumer (-2) may ask a replica that does not lead.
         2. A time with no record at or after it has offset -1 and timestamp -1, and no error.
         3. What would wait for the disk, a time nearly always, is looked up by a thread; the answer waits for all.
         4. A partition that ListOffsets names twice is INVALID_REQUEST; a stand-in for a time that the version does not
            know is UNSUPPORTED_VERSION.
NOT HERE Finding an offset (`replication/partition/partition.py`, `storage/log/log.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.handlers.router import Pending, RequestContext, Route
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
from protocol.schema import Message
from replication.partition.partition import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Partition,
)
from replication.partition.replica_manager import ReplicaManager
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import Isolation

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
    def list_offsets(self, ctx: RequestContext, request: ListOffsetsRequest) -> Message | Pending:
        """Answer one ListOffsets."""
        isolation = Isolation.LOG_END
        if request.replica_id == CONSUMER:
            isolation = Isolation.LAST_STABLE if request.isolation_level else Isolation.HIGH_WATERMARK
        leader_only = request.replica_id != DEBUGGING_CONSUMER
        repeated = _repeated(request)
        response = ListOffsetsResponse(topics=[])
        lookups = _Lookups(self._replicas, response)
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
                    find = partial(_find, ctx.api_version, asked, isolation, answer, leader_only=leader_only)
                    lookups.look(topic.name, asked.partition_index, find, partial(_refuse, ctx.api_version, answer))
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return lookups.settle()

    # ------------------------------------------------------------ by epoch
    def offset_for_leader_epoch(self, ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> Message | Pending:
        """Answer one OffsetForLeaderEpoch; a broker may ask about every topic, a client about what it may describe."""
        is_broker = self._authorizer.authorize(ctx.principal, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
        response = OffsetForLeaderEpochResponse(topics=[])
        lookups = _Lookups(self._replicas, response)
        for topic in request.topics:
            is_allowed = is_broker or self._may_describe(ctx, topic.topic)
            answers = []
            for asked in topic.partitions:
                answer = OffsetForLeaderEpochEpochEndOffset(error_code=0, partition=asked.partition)
                answers.append(answer)
                if is_allowed:
                    lookups.look(
                        topic.topic,
                        asked.partition,
                        partial(_end_of_epoch, asked, answer),
                        partial(_refuse, ctx.api_version, answer),
                    )
                else:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        return lookups.settle()

    def _may_describe(self, ctx: RequestContext, topic: str) -> bool:
        return self._authorizer.authorize(ctx.principal, Operation.DESCRIBE, Resource.TOPIC, topic)


class _Lookups:
    """The look-ups of one request, some of which may wait for the disk (replication/partition/replica_manager.py rule 5)."""

    def __init__(self, replicas: ReplicaManager, response: ListOffsetsResponse | OffsetForLeaderEpochResponse) -> None:
        self._replicas = replicas
        self._response = response
        self._waiting = 0
        self._pending: Pending | None = None

    def look(
        self, topic: str, index: int, find: Callable[[Partition], None], refuse: Callable[[ErrorCode], None]
    ) -> None:
        """Have `find` fill in one partition's answer, now or when the disk has been asked."""
        try:
            partition = self._replicas.find(topic, index)
            try:
                find(partition)
            except StorageError as error:
                raise self._replicas.guard(partition, error) from error
        except WouldBlock as blocked:
            self._waiting += 1
            again = partial(self._again, topic, index, find, refuse)
            self._replicas.await_disk(partition, blocked, again)
        except KafkaError as error:
            refuse(error.code)

    def settle(self) -> Message | Pending:
        """The answer, or the promise of one."""
        if not self._waiting:
            return self._response
        self._pending = Pending()
        return self._pending

    def _again(
        self, topic: str, index: int, find: Callable[[Partition], None], refuse: Callable[[ErrorCode], None]
    ) -> None:
        pending = self._pending
        if pending is None or not pending.is_done:  # else the connection is gone
            self.look(topic, index, find, refuse)
        self._waiting -= 1
        if pending is not None and not self._waiting:
            pending.complete(self._response)


def _find(
    version: int,
    asked: ListOffsetsPartition,
    isolation: Isolation,
    answer: ListOffsetsPartitionResponse,
    partition: Partition,
    *,
    leader_only: bool,
) -> None:
    if asked.timestamp < 0 and version < _FIRST_VERSION.get(asked.timestamp, _NEVER):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    found = partition.find_offset(
        asked.timestamp, isolation, asked.current_leader_epoch, leader_only=leader_only, may_block=False
    )
    answer.timestamp = found.timestamp
    answer.offset = found.offset
    if version >= 4:
        answer.leader_epoch = found.leader_epoch


def _end_of_epoch(
    asked: OffsetForLeaderPartition, answer: OffsetForLeaderEpochEpochEndOffset, partition: Partition
) -> None:
    end = partition.end_offset_for_epoch(asked.leader_epoch, asked.current_leader_epoch, may_block=False)
    answer.leader_epoch, answer.end_offset = end


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


def _refuse(
    version: int, answer: ListOffsetsPartitionResponse | OffsetForLeaderEpochEpochEndOffset, code: ErrorCode
) -> None:
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < _FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    answer.error_code = code


def routes(handler: OffsetsHandler) -> list[Route]:
    """The rows of the API table."""
    return [
        Route(ApiKey.LIST_OFFSETS, 1, 11, handler.list_offsets),
        Route(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handler.offset_for_leader_epoch),
    ]

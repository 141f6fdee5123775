"""DeleteRecords: increase the log start offset of partitions.

RULES    1. The leader increases its log start offset at once; reads below it get OFFSET_OUT_OF_RANGE.
         2. The response waits until the low watermark, the lowest log start offset of the live replicas, reaches the
            offset; after the timeout the partition gets REQUEST_TIMED_OUT. With one replica nothing waits.
         3. For a repeated partition the last offset counts, with one result.
         4. A closed log is opened by a reader thread.
NOT HERE Trimming a log (`storage/log/open_log.py`), deleting its files (`storage/directories/log_maintenance.py`).
"""

from __future__ import annotations

from functools import partial

from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.common import Topic
from protocol.messages.logs import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from replication.completion import Completion
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.partition import state_key
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import DelayedOperation, Purgatory

_NO_LOW_WATERMARK = -1
_Key = tuple[str, int]


class DeleteRecordsHandler(AuthorizingHandlers):
    """Answers DeleteRecords requests."""

    def __init__(self, replicas: ReplicaManager, purgatory: Purgatory, authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._purgatory = purgatory
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [Route(ApiKey.DELETE_RECORDS, 0, 2, self.handle)]

    def handle(
        self, ctx: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse | Completion[DeleteRecordsResponse]:
        """Handle DeleteRecords."""
        deletion = _PendingDelete(self._replicas)
        denials = {
            topic.name: self._denial(ctx, Operation.DELETE, Resource.TOPIC, topic.name) for topic in request.topics
        }
        offsets = {
            (topic.name, partition.partition_index): partition.offset
            for topic in request.topics
            for partition in topic.partitions
        }
        for (topic, index), offset in offsets.items():
            deletion.add(topic, index, offset, ctx.wall_ms, denials[topic] or self._internal_topic_error(topic, index))
        if deletion.try_complete():
            return deletion.response
        keys = [state_key(*key) for key in deletion.results]
        self._purgatory.park(deletion, keys, ctx.mono_ms + max(request.timeout_ms, 0))
        deletion.pending = Completion(deletion.cancel)
        return deletion.pending

    def _internal_topic_error(self, topic: str, index: int) -> ErrorCode:
        """The error of a partition of an internal topic; none if it does not exist, which the deletion reports."""
        image = self._replicas.image.topics_by_name.get(topic) if topic in INTERNAL_TOPICS else None
        exists = image is not None and index in image.partitions
        return ErrorCode.INVALID_TOPIC_EXCEPTION if exists else ErrorCode.NONE


class _PendingDelete(DelayedOperation):
    """A DeleteRecords request in progress."""

    __slots__ = ("_deleting", "_replicas", "_required", "pending", "response", "results")

    def __init__(self, replicas: ReplicaManager) -> None:
        super().__init__()
        self._replicas = replicas
        self._required: dict[_Key, int] = {}  # the required low watermark
        self._deleting: set[_Key] = set()
        self.results: dict[_Key, DeleteRecordsPartitionResult] = {}
        self.response = DeleteRecordsResponse(topics=[])
        self.pending: Completion[DeleteRecordsResponse] | None = None

    def add(self, topic: str, index: int, offset: int, wall_ms: int, error_code: ErrorCode) -> None:
        """Add a partition and delete its records, unless there is an error."""
        answer = DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=_NO_LOW_WATERMARK, error_code=error_code
        )
        self.results[topic, index] = answer
        if not self.response.topics or self.response.topics[-1].name != topic:
            self.response.topics.append(Topic(name=topic, partitions=[]))
        self.response.topics[-1].partitions.append(answer)
        if error_code == ErrorCode.NONE:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
            key = topic, index
            self._deleting.add(key)
            self._replicas.delete_records(topic, index, offset, wall_ms).then(partial(self._on_deleted, key))

    def _on_deleted(self, key: _Key, deleted: Completion[int]) -> None:
        self._deleting.discard(key)
        error = deleted.error
        if error is None:
            self._required[key] = deleted.value
        elif isinstance(error, KafkaError):
            self.results[key].error_code = error.code
        else:
            raise error
        self.wake()

    def try_complete(self) -> bool:
        """Check the low watermarks; complete if all are reached."""
        for key in list(self._required):
            self._check(key)
        if self._required or self._deleting:
            return False
        if self.pending is not None:
            self.pending.complete(self.response)
        return True

    def _check(self, key: _Key) -> None:
        answer = self.results[key]
        try:
            answer.low_watermark = self._replicas.low_watermark(*key)
        except KafkaError as error:
            answer.low_watermark, answer.error_code = _NO_LOW_WATERMARK, error.code
        else:
            if answer.low_watermark < self._required[key]:
                return
            answer.error_code = ErrorCode.NONE
        del self._required[key]

    def expire(self) -> None:
        """Complete with REQUEST_TIMED_OUT for the remaining partitions."""
        assert self.pending is not None
        self.pending.complete(self.response)

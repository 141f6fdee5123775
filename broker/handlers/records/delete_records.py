"""DeleteRecords: let partitions begin later, here and on every replica that lives.

RULES    1. The leader's log begins later at once, whatever becomes of the waiting; whoever reads below is out of range.
         2. The answer waits until the low watermark, the least log start of the replicas that live, has reached the
            offset; what has not at the deadline is REQUEST_TIMED_OUT. With one replica nothing waits.
         3. A partition that is named twice is deleted up to the offset named last, and answered once.
         4. What would wait for the disk, a log that is not open, is opened by a thread.
NOT HERE Deleting files (`storage/log/log.py`).
"""

from __future__ import annotations

from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.logs import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.partition import state_key
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory, Waiter
from storage.io.would_block import WouldBlock

_NO_LOW_WATERMARK = -1
_Key = tuple[str, int]


class DeleteRecordsHandler:
    """Answers DeleteRecords requests."""

    def __init__(self, replicas: ReplicaManager, purgatory: Purgatory, authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._purgatory = purgatory
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [Route(ApiKey.DELETE_RECORDS, 0, 2, self.handle)]

    def handle(self, ctx: RequestContext, request: DeleteRecordsRequest) -> Pending | DeleteRecordsResponse:
        """Answer one DeleteRecords."""
        deletion = _Deletion(self._replicas)
        refused = {topic.name: self._why_not(ctx, topic.name) for topic in request.topics}
        wanted = {
            (topic.name, partition.partition_index): partition.offset
            for topic in request.topics
            for partition in topic.partitions
        }
        for (topic, index), offset in wanted.items():
            deletion.begin(topic, index, offset, ctx.wall_ms, refused[topic])
        if deletion.try_complete():
            return deletion.response
        keys = (state_key(*key) for key in deletion.answers)
        self._purgatory.park(deletion, keys, ctx.mono_ms + max(request.timeout_ms, 0))
        deletion.pending = Pending(deletion.cancel)
        return deletion.pending

    def _why_not(self, ctx: RequestContext, topic: str) -> ErrorCode:
        if not self._authorizer.authorize(ctx.principal, Operation.DELETE, Resource.TOPIC, topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic in INTERNAL_TOPICS and topic in self._replicas.image.topics_by_name:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return ErrorCode.NONE


class _Deletion(Waiter):
    """One request in work."""

    __slots__ = ("_replicas", "_required", "_unopened", "answers", "pending", "response")

    def __init__(self, replicas: ReplicaManager) -> None:
        super().__init__()
        self._replicas = replicas
        self._required: dict[_Key, int] = {}  # the low watermark that is waited for
        self._unopened: set[_Key] = set()
        self.answers: dict[_Key, DeleteRecordsPartitionResult] = {}
        self.response = DeleteRecordsResponse(topics=[])
        self.pending: Pending | None = None

    def begin(self, topic: str, index: int, offset: int, wall_ms: int, refusal: ErrorCode) -> None:
        """Note a partition, and delete unless it is refused."""
        answer = DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=_NO_LOW_WATERMARK, error_code=refusal
        )
        self.answers[topic, index] = answer
        if not self.response.topics or self.response.topics[-1].name != topic:
            self.response.topics.append(DeleteRecordsTopicResult(name=topic, partitions=[]))
        self.response.topics[-1].partitions.append(answer)
        if refusal == ErrorCode.NONE:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
            self._delete((topic, index), offset, wall_ms)

    def _delete(self, key: _Key, offset: int, wall_ms: int) -> None:
        self._unopened.discard(key)
        try:
            self._required[key] = self._replicas.delete_records(*key, offset, wall_ms)
        except WouldBlock as blocked:
            self._unopened.add(key)
            self._replicas.await_disk(self._replicas.find(*key), blocked, lambda: self._again(key, offset, wall_ms))
        except KafkaError as error:
            self.answers[key].error_code = error.code

    def _again(self, key: _Key, offset: int, wall_ms: int) -> None:
        self._delete(key, offset, wall_ms)
        self.wake()

    def try_complete(self) -> bool:
        """Look again at what is waited for."""
        for key in list(self._required):
            self._look(key)
        if self._required or self._unopened:
            return False
        if self.pending is not None:
            self.pending.complete(self.response)
        return True

    def _look(self, key: _Key) -> None:
        answer = self.answers[key]
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
        """The time is up: what is not done yet says so."""
        assert self.pending is not None
        self.pending.complete(self.response)

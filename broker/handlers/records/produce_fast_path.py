"""The fast path for the most frequent Produce: one batch for one partition.

RULES    1. The response is the same as that of `produce.py`, byte for byte, from the same authorizer and ReplicaManager.
         2. For any other request it returns None without side effects and the handler takes over: another layout
            (`protocol/single_partition_codec.py`), acks=0, a transactional batch, an internal topic, no authorization.
         3. After the append has started, the fast path completes the request. A pending append is answered later;
            an error or a timeout is encoded by the handler (`ProduceHandler.failure_response`).
NOT HERE Validation of a Produce (`produce.py`). Why there are two paths:
         docs/decisions/0015-fast-path-for-single-partition-requests.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.handlers.records.produce import ATTRIBUTES_LOW_BYTE, ProduceHandler
from broker.handlers.router import FastPath, FastPaths, RequestContext
from broker.security.authorizer import Operation, Resource
from protocol.api import ApiKey, response_header_version
from protocol.codec import encoder
from protocol.errors import ErrorCode, KafkaError
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import ProduceResponse
from protocol.records import BATCH_OVERHEAD, TRANSACTIONAL_BIT
from protocol.single_partition_codec import FIRST_PRODUCE_VERSION, ProduceLayout, SinglePartitionProduce
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.partition import ACKS_ALL, ACKS_LEADER
from replication.timer_queue import Timer
from storage.log.log import AppendInfo

_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")  # the first bytes of its frames


class _PendingAppend:
    """The append of one request and its response, now or later (`Later`)."""

    __slots__ = (
        "_ctx",
        "_deadline",
        "_deliver",
        "_fast_path",
        "_index",
        "_repeated",
        "_topic",
        "_topic_id",
        "answer",
        "is_done",
    )  # fmt: skip

    def __init__(
        self, fast_path: ProduceFastPath, ctx: RequestContext, produce: SinglePartitionProduce, topic: str
    ) -> None:
        self._fast_path = fast_path
        self._ctx = ctx
        self._topic = topic
        self._topic_id = produce.topic_id
        self._index = produce.partition
        self._repeated = produce.echoed_bytes  # without the records, which may be large
        self._deadline: Timer | None = None
        self._deliver: Callable[[list[Part] | None], None] | None = None
        self.is_done = False
        self.answer: list[Part] | ProduceResponse | None = None
        """The response, if the append completed before `wait`."""

    def on_append(self, code: ErrorCode, info: AppendInfo | None, error: KafkaError | None) -> None:
        """The append completed or timed out."""
        if self.is_done:
            return
        fast_path, ctx = self._fast_path, self._ctx
        answer: list[Part] | ProduceResponse
        if info is not None:  # the append has reached its acks
            answer = fast_path.layout.encode_response(
                ctx.correlation_id, self._repeated, info.base_offset, info.log_append_time_ms, info.log_start_offset
            )
        else:
            answer = fast_path.handler.failure_response(ctx, self._topic, self._index, self._topic_id, code, error)
        deliver = self._deliver
        self._complete()
        if deliver is None:
            self.answer = answer
        else:
            deliver(answer if isinstance(answer, list) else fast_path.encode(ctx.correlation_id, answer))

    def wait(self, timeout_ms: int) -> None:
        """Time out after `timeout_ms`."""
        at_mono_ms = self._ctx.mono_ms + max(0, timeout_ms)
        self._deadline = self._fast_path.handler.timers.schedule(at_mono_ms, self._expire)

    def deliver_to(self, deliver: Callable[[list[Part] | None], None], close: Callable[[str], None]) -> None:  # noqa: ARG002
        """Call `deliver` with the response."""
        self._deliver = deliver

    def cancel(self) -> None:
        """The connection is closed."""
        self._complete()

    def can_pipeline(self, frame: bytearray) -> bool:
        """Whether the next request is a Produce: appends keep their order."""
        return frame.startswith(_PRODUCE)

    def _expire(self) -> None:
        self.on_append(ErrorCode.REQUEST_TIMED_OUT, None, None)

    def _complete(self) -> None:
        self.is_done = True
        self._deliver = None
        if self._deadline is not None:
            self._deadline.cancel()


class ProduceFastPath:
    """Answers one version of Produce."""

    def __init__(self, handler: ProduceHandler, version: int) -> None:
        self.handler = handler
        self.layout = ProduceLayout(version)
        self._encode = encoder(ProduceResponse, version)
        self._has_flexible_header = response_header_version(ApiKey.PRODUCE, version) >= 1

    def encode(self, correlation_id: int, answer: ProduceResponse) -> list[Part]:
        """Encode a response of the handler."""
        return frame_response(correlation_id, self._encode(answer), flexible_header=self._has_flexible_header)

    def answer(
        self, ctx: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | ProduceResponse | _PendingAppend | None:
        """The response to the request at `position`, now or later, or None (rule 2)."""
        produce = self.layout.decode_request(frame, position)
        if produce is None:
            return None
        topic, topic_id, index, acks, timeout_ms, records, _ = produce
        if (
            acks not in (ACKS_LEADER, ACKS_ALL)
            or len(records) < BATCH_OVERHEAD
            or records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT
        ):
            return None
        handler = self.handler
        if topic_id:
            topic_image = handler.replicas.image.topics_by_id.get(topic_id)
            if topic_image is None:
                return None
            topic = topic_image.name
        if topic in INTERNAL_TOPICS or not handler.authorizer.authorize(
            ctx.connection.principal, Operation.WRITE, Resource.TOPIC, topic
        ):
            return None
        append = _PendingAppend(self, ctx, produce, topic)
        handler.replicas.append(topic, index, records, acks=acks, wall_ms=ctx.wall_ms, done=append.on_append)
        if append.answer is not None:
            return append.answer
        append.wait(timeout_ms)
        return append


def fast_paths(handler: ProduceHandler) -> FastPaths:
    """The fast path of each version that has one."""

    def fast_path(version: int) -> FastPath | None:
        return ProduceFastPath(handler, version).answer if version >= FIRST_PRODUCE_VERSION else None

    return fast_path

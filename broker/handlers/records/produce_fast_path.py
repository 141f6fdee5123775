"""The short cut for the Produce that producers send most: one batch for one partition.

RULES    1. It answers as `produce.py` does, byte for byte and by the same means: authorizer, ReplicaManager.
         2. What is unusual is the handler's: then it gives None, and nothing has happened. Unusual are another shape
            (`protocol/single_partition_codec.py`), acks=0, a transactional batch, an internal topic, and who may not write.
         3. Once the batch is handed in there is no way back. An append that has to wait is answered the same way later;
            an error, and a request whose time is over, by the handler's own means (`ProduceHandler.explain`).
NOT HERE What is right and wrong about a Produce (`produce.py`). Why there are two ways:
         docs/decisions/0015-a-short-cut-for-one-partition.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.handlers.records.produce import ATTRIBUTES_LOW_BYTE, ProduceHandler
from broker.handlers.router import RequestContext, Shortcut, Shortcuts
from broker.security.authorizer import Operation, Resource
from protocol.api import ApiKey, response_header_version
from protocol.codec import encoder
from protocol.errors import ErrorCode, KafkaError
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import ProduceResponse
from protocol.records import BATCH_OVERHEAD, TRANSACTIONAL_BIT
from protocol.single_partition_codec import FIRST_PRODUCE_VERSION, ProduceLayout, ProduceOfOne
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.partition import ACKS_ALL, ACKS_LEADER
from replication.timer_queue import Deadline
from storage.log.log import AppendInfo

_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")  # how its frames begin


class _Append:
    """The append of one request: its outcome, or the promise of one (`Later`)."""

    __slots__ = (
        "_ctx", "_deadline", "_deliver", "_index", "_repeated", "_shortcut", "_topic", "_topic_id", "answer", "is_done",
    )  # fmt: skip

    def __init__(self, shortcut: ProduceShortcut, ctx: RequestContext, asked: ProduceOfOne, topic: str) -> None:
        self._shortcut = shortcut
        self._ctx = ctx
        self._topic = topic
        self._topic_id = asked.topic_id
        self._index = asked.partition
        self._repeated = asked.repeated  # not the records: they may be large, and the wait long
        self._deadline: Deadline | None = None
        self._deliver: Callable[[list[Part] | None], None] | None = None
        self.is_done = False
        self.answer: list[Part] | ProduceResponse | None = None
        """What is known before anybody waits."""

    def done(self, code: ErrorCode, info: AppendInfo | None, error: KafkaError | None) -> None:
        """It has ended, or the time is over."""
        if self.is_done:
            return
        shortcut, ctx = self._shortcut, self._ctx
        answer: list[Part] | ProduceResponse
        if info is not None:  # the records are as safe as wanted
            answer = shortcut.layout.answer(
                ctx.correlation_id, self._repeated, info.base_offset, info.log_append_time_ms, info.log_start_offset
            )
        else:
            answer = shortcut.handler.explain(ctx, self._topic, self._index, self._topic_id, code, error)
        deliver = self._deliver
        self._end()
        if deliver is None:
            self.answer = answer
        else:
            deliver(answer if isinstance(answer, list) else shortcut.encode(ctx.correlation_id, answer))

    def wait(self, timeout_ms: int) -> None:
        """It is to end until then."""
        at_mono_ms = self._ctx.mono_ms + max(0, timeout_ms)
        self._deadline = self._shortcut.handler.deadlines.schedule(at_mono_ms, self._expire)

    def deliver_to(self, deliver: Callable[[list[Part] | None], None], close: Callable[[str], None]) -> None:  # noqa: ARG002
        """Call `deliver` with the parts when it has ended."""
        self._deliver = deliver

    def cancel(self) -> None:
        """Nobody will read the answer."""
        self._end()

    def lets_begin(self, frame: bytearray) -> bool:
        """A later Produce may be begun: the appends keep their order."""
        return frame.startswith(_PRODUCE)

    def _expire(self) -> None:
        self.done(ErrorCode.REQUEST_TIMED_OUT, None, None)

    def _end(self) -> None:
        self.is_done = True
        self._deliver = None
        if self._deadline is not None:
            self._deadline.cancel()


class ProduceShortcut:
    """Answers one version of Produce."""

    def __init__(self, handler: ProduceHandler, version: int) -> None:
        self.handler = handler
        self.layout = ProduceLayout(version)
        self._encode = encoder(ProduceResponse, version)
        self._has_flexible_header = response_header_version(ApiKey.PRODUCE, version) >= 1

    def encode(self, correlation_id: int, answer: ProduceResponse) -> list[Part]:
        """An answer by the handler's means."""
        return frame_response(correlation_id, self._encode(answer), flexible_header=self._has_flexible_header)

    def answer(
        self, ctx: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | ProduceResponse | _Append | None:
        """The answer to the request that begins at `position`; None where it is unusual."""
        asked = self.layout.read(frame, position)
        if asked is None:
            return None
        topic, topic_id, index, acks, timeout_ms, records, _ = asked
        if (
            acks not in (ACKS_LEADER, ACKS_ALL)
            or len(records) < BATCH_OVERHEAD
            or records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT
        ):
            return None
        handler = self.handler
        if topic_id:
            known = handler.replicas.image.topics_by_id.get(topic_id)
            if known is None:
                return None
            topic = known.name
        if topic in INTERNAL_TOPICS or not handler.authorizer.authorize(
            ctx.connection.principal, Operation.WRITE, Resource.TOPIC, topic
        ):
            return None
        append = _Append(self, ctx, asked, topic)
        handler.replicas.append(topic, index, records, acks=acks, wall_ms=ctx.wall_ms, done=append.done)
        if append.answer is not None:
            return append.answer
        append.wait(timeout_ms)
        return append


def shortcuts(handler: ProduceHandler) -> Shortcuts:
    """The short cut of each version that has one."""

    def shortcut(version: int) -> Shortcut | None:
        return ProduceShortcut(handler, version).answer if version >= FIRST_PRODUCE_VERSION else None

    return shortcut

"""The fast path for the most frequent Produce: one batch for one partition.

RULES    1. The response is the same as that of `produce.py`, byte for byte. Only decoding the request and encoding the response
            of a successful append differ; the handler finds and authorizes the topic and builds error responses.
         2. For any other request it returns None without side effects and the handler takes over: another layout
            (`protocol/single_partition_codec.py`), acks=0, a transactional batch, an unknown or unauthorized topic.
NOT HERE Validation of a Produce (`produce.py`). Why there are two paths:
         docs/decisions/0015-fast-path-for-single-partition-requests.md
"""

from __future__ import annotations

from functools import partial

from broker.handlers.records.produce import ATTRIBUTES_LOW_BYTE, ProduceHandler
from broker.handlers.router import FastPath, FastPaths, RequestContext
from protocol.api import ApiKey, response_header_version
from protocol.codec import encoder
from protocol.errors import KafkaError
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import ProduceResponse
from protocol.records import BATCH_OVERHEAD, TRANSACTIONAL_BIT
from protocol.single_partition_codec import FIRST_PRODUCE_VERSION, ProduceLayout
from replication.completion import Completion
from replication.partition.partition import ACKS_ALL, ACKS_LEADER
from storage.log.log import AppendInfo


class ProduceFastPath:
    """Answers one version of Produce."""

    def __init__(self, handler: ProduceHandler, version: int) -> None:
        self._handler = handler
        self._layout = ProduceLayout(version)
        self._encode = encoder(ProduceResponse, version)
        self._has_flexible_header = response_header_version(ApiKey.PRODUCE, version) >= 1

    def answer(
        self, ctx: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | Completion[list[Part]] | None:
        """The response to the request at `position`, now or later, or None (rule 2)."""
        produce = self._layout.decode_request(frame, position)
        if produce is None:
            return None
        topic, topic_id, index, acks, timeout_ms, records, echoed_bytes = produce
        if (
            acks not in (ACKS_LEADER, ACKS_ALL)
            or len(records) < BATCH_OVERHEAD
            or records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT
        ):
            return None
        handler = self._handler
        try:
            name = handler.topic_name(ctx, topic, topic_id)
        except KafkaError:
            return None
        append = handler.replicas.append(name, index, records, acks=acks, wall_ms=ctx.wall_ms)
        if append.is_done:
            return self._response(ctx, name, topic_id, index, echoed_bytes, append)
        append.expire_at(handler.timers, ctx.mono_ms + max(0, timeout_ms), append.time_out)
        return append.handle(partial(self._response, ctx, name, topic_id, index, echoed_bytes))

    def _response(
        self,
        ctx: RequestContext,
        topic: str,
        topic_id: bytes,
        index: int,
        echoed_bytes: bytearray,
        append: Completion[AppendInfo],
    ) -> list[Part]:
        error = append.error
        if error is None:
            info = append.value
            return self._layout.encode_response(
                ctx.correlation_id, echoed_bytes, info.base_offset, info.log_append_time_ms, info.log_start_offset
            )
        assert isinstance(error, KafkaError)
        response = self._handler.failure_response(ctx, topic, index, topic_id, error)
        return frame_response(ctx.correlation_id, self._encode(response), flexible_header=self._has_flexible_header)


def fast_paths(handler: ProduceHandler) -> FastPaths:
    """The fast path of each version that has one."""

    def fast_path(version: int) -> FastPath | None:
        return ProduceFastPath(handler, version).answer if version >= FIRST_PRODUCE_VERSION else None

    return fast_path

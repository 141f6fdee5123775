"""The fast path of Produce: appends and answers without messages.

RULES    1. The response is that of the handler (`produce.py`), byte for byte. The fast path returns None before any change for
            an unusual request: another layout, acks=0, a transactional batch, an unknown or unauthorized topic
            (docs/decisions/0015-fast-path-for-single-partition-requests.md).
NOT HERE The layouts of requests (`protocol/frame_codecs/single_partition_codec.py`, `protocol/frame_codecs/produce_codec.py`).
"""

from __future__ import annotations

from functools import partial

from broker.handlers.records.delayed_produce import DelayedProduce, RequestedTopic, is_transactional
from broker.handlers.records.produce_services import ProduceServices
from broker.handlers.response_errors import error_finder
from broker.handlers.router import RequestContext
from protocol.api import ApiKey, response_header_version
from protocol.codec import encoder
from protocol.errors import KafkaError
from protocol.frame_codecs.produce_codec import ProducedTopic, ProduceTopicsLayout
from protocol.frame_codecs.single_partition_codec import ProduceLayout
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import ProduceResponse
from protocol.primitives import ZERO_UUID
from replication.completion import Completion
from replication.partition.partition import ACKS_ALL, ACKS_LEADER
from storage.log.append_pipeline import AppendInfo


class ProduceFastPath:
    """The fast path of one version."""

    __slots__ = ("_encode", "_find_errors", "_has_flexible_header", "_layout", "_services", "_topics_layout")

    def __init__(self, services: ProduceServices, version: int) -> None:
        self._services = services
        self._layout = ProduceLayout(version)
        self._topics_layout = ProduceTopicsLayout(version)
        self._encode = encoder(ProduceResponse, version)
        self._find_errors = error_finder(ProduceResponse)
        self._has_flexible_header = response_header_version(ApiKey.PRODUCE, version) >= 1

    def answer(
        self, ctx: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | Completion[list[Part]] | None:
        """The response to the request at `position`, now or later, or None."""
        produce = self._layout.decode_request(frame, position)
        if produce is None:
            return self._answer_many(ctx, frame, position)
        topic, topic_id, index, acks, timeout_ms, records, echoed_bytes = produce
        if acks not in (ACKS_LEADER, ACKS_ALL) or is_transactional(records):
            return None
        services = self._services
        try:
            topic = services.topic_name(ctx, topic, topic_id, log_denied=False)
        except KafkaError:
            return None
        append = services.replicas.appender.append(topic, index, records, acks=acks, wall_ms=ctx.wall_ms)
        if append.is_done:
            return self._response(ctx, topic, topic_id, index, echoed_bytes, append)
        append.expire_at(services.timers, ctx.mono_ms + timeout_ms, append.time_out)
        return append.handle(partial(self._response, ctx, topic, topic_id, index, echoed_bytes))

    def _response(
        self,
        ctx: RequestContext,
        topic: str,
        topic_id: bytes,
        index: int,
        echoed_bytes: bytearray,
        append: Completion[AppendInfo],
    ) -> list[Part]:
        if append.error is None:
            info = append.value
            return self._layout.encode_response(
                ctx.correlation_id, echoed_bytes, info.base_offset, info.log_append_time_ms, info.log_start_offset
            )
        response = DelayedProduce(self._services, ctx, ACKS_ALL).failure_response(topic, topic_id, index, append.error)
        return self._encode_errors(ctx, response)

    def _answer_many(
        self, ctx: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | Completion[list[Part]] | None:
        """The response to a request for several partitions; None if it does not have the usual form."""
        request = self._topics_layout.decode_request(frame, position)
        if request is None or request.acks not in (ACKS_LEADER, ACKS_ALL):
            return None
        services, topics, batches = self._services, [], []
        for topic in request.topics:
            try:
                name = services.topic_name(ctx, topic.name, topic.topic_id, log_denied=False)
            except KafkaError:
                return None
            topics.append(RequestedTopic(topic.name, topic.topic_id or ZERO_UUID, name, topic.indexes))
            for index, records in zip(topic.indexes, topic.records, strict=True):
                if is_transactional(records):
                    return None
                batches.append((name, index, records))
        produce = DelayedProduce(services, ctx, request.acks)
        produce.append_plain(topics, batches)
        return produce.finish(request.timeout_ms, partial(self._response_of_many, ctx, produce, request.topics))

    def _response_of_many(
        self, ctx: RequestContext, produce: DelayedProduce, topics: list[ProducedTopic]
    ) -> list[Part]:
        results = produce.results()
        if results is None:
            return self._encode_errors(ctx, produce.response())
        return self._topics_layout.encode_response(ctx.correlation_id, topics, results)

    def _encode_errors(self, ctx: RequestContext, response: ProduceResponse) -> list[Part]:
        """Encode a response with errors."""
        ctx.metrics.count_errors(self._find_errors(response))
        return frame_response(ctx.correlation_id, self._encode(response), flexible_header=self._has_flexible_header)

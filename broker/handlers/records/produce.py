"""Produce: append the batch of every partition and wait for acks.

RULES    1. Partitions are appended in request order and independently. A repeated partition is appended and answered twice.
         2. acks is 0, 1 or -1; else nothing is appended. With acks=0 there is no response; an error closes the
            connection, so that the producer refreshes its metadata.
         3. Transactional batches need an authorized transactional id, and all batches of a request the same producer
            id and epoch; otherwise nothing is appended.
NOT HERE Appending and waiting (`delayed_produce.py`), usual requests without messages (`produce_fast_path.py`).
"""

from __future__ import annotations

from typing import Any

from broker.handlers.records.delayed_produce import DelayedProduce, header_of, is_transactional
from broker.handlers.records.produce_fast_path import ProduceFastPath
from broker.handlers.records.produce_services import ProduceServices
from broker.handlers.router import FastPath, RequestContext, Route
from broker.security.authorizer import Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.frame_codecs.single_partition_codec import FIRST_PRODUCE_VERSION
from protocol.messages.produce_fetch import ProduceRequest, ProduceResponse
from replication.completion import Completion
from replication.partition.partition import ACKS_ALL, ACKS_LEADER, ACKS_NONE


class ProduceHandler:
    """Handles Produce."""

    def __init__(self, services: ProduceServices) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes of this module; advertised from version 0, supported from 3 (KAFKA-18659)."""
        return [
            Route(ApiKey.PRODUCE, 3, 13, self.handle, advertised_min=0, fast_path=self.fast_path, can_pipeline=True)
        ]

    def fast_path(self, version: int) -> FastPath | None:
        """The fast path of a version, if it has one."""
        return ProduceFastPath(self._services, version).answer if version >= FIRST_PRODUCE_VERSION else None

    def handle(
        self, ctx: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Completion[ProduceResponse | None] | None:
        """Append, and respond now or later."""
        produce = DelayedProduce(self._services, ctx, request.acks)
        transactional = [
            data.records
            for topic in request.topic_data
            for data in topic.partition_data
            if is_transactional(data.records)
        ]
        refusal = self._check_request(ctx, request, transactional)
        produce.append(request.topic_data, refusal, has_transactional=bool(transactional))
        if request.transactional_id is not None:
            produce.append_transactional(request.transactional_id)
        return produce.finish(request.timeout_ms, produce.result)

    def _check_request(
        self, ctx: RequestContext, request: ProduceRequest, transactional: list[Any]
    ) -> KafkaError | None:
        """The error of the whole request, if any; `transactional` are its transactional batches."""
        if request.acks not in (ACKS_LEADER, ACKS_ALL, ACKS_NONE):
            return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        if not transactional:
            return None
        name = request.transactional_id
        if name is None or not self._services.authorizer.authorize(
            ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, name
        ):
            return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        headers = map(header_of, transactional)
        if len({(header.producer_id, header.producer_epoch) for header in headers}) > 1:
            return KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        return None

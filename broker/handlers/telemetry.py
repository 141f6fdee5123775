"""Clients' own metrics: which are wanted, and what is sent (KIP-714).

RULES    1. Nobody needs a right: what is wanted of a client is its administrators' business, and so is what it sends.
         2. Order of checks and codes are Apache Kafka 4.3's (ClientMetricsManager); there a metrics reporter takes what is
            sent, and without one these APIs are not served.
NOT HERE Who may speak when (`broker/telemetry/instances.py`), what is kept (`broker/telemetry/received.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.handlers.router import RequestContext, Route
from broker.telemetry.instances import ClientInstance, ClientInstances
from broker.telemetry.received import ReceivedMetrics
from protocol.api import ApiKey
from protocol.compression import Compression
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from protocol.primitives import ZERO_UUID, uuid_text
from replication.metadata.client_metrics import Facts

_ACCEPTED: Final = [Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY]
"""The best first; none at all is accepted too."""
_RESERVED: Final = frozenset({ZERO_UUID, (1).to_bytes(16, "big")})


class TelemetryHandlers:
    """The handlers of this module and what they need."""

    def __init__(self, instances: ClientInstances, received: ReceivedMetrics, most_bytes: int) -> None:
        self._instances = instances
        self._received = received
        self._most_bytes = most_bytes

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, self.get_subscriptions),
            Route(ApiKey.PUSH_TELEMETRY, 0, 0, self.push),
        ]

    def get_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        """What is wanted of a client."""
        client = self._client(context, request.client_instance_id)
        if not client.may_ask(context.mono_ms):
            return _nothing_wanted(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.error = ErrorCode.NONE
        if client.wanted.metrics:
            self._received.await_reports()
        return GetTelemetrySubscriptionsResponse(
            error_code=ErrorCode.NONE,
            client_instance_id=client.instance_id,
            subscription_id=client.number,
            accepted_compression_types=list(_ACCEPTED),
            push_interval_ms=client.wanted.interval_ms,
            telemetry_max_bytes=self._most_bytes,
            delta_temporality=True,
            requested_metrics=list(client.wanted.metrics),
        )

    def push(self, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
        """A client reports."""
        if request.client_instance_id in _RESERVED:
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
        client = self._client(context, request.client_instance_id)
        client.error = self._refusal(client, request, context.mono_ms)
        client.is_ending = request.terminating
        if client.error == ErrorCode.NONE and request.metrics:
            try:
                self._received.take(
                    client.instance_id,
                    client.facts,
                    request.compression_type,
                    request.metrics,
                    now_ms=context.mono_ms,
                    until_ms=client.until_ms,
                )
            except KafkaError as error:
                client.error = error.code
        return PushTelemetryResponse(error_code=client.error)

    def _refusal(self, client: ClientInstance, request: PushTelemetryRequest, now_ms: int) -> ErrorCode:
        if client.is_ending:
            return ErrorCode.INVALID_REQUEST
        if not client.may_send(now_ms) and not request.terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if request.subscription_id != client.number:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if request.compression_type not in set(Compression):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if len(request.metrics) > self._most_bytes:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def _client(self, context: RequestContext, instance_id: bytes) -> ClientInstance:
        connection = context.connection
        client = self._instances.of(instance_id, connection.connection_id, partial(_facts, context), context.mono_ms)
        connection.on_close = partial(self._instances.forget, client.instance_id, connection.connection_id)
        return client


def _facts(context: RequestContext, instance_id: bytes) -> Facts:
    connection = context.connection
    return {
        "client_instance_id": uuid_text(instance_id),
        "client_id": context.client_id,
        "client_software_name": connection.software_name,
        "client_software_version": connection.software_version,
        "client_source_address": connection.peer_host,
        "client_source_port": str(connection.peer_port),
    }


def _nothing_wanted(code: ErrorCode) -> GetTelemetrySubscriptionsResponse:
    return GetTelemetrySubscriptionsResponse(
        error_code=code,
        client_instance_id=ZERO_UUID,
        subscription_id=0,
        accepted_compression_types=[],
        push_interval_ms=0,
        telemetry_max_bytes=0,
        delta_temporality=False,
        requested_metrics=[],
    )

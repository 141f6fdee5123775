"""Client metrics: GetTelemetrySubscriptions and PushTelemetry (KIP-714).

RULES    1. No authorization is needed, as in Kafka.
         2. Checks and error codes are in the order of Apache Kafka 4.3's ClientMetricsManager. Kafka supports these APIs only
            with a metrics reporter.
NOT HERE Client instances and intervals (`broker/telemetry/clients/client_instances.py`), received metrics
         (`broker/telemetry/clients/received_metrics.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.handlers.router import RequestContext, Route
from broker.telemetry.clients.client_instances import ClientInstance, ClientInstances
from broker.telemetry.clients.received_metrics import ClientMetricsStore
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
from protocol.schema import blank
from replication.metadata.client_metrics import ClientAttributes

_COMPRESSION_TYPES: Final = [Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY]
"""In order of preference; uncompressed metrics are accepted too."""
_RESERVED: Final = frozenset({ZERO_UUID, (1).to_bytes(16, "big")})


class TelemetryHandlers:
    """The handlers of the telemetry APIs."""

    def __init__(self, instances: ClientInstances, received: ClientMetricsStore, max_bytes: int) -> None:
        self._instances = instances
        self._received = received
        self._max_bytes = max_bytes

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, self.get_subscriptions),
            Route(ApiKey.PUSH_TELEMETRY, 0, 0, self.push),
        ]

    def get_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        """Handle GetTelemetrySubscriptions."""
        client = self._client(context, request.client_instance_id)
        if not client.may_get_subscription(context.mono_ms):
            return blank(GetTelemetrySubscriptionsResponse, error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.error = ErrorCode.NONE
        if client.wanted.metrics:
            self._received.preload_parser()
        return GetTelemetrySubscriptionsResponse(
            error_code=ErrorCode.NONE,
            client_instance_id=client.instance_id,
            subscription_id=client.subscription_id,
            accepted_compression_types=list(_COMPRESSION_TYPES),
            push_interval_ms=client.wanted.interval_ms,
            telemetry_max_bytes=self._max_bytes,
            delta_temporality=True,
            requested_metrics=list(client.wanted.metrics),
        )

    def push(self, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
        """Handle PushTelemetry."""
        if request.client_instance_id in _RESERVED:
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
        client = self._client(context, request.client_instance_id)
        client.error = self._push_error(client, request, context.mono_ms)
        client.is_ending = request.terminating
        if client.error == ErrorCode.NONE and request.metrics:
            try:
                self._received.update(
                    client.instance_id,
                    client.facts,
                    request.compression_type,
                    request.metrics,
                    now_ms=context.mono_ms,
                    expires_ms=client.expires_ms,
                )
            except KafkaError as error:
                client.error = error.code
        return PushTelemetryResponse(error_code=client.error)

    def _push_error(self, client: ClientInstance, request: PushTelemetryRequest, now_ms: int) -> ErrorCode:
        if client.is_ending:
            return ErrorCode.INVALID_REQUEST
        if not client.may_push(now_ms) and not request.terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if request.subscription_id != client.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if request.compression_type not in set(Compression):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if len(request.metrics) > self._max_bytes:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def _client(self, context: RequestContext, instance_id: bytes) -> ClientInstance:
        connection = context.connection
        client = self._instances.of(instance_id, connection.connection_id, partial(_facts, context), context.mono_ms)
        connection.on_close = partial(self._instances.forget, client.instance_id, connection.connection_id)
        return client


def _facts(context: RequestContext, instance_id: bytes) -> ClientAttributes:
    connection = context.connection
    return {
        "client_instance_id": uuid_text(instance_id),
        "client_id": context.client_id,
        "client_software_name": connection.software_name,
        "client_software_version": connection.software_version,
        "client_source_address": connection.peer_host,
        "client_source_port": str(connection.peer_port),
    }

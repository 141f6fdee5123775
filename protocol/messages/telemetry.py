"""Client metrics (KIP-714)."""

from __future__ import annotations

from protocol.messages.common import ErrorResponse
from protocol.schema import Int8, Int32, Message, Uuid


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions=(0, 0), flexible=0):
    """Ask which metrics to push. The client instance id is zero until the broker assigns one."""

    client_instance_id: Uuid


class GetTelemetrySubscriptionsResponse(ErrorResponse, request=GetTelemetrySubscriptionsRequest):
    """The subscribed metrics as name prefixes: "" matches all, an empty list none."""

    client_instance_id: Uuid
    subscription_id: Int32
    accepted_compression_types: list[Int8]
    push_interval_ms: Int32
    telemetry_max_bytes: Int32
    delta_temporality: bool
    requested_metrics: list[str]


class PushTelemetryRequest(Message, api_key=72, versions=(0, 0), flexible=0):
    """Metrics in OpenTelemetry format, optionally compressed; terminating: the client's last push."""

    client_instance_id: Uuid
    subscription_id: Int32
    terminating: bool
    compression_type: Int8
    metrics: bytes


class PushTelemetryResponse(ErrorResponse, request=PushTelemetryRequest):
    pass

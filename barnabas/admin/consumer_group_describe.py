"""ConsumerGroupDescribe (KIP-848), which kafka-python does not have."""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

_SCHEMAS = "barnabas.admin.schemas"


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """Describes groups of the consumer protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """The groups with their members; found by kafka-python by its API key."""


MESSAGES = (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse)
"""Keeps the response's class alive: kafka-python refers to it weakly."""

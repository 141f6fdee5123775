"""Request and response headers."""

from __future__ import annotations

from protocol.schema import Int16, Int32, LegacyString, Message


class RequestHeader(Message, versions=(1, 2), flexible=2):
    """The header of every request. The client id is never compact, so every broker can read it."""

    request_api_key: Int16
    request_api_version: Int16
    correlation_id: Int32
    client_id: LegacyString | None


class ResponseHeader(Message, versions=(0, 1), flexible=1):
    """The header of every response."""

    correlation_id: Int32

"""Envelope: a client's request that a broker forwards to the active controller (KIP-590)."""

from __future__ import annotations

from protocol.schema import Int16, Message


class EnvelopeRequest(Message, api_key=58, versions=(0, 0), flexible=0):
    """The request with its header, the principal (version and `DefaultPrincipalData`), and the client's IP address."""

    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes


class EnvelopeResponse(Message, request=EnvelopeRequest):
    """The response with its header, or an error."""

    response_data: bytes | None = None
    error_code: Int16


class DefaultPrincipalData(Message, versions=(0, 0), flexible=0):
    """The client's principal; an i16 version precedes it."""

    type: str
    name: str
    token_authenticated: bool

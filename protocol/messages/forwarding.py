"""What a broker hands on to the active controller for a client of its own: the client's request as it came, and who it is."""

from __future__ import annotations

from protocol.schema import Int16, Message


class EnvelopeRequest(Message, api_key=58, versions=(0, 0), flexible=0):
    """A request with its header, who asks (version and `DefaultPrincipalData`), and from which address (4 or 16 bytes)."""

    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes


class EnvelopeResponse(Message, api_key=58, versions=(0, 0), flexible=0):
    """The answer with its header, or why there is none."""

    response_data: bytes | None = None
    error_code: Int16


class DefaultPrincipalData(Message, versions=(0, 0), flexible=0):
    """Who asks; behind an i16 that says the version."""

    type: str
    name: str
    token_authenticated: bool

"""SASL authentication."""

from __future__ import annotations

from typing import Annotated

from protocol.schema import Ignorable, Int16, Int64, Message, Since


class SaslHandshakeRequest(Message, api_key=17, versions=(0, 1)):
    """The SASL mechanism that the client chose."""

    mechanism: str


class SaslHandshakeResponse(Message, request=SaslHandshakeRequest):
    """The enabled mechanisms."""

    error_code: Int16
    mechanisms: list[str]


class SaslAuthenticateRequest(Message, api_key=36, versions=(0, 2), flexible=2):
    """One step of the SASL exchange."""

    auth_bytes: bytes


class SaslAuthenticateResponse(Message, request=SaslAuthenticateRequest):
    """Session_lifetime_ms is 0 if the session lasts as long as the connection."""

    error_code: Int16
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: Annotated[Int64, Since(1), Ignorable] = 0

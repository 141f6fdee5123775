"""Messages by which a client says who it is (SASL)."""

from __future__ import annotations

from typing import Annotated

from protocol.schema import Ignorable, Int16, Int64, Message, Since


class SaslHandshakeRequest(Message, api_key=17, versions=(0, 1)):
    """By which mechanism the client will say who it is."""

    mechanism: str


class SaslHandshakeResponse(Message, api_key=17, versions=(0, 1)):
    """The answer to SaslHandshakeRequest: the mechanisms that there are."""

    error_code: Int16
    mechanisms: list[str]


class SaslAuthenticateRequest(Message, api_key=36, versions=(0, 2), flexible=2):
    """A step of the mechanism."""

    auth_bytes: bytes


class SaslAuthenticateResponse(Message, api_key=36, versions=(0, 2), flexible=2):
    """The answer to SaslAuthenticateRequest; how long it holds in ms, 0 for as long as the connection lasts."""

    error_code: Int16
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: Annotated[Int64, Since(1), Ignorable] = 0

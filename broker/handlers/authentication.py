"""SaslHandshake, SaslAuthenticate: who asks to log in hears that this listener takes everybody as they are.

RULES    1. Codes and sentences are those of Apache Kafka 4.3 at a listener without SASL: nobody has to log in there, so any
            moment is the wrong one.
NOT HERE Logging in: no listener asks for it yet (`broker/security`).
"""

from __future__ import annotations

from broker.handlers.router import RequestContext, Route
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def routes() -> list[Route]:
    """The rows of this module."""
    return [
        Route(ApiKey.SASL_HANDSHAKE, 0, 1, handshake),
        Route(ApiKey.SASL_AUTHENTICATE, 0, 2, authenticate),
    ]


def handshake(_: RequestContext, __: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """No mechanism is wanted."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


def authenticate(_: RequestContext, __: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Nor is a step of one."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )

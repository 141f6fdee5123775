"""SaslHandshake and SaslAuthenticate on listeners without SASL, and after authentication.

RULES    1. Error codes and messages are those of Apache Kafka 4.3.
NOT HERE Authentication (`sasl_dispatcher.py`).
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
    """The routes of this module."""
    return [Route(ApiKey.SASL_HANDSHAKE, 0, 1, handshake), Route(ApiKey.SASL_AUTHENTICATE, 0, 2, authenticate)]


def handshake(_: RequestContext, __: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """No SASL mechanism is enabled."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


def authenticate(_: RequestContext, __: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """The connection is already authenticated as ANONYMOUS."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )

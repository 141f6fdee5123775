"""Delegation tokens (KIP-48): create, renew, expire, describe."""

from __future__ import annotations

from typing import Annotated

from protocol.schema import Int16, Int32, Int64, Message, Since


class TokenPrincipal(Message):
    """A principal, such as "User" and "alice"."""

    principal_type: str
    principal_name: str


class CreateDelegationTokenRequest(Message, api_key=38, versions=(1, 3), flexible=2):
    """Create a token; without an owner it is the client's own."""

    owner_principal_type: Annotated[str | None, Since(3)] = ""
    owner_principal_name: Annotated[str | None, Since(3)] = ""
    renewers: list[TokenPrincipal]
    max_lifetime_ms: Int64


class CreateDelegationTokenResponse(Message, request=CreateDelegationTokenRequest):
    """The token; `hmac` is its secret."""

    error_code: Int16
    principal_type: str
    principal_name: str
    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64
    max_timestamp_ms: Int64
    token_id: str
    hmac: bytes
    throttle_time_ms: Int32 = 0


class RenewDelegationTokenRequest(Message, api_key=39, versions=(1, 2), flexible=2):
    """Move a token's expiry by a period from now on."""

    hmac: bytes
    renew_period_ms: Int64


class RenewDelegationTokenResponse(Message, request=RenewDelegationTokenRequest):
    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32 = 0


class ExpireDelegationTokenRequest(Message, api_key=40, versions=(1, 2), flexible=2):
    """Let a token expire after a period; a negative one removes it."""

    hmac: bytes
    expiry_time_period_ms: Int64


class ExpireDelegationTokenResponse(Message, request=ExpireDelegationTokenRequest):
    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32 = 0


class DescribeDelegationTokenRequest(Message, api_key=41, versions=(1, 3), flexible=2):
    """Describe tokens; null owners: those of all."""

    owners: list[TokenPrincipal] | None


class DescribedDelegationToken(TokenPrincipal):
    """A token; the principal is its owner."""

    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes
    renewers: list[TokenPrincipal]


class DescribeDelegationTokenResponse(Message, request=DescribeDelegationTokenRequest):
    error_code: Int16
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: Int32 = 0

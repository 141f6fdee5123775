"""Delegation tokens in the metadata image: their secrets, and what principals are to them (KIP-48).

FORMAT   a token is a DelegationTokenRecord. Its secret is not stored: it is the HMAC-SHA512 of the id with the key of all nodes
         (`delegation.token.secret.key`)
RULES    1. The owner and the renewers may renew and expire a token; they and the requester may describe it.
         2. A token is expired when its expiry or its longest lifetime has passed.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import NamedTuple

from protocol.messages.stored_records import DelegationTokenRecord
from replication.metadata.image import MetadataImage


class TokenSettings(NamedTuple):
    """The settings of a node."""

    secret_key: bytes = b""
    """Empty: delegation tokens are disabled."""
    max_lifetime_ms: int = 604_800_000
    expiry_time_ms: int = 86_400_000
    """Until a token expires if it is not renewed."""

    def __repr__(self) -> str:
        """Without the key."""
        return f"TokenSettings({self.max_lifetime_ms}, {self.expiry_time_ms})"

    @property
    def is_enabled(self) -> bool:
        """Whether there are delegation tokens."""
        return bool(self.secret_key)

    def secret_of(self, token_id: str) -> bytes:
        """The secret of a token, which its user has."""
        return hmac.digest(self.secret_key, token_id.encode(), "sha512")


def tokens_of(image: MetadataImage) -> Iterator[DelegationTokenRecord]:
    """All tokens."""
    return (record for record in image.opaque_records.values() if isinstance(record, DelegationTokenRecord))


def find_token(image: MetadataImage, token_id: str) -> DelegationTokenRecord | None:
    """The token with this id; None if it does not exist."""
    record = image.opaque_records.get(("token", token_id))
    return record if isinstance(record, DelegationTokenRecord) else None


def find_by_secret(image: MetadataImage, settings: TokenSettings, secret: bytes) -> DelegationTokenRecord | None:
    """The token with this secret; None if it does not exist."""
    for token in tokens_of(image):
        if hmac.compare_digest(settings.secret_of(token.token_id), secret):
            return token
    return None


def is_expired(token: DelegationTokenRecord, wall_ms: int) -> bool:
    """Whether a token is expired (rule 2)."""
    return min(token.max_timestamp, token.expiration_timestamp) < wall_ms


def is_owner_or_renewer(token: DelegationTokenRecord, principal: str) -> bool:
    """Whether a principal ("User:name") may renew and expire a token (rule 1)."""
    return principal in (token.owner, *token.renewers)


def is_known_to(token: DelegationTokenRecord, principal: str) -> bool:
    """Whether a principal may describe a token without further rights."""
    return principal == token.requester or is_owner_or_renewer(token, principal)

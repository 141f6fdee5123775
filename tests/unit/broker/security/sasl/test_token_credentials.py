"""The credentials of delegation tokens (broker/security/sasl/token_credentials.py)."""

from __future__ import annotations

import pytest

from broker.security.sasl.token_credentials import TokenCredentials
from protocol.messages.stored_records import DelegationTokenRecord
from replication.metadata.delegation_tokens import TokenSettings
from replication.metadata.image import MetadataImage

NOW_MS = 1_700_000_000_000


def credentials_of(owner: str, expiry_ms: int = NOW_MS + 1) -> TokenCredentials:
    token = DelegationTokenRecord(
        owner=owner,
        requester="User:mallory",
        renewers=[],
        issue_timestamp=NOW_MS - 10,
        max_timestamp=NOW_MS + 1000,
        expiration_timestamp=expiry_ms,
        token_id="id",
    )
    image = MetadataImage("c")
    image.opaque_records = {("token", "id"): token}
    return TokenCredentials(TokenSettings(b"key"), lambda: image, lambda: NOW_MS)


def test_a_token_is_the_credential_of_its_owner() -> None:
    found = credentials_of("User:admin").find("sha256", "id")
    assert found is not None
    assert (found.owner, found.expires_wall_ms) == ("admin", NOW_MS + 1)


@pytest.mark.parametrize(("owner", "expiry_ms"), [("User:admin", NOW_MS - 1), ("Group:admin", NOW_MS + 1)])
def test_an_expired_token_and_one_of_an_owner_that_is_no_user_are_refused(owner: str, expiry_ms: int) -> None:
    assert credentials_of(owner, expiry_ms).find("sha256", "id") is None

"""Requests that are refused before the controller decides (broker/handlers/admin/delegation_tokens.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.handlers.admin.delegation_tokens import DelegationTokenHandlers
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.delegation_tokens import CreateDelegationTokenRequest
from replication.metadata.delegation_tokens import TokenSettings
from tests.support.replica_harness import ReplicaHarness


@pytest.mark.parametrize("version", [2, 3])
def test_no_token_is_created_for_an_owner_without_a_type(tmp_path: Path, version: int) -> None:
    """The response is Apache Kafka's, with the anonymous user as owner."""
    harness = ReplicaHarness(tmp_path)
    controller: Any = harness  # gets no request
    handlers = DelegationTokenHandlers(controller, AllowAll(), TokenSettings(b"key", 5000, 2000), None)
    request = CreateDelegationTokenRequest(
        owner_principal_type=None, owner_principal_name="alice", renewers=[], max_lifetime_ms=-1
    )
    response: Any = handlers.create(harness.context(ApiKey.CREATE_DELEGATION_TOKEN, version), request)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (response.principal_type, response.principal_name, response.token_id) == ("User", "ANONYMOUS", "")

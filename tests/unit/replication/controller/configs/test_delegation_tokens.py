"""Decisions on delegation tokens (replication/controller/configs/delegation_tokens.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from protocol.messages.stored_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from protocol.schema import Message
from replication.controller.configs.delegation_tokens import (
    create_token,
    expire_token,
    remove_expired_tokens,
    renew_token,
)
from replication.controller.decision_context import DecisionContext
from replication.metadata.delegation_tokens import TokenSettings
from tests.support.controller_harness import ControllerHarness

NOW_MS = 1_000_000
SETTINGS = TokenSettings(b"key", max_lifetime_ms=5000, expiry_time_ms=2000)
CREATE = CreateDelegationTokenRequest(
    renewers=[TokenPrincipal(principal_type="User", principal_name="bob")], max_lifetime_ms=-1
)


class Tokens:
    """A metadata image with tokens, at a time that the test chooses."""

    def __init__(self, path: Path) -> None:
        self.context = ControllerHarness(path).start().context()._replace(tokens=SETTINGS)
        self.now_ms = NOW_MS

    def decide(self, decide: Any, request: Message, user: str = "alice") -> Any:
        """Decides on a user's request, and applies the records."""
        context = self._now()._replace(client_principal=f"User:{user}")
        decision = decide(context, request)
        self._apply([record for record, _ in decision.records])
        return decision.reply

    def sweep(self) -> list[Message]:
        return [record for record, _ in remove_expired_tokens(self._now())]

    def _now(self) -> DecisionContext:
        return self.context._replace(wall_ms=lambda: self.now_ms)

    def _apply(self, records: list[Message]) -> None:
        image = self.context.image
        self.context = self.context._replace(image=image.apply(records, offset=image.offset + 1, epoch=image.epoch)[0])

    @property
    def tokens(self) -> list[DelegationTokenRecord]:
        found = self.context.image.opaque_records.values()
        return [record for record in found if isinstance(record, DelegationTokenRecord)]


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


def renew(secret: bytes, period_ms: int = -1) -> Message:
    return RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)


def expire(secret: bytes, period_ms: int) -> Message:
    return ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)


def test_a_token_has_the_shorter_lifetime(tokens: Tokens) -> None:
    created = tokens.decide(create_token, CREATE)
    times = created.issue_timestamp_ms, created.expiry_timestamp_ms, created.max_timestamp_ms
    assert times == (NOW_MS, NOW_MS + 2000, NOW_MS + 5000)
    (record,) = tokens.tokens
    assert (record.owner, record.requester, record.renewers) == ("User:alice", "User:alice", ["User:bob"])
    assert created.hmac == SETTINGS.secret_of(record.token_id)
    short = tokens.decide(create_token, CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=7))
    assert short.expiry_timestamp_ms == short.max_timestamp_ms == NOW_MS + 7


def test_renewals_end_with_the_lifetime(tokens: Tokens) -> None:
    secret = tokens.decide(create_token, CREATE).hmac
    for at_ms, period_ms, expiry_ms in ((1000, -1, 3000), (1500, 100, 1600), (1600, 10**9, 3600), (3600, -1, 5000)):
        tokens.now_ms = NOW_MS + at_ms
        assert tokens.decide(renew_token, renew(secret, period_ms), "bob").expiry_timestamp_ms == NOW_MS + expiry_ms


def test_who_may_renew_and_expire(tokens: Tokens) -> None:
    request = CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name="carol", renewers=[], max_lifetime_ms=-1
    )
    secret = tokens.decide(create_token, request).hmac
    for user, code in (("alice", ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH), ("carol", ErrorCode.NONE)):
        assert tokens.decide(renew_token, renew(secret), user).error_code == code
        assert tokens.decide(expire_token, expire(secret, 5), user).error_code == code


def test_an_expired_token_can_only_be_removed(tokens: Tokens) -> None:
    secret = tokens.decide(create_token, CREATE).hmac
    tokens.now_ms += 2001
    expired = ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert tokens.decide(renew_token, renew(secret)).error_code == expired
    assert tokens.decide(expire_token, expire(secret, 5)).error_code == expired
    assert tokens.decide(expire_token, expire(secret, -1)).error_code == ErrorCode.NONE
    assert tokens.tokens == []
    assert tokens.decide(renew_token, renew(secret)).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_expired_tokens_are_removed_in_time(tokens: Tokens) -> None:
    tokens.decide(create_token, CREATE)
    tokens.now_ms += 2000
    assert tokens.sweep() == []
    tokens.now_ms += 1
    assert tokens.sweep() == [RemoveDelegationTokenRecord(token_id=tokens.tokens[0].token_id)]


def test_without_a_key_there_are_no_tokens(tokens: Tokens) -> None:
    tokens.context = tokens.context._replace(tokens=TokenSettings())
    for decide, request in ((create_token, CREATE), (renew_token, renew(b"x")), (expire_token, expire(b"x", 1))):
        assert tokens.decide(decide, request).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert "key" not in repr(SETTINGS)

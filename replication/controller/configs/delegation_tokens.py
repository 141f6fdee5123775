"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, and the removal of expired tokens.

RULES    1. The checks and their order are Apache Kafka 4.3's (DelegationTokenControlManager).
         2. The time in a response with an error is 0; in those of brokers, which refuse a request before, it is -1.
NOT HERE Which clients may ask at all (`broker/handlers/admin/delegation_tokens.py`), login (`broker/security/sasl/`).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import delegation_tokens as messages
from protocol.messages.stored_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from protocol.primitives import uuid_text
from replication.controller.decision_context import DecisionContext
from replication.metadata.delegation_tokens import find_by_secret, is_expired, is_owner_or_renewer, tokens_of
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

_FIRST_VERSION: Final = 14
"""The metadata.version from which tokens are records: 3.6-IV2."""


def create_token(
    context: DecisionContext, request: messages.CreateDelegationTokenRequest
) -> Decision[messages.CreateDelegationTokenResponse]:
    """Decide on a new token."""
    requester, now_ms, settings = context.client_principal, context.wall_ms(), context.tokens
    owner = owner_of(request, requester)
    try:
        _require_tokens(context)
    except KafkaError as error:
        return Decision([], creation_error(error.code, owner, requester, time_ms=0))
    asked_ms = request.max_lifetime_ms
    lifetime_ms = min(settings.max_lifetime_ms, asked_ms) if asked_ms > 0 else settings.max_lifetime_ms
    token = DelegationTokenRecord(
        owner=owner,
        requester=requester,
        renewers=[f"{one.principal_type}:{one.principal_name}" for one in request.renewers],
        issue_timestamp=now_ms,
        max_timestamp=now_ms + lifetime_ms,
        expiration_timestamp=now_ms + min(lifetime_ms, settings.expiry_time_ms),
        token_id=uuid_text(context.new_id()),
    )
    reply = creation_error(ErrorCode.NONE, owner, requester)
    reply.issue_timestamp_ms, reply.max_timestamp_ms = token.issue_timestamp, token.max_timestamp
    reply.expiry_timestamp_ms, reply.token_id = token.expiration_timestamp, token.token_id
    reply.hmac = settings.secret_of(token.token_id)
    return Decision([(token, 0)], reply)


def owner_of(request: messages.CreateDelegationTokenRequest, requester: str) -> str:
    """The owner of a new token, as "User:name"."""
    name = request.owner_principal_name
    return f"{request.owner_principal_type}:{name}" if name else requester


def creation_error(
    code: ErrorCode, owner: str, requester: str, time_ms: int = -1
) -> messages.CreateDelegationTokenResponse:
    """The response with an error, and rule 2's time."""
    (owner_type, _, owner_name), (requester_type, _, name) = owner.partition(":"), requester.partition(":")
    return messages.CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        token_id="",
        hmac=b"",
    )


def renew_token(
    context: DecisionContext, request: messages.RenewDelegationTokenRequest
) -> Decision[messages.RenewDelegationTokenResponse]:
    """Decide on a later expiry."""
    try:
        token = _find(context, request.hmac)
        _require_unexpired(context, token)
        _require_owner_or_renewer(context, token)
    except KafkaError as error:
        return Decision([], messages.RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=0))
    asked_ms, longest_ms = request.renew_period_ms, context.tokens.expiry_time_ms
    changed = _expiring_in(context, token, min(longest_ms, asked_ms) if asked_ms > 0 else longest_ms)
    expiry_ms = changed.expiration_timestamp
    reply = messages.RenewDelegationTokenResponse(error_code=ErrorCode.NONE, expiry_timestamp_ms=expiry_ms)
    return Decision([(changed, 0)], reply)


def expire_token(
    context: DecisionContext, request: messages.ExpireDelegationTokenRequest
) -> Decision[messages.ExpireDelegationTokenResponse]:
    """Decide on an earlier expiry, or on the removal of a token."""
    try:
        token = _find(context, request.hmac)
        _require_owner_or_renewer(context, token)
        if request.expiry_time_period_ms < 0:
            reply = messages.ExpireDelegationTokenResponse(
                error_code=ErrorCode.NONE, expiry_timestamp_ms=context.wall_ms()
            )
            return Decision([_removal(token)], reply)
        _require_unexpired(context, token)
    except KafkaError as error:
        return Decision([], messages.ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=0))
    changed = _expiring_in(context, token, request.expiry_time_period_ms)
    expiry_ms = changed.expiration_timestamp
    reply = messages.ExpireDelegationTokenResponse(error_code=ErrorCode.NONE, expiry_timestamp_ms=expiry_ms)
    return Decision([(changed, 0)], reply)


def remove_expired_tokens(context: DecisionContext) -> list[Versioned]:
    """Periodic task: remove the expired tokens."""
    now_ms = context.wall_ms()
    return [_removal(token) for token in tokens_of(context.image) if is_expired(token, now_ms)]


def _removal(token: DelegationTokenRecord) -> Versioned:
    return RemoveDelegationTokenRecord(token_id=token.token_id), 0


def _expiring_in(context: DecisionContext, token: DelegationTokenRecord, period_ms: int) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=min(token.max_timestamp, context.wall_ms() + period_ms),
        token_id=token.token_id,
    )


def _require_tokens(context: DecisionContext) -> None:
    if not context.tokens.is_enabled:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    if context.image.metadata_version < _FIRST_VERSION:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _find(context: DecisionContext, secret: bytes) -> DelegationTokenRecord:
    _require_tokens(context)
    token = find_by_secret(context.image, context.tokens, bytes(secret))
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def _require_unexpired(context: DecisionContext, token: DelegationTokenRecord) -> None:
    if is_expired(token, context.wall_ms()):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _require_owner_or_renewer(context: DecisionContext, token: DelegationTokenRecord) -> None:
    if not is_owner_or_renewer(token, context.client_principal):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)

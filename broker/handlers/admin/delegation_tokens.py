"""The APIs of delegation tokens (KIP-48, KIP-373).

RULES    1. A client that logged in with a token, or that has no name, may not use these APIs. A forwarded request was checked
            for the latter by the broker.
         2. A token for another user needs CREATE_TOKENS on that user.
         3. Owner, requester and renewers may describe a token, and clients with DESCRIBE on the token or DESCRIBE_TOKENS on its
            owner. The description has the token's secret, as in Apache Kafka.
         4. The checks and their order are Apache Kafka 4.3's (KafkaApis, ControllerApis).
NOT HERE The decisions (`replication/controller/configs/delegation_tokens.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from broker.handlers.authorization import ForwardingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import ANONYMOUS, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import delegation_tokens as messages
from protocol.messages.stored_records import DelegationTokenRecord
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.configs.delegation_tokens import creation_error, owner_of
from replication.controller.controller_client import Controller
from replication.metadata.delegation_tokens import TokenSettings, is_known_to, tokens_of

_USER: Final = "User"
_NO_TIME: Final = -1
_WITH_REQUESTER: Final = 3
"""The first version of responses that name the requester."""
Answer = Message | Completion[Any]
Token = TypeVar("Token", messages.CreateDelegationTokenResponse, messages.DescribedDelegationToken)


class DelegationTokenHandlers(ForwardingHandlers):
    """The handlers of delegation tokens."""

    def __init__(
        self,
        controller: Controller,
        authorizer: Authorizer,
        settings: TokenSettings,
        protocol_of: Callable[[str], str] | None,
    ) -> None:
        """`protocol_of` is the security protocol of a listener; None for forwarded requests."""
        super().__init__(controller, authorizer)
        self._settings = settings
        self._protocol_of = protocol_of

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, self.create),
            Route(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, self.renew),
            Route(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, self.expire),
            Route(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, self.describe),
        ]

    def create(self, context: RequestContext, request: messages.CreateDelegationTokenRequest) -> Answer:
        """Handle CreateDelegationToken."""
        if request.owner_principal_name and request.owner_principal_type is None:
            return _fit(context, creation_error(ErrorCode.UNKNOWN_SERVER_ERROR, ANONYMOUS, ANONYMOUS))  # as in Kafka
        owner, requester = owner_of(request, context.principal), context.principal
        if not self._is_allowed(context):
            code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        elif owner != requester and not self._is_authorized(context, Operation.CREATE_TOKENS, Resource.USER, owner):
            code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        elif any(renewer.principal_type != _USER for renewer in request.renewers):
            code = ErrorCode.INVALID_PRINCIPAL_TYPE
        else:
            return self._submit_for(context, request).map(lambda created: _fit(context, created))
        return _fit(context, creation_error(code, owner, requester))

    def renew(self, context: RequestContext, request: messages.RenewDelegationTokenRequest) -> Answer:
        """Handle RenewDelegationToken."""
        if self._is_allowed(context):
            return self._submit_for(context, request)
        refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return messages.RenewDelegationTokenResponse(error_code=refused, expiry_timestamp_ms=_NO_TIME)

    def expire(self, context: RequestContext, request: messages.ExpireDelegationTokenRequest) -> Answer:
        """Handle ExpireDelegationToken."""
        if self._is_allowed(context):
            return self._submit_for(context, request)
        refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return messages.ExpireDelegationTokenResponse(error_code=refused, expiry_timestamp_ms=_NO_TIME)

    def describe(
        self, context: RequestContext, request: messages.DescribeDelegationTokenRequest
    ) -> messages.DescribeDelegationTokenResponse:
        """Handle DescribeDelegationToken."""
        code, described = ErrorCode.NONE, list[messages.DescribedDelegationToken]()
        if not self._is_allowed(context):
            code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        elif not self._settings.is_enabled:
            code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        else:
            owners = None if request.owners is None else [_text(owner) for owner in request.owners]
            described = [
                _fit(context, self._description(token))
                for token in tokens_of(self._controller.image)
                if self._is_shown(context, token, owners)
            ]
        return messages.DescribeDelegationTokenResponse(error_code=code, tokens=described)

    def _is_allowed(self, context: RequestContext) -> bool:
        """Whether the client may use these APIs (rule 1)."""
        if context.connection.is_token_authenticated:
            return False
        if self._protocol_of is None:
            return True
        protocol = self._protocol_of(context.connection.listener_name)
        return protocol.startswith("SASL") or (protocol == "SSL" and context.principal != ANONYMOUS)

    def _is_shown(self, context: RequestContext, token: DelegationTokenRecord, owners: list[str] | None) -> bool:
        if owners is not None and not any(is_known_to(token, owner) for owner in owners):
            return False
        return (
            is_known_to(token, context.principal)
            or self._is_authorized(context, Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id)
            or self._is_authorized(context, Operation.DESCRIBE_TOKENS, Resource.USER, token.owner)
        )

    def _description(self, token: DelegationTokenRecord) -> messages.DescribedDelegationToken:
        owner, requester = _principal(token.owner), _principal(token.requester)
        return messages.DescribedDelegationToken(
            principal_type=owner.principal_type,
            principal_name=owner.principal_name,
            token_requester_principal_type=requester.principal_type,
            token_requester_principal_name=requester.principal_name,
            issue_timestamp=token.issue_timestamp,
            expiry_timestamp=token.expiration_timestamp,
            max_timestamp=token.max_timestamp,
            token_id=token.token_id,
            hmac=self._settings.secret_of(token.token_id),
            renewers=[_principal(renewer) for renewer in token.renewers],
        )


def _fit(context: RequestContext, token: Token) -> Token:
    """The token without the fields that the client's version does not have."""
    if context.api_version < _WITH_REQUESTER:
        token.token_requester_principal_type = token.token_requester_principal_name = ""
    return token


def _text(principal: messages.TokenPrincipal) -> str:
    return f"{principal.principal_type}:{principal.principal_name}"


def _principal(text: str) -> messages.TokenPrincipal:
    kind, _, name = text.partition(":")
    return messages.TokenPrincipal(principal_type=kind, principal_name=name)

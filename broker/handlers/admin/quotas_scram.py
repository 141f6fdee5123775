"""Requests about users: their quotas and their SCRAM credentials, which are kept and shown, and not obeyed yet.

RULES    1. Quotas want ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster, credentials ALTER and DESCRIBE.
         2. The answer to a change comes when the controller's records are committed.
NOT HERE What the controller decides (`replication/controller/configs/quotas.py`, `credentials.py`).
"""

from __future__ import annotations

from broker.handlers.controller_api import Controller
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.quotas_scram import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotasResult,
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from protocol.schema import Message
from replication.controller.configs.quotas import describe_quotas
from replication.controller.configs.scram_credentials import describe_credentials

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NO_RIGHT = "Cluster authorization failed."


class UserHandlers:
    """The handlers of this module and what they need."""

    def __init__(self, controller: Controller, authorizer: Authorizer) -> None:
        self._controller = controller
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, self.describe_quotas),
            Route(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, self.alter_quotas),
            Route(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, self.describe_credentials),
            Route(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, self.alter_credentials),
        ]

    # ------------------------------------------------------------ quotas
    def describe_quotas(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        """Show quotas."""
        if not self._may(context, Operation.DESCRIBE_CONFIGS):
            return DescribeClientQuotasResponse(error_code=_REFUSED, error_message=_NO_RIGHT, entries=None)
        return describe_quotas(self._controller.image, request)

    def alter_quotas(
        self, context: RequestContext, request: AlterClientQuotasRequest
    ) -> Pending | AlterClientQuotasResponse:
        """Change quotas."""
        if self._may(context, Operation.ALTER_CONFIGS):
            return self._submit(context, request)
        entries = [
            AlteredQuotasResult(error_code=_REFUSED, error_message=_NO_RIGHT, entity=entry.entity)
            for entry in request.entries
        ]
        return AlterClientQuotasResponse(entries=entries)

    # ------------------------------------------------------------ credentials
    def describe_credentials(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Show who has credentials."""
        if not self._may(context, Operation.DESCRIBE):
            results = [
                DescribedScramUser(user=user.name, error_code=_REFUSED, error_message=_NO_RIGHT, credential_infos=[])
                for user in request.users or ()
            ]
            return DescribeUserScramCredentialsResponse(error_code=_REFUSED, error_message=_NO_RIGHT, results=results)
        return describe_credentials(self._controller.image, request)

    def alter_credentials(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> Pending | AlterUserScramCredentialsResponse:
        """Change credentials."""
        if self._may(context, Operation.ALTER):
            return self._submit(context, request)
        users = dict.fromkeys([*(gone.name for gone in request.deletions), *(new.name for new in request.upsertions)])
        results = [AlteredScramUser(user=user, error_code=_REFUSED, error_message=_NO_RIGHT) for user in users]
        return AlterUserScramCredentialsResponse(results=results)

    def _submit(self, context: RequestContext, request: Message) -> Pending:
        pending = Pending()
        self._controller.submit(request, wall_ms=context.wall_ms, reply=pending.complete)
        return pending

    def _may(self, context: RequestContext, operation: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, Resource.CLUSTER, CLUSTER_NAME)

"""Client quota and SCRAM credential APIs. Quotas and credentials are stored and described, but not enforced yet.

RULES    1. Quotas require ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster, credentials ALTER and DESCRIBE.
         2. The response to a change is sent after the controller's records are committed.
NOT HERE The controller's decisions (`replication/controller/configs/quotas.py`, `scram_credentials.py`).
"""

from __future__ import annotations

from broker.handlers.deferred import submit
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
from replication.controller.configs.quotas import describe_quotas
from replication.controller.configs.scram_credentials import describe_credentials
from replication.controller.controller_client import Controller

_AUTHORIZATION_ERROR = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NOT_AUTHORIZED = "Cluster authorization failed."


class QuotaAndScramHandlers:
    """The handlers of quotas and credentials."""

    def __init__(self, controller: Controller, authorizer: Authorizer) -> None:
        self._controller = controller
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The routes of this module."""
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
        """Handle DescribeClientQuotas."""
        if not self._is_authorized(context, Operation.DESCRIBE_CONFIGS):
            return DescribeClientQuotasResponse(
                error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED, entries=None
            )
        return describe_quotas(self._controller.image, request)

    def alter_quotas(
        self, context: RequestContext, request: AlterClientQuotasRequest
    ) -> Pending | AlterClientQuotasResponse:
        """Handle AlterClientQuotas."""
        if self._is_authorized(context, Operation.ALTER_CONFIGS):
            return submit(self._controller, context, request)
        entries = [
            AlteredQuotasResult(error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED, entity=entry.entity)
            for entry in request.entries
        ]
        return AlterClientQuotasResponse(entries=entries)

    # ------------------------------------------------------------ credentials
    def describe_credentials(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Handle DescribeUserScramCredentials."""
        if not self._is_authorized(context, Operation.DESCRIBE):
            results = [
                DescribedScramUser(
                    user=user.name, error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED, credential_infos=[]
                )
                for user in request.users or ()
            ]
            return DescribeUserScramCredentialsResponse(
                error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED, results=results
            )
        return describe_credentials(self._controller.image, request)

    def alter_credentials(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> Pending | AlterUserScramCredentialsResponse:
        """Handle AlterUserScramCredentials."""
        if self._is_authorized(context, Operation.ALTER):
            return submit(self._controller, context, request)
        users = dict.fromkeys(
            [*(deletion.name for deletion in request.deletions), *(upsertion.name for upsertion in request.upsertions)]
        )
        results = [
            AlteredScramUser(user=user, error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED)
            for user in users
        ]
        return AlterUserScramCredentialsResponse(results=results)

    def _is_authorized(self, context: RequestContext, operation: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, Resource.CLUSTER, CLUSTER_NAME)

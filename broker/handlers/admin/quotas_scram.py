"""Client quota and SCRAM credential APIs.

RULES    1. Quotas require ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster, credentials ALTER and DESCRIBE.
         2. The response to a change is sent after the controller's records are committed.
NOT HERE The controller's decisions (`replication/controller/configs/quotas.py`, `scram_credentials.py`).
"""

from __future__ import annotations

from broker.handlers.authorization import ForwardingHandlers, authorization_error
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Operation
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import quotas_scram
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.configs.quotas import describe_quotas
from replication.controller.configs.scram_credentials import describe_credentials


class QuotaAndScramHandlers(ForwardingHandlers):
    """The handlers of quotas and credentials."""

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, self.describe_quotas),
            Route(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, self.alter_quotas),
            Route(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, self.describe_credentials),
            Route(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, self.alter_credentials),
        ]

    # ------------------------------------------------------------ quotas
    def describe_quotas(self, context: RequestContext, request: quotas_scram.DescribeClientQuotasRequest) -> Message:
        """Handle DescribeClientQuotas."""
        if not self._is_authorized(context, Operation.DESCRIBE_CONFIGS):
            return authorization_error(request, None)
        return describe_quotas(self._controller.image, request)

    def alter_quotas(self, context: RequestContext, request: Message) -> Message | Completion[Message]:
        """Handle AlterClientQuotas."""
        return self._forward(context, request, Operation.ALTER_CONFIGS)

    # ------------------------------------------------------------ credentials
    def describe_credentials(
        self, context: RequestContext, request: quotas_scram.DescribeUserScramCredentialsRequest
    ) -> quotas_scram.DescribeUserScramCredentialsResponse:
        """Handle DescribeUserScramCredentials."""
        if not self._is_authorized(context, Operation.DESCRIBE):
            denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            results = [  # without names, as in Apache Kafka
                quotas_scram.DescribedScramUser(user="", error_code=denied, credential_infos=[])
                for _ in request.users or ()
            ]
            return quotas_scram.DescribeUserScramCredentialsResponse(error_code=denied, results=results)
        return describe_credentials(self._controller.image, request)

    def alter_credentials(self, context: RequestContext, request: Message) -> Message | Completion[Message]:
        """Handle AlterUserScramCredentials."""
        return self._forward(context, request, Operation.ALTER)

"""DescribeAcls, CreateAcls, DeleteAcls (Kafka: AclApis).

RULES    1. Describing requires DESCRIBE on the cluster, changes ALTER. Only then, a node without an authorizer answers
            SECURITY_DISABLED.
         2. The number 0 (UNKNOWN) closes the connection; ANY or MATCH in an entry to create is an error of all entries.
            Apache Kafka does the same, by exceptions. Other unknown numbers are errors of entries, or select nothing.
         3. The response to a change is sent after the controller's records are committed and this node applies them.
NOT HERE The decisions (`replication/controller/configs/acls.py`), what entries mean (`broker/security/`).
"""

from __future__ import annotations

from typing import Final

from broker.handlers.authorization import NOT_AUTHORIZED, ForwardingHandlers
from broker.handlers.router import RequestContext, Route
from broker.network.exchange import CloseConnection
from broker.security.authorizer import AllowAll, Operation
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import acls
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.error_responses import error_response
from replication.metadata.acls import Acl, OperationCode, PatternCode, PermissionCode, ResourceCode, matches

_NO_AUTHORIZER: Final = "No Authorizer is configured."


class AclHandlers(ForwardingHandlers):
    """The handlers of access control entries."""

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.DESCRIBE_ACLS, 1, 3, self.describe),
            Route(ApiKey.CREATE_ACLS, 1, 3, self.create),
            Route(ApiKey.DELETE_ACLS, 1, 3, self.delete),
        ]

    def describe(self, context: RequestContext, request: acls.DescribeAclsRequest) -> Message:
        """Handle DescribeAcls."""
        _check_numbers(_filter_numbers(request))
        if not self._is_authorized(context, Operation.DESCRIBE):
            return error_response(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_AUTHORIZED)
        if isinstance(self._authorizer, AllowAll):
            return error_response(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
        resources: dict[tuple[int, str, int], list[acls.AclDescription]] = {}
        for acl in self._controller.image.acls.values():
            if matches(acl, request):
                pattern = acl.resource_type, acl.resource_name, acl.pattern_type
                resources.setdefault(pattern, []).append(_description(acl))
        described = [
            acls.DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=found)
            for (kind, name, pattern), found in resources.items()
        ]
        return acls.DescribeAclsResponse(error_code=ErrorCode.NONE, error_message="", resources=described)

    def create(self, context: RequestContext, request: acls.CreateAclsRequest) -> Message | Completion[Message]:
        """Handle CreateAcls."""
        numbers = [
            (one.resource_type, one.resource_pattern_type, one.operation, one.permission_type)
            for one in request.creations
        ]
        for found in numbers:
            _check_numbers(found)
        return self._change(context, request, is_invalid=any(_is_for_filters(*found) for found in numbers))

    def delete(self, context: RequestContext, request: acls.DeleteAclsRequest) -> Message | Completion[Message]:
        """Handle DeleteAcls."""
        for one in request.filters:
            _check_numbers(_filter_numbers(one))
        return self._change(context, request)

    def _change(
        self, context: RequestContext, request: Message, *, is_invalid: bool = False
    ) -> Message | Completion[Message]:
        if not self._is_authorized(context, Operation.ALTER):
            return error_response(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_AUTHORIZED)
        if isinstance(self._authorizer, AllowAll):
            return error_response(request, ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER)
        if is_invalid:
            return error_response(request, ErrorCode.UNKNOWN_SERVER_ERROR)
        return self._submit_for(context, request)


def _filter_numbers(wanted: acls.AclFilter) -> tuple[int, int, int, int]:
    return wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type


def _check_numbers(numbers: tuple[int, int, int, int]) -> None:
    names = ("resource type", "pattern type", "operation", "permission type")
    unknown = [name for name, number in zip(names, numbers, strict=True) if number == 0]
    if unknown:
        raise CloseConnection(f"an ACL, or a filter of ACLs, has 0 (UNKNOWN) as its {' and its '.join(unknown)}")


def _is_for_filters(resource_type: int, pattern_type: int, operation: int, permission_type: int) -> bool:
    return (
        resource_type == ResourceCode.ANY
        or pattern_type in (PatternCode.ANY, PatternCode.MATCH)
        or operation == OperationCode.ANY
        or permission_type == PermissionCode.ANY
    )


def _description(acl: Acl) -> acls.AclDescription:
    return acls.AclDescription(
        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission_type
    )

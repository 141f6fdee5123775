"""Group APIs of the classic protocol: authorization here, decisions in the group's shard.

RULES    1. Checks that concern no single group are here: authorization, empty group ids.
         2. A response that depends on records is sent after their commit.
         3. Where a version lacks a field or a null, the response is Apache Kafka's.
NOT HERE The decisions (`coordinators/`), offsets (`group_offsets.py`), the coordinator of a group
         (`find_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from broker.coordinators.classic.classic_group import NO_MEMBER_ID, join_error
from broker.coordinators.classic.classic_protocol import ClientInfo
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, CoordinatorRuntime
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource, java_address
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from replication.completion import Completion, completed, gather

R = TypeVar("R")

_NONE: Final = ErrorCode.NONE


class ClassicGroupHandlers(AuthorizingHandlers):
    """The handlers of the classic group APIs."""

    def __init__(self, runtime: CoordinatorRuntime[GroupCoordinator], authorizer: Authorizer) -> None:
        self._runtime = runtime
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.JOIN_GROUP, 0, 9, self.join_group),
            Route(ApiKey.HEARTBEAT, 0, 4, self.heartbeat),
            Route(ApiKey.LEAVE_GROUP, 0, 5, self.leave_group),
            Route(ApiKey.SYNC_GROUP, 0, 5, self.sync_group),
            Route(ApiKey.DESCRIBE_GROUPS, 0, 6, self.describe_groups),
            Route(ApiKey.LIST_GROUPS, 0, 5, self.list_groups),
            Route(ApiKey.DELETE_GROUPS, 0, 2, self.delete_groups),
        ]

    def _write(
        self,
        context: RequestContext,
        group_id: str,
        decide: Callable[[GroupCoordinator], CoordinatorDecision[R]],
        error_response: Callable[[ErrorCode], R],
    ) -> Completion[R]:
        """The response to a request of a member."""
        refusal = self._refusal(context, group_id)
        if refusal is not None:
            return completed(error_response(refusal))
        return self._runtime.write(group_id, decide, error_response)

    def _refusal(self, context: RequestContext, group_id: str) -> ErrorCode | None:
        """The error of a member's request to a group that the client may not use."""
        if not self._is_authorized(context, Operation.READ, Resource.GROUP, group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return None if group_id else ErrorCode.INVALID_GROUP_ID

    # ------------------------------------------------------------ members
    def join_group(self, context: RequestContext, request: JoinGroupRequest) -> Completion[JoinGroupResponse]:
        """Handle JoinGroup."""

        def error_response(error: ErrorCode) -> JoinGroupResponse:
            return join_error(request.member_id if error is ErrorCode.INVALID_GROUP_ID else NO_MEMBER_ID, error)

        version = context.api_version
        client = ClientInfo(context.client_id or "", f"/{java_address(context.connection.peer_host)}", version)
        joined = self._write(
            context, request.group_id, lambda coordinator: coordinator.join(client, request), error_response
        )
        return joined.map(lambda response: _for_version(response, version))

    def sync_group(self, context: RequestContext, request: SyncGroupRequest) -> Completion[SyncGroupResponse]:
        """Handle SyncGroup."""

        def error_response(error: ErrorCode) -> SyncGroupResponse:
            return SyncGroupResponse(error_code=error)

        if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return completed(error_response(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return self._write(context, request.group_id, lambda coordinator: coordinator.sync(request), error_response)

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> Completion[HeartbeatResponse]:
        """Handle Heartbeat."""
        refusal = self._refusal(context, request.group_id)
        if refusal is not None:
            return completed(_heartbeat_error(refusal))
        return self._runtime.read(
            request.group_id, lambda coordinator: coordinator.heartbeat(request, context.mono_ms), _heartbeat_error
        )

    def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> Completion[LeaveGroupResponse]:
        """Handle LeaveGroup."""
        has_members = context.api_version >= 3
        if not has_members:
            request.members = [MemberIdentity(member_id=request.member_id)]
        left = self._write(
            context,
            request.group_id,
            lambda coordinator: coordinator.leave(request),
            lambda error: LeaveGroupResponse(error_code=error),
        )
        return left if has_members else left.map(_leave_response_v2)

    # ------------------------------------------------------------ administration
    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> Completion[DescribeGroupsResponse]:
        """Handle DescribeGroups."""
        with_operations = request.include_authorized_operations
        reads = [self._describe(context, group_id, with_operations=with_operations) for group_id in request.groups]
        return gather(reads, lambda groups: DescribeGroupsResponse(groups=groups))

    def _describe(self, context: RequestContext, group_id: str, *, with_operations: bool) -> Completion[DescribedGroup]:
        def describe(coordinator: GroupCoordinator) -> DescribedGroup:
            described = coordinator.describe(group_id, context.api_version)
            if with_operations and described.error_code == _NONE:
                described.authorized_operations = self._authorized_operations(context, Resource.GROUP, group_id)
            return described

        def error_response(error: ErrorCode) -> DescribedGroup:
            return DescribedGroup(error_code=error, group_id=group_id)

        if not self._is_authorized(context, Operation.DESCRIBE, Resource.GROUP, group_id):
            return completed(error_response(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return self._runtime.read(group_id, describe, error_response)

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> Completion[ListGroupsResponse]:
        """Handle ListGroups: the groups that this broker coordinates."""
        if self._runtime.is_loading:
            return completed(ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        states = {state.lower().strip() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        may_describe_all = self._is_authorized(context, Operation.DESCRIBE, log_denied=False)

        def list_groups(coordinator: GroupCoordinator) -> list[ListedGroup]:
            return [
                group
                for group in coordinator.list_groups(states, types)
                if may_describe_all
                or self._is_authorized(context, Operation.DESCRIBE, Resource.GROUP, group.group_id, log_denied=False)
            ]

        return self._runtime.read_all(
            list_groups,
            lambda groups: ListGroupsResponse(error_code=_NONE, groups=groups),
            lambda error: ListGroupsResponse(error_code=error),
        )

    def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> Completion[DeleteGroupsResponse]:
        """Handle DeleteGroups: one decision per coordinator."""
        by_partition: dict[int, list[str]] = {}
        denied: list[str] = []
        for group_id in dict.fromkeys(request.groups_names):
            if self._is_authorized(context, Operation.DELETE, Resource.GROUP, group_id):
                by_partition.setdefault(self._runtime.partition_for(group_id), []).append(group_id)
            else:
                denied.append(group_id)
        writes = [self._delete(group_ids) for group_ids in by_partition.values()]
        writes.append(completed(_not_deleted(denied, ErrorCode.GROUP_AUTHORIZATION_FAILED)))
        return gather(writes, lambda results: DeleteGroupsResponse(results=list(chain.from_iterable(results))))

    def _delete(self, group_ids: list[str]) -> Completion[list[DeletableGroupResult]]:
        """Delete groups of one partition."""
        return self._runtime.write(
            group_ids[0], lambda coordinator: coordinator.delete(group_ids), partial(_not_deleted, group_ids)
        )


# ---- responses


def _for_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Before version 7 the protocol name is not nullable."""
    if version < 7 and response.protocol_name is None:
        response.protocol_name = ""
    return response


def _heartbeat_error(error: ErrorCode) -> HeartbeatResponse:
    """No error while the coordinator is loading, as in Kafka: sessions start after it."""
    return HeartbeatResponse(error_code=_NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error)


def _leave_response_v2(response: LeaveGroupResponse) -> LeaveGroupResponse:
    """Before version 3 the response is that of the only member."""
    error = response.error_code or response.members[0].error_code
    return LeaveGroupResponse(error_code=error)


def _not_deleted(group_ids: list[str], error: ErrorCode) -> list[DeletableGroupResult]:
    return [DeletableGroupResult(group_id=group_id, error_code=error) for group_id in group_ids]

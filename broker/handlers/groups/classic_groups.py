"""Group APIs of the classic protocol: authorization here, decisions in the group's shard.

RULES    1. Checks that concern no single group are here: authorization, empty group ids.
         2. A response that depends on records is sent after their commit.
         3. Where a version lacks a field or a null, the response is Apache Kafka's.
NOT HERE The decisions (`coordinators/`), offsets (`group_offsets.py`), the coordinator of a group
         (`find_coordinator.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.coordinators.classic.classic_group import join_error
from broker.coordinators.classic.classic_protocol import ClientInfo
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, Shard, coordinator_error
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.deferred import set_describe_error, when_all, when_committed
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
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
from replication.completion import Completion

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

    def _find_shard(self, context: RequestContext, group_id: str) -> Shard[GroupCoordinator] | ErrorCode:
        """The shard of a group that the client may read, or the error of the request."""
        if not self._is_authorized(context, Operation.READ, Resource.GROUP, group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return self._runtime.find(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    # ------------------------------------------------------------ members
    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | Completion[JoinGroupResponse]:
        """Handle JoinGroup."""
        version = context.api_version
        shard = self._find_shard(context, request.group_id)
        if not isinstance(shard, Shard):
            member_id = request.member_id if shard is ErrorCode.INVALID_GROUP_ID else ""
            return _for_version(join_error(member_id, shard), version)
        pending: Completion[JoinGroupResponse] = Completion()
        client = ClientInfo(context.client_id or "", f"/{context.connection.peer_host}", version)
        decision = shard.coordinator.join(
            client, request, lambda response: pending.complete(_for_version(response, version))
        )
        shard.execute(decision)
        return pending

    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Completion[SyncGroupResponse]:
        """Handle SyncGroup."""
        if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        shard = self._find_shard(context, request.group_id)
        if not isinstance(shard, Shard):
            return SyncGroupResponse(error_code=shard)
        pending: Completion[SyncGroupResponse] = Completion()
        shard.execute(shard.coordinator.sync(request, pending.complete))
        return pending

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """Handle Heartbeat."""
        shard = self._find_shard(context, request.group_id)
        if isinstance(shard, Shard):
            return HeartbeatResponse(error_code=shard.coordinator.heartbeat(request, context.mono_ms))
        if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # as in Kafka; sessions start after loading
            shard = _NONE
        return HeartbeatResponse(error_code=shard)

    def leave_group(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Completion[LeaveGroupResponse]:
        """Handle LeaveGroup."""
        has_members = context.api_version >= 3
        if not has_members:
            request.members = [MemberIdentity(member_id=request.member_id)]
        shard = self._find_shard(context, request.group_id)
        if not isinstance(shard, Shard):
            return LeaveGroupResponse(error_code=shard)
        decision = shard.coordinator.leave(request)

        def to_response(error: ErrorCode) -> LeaveGroupResponse:
            response = decision.reply
            if error is not _NONE:
                return LeaveGroupResponse(error_code=coordinator_error(error))
            return response if has_members else LeaveGroupResponse(error_code=response.members[0].error_code)

        return when_committed(shard.execute(decision), to_response)

    # ------------------------------------------------------------ administration
    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse | Completion[DescribeGroupsResponse]:
        """Handle DescribeGroups."""
        groups, commits = [], []
        for group_id in request.groups:
            shard = self._runtime.find(group_id)
            if not self._is_authorized(context, Operation.DESCRIBE, Resource.GROUP, group_id):
                described = DescribedGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)
            elif isinstance(shard, Shard):
                described = shard.coordinator.describe(group_id, context.api_version)
                if request.include_authorized_operations and described.error_code == _NONE:
                    described.authorized_operations = self._authorized_operations(context, Resource.GROUP, group_id)
                commits.append(shard.last_commit())
                commits[-1].then(partial(set_describe_error, described))
            else:
                described = DescribedGroup(error_code=shard, group_id=group_id)
            groups.append(described)
        return when_all(commits, lambda: DescribeGroupsResponse(groups=groups))

    def list_groups(
        self, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse | Completion[ListGroupsResponse]:
        """Handle ListGroups: the groups that this broker coordinates."""
        if self._runtime.is_loading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.lower().strip() for state in request.states_filter}
        types = {group_type.lower().strip() for group_type in request.types_filter}
        groups: list[ListedGroup] = []
        for shard in self._runtime.active_shards:
            groups += shard.coordinator.list_groups(states, types)
        if not self._is_authorized(context, Operation.DESCRIBE):
            groups = [
                group
                for group in groups
                if self._is_authorized(context, Operation.DESCRIBE, Resource.GROUP, group.group_id)
            ]
        commits = [shard.last_commit() for shard in self._runtime.active_shards]

        def to_response() -> ListGroupsResponse:
            failed = next((commit.error for commit in commits if commit.error is not _NONE), None)
            if failed is not None:
                return ListGroupsResponse(error_code=coordinator_error(failed))
            return ListGroupsResponse(error_code=_NONE, groups=groups)

        return when_all(commits, to_response)

    def delete_groups(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse | Completion[DeleteGroupsResponse]:
        """Handle DeleteGroups."""
        by_shard: dict[Shard[GroupCoordinator], list[str]] = {}
        failed: list[DeletableGroupResult] = []
        results: list[DeletableGroupResult] = []
        for group_id in dict.fromkeys(request.groups_names):
            shard = self._runtime.find(group_id)
            if not self._is_authorized(context, Operation.DELETE, Resource.GROUP, group_id):
                error = ErrorCode.GROUP_AUTHORIZATION_FAILED
                failed.append(DeletableGroupResult(group_id=group_id, error_code=error))
            elif isinstance(shard, Shard):
                by_shard.setdefault(shard, []).append(group_id)
            else:
                results.append(DeletableGroupResult(group_id=group_id, error_code=shard))
        commits = []
        for shard, group_ids in by_shard.items():
            decision = shard.coordinator.delete(group_ids)
            results += decision.reply
            commit = shard.execute(decision)
            commits.append(commit)
            commit.then(lambda error, deleted=decision.reply: _set_delete_error(deleted, error))  # type: ignore[misc]
        return when_all(commits, lambda: DeleteGroupsResponse(results=results + failed))


# ---- responses


def _for_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Before version 7 the protocol name is not nullable."""
    if version < 7 and response.protocol_name is None:
        response.protocol_name = ""
    return response


def _set_delete_error(deleted: list[DeletableGroupResult], error: ErrorCode) -> None:
    """The tombstones may not have been committed."""
    if error is not _NONE:
        for result in deleted:
            if result.error_code == _NONE:
                result.error_code = coordinator_error(error)

"""Groups and their members: from a request to the shard that coordinates the group, and back.

RULES    1. What concerns no single group is answered here: rights, empty group ids. All else is the shard's decision.
         2. An answer that depends on records goes out when they are committed; one that does not, at once.
         3. Where a version lacks a field or a null, the answer says it as Apache Kafka does.
NOT HERE What becomes of a group (`coordinators/`), its offsets (`group_offsets.py`), who coordinates it
         (`find_coordinator.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.coordinators.classic.classic_group import refused_join
from broker.coordinators.classic.classic_protocol import Caller
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, Shard, coordinator_error
from broker.handlers.deferred import when_all, when_committed
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from broker.security.operations import authorized_operations
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

_NONE: Final = ErrorCode.NONE


class CoordinationHandlers:
    """The handlers of this module and what they need."""

    def __init__(self, runtime: CoordinatorRuntime[GroupCoordinator], authorizer: Authorizer) -> None:
        self._runtime = runtime
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.JOIN_GROUP, 0, 9, self.join_group),
            Route(ApiKey.HEARTBEAT, 0, 4, self.heartbeat),
            Route(ApiKey.LEAVE_GROUP, 0, 5, self.leave_group),
            Route(ApiKey.SYNC_GROUP, 0, 5, self.sync_group),
            Route(ApiKey.DESCRIBE_GROUPS, 0, 6, self.describe_groups),
            Route(ApiKey.LIST_GROUPS, 0, 5, self.list_groups),
            Route(ApiKey.DELETE_GROUPS, 0, 2, self.delete_groups),
        ]

    def _may(self, context: RequestContext, operation: str, group_id: str) -> bool:
        return self._authorizer.authorize(context.connection.principal, operation, Resource.GROUP, group_id)

    def _find(self, context: RequestContext, group_id: str) -> Shard[GroupCoordinator] | ErrorCode:
        """The shard of a group that the peer may read, or the error that answers the whole request."""
        if not self._may(context, Operation.READ, group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return self._runtime.find(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    # ------------------------------------------------------------ members
    def join_group(self, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse | Pending:
        """Become, or stay, a member."""
        version = context.api_version
        shard = self._find(context, request.group_id)
        if not isinstance(shard, Shard):
            member_id = request.member_id if shard is ErrorCode.INVALID_GROUP_ID else ""
            return _joined(refused_join(member_id, shard), version)
        pending = Pending()
        caller = Caller(context.client_id or "", f"/{context.connection.peer_host}", version)
        decision = shard.machine.join(caller, request, lambda answer: pending.complete(_joined(answer, version)))
        shard.execute(decision)
        return pending

    def sync_group(self, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Pending:
        """Hand in or wait for the assignment."""
        if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        shard = self._find(context, request.group_id)
        if not isinstance(shard, Shard):
            return SyncGroupResponse(error_code=shard)
        pending = Pending()
        shard.execute(shard.machine.sync(request, pending.complete))
        return pending

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """A sign of life."""
        shard = self._find(context, request.group_id)
        if isinstance(shard, Shard):
            return HeartbeatResponse(error_code=shard.machine.heartbeat(request, context.mono_ms))
        if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # nobody knows yet; the sessions begin after loading
            shard = _NONE
        return HeartbeatResponse(error_code=shard)

    def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse | Pending:
        """Leave, or have members removed."""
        has_members = context.api_version >= 3
        if not has_members:
            request.members = [MemberIdentity(member_id=request.member_id)]
        shard = self._find(context, request.group_id)
        if not isinstance(shard, Shard):
            return LeaveGroupResponse(error_code=shard)
        decision = shard.machine.leave(request)

        def answer(error: ErrorCode) -> LeaveGroupResponse:
            response = decision.reply
            if error is not _NONE:
                return LeaveGroupResponse(error_code=coordinator_error(error))
            return response if has_members else LeaveGroupResponse(error_code=response.members[0].error_code)

        return when_committed(shard.execute(decision), answer)

    # ------------------------------------------------------------ administration
    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse | Pending:
        """Groups with their members."""
        groups, commits = [], []
        for group_id in request.groups:
            shard = self._runtime.find(group_id)
            if not self._may(context, Operation.DESCRIBE, group_id):
                described = DescribedGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)
            elif isinstance(shard, Shard):
                described = shard.machine.describe(group_id, context.api_version)
                if request.include_authorized_operations and described.error_code == _NONE:
                    described.authorized_operations = authorized_operations(
                        self._authorizer, context.connection.principal, Resource.GROUP, group_id
                    )
                commits.append(shard.known())
                commits[-1].then(partial(_not_described, described))
            else:
                described = DescribedGroup(error_code=shard, group_id=group_id)
            groups.append(described)
        return when_all(commits, lambda: DescribeGroupsResponse(groups=groups))

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse | Pending:
        """The groups that this broker coordinates."""
        if self._runtime.is_loading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.lower().strip() for state in request.states_filter}
        types = {kind.lower().strip() for kind in request.types_filter}
        groups: list[ListedGroup] = []
        for shard in self._runtime.serving:
            groups += shard.machine.list_groups(states, types)
        principal = context.connection.principal
        if not self._authorizer.authorize(principal, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
            groups = [group for group in groups if self._may(context, Operation.DESCRIBE, group.group_id)]
        commits = [shard.known() for shard in self._runtime.serving]

        def answer() -> ListGroupsResponse:
            failed = next((commit.error for commit in commits if commit.error is not _NONE), None)
            if failed is not None:
                return ListGroupsResponse(error_code=coordinator_error(failed))
            return ListGroupsResponse(error_code=_NONE, groups=groups)

        return when_all(commits, answer)

    def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse | Pending:
        """Delete groups without members."""
        by_shard: dict[Shard[GroupCoordinator], list[str]] = {}
        refused: list[DeletableGroupResult] = []
        results: list[DeletableGroupResult] = []
        for group_id in dict.fromkeys(request.groups_names):
            shard = self._runtime.find(group_id)
            if not self._may(context, Operation.DELETE, group_id):
                error = ErrorCode.GROUP_AUTHORIZATION_FAILED
                refused.append(DeletableGroupResult(group_id=group_id, error_code=error))
            elif isinstance(shard, Shard):
                by_shard.setdefault(shard, []).append(group_id)
            else:
                results.append(DeletableGroupResult(group_id=group_id, error_code=shard))
        commits = []
        for shard, group_ids in by_shard.items():
            decision = shard.machine.delete(group_ids)
            results += decision.reply
            commit = shard.execute(decision)
            commits.append(commit)
            commit.then(lambda error, deleted=decision.reply: _not_deleted(deleted, error))  # type: ignore[misc]
        return when_all(commits, lambda: DeleteGroupsResponse(results=results + refused))


# ---- answers


def _joined(answer: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Before version 7 there is no null for "no protocol"."""
    if version < 7 and answer.protocol_name is None:
        answer.protocol_name = ""
    return answer


def _not_described(described: DescribedGroup, error: ErrorCode) -> None:
    """What was to be told may be lost."""
    if error is not _NONE:
        described.error_code, described.members = coordinator_error(error), []


def _not_deleted(deleted: list[DeletableGroupResult], error: ErrorCode) -> None:
    """The log did not take the tombstones."""
    if error is not _NONE:
        for result in deleted:
            if result.error_code == _NONE:
                result.error_code = coordinator_error(error)

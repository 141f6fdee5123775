"""Groups and their members: from a request to the shard that coordinates the group, and back.

RULES    1. What concerns no single group is answered here: rights, empty group ids, which broker coordinates. All else is
            the shard's decision.
         2. An answer that depends on records goes out when they are committed; one that does not, at once.
         3. The topic of the offsets is made when somebody first asks for a group's coordinator; the question waits
            until it can be answered. It gets the replicas that the setting says, or is not made at all: a topic with
            fewer would lose commits silently later on.
         4. Where a version lacks a field or a null, the answer says it as Apache Kafka does.
NOT HERE What becomes of a group (`coordinators/`), its offsets (`group_offsets.py`), transactional ids, share groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.addresses import Addresses
from broker.coordinators.classic_group import refused_join
from broker.coordinators.groups import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.java import abs_hash
from broker.coordinators.rebalance import Caller
from broker.coordinators.runtime import CoordinatorRuntime, Shard, coordinator_error
from broker.handlers.router import Pending, RequestContext, Route
from broker.handlers.waiting import when_all, when_committed
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from broker.security.operations import authorized_operations
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
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
from protocol.messages.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from replication.image import MetadataImage

_log = logging.getLogger("barnabas.groups")

CreateTopics = Callable[[CreateTopicsRequest, int, Callable[[CreateTopicsResponse], None]], None]
"""Has the controller make topics: (request, wall_ms, reply)."""

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_NONE: Final = ErrorCode.NONE
_NO_NODE: Final = -1
_CREATE_TIMEOUT_MS: Final = 30_000
_UNAVAILABLE: Final = "The coordinator is not available."


class CoordinationHandlers:
    """The handlers of this module and what they need."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinator],
        image: Callable[[], MetadataImage],
        addresses: Addresses,
        authorizer: Authorizer,
        create_topics: CreateTopics,
        offsets_topic: CreatableTopic,
    ) -> None:
        self._runtime = runtime
        self._image = image
        self._addresses = addresses
        self._authorizer = authorizer
        self._create_topics = create_topics
        self._offsets_topic = offsets_topic
        self._on_topic_made: list[Callable[[str | None], None]] = []

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.FIND_COORDINATOR, 0, 6, self.find_coordinator),
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

    # ------------------------------------------------------------ FindCoordinator
    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse | Pending:
        """Which broker coordinates some keys."""
        if request.key_type != _GROUP or OFFSETS_TOPIC in self._image().topics_by_name:
            return self._coordinators(context, request, None)
        pending = Pending()
        self._make_offsets_topic(
            context.wall_ms, lambda failure: pending.complete(self._coordinators(context, request, failure))
        )
        return pending

    def _make_offsets_topic(self, wall_ms: int, then: Callable[[str | None], None]) -> None:
        """Make the topic and go on with None, or with the sentence that says why it cannot be made."""
        self._on_topic_made.append(then)
        if len(self._on_topic_made) > 1:
            return

        def made(response: CreateTopicsResponse) -> None:
            failure = None
            for result in response.topics:
                if result.error_code not in {_NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                    reason = result.error_message or ErrorCode(result.error_code).name
                    failure = f"{OFFSETS_TOPIC} cannot be made: {reason}"
                    _log.warning("%s (see offsets.topic.replication.factor)", failure)
            waiting, self._on_topic_made = self._on_topic_made, []
            for go_on in waiting:
                go_on(failure)

        request = CreateTopicsRequest(topics=[self._offsets_topic], timeout_ms=_CREATE_TIMEOUT_MS)
        self._create_topics(request, wall_ms, made)

    def _coordinators(
        self, context: RequestContext, request: FindCoordinatorRequest, failure: str | None
    ) -> FindCoordinatorResponse:
        if context.api_version >= 4:
            found = [self._coordinator(context, request.key_type, key, failure) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self._coordinator(context, request.key_type, request.key, failure)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message or "NONE",
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(self, context: RequestContext, key_type: int, key: str, failure: str | None) -> Coordinator:
        if key_type == _GROUP:
            if not self._may(context, Operation.DESCRIBE, key):
                return _no_coordinator(key, ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
            image = self._image()
            topic = image.topics_by_name.get(OFFSETS_TOPIC)
            if topic is not None and topic.partitions:
                leader = topic.partitions[abs_hash(key) % len(topic.partitions)].leader
                address = self._addresses.node(image, leader, context.connection)
                if address is not None:
                    return Coordinator(
                        key=key,
                        node_id=address.node_id,
                        host=address.host,
                        port=address.port,
                        error_code=_NONE,
                        error_message="",
                    )
            return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, failure or _UNAVAILABLE)
        if key_type == _TRANSACTION:
            principal, kind = context.connection.principal, Resource.TRANSACTIONAL_ID
            if not self._authorizer.authorize(principal, Operation.DESCRIBE, kind, key):
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                return _no_coordinator(key, code, "Transactional Id authorization failed.")
            return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, _UNAVAILABLE)
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, "There are no coordinators of this type here.")

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
    def describe_groups(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Groups with their members."""
        groups = []
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
            else:
                described = DescribedGroup(error_code=shard, group_id=group_id)
            groups.append(described)
        return DescribeGroupsResponse(groups=groups)

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
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
        return ListGroupsResponse(error_code=_NONE, groups=groups)

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


def _no_coordinator(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=_NO_NODE, host="", port=-1, error_code=error, error_message=message)


def _joined(answer: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Before version 7 there is no null for "no protocol"."""
    if version < 7 and answer.protocol_name is None:
        answer.protocol_name = ""
    return answer


def _not_deleted(deleted: list[DeletableGroupResult], error: ErrorCode) -> None:
    """The log did not take the tombstones."""
    if error is not _NONE:
        for result in deleted:
            if result.error_code == _NONE:
                result.error_code = coordinator_error(error)

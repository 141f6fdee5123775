"""Groups and their offsets: from a request to the shard that coordinates the group, and back.

RULES    1. What concerns no single group is answered here: rights, topics that do not exist, empty group ids, which
            broker coordinates. All else is the shard's decision.
         2. An answer that depends on records goes out when they are committed; one that does not, at once.
         3. The topic of the offsets is made when somebody first asks for a group's coordinator; the question waits
            until it can be answered. It gets the replicas that the setting says, or is not made at all: a topic with
            fewer would lose commits silently later on.
         4. Where a version lacks a field or a null, the answer says it as Apache Kafka does.
NOT HERE What becomes of a group (`coordinators/`), transactional ids and share groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from broker.addresses import Addresses
from broker.coordinators.classic_group import refused_join
from broker.coordinators.groups import OFFSETS_TOPIC, GroupCoordinator, refused_commit
from broker.coordinators.java import abs_hash
from broker.coordinators.rebalance import Caller
from broker.coordinators.runtime import Commit, CoordinatorDecision, CoordinatorRuntime, Shard, coordinator_error
from broker.handlers.router import Pending, RequestContext, Route
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
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from protocol.schema import Message
from replication.image import MetadataImage, TopicImage

_log = logging.getLogger("barnabas.groups")

CreateTopics = Callable[[CreateTopicsRequest, int, Callable[[CreateTopicsResponse], None]], None]
"""Has the controller make topics: (request, wall_ms, reply)."""

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_NONE: Final = ErrorCode.NONE
_NO_NODE: Final = -1
_CREATE_TIMEOUT_MS: Final = 30_000
_UNAVAILABLE: Final = "The coordinator is not available."

A = TypeVar("A", bound=Message)


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
            Route(ApiKey.OFFSET_COMMIT, 2, 10, self.offset_commit),
            Route(ApiKey.OFFSET_FETCH, 1, 10, self.offset_fetch),
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

        return _when_committed(shard.execute(decision), answer)

    # ------------------------------------------------------------ offsets
    def offset_commit(self, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse | Pending:
        """Commit offsets of partitions that exist."""
        if not self._may(context, Operation.READ, request.group_id):
            return refused_commit(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refused: list[OffsetCommitResponseTopic] = []
        request.topics = [topic for topic in request.topics if self._may_commit(context, topic, refused)]
        if not request.topics:
            return OffsetCommitResponse(topics=refused)
        shard = self._runtime.find(request.group_id)
        if not isinstance(shard, Shard):
            return _merged(refused, refused_commit(request, shard))
        decision = shard.machine.commit(request, context.api_version, context.mono_ms, context.wall_ms)
        commit = shard.execute(decision)
        if commit.error is _NONE and not refused:
            return decision.reply

        def answer(error: ErrorCode) -> OffsetCommitResponse:
            failed = error is not _NONE
            return _merged(refused, refused_commit(request, coordinator_error(error)) if failed else decision.reply)

        return _when_committed(commit, answer)

    def _may_commit(
        self,
        context: RequestContext,
        topic: OffsetCommitRequestTopic,
        refused: list[OffsetCommitResponseTopic],
    ) -> bool:
        """Whether there is something of a topic to commit; what is not goes to `refused`. Completes name and id."""
        image = self._image()
        known = self._complete(context, topic, image)
        error = _NONE
        if known is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._may_read(context, Operation.READ, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif known is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known is not None and error is _NONE:
            partitions = known.partitions
            missing = [one for one in topic.partitions if one.partition_index not in partitions]
            if not missing:
                return bool(topic.partitions)  # a topic without partitions is not even answered
            topic.partitions = [one for one in topic.partitions if one.partition_index in partitions]
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            missing, topic.partitions = topic.partitions, []
        answers = [
            OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=error) for one in missing
        ]
        refused.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        return bool(topic.partitions)

    def _complete(
        self,
        context: RequestContext,
        topic: OffsetCommitRequestTopic | OffsetFetchRequestTopics,
        image: MetadataImage,
    ) -> TopicImage | None:
        """Give a topic that is named by id its name, or the other way round."""
        if context.api_version >= 10:
            known = image.topics_by_id.get(topic.topic_id)
            if known is not None:
                topic.name = known.name
        else:
            known = image.topics_by_name.get(topic.name)
            if known is not None:
                topic.topic_id = known.topic_id
        return known

    def _may_read(self, context: RequestContext, operation: str, topic: str) -> bool:
        return self._authorizer.authorize(context.connection.principal, operation, Resource.TOPIC, topic)

    def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse | Pending:
        """Committed offsets of one or more groups."""
        groups = request.groups if context.api_version >= 8 else [_as_group(request)]
        answers: list[OffsetFetchResponseGroup] = []
        commits: list[Commit] = []
        for group in groups:
            answer, commit = self._fetch_group(context, group, is_stable=request.require_stable)
            answers.append(answer)
            if commit is not None and commit.error is not _NONE:
                index = len(answers) - 1
                commits.append(commit)
                commit.then(lambda error, group=group, index=index: _fail(answers, index, group, error))  # type: ignore[misc]
        return _when_all(commits, lambda: _fetched(answers, groups, context.api_version))

    def _fetch_group(
        self, context: RequestContext, group: OffsetFetchRequestGroup, *, is_stable: bool
    ) -> tuple[OffsetFetchResponseGroup, Commit | None]:
        """One group's answer, and what must be committed before it may go out."""
        group_id = group.group_id
        if not self._may(context, Operation.DESCRIBE, group_id):
            return _no_offsets(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED), None
        shard = self._runtime.find(group_id)
        if not isinstance(shard, Shard):
            return _no_offsets(group_id, shard), None
        image = self._image()
        has_ids = context.api_version >= 10
        refused: list[OffsetFetchResponseTopics] = []
        if group.topics is not None:
            group.topics = [topic for topic in group.topics if self._may_fetch(context, topic, image, refused)]
        answer = shard.machine.fetch(group, is_stable=is_stable)
        if group.topics is None:
            answer.topics = [
                topic for topic in answer.topics if self._may_read(context, Operation.DESCRIBE, topic.name)
            ]
            if has_ids:
                answer.topics = [topic for topic in answer.topics if _with_id(topic, image)]
        answer.topics += refused
        return answer, shard.execute(CoordinatorDecision((), None))

    def _may_fetch(
        self,
        context: RequestContext,
        topic: OffsetFetchRequestTopics,
        image: MetadataImage,
        refused: list[OffsetFetchResponseTopics],
    ) -> bool:
        known = self._complete(context, topic, image)
        if known is None and context.api_version >= 10:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._may_read(context, Operation.DESCRIBE, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            return True
        refused.append(
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, metadata="", error_code=error
                    )
                    for index in topic.partition_indexes
                ],
            )
        )
        return False

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
        for _, shard in sorted(self._runtime.shards.items()):
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
        return _when_all(commits, lambda: DeleteGroupsResponse(results=results + refused))


# ---- waiting


def _when_committed(commit: Commit, answer: Callable[[ErrorCode], A]) -> A | Pending:
    """The answer, now or when the log has reported."""
    if commit.error is not None:
        return answer(commit.error)
    pending = Pending()
    commit.waiters.append(lambda error: pending.complete(answer(error)))
    return pending


def _when_all(commits: Iterable[Commit], answer: Callable[[], A]) -> A | Pending:
    """The answer when the log has reported on all commits, whatever it said."""
    is_open = [commit for commit in commits if commit.error is None]
    if not is_open:
        return answer()
    pending = Pending()
    left = len(is_open)

    def one_more(_: ErrorCode) -> None:
        nonlocal left
        left -= 1
        if not left:
            pending.complete(answer())

    for commit in is_open:
        commit.waiters.append(one_more)
    return pending


# ---- answers


def _no_coordinator(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=_NO_NODE, host="", port=-1, error_code=error, error_message=message)


def _joined(answer: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Before version 7 there is no null for "no protocol"."""
    if version < 7 and answer.protocol_name is None:
        answer.protocol_name = ""
    return answer


def _merged(refused: list[OffsetCommitResponseTopic], response: OffsetCommitResponse) -> OffsetCommitResponse:
    """What was refused first, then the rest; a topic that is in both stands once."""
    if not refused:
        return response
    by_topic = {topic.name: topic for topic in refused}
    topics = list(refused)
    for topic in response.topics:
        known = by_topic.get(topic.name)
        if known is None:
            topics.append(topic)
        else:
            known.partitions += topic.partitions
    return OffsetCommitResponse(topics=topics)


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The one group of a request before version 8."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _no_offsets(group_id: str, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group_id, topics=[], error_code=error)


def _fail(
    answers: list[OffsetFetchResponseGroup], index: int, group: OffsetFetchRequestGroup, error: ErrorCode
) -> None:
    """What is not committed is not told. Consumers before 3.9 know NOT_COORDINATOR only."""
    if error is not _NONE:
        told = coordinator_error(error)
        told = ErrorCode.NOT_COORDINATOR if told is ErrorCode.COORDINATOR_NOT_AVAILABLE else told
        answers[index] = _no_offsets(group.group_id, told)


def _not_deleted(deleted: list[DeletableGroupResult], error: ErrorCode) -> None:
    """The log did not take the tombstones."""
    if error is not _NONE:
        for result in deleted:
            if result.error_code == _NONE:
                result.error_code = coordinator_error(error)


def _with_id(topic: OffsetFetchResponseTopics, image: MetadataImage) -> bool:
    """Complete a topic's id; one that is no more has none and cannot be told of."""
    known = image.topics_by_name.get(topic.name)
    if known is None:
        return False
    topic.topic_id = known.topic_id
    return True


def _fetched(
    answers: list[OffsetFetchResponseGroup], groups: list[OffsetFetchRequestGroup], version: int
) -> OffsetFetchResponse:
    """The answer in the form of its version: several groups since 8, an error of its own since 2."""
    if version >= 8:
        return OffsetFetchResponse(groups=answers)
    answer = answers[0]
    if version < 2 and answer.error_code != _NONE:
        answer.topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, metadata="", error_code=answer.error_code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in groups[0].topics or ()
        ]
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=one.partition_index,
                    committed_offset=one.committed_offset,
                    committed_leader_epoch=one.committed_leader_epoch,
                    metadata=one.metadata,
                    error_code=one.error_code,
                )
                for one in topic.partitions
            ],
        )
        for topic in answer.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=answer.error_code)

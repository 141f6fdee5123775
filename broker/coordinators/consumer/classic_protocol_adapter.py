"""Members of consumer groups that speak the classic protocol: join, sync, heartbeat, leave.

RULES    1. A JoinGroup is what a heartbeat of the consumer protocol is that tells everything; the generation in its answer
            is the member's epoch. There is no leader: a SyncGroup is told what the member owns.
         2. A heartbeat says REBALANCE_IN_PROGRESS to a member that is behind the targets, that has to give something up,
            or that what it waits for is free for. It then has its rebalance timeout to join again, and as long again to sync.
         3. Answers, and what is refused in which order, are Apache Kafka's.
NOT HERE Members of the consumer protocol (`consumer_group_heartbeat.py`), what news of a member do (`target_assignment_updater.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.coordinators.classic.classic_group import (
    CONSUMER_PROTOCOL,
    NO_MEMBER_ID,
    JoinReply,
    Protocols,
    SyncReply,
    refused_join,
)
from broker.coordinators.classic.classic_protocol import NOTHING, Caller, Decision
from broker.coordinators.consumer.consumer_group import ClassicSide, ConsumerGroup, ConsumerMember, MemberState
from broker.coordinators.consumer.consumer_group_heartbeat import ConsumerGroups, find_member
from broker.coordinators.consumer.embedded_protocol import by_topic_id, read_subscription, write_assignment
from broker.coordinators.consumer.group_upgrade import Migration
from broker.coordinators.consumer.target_assignment_updater import Joined, MemberProgress, forget_check
from broker.coordinators.consumer_group_config import MigrationPolicy
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host, StoredRecord, coordinator_error
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.messages.groups import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from replication.metadata.image import MetadataImage

_log = logging.getLogger("barnabas.groups")

FIRST_VERSION_THAT_ASKS_TWICE: Final = 4

_NONE: Final = ErrorCode.NONE


class ClassicMembers:
    """Classic members of one shard's consumer groups."""

    def __init__(
        self,
        host: Host,
        policy: MigrationPolicy,
        image: Callable[[], MetadataImage],
        new_uuid: Callable[[], str],
        consumers: ConsumerGroups,
        progress: MemberProgress,
        migration: Migration,
    ) -> None:
        self._host = host
        self._policy = policy
        self._image = image
        self._new_uuid = new_uuid
        self._consumers = consumers
        self._progress = progress
        self._migration = migration

    # ---- join

    def join(self, group: ConsumerGroup, caller: Caller, request: JoinGroupRequest, reply: JoinReply) -> Decision:
        """A JoinGroup into a consumer group that has members."""
        try:
            return self._join(group, caller, request, reply)
        except KafkaError as error:
            reply(refused_join(NO_MEMBER_ID, error.code))
            return NOTHING

    def _join(self, group: ConsumerGroup, caller: Caller, request: JoinGroupRequest, reply: JoinReply) -> Decision:
        if self._policy is MigrationPolicy.DISABLED:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = request.member_id or self._new_uuid()
        protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
        self._consumers.check_room(group, member_id)
        if request.protocol_type != CONSUMER_PROTOCOL or not _supports(group, protocols):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_unknown = request.member_id == NO_MEMBER_ID
        if is_unknown and request.group_instance_id is None and caller.api_version >= FIRST_VERSION_THAT_ASKS_TWICE:
            reply(refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return NOTHING
        joined = _find(group, member_id, request.group_instance_id, is_unknown=is_unknown)
        subscription = _subscription(protocols)
        new = _described(joined.member, caller, request, protocols, subscription)
        return self._advance(group, joined, new, group.static_member(request.group_instance_id), subscription, reply)

    def _advance(
        self,
        group: ConsumerGroup,
        joined: Joined,
        new: ConsumerMember,
        before: ConsumerMember | None,
        subscription: ConsumerProtocolSubscription,
        reply: JoinReply,
    ) -> Decision:
        """The next step; `before` is who had the static member's instance id so far, perhaps under the same member id."""
        records: list[StoredRecord] = []
        told = self._progress.tell(group, joined, new, None, records)
        owned = by_topic_id(subscription.owned_partitions, self._image())
        if before is not None and self._migration.may_downgrade(group, {before.member_id}, is_replaced=True):
            is_stale = told.epoch > group.assignment_epoch
            if not is_stale:
                target = group.targets.get(before.member_id, {})
                new = self._progress.step(group, joined, new, group.assignment_epoch, target, told, owned, records)
            return self._downgrade(group, before, new, records, reply, is_stale=is_stale)
        moved = self._progress.advance(group, joined, new, told, owned, records)
        self._consumers.expect_revocation(group, moved)

        def settle(error: ErrorCode) -> None:
            forget_check(group, error)
            if error is _NONE:
                self._joined(group.group_id, moved)
            reply(_joined(moved) if error is _NONE else refused_join(NO_MEMBER_ID, coordinator_error(error)))

        return self._settled(records, settle)

    def _settled(self, records: list[StoredRecord], settle: Callable[[ErrorCode], None]) -> Decision:
        """A decision whose `settle` is called though there may be no records."""
        if not records:
            self._host.execute(NOTHING).then(settle)
            return NOTHING
        return CoordinatorDecision(records, None, settle=settle)

    def _joined(self, group_id: str, member: ConsumerMember) -> None:
        """It has joined, and has its time to sync."""
        assert member.classic is not None, "a classic member"
        member_id = member.member_id
        self._consumers.joins.forget(group_id, member_id)
        self._consumers.sessions.start(group_id, member_id, member.classic.session_timeout_ms)
        self._consumers.syncs.start(group_id, member_id, member.rebalance_timeout_ms)

    def _downgrade(
        self,
        group: ConsumerGroup,
        replaced: ConsumerMember,
        new: ConsumerMember,
        records: list[StoredRecord],
        reply: JoinReply,
        *,
        is_stale: bool,
    ) -> Decision:
        """The last member of the consumer protocol is replaced: the group is a classic one now."""
        classic, more = self._migration.downgrade(group, {replaced.member_id}, new)
        if is_stale:
            self._migration.rebalance(classic, "it has become a classic group, and its assignment is out of date")

        def settle(error: ErrorCode) -> None:
            self._migration.downgraded(classic, error)
            forget_check(group, error)
            reply(_joined(new) if error is _NONE else refused_join(NO_MEMBER_ID, coordinator_error(error)))

        return CoordinatorDecision([*records, *more], None, settle=settle)

    # ---- sync

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, reply: SyncReply) -> Decision:
        """A SyncGroup of a member."""
        try:
            member = self._syncing(group, request)
        except KafkaError as error:
            reply(SyncGroupResponse(error_code=error.code))
            return NOTHING
        assert member.classic is not None, "a classic member"
        session_timeout_ms, protocols = member.classic
        response = SyncGroupResponse(
            error_code=_NONE,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=write_assignment(member.assigned, protocols[0][1], self._image()),
        )

        def settle(error: ErrorCode) -> None:
            if error is _NONE:
                self._consumers.syncs.forget(group.group_id, member.member_id)
                self._consumers.sessions.start(group.group_id, member.member_id, session_timeout_ms)
            reply(response if error is _NONE else SyncGroupResponse(error_code=coordinator_error(error)))

        return self._settled([], settle)

    def _syncing(self, group: ConsumerGroup, request: SyncGroupRequest) -> ConsumerMember:
        """The member that may be told what it owns.

        Raises:
            KafkaError: it may not.
        """
        member = _in_generation(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None, "a classic member"
        name = member.classic.protocols[0][0]
        if _differs(request.protocol_type, CONSUMER_PROTOCOL) or _differs(request.protocol_name, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return member

    # ---- heartbeat

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
        """A Heartbeat of a member: the code is the whole answer."""
        try:
            member = _in_generation(group, request.member_id, request.group_instance_id, request.generation_id)
        except KafkaError as error:
            return error.code
        assert member.classic is not None, "a classic member"
        self._consumers.sessions.start(group.group_id, member.member_id, member.classic.session_timeout_ms)
        must_join = (
            member.epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting_for_others(member))
        )
        if not must_join:
            return _NONE
        self._expect_join(group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._consumers.joins.start_if_absent(group.group_id, member.member_id, member.rebalance_timeout_ms)

    # ---- leave

    def leave(self, group: ConsumerGroup, request: LeaveGroupRequest) -> CoordinatorDecision[LeaveGroupResponse]:
        """A LeaveGroup in the form of version 3 and later; an administrator may remove members of either protocol."""
        leaving: dict[str, ConsumerMember] = {}
        answers = []
        for identity in request.members:
            error = _NONE
            try:
                member = _leaving(group, identity)
                reason = identity.reason or "not provided"
                _log.info("%s leaves group %s: %s", member.member_id, group.group_id, reason)
                leaving[member.member_id] = member
            except KafkaError as refused:
                error = refused.code
            instance_id = identity.group_instance_id
            answers.append(
                MemberResponse(member_id=identity.member_id, group_instance_id=instance_id, error_code=error)
            )
        response = LeaveGroupResponse(error_code=_NONE, members=answers)
        if not leaving:
            return CoordinatorDecision((), response)
        return self._consumers.remove(group, list(leaving.values()), response)


def _in_generation(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """A classic member that is where it should be.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION.
    """
    member = find_member(group, member_id, instance_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _find(group: ConsumerGroup, member_id: str, instance_id: str | None, *, is_unknown: bool) -> Joined:
    """The member that joins, whoever it was before."""
    if instance_id is None:
        return Joined(group.members.get(member_id) or ConsumerMember(member_id))
    if not is_unknown:
        return Joined(find_member(group, member_id, instance_id))
    known = group.static_member(instance_id)
    if known is None:
        return Joined(ConsumerMember(member_id))
    return Joined(known._replace(member_id=member_id, epoch=0, previous_epoch=0), known)


def _subscription(protocols: Protocols) -> ConsumerProtocolSubscription:
    """What a member subscribes to, which it says with each of its protocols."""
    try:
        return read_subscription(protocols[0][1])
    except MalformedRequest as error:
        _log.warning("a subscription cannot be read: %s", error)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _described(
    member: ConsumerMember,
    caller: Caller,
    request: JoinGroupRequest,
    protocols: Protocols,
    subscription: ConsumerProtocolSubscription,
) -> ConsumerMember:
    """The member with what it says of itself."""
    timeout_ms = request.rebalance_timeout_ms
    return member._replace(
        client_id=caller.client_id,
        client_host=caller.client_host,
        instance_id=member.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topics=frozenset(subscription.topics),
        regex="",
        classic=ClassicSide(request.session_timeout_ms, protocols),
    )


def _joined(member: ConsumerMember) -> JoinGroupResponse:
    assert member.classic is not None, "a classic member"
    return JoinGroupResponse(
        error_code=_NONE,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=member.classic.protocols[0][0],
        leader="",
        member_id=member.member_id,
        members=[],
    )


def _supports(group: ConsumerGroup, protocols: Protocols) -> bool:
    """Whether all classic members of a group support one of the protocols."""
    common = {name for name, _ in protocols}
    others = [{name for name, _ in member.classic.protocols} for member in group.members.values() if member.classic]
    return any(all(name in other for other in others) for name in common)


def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if instance_id is not None and member_id == NO_MEMBER_ID:  # an administrator removes a static member
        member_id = group.static_members.get(instance_id, NO_MEMBER_ID)
    return find_member(group, member_id, instance_id)


def _differs(given: str | None, known: str) -> bool:
    return given is not None and given != known

"""Classic members of consumer groups: join, sync, heartbeat, leave.

RULES    1. A JoinGroup is handled as a full heartbeat; its generation is the member epoch. There is no leader: SyncGroup
            returns the member's current assignment.
         2. A heartbeat returns REBALANCE_IN_PROGRESS to a member whose epoch is behind the assignment epoch, that must revoke
            partitions, or whose unreleased partitions are free. It must rejoin within its rebalance timeout, and then
            sync within it.
         3. Responses and order of checks are Apache Kafka's.
NOT HERE Members of the consumer protocol (`consumer_group_heartbeat.py`), target assignments (`target_assignment_updater.py`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from broker.coordinators.classic.classic_group import (
    CONSUMER_PROTOCOL,
    NO_MEMBER_ID,
    Protocols,
    join_error,
    protocols_of,
)
from broker.coordinators.classic.classic_protocol import ClientInfo, Decision, JoinDecision, SyncDecision, differs
from broker.coordinators.consumer.consumer_group import (
    ClassicMemberInfo,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    MemberUpdate,
)
from broker.coordinators.consumer.consumer_group_heartbeat import ConsumerProtocol, find_member
from broker.coordinators.consumer.dependencies import GroupDependencies
from broker.coordinators.consumer.embedded_protocol import by_topic_id, read_subscription, write_assignment
from broker.coordinators.consumer.group_upgrade import GroupUpgrade
from broker.coordinators.consumer.target_assignment_updater import TargetAssignmentUpdater, invalidate_metadata_check
from broker.coordinators.group_config import MigrationPolicy
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision
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

_log = logging.getLogger("barnabas.groups")

FIRST_VERSION_THAT_ASKS_TWICE: Final = 4

_NONE: Final = ErrorCode.NONE


@dataclass(eq=False)
class ClassicProtocolAdapter:
    """Classic members of one shard's consumer groups."""

    _deps: GroupDependencies
    _consumer_protocol: ConsumerProtocol
    _target_updater: TargetAssignmentUpdater
    _group_upgrade: GroupUpgrade

    # ---- join

    def join(self, group: ConsumerGroup, client: ClientInfo, request: JoinGroupRequest) -> JoinDecision:
        """Handle JoinGroup in a consumer group with members."""
        try:
            return self._join(group, client, request)
        except KafkaError as error:
            return CoordinatorDecision((), join_error(NO_MEMBER_ID, error.code))

    def _join(self, group: ConsumerGroup, client: ClientInfo, request: JoinGroupRequest) -> JoinDecision:
        if self._deps.settings.consumer.migration_policy is MigrationPolicy.DISABLED:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = request.member_id or self._deps.new_uuid()
        protocols = protocols_of(request)
        self._consumer_protocol.check_max_size(group, member_id)
        if request.protocol_type != CONSUMER_PROTOCOL or not _supports(group, protocols):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_unknown = request.member_id == NO_MEMBER_ID
        if is_unknown and request.group_instance_id is None and client.api_version >= FIRST_VERSION_THAT_ASKS_TWICE:
            return CoordinatorDecision((), join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        if is_unknown or request.group_instance_id is None:
            old, replaced = group.joining_member(member_id, request.group_instance_id)
        else:
            old, replaced = find_member(group, member_id, request.group_instance_id), None
        subscription = _subscription(group.group_id, protocols)
        new = old.with_request(
            client,
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id or None,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=subscription.topics,
            regex="",
            classic=ClassicMemberInfo(request.session_timeout_ms, protocols),
        )
        owned = by_topic_id(subscription.owned_partitions, self._deps.image())
        update = MemberUpdate(group, old, replaced, new, owned, [])
        self._target_updater.update_member(update, None)
        before = group.static_member(request.group_instance_id)
        if before is not None and self._group_upgrade.may_downgrade(group, {before.member_id}, is_replaced=True):
            return self._downgrade(update, before)
        reconciled = self._target_updater.reconcile(update)
        self._consumer_protocol.update_revocation_timeout(group, reconciled)

        def on_commit(error: ErrorCode) -> None:
            invalidate_metadata_check(group, error)
            if error is _NONE:
                self._on_joined(group.group_id, reconciled)

        return CoordinatorDecision(update.records, _joined_response(reconciled), on_commit=on_commit)

    def _on_joined(self, group_id: str, member: ConsumerMember) -> None:
        """The join is committed: restart the session and wait for SyncGroup."""
        assert member.classic is not None, "a classic member"
        member_id = member.member_id
        self._consumer_protocol.join_timeouts.cancel(group_id, member_id)
        self._consumer_protocol.session_timeouts.start(group_id, member_id, member.classic.session_timeout_ms)
        self._consumer_protocol.sync_timeouts.start(group_id, member_id, member.rebalance_timeout_ms)

    def _downgrade(self, update: MemberUpdate, replaced: ConsumerMember) -> JoinDecision:
        """A classic member replaces the last member of the consumer protocol: downgrade the group."""
        group, new = update.group, update.new
        is_stale = update.epoch > group.assignment_epoch
        if not is_stale:
            target = group.targets.get(replaced.member_id, {})
            new = self._target_updater.reconcile_to(update, group.assignment_epoch, target)
        classic, more = self._group_upgrade.downgrade(group, {replaced.member_id}, new)
        if is_stale:
            self._group_upgrade.rebalance(
                classic, "the group was downgraded to a classic group with an outdated assignment"
            )

        def on_commit(error: ErrorCode) -> Decision:
            invalidate_metadata_check(group, error)
            return self._group_upgrade.on_downgrade_committed(classic, error)

        return CoordinatorDecision([*update.records, *more], _joined_response(new), on_commit=on_commit)

    # ---- sync

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest) -> SyncDecision:
        """Handle SyncGroup."""
        try:
            member = self._syncing(group, request)
        except KafkaError as error:
            return CoordinatorDecision((), SyncGroupResponse(error_code=error.code))
        assert member.classic is not None, "a classic member"
        session_timeout_ms, metadata = member.classic.session_timeout_ms, member.classic.protocols[0].metadata
        response = SyncGroupResponse(
            error_code=_NONE,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=write_assignment(member.assigned, metadata, self._deps.image()),
        )

        def on_commit(error: ErrorCode) -> None:
            if error is _NONE:
                self._consumer_protocol.sync_timeouts.cancel(group.group_id, member.member_id)
                self._consumer_protocol.session_timeouts.start(group.group_id, member.member_id, session_timeout_ms)

        return CoordinatorDecision((), response, on_commit=on_commit)

    def _syncing(self, group: ConsumerGroup, request: SyncGroupRequest) -> ConsumerMember:
        """The member that may get its assignment; raises KafkaError if it may not."""
        member = _in_generation(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None, "a classic member"
        name = member.classic.protocols[0].name
        if differs(request.protocol_type, CONSUMER_PROTOCOL) or differs(request.protocol_name, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return member

    # ---- heartbeat

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
        """Handle Heartbeat."""
        try:
            member = _in_generation(group, request.member_id, request.group_instance_id, request.generation_id)
        except KafkaError as error:
            return error.code
        assert member.classic is not None, "a classic member"
        self._consumer_protocol.session_timeouts.start(
            group.group_id, member.member_id, member.classic.session_timeout_ms
        )
        must_join = (
            member.epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_unreleased_partitions(member))
        )
        if not must_join:
            return _NONE
        self._expect_join(group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._consumer_protocol.join_timeouts.start_if_absent(
            group.group_id, member.member_id, member.rebalance_timeout_ms
        )

    # ---- leave

    def leave(self, group: ConsumerGroup, request: LeaveGroupRequest) -> CoordinatorDecision[LeaveGroupResponse]:
        """Handle LeaveGroup in the form of version 3 and later; administrators may remove members of both protocols."""
        leaving: dict[str, ConsumerMember] = {}
        answers = []
        for identity in request.members:
            error = _NONE
            try:
                member = _leaving(group, identity)
                reason = identity.reason or "not provided"
                _log.info("group %s: member %s leaves, reason: %s", group.group_id, member.member_id, reason)
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
        return self._consumer_protocol.remove(group, list(leaving.values()), response)


def _in_generation(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """The classic member, if it is in this generation; else raises KafkaError."""
    member = find_member(group, member_id, instance_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _subscription(group_id: str, protocols: Protocols) -> ConsumerProtocolSubscription:
    """The subscription, read from the first protocol."""
    try:
        return read_subscription(protocols[0].metadata)
    except MalformedRequest as error:
        _log.warning("group %s: a join with a malformed subscription is rejected: %s", group_id, error)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _joined_response(member: ConsumerMember) -> JoinGroupResponse:
    assert member.classic is not None, "a classic member"
    return JoinGroupResponse(
        error_code=_NONE,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=member.classic.protocols[0].name,
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

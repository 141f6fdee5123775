"""The classic group protocol: join, sync, heartbeat, leave (Kafka: classic groups in GroupMetadataManager).

RULES    1. Every response and state transition is Apache Kafka's, error codes and their order included.
         2. A member stores the completion of its JoinGroup or SyncGroup while the request waits for other members. The
            decision of the request, timeout or commit that ends the wait contains the replies.
         3. A group's record is written when the group gets its assignment, becomes empty, is created, or replaces a static
            member; other volatile state of members is lost with this broker.
         4. A heartbeat only stores the new expiry time of the session. The timer checks it when it fires and is scheduled
            again: one heap entry per member, however often it sends heartbeats.
         5. The session of a member that waits for a JoinGroup or SyncGroup response does not expire. It restarts with the
            response.
NOT HERE Data of a group (`classic_group.py`), appending (`coordinator_runtime.py`), committed offsets (`offset_manager.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from broker.coordinators.classic.classic_group import (
    NO_MEMBER_ID,
    ClassicGroup,
    Member,
    State,
    join_error,
    join_response,
    join_response_members,
    protocols_of,
    reply_to_sync,
    sync_response,
)
from broker.coordinators.classic.group_records import empty_group_record, group_record
from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_counts import GroupCounts
from broker.coordinators.runtime.coordinator_runtime import (
    CoordinatorDecision,
    Replies,
    ShardContext,
    coordinator_error,
)
from protocol.errors import ErrorCode
from protocol.messages.groups import (
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
from replication.completion import Completion
from replication.timer_queue import Timer

_log = logging.getLogger("barnabas.groups")

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""Session timeout of a new member during a rebalance: it sends no heartbeats before it knows its id."""
WAIT_FOR_IDS_MS: Final = 2
"""After its initial delay a new group checks this often whether the members that have got their ids have joined."""
MAX_WAIT_FOR_IDS_MS: Final = 50
"""The longest such wait in which no member joins."""
MAX_PENDING_JOINS: Final = 10_000
"""Limit for unused member ids per group; beyond it the oldest becomes invalid."""

Decision = CoordinatorDecision[None]
JoinDecision = CoordinatorDecision[JoinGroupResponse]
SyncDecision = CoordinatorDecision[SyncGroupResponse]
EMPTY_DECISION: Final[Decision] = CoordinatorDecision((), None)

_NONE: Final = ErrorCode.NONE


class ClientInfo(NamedTuple):
    """The client of a request, and the request's version."""

    client_id: str
    client_host: str
    api_version: int


class ClassicProtocol:
    """The classic protocol for the groups of one shard."""

    def __init__(
        self,
        groups: dict[str, ClassicGroup],
        context: ShardContext,
        settings: GroupSettings,
        new_uuid: Callable[[], str],
        counts: GroupCounts,
    ) -> None:
        self._groups = groups
        self._counts = counts
        self._context = context
        self._settings = settings
        self._new_uuid = new_uuid

    # ---- join

    def join(self, client: ClientInfo, request: JoinGroupRequest) -> JoinDecision:
        """Handle JoinGroup with a non-empty group id."""
        member_id = request.member_id
        group = self._groups.get(request.group_id)
        is_new = group is None
        if group is None:
            if member_id != NO_MEMBER_ID:
                return _reject(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, self._context.wall_ms())
        decision = self._join_group(group, client, request)
        if is_new and not decision.records:
            decision = decision.extended(decision.reply, [empty_group_record(group)])
            decision.on_commit = partial(self._on_group_recorded, group)
        return decision

    def _on_group_recorded(self, group: ClassicGroup, error: ErrorCode) -> Decision:
        """The record of a new group is committed, or failed: then the group is removed."""
        if error is _NONE:
            return EMPTY_DECISION
        _log.warning("group %s was not created: its record was not committed (%s)", group.group_id, error.name)
        replies = [
            reply
            for member in group.members.values()
            for reply in group.reply_error(member, NO_MEMBER_ID, coordinator_error(error))
        ]
        return Decision((), None, [*replies, *self.remove_group(group)])

    def _join_group(self, group: ClassicGroup, client: ClientInfo, request: JoinGroupRequest) -> JoinDecision:
        member_id = request.member_id
        new = _requested_member(client, request)
        if not self._accepts_joining_member(group, member_id):
            group.remove(member_id)
            return _reject(NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not group.supports(new.protocol_type, new.protocols):
            return _reject(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if member_id == NO_MEMBER_ID:
            return self._join_new_member(group, new, client.api_version, request.reason)
        if member_id in group.pending_joins:
            if request.group_instance_id is not None:  # Kafka fails with an IllegalStateException here
                return _reject(NO_MEMBER_ID, ErrorCode.UNKNOWN_SERVER_ERROR)
            return self._add_and_rebalance(group, new, request.reason)
        error = group.validate_member(member_id, request.group_instance_id)
        if error is not _NONE:
            return _reject(member_id, error)
        return self._join_existing_member(group, group.members[member_id], new, request.reason)

    def _accepts_joining_member(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        limit = self._settings.max_size
        if group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING_REBALANCE:
            # Joined members count, not all: after group.max.size was lowered, the last members to join are rejected.
            return (member is not None and member.waiting_join is not None) or group.awaiting_join < limit
        return member is not None or len(group.members) < limit

    def _join_new_member(self, group: ClassicGroup, new: Member, api_version: int, reason: str | None) -> JoinDecision:
        """A member without a member id joins; it gets one."""
        instance_id = new.instance_id
        member_id = new.member_id = f"{new.client_id if instance_id is None else instance_id}-{self._new_uuid()}"
        if instance_id is not None:
            replaced_id = group.static_members.get(instance_id)
            if replaced_id is not None:
                return self._replace_static_member(group, group.members[replaced_id], new, api_version, reason)
        elif api_version >= 4:
            if len(group.pending_joins) >= MAX_PENDING_JOINS:
                group.remove_pending_member(next(iter(group.pending_joins)))
            group.pending_joins[member_id] = self._context.schedule(
                new.session_timeout_ms, lambda: self._expire_pending_member(group, member_id)
            )
            return _reject(member_id, ErrorCode.MEMBER_ID_REQUIRED)
        return self._add_and_rebalance(group, new, reason)

    def _add_and_rebalance(self, group: ClassicGroup, member: Member, reason: str | None) -> JoinDecision:
        member.is_new = True
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.new_member_added = True
        waiting: Completion[JoinGroupResponse] = Completion()
        group.add(member, waiting)
        self.restart_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._rebalance_or_complete_join(group, f"member {member.member_id} joins", reason).extended(waiting)

    def _join_existing_member(
        self, group: ClassicGroup, member: Member, new: Member, reason: str | None
    ) -> JoinDecision:
        state = group.state
        if state is State.EMPTY:
            return _reject(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        is_leader = group.leader_id == member.member_id
        has_news = state is State.PREPARING_REBALANCE or new.protocols != member.protocols
        # A leader that rejoins a stable group requests a rebalance, for example because of new partitions.
        if not has_news and not (state is State.STABLE and is_leader):
            # The member missed the response of this generation.
            return CoordinatorDecision((), join_response(group, member.member_id, with_members=is_leader))
        waiting: Completion[JoinGroupResponse] = Completion()
        group.update(member, new, waiting)
        return self._rebalance_or_complete_join(group, f"member {member.member_id} rejoins", reason).extended(waiting)

    def _replace_static_member(
        self, group: ClassicGroup, old: Member, new: Member, api_version: int, reason: str | None
    ) -> JoinDecision:
        """A static member joins with a new member id."""
        leader_before, member_id = group.leader_id, new.member_id
        replies = group.reply_error(old, old.member_id, ErrorCode.FENCED_INSTANCE_ID)
        member = group.replace_static(old, member_id)
        self.restart_session(group, member, member.session_timeout_ms)
        waiting: Completion[JoinGroupResponse] = Completion()
        group.update(member, new, waiting)
        if group.state is State.STABLE and group.select_protocol() == group.protocol_name:
            assignments = {member.member_id: member.assignment for member in group.members.values()}
            on_commit = partial(self._on_static_member_replaced, group, old, member, leader_before, api_version)
            return CoordinatorDecision((group_record(group, assignments),), waiting, replies, on_commit=on_commit)
        if group.state is State.STABLE:
            what = f"static member {member_id} changes the selected protocol"
            decision = self._rebalance_or_complete_join(group, what, reason)
        elif group.state is State.COMPLETING_REBALANCE:
            # The leader may already assign partitions to the old member id.
            what = f"static member {member_id} replaces {old.member_id}"
            decision = self.prepare_rebalance(group, what, reason)
        else:
            decision = self._maybe_complete_join_phase(group)
        return decision.extended(waiting, replies=replies)

    def _on_static_member_replaced(
        self,
        group: ClassicGroup,
        old: Member,
        member: Member,
        leader_before: str | None,
        api_version: int,
        error: ErrorCode,
    ) -> Decision:
        """The record of a replaced static member is committed, or failed: then the old member is restored."""
        if error is not _NONE:
            if group.members.get(member.member_id) is not member:
                return EMPTY_DECISION
            replies = group.reply_to_join(member, join_error(NO_MEMBER_ID, coordinator_error(error)))
            group.update(member, old, None)
            self.restart_session(group, group.replace_static(member, old.member_id), old.session_timeout_ms)
            return Decision((), None, replies)
        response = join_response(group, member.member_id, with_members=False)
        if api_version < 9:
            # A client before version 9 would compute an assignment if it were the leader: name the old leader.
            response.leader = leader_before or ""
        elif group.leader_id == member.member_id:
            response.members = join_response_members(group)
            response.skip_assignment = True
        replies = group.reply_to_join(member, response)
        if replies:
            self.restart_session(group, member, member.session_timeout_ms)
        return Decision((), None, replies)

    # ---- rebalance

    def _rebalance_or_complete_join(self, group: ClassicGroup, what: str, reason: str | None) -> Decision:
        """Start a rebalance, or complete the current one if all members have joined."""
        if group.can_rebalance:
            return self.prepare_rebalance(group, what, reason)
        return self._maybe_complete_join_phase(group)

    def rebalance_if_too_large(self, group: ClassicGroup) -> None:
        """After loading: rebalance a group larger than group.max.size; the last members to join are rejected."""
        if len(group.members) > self._settings.max_size:
            self.prepare_rebalance(group, "the group is larger than group.max.size", None)

    def prepare_rebalance(self, group: ClassicGroup, what: str, reason: str | None) -> Decision:
        """Move to PreparingRebalance and wait for all members to rejoin."""
        replies: Replies = ()
        if group.state is State.COMPLETING_REBALANCE:
            replies = self._propagate_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        cancel(group.sync_deadline)
        is_first = group.state is State.EMPTY
        group.transition_to(State.PREPARING_REBALANCE, self._context.wall_ms())
        cause = f"{what} ({reason})" if reason else what
        _log.info("group %s: preparing a rebalance, generation %d: %s", group.group_id, group.generation, cause)
        if is_first:
            # A new group waits group.initial.rebalance.delay.ms for more members.
            delay_ms = self._settings.initial_rebalance_delay_ms
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.new_member_added = False
            self._set_join_deadline(group, delay_ms, lambda: self._extend_initial_delay(group, delay_ms, left_ms))
        elif group.has_all_joined:
            return self._complete_join(group).extended(None, replies=replies)
        else:
            self._set_join_deadline(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
        return Decision((), None, replies)

    def _set_join_deadline(self, group: ClassicGroup, delay_ms: int, event: Callable[[], Decision]) -> None:
        cancel(group.join_deadline)
        group.join_deadline = self._context.schedule(delay_ms, event)

    def _extend_initial_delay(
        self, group: ClassicGroup, delay_ms: int, left_ms: int, waited_for_ids_ms: int = 0
    ) -> Decision:
        """Wait on if members have joined during the last delay, or for a short time if member ids are not used yet."""
        next_ms = 0
        if group.new_member_added:
            next_ms, waited_for_ids_ms = self._settings.initial_rebalance_delay_ms, 0
        has_pending = bool(group.pending_joins) and waited_for_ids_ms < MAX_WAIT_FOR_IDS_MS
        if left_ms == 0 or not (group.new_member_added or has_pending):
            return self._complete_join(group)
        if has_pending and next_ms < WAIT_FOR_IDS_MS:
            next_ms = WAIT_FOR_IDS_MS
            waited_for_ids_ms += next_ms
        group.new_member_added = False
        next_ms = min(next_ms, left_ms)
        left_ms = max(left_ms - delay_ms, 0)
        self._set_join_deadline(
            group, next_ms, lambda: self._extend_initial_delay(group, next_ms, left_ms, waited_for_ids_ms)
        )
        return EMPTY_DECISION

    def _maybe_complete_join_phase(self, group: ClassicGroup) -> Decision:
        """Complete the join phase if all members have joined; a new group waits for its initial delay instead."""
        if (
            group.state is State.PREPARING_REBALANCE
            and group.previous_state is not State.EMPTY
            and group.has_all_joined
        ):
            return self._complete_join(group)
        return EMPTY_DECISION

    def _complete_join(self, group: ClassicGroup) -> Decision:
        """End the join phase: remove dynamic members that did not rejoin and start the next generation."""
        cancel(group.join_deadline)
        if group.state is State.DEAD:
            return EMPTY_DECISION
        missing = [
            member.member_id
            for member in group.members.values()
            if member.waiting_join is None and member.instance_id is None
        ]
        for member_id in missing:
            group.remove(member_id)
        if missing:
            _log.info("group %s: removed members that did not rejoin: %s", group.group_id, ", ".join(missing))
        if not group.elect_joined_leader() and group.members:
            # Only absent static members are left; their session timeouts remove them.
            self._set_join_deadline(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
            return EMPTY_DECISION
        group.init_next_generation(self._context.wall_ms())
        if group.state is State.EMPTY:
            _log.info("group %s is empty after generation %d", group.group_id, group.generation)
            return Decision((group_record(group, {}),), None)
        _log.info("group %s has %d members in generation %d", group.group_id, len(group.members), group.generation)
        replies: list[Any] = []
        for member in group.members.values():
            with_members = group.leader_id == member.member_id
            replies += group.reply_to_join(member, join_response(group, member.member_id, with_members=with_members))
            self.restart_session(group, member, member.session_timeout_ms)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        generation = group.generation
        group.sync_deadline = self._context.schedule(
            group.rebalance_timeout_ms, lambda: self._expire_pending_syncs(group, generation)
        )
        return Decision((), None, replies)

    def _expire_pending_syncs(self, group: ClassicGroup, generation: int) -> Decision:
        """Remove members that joined but did not send SyncGroup in time."""
        late = [member_id for member_id in group.members if member_id in group.pending_syncs]
        if group.generation != generation or not late or group.state not in {State.COMPLETING_REBALANCE, State.STABLE}:
            return EMPTY_DECISION
        for member_id in late:
            group.remove(member_id)
        return self.prepare_rebalance(group, f"{', '.join(late)} did not sync", None)

    # ---- sync

    def sync(self, request: SyncGroupRequest) -> SyncDecision:
        """Handle SyncGroup with a non-empty group id."""
        group = self._groups.get(request.group_id)
        if group is None or group.state is State.EMPTY:
            return CoordinatorDecision((), SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        error = _check_sync(group, request)
        if error is not _NONE:
            return CoordinatorDecision((), SyncGroupResponse(error_code=error))
        member = group.members[request.member_id]
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            cancel(group.sync_deadline)
        if group.state is State.STABLE:
            return CoordinatorDecision((), sync_response(group, member))
        waiting: Completion[SyncGroupResponse] = Completion()
        member.waiting_sync = waiting
        if group.leader_id != member.member_id:
            return CoordinatorDecision((), waiting)
        assignments = dict.fromkeys(group.members, b"")
        for assignment in request.assignments:
            if assignment.member_id in assignments:
                assignments[assignment.member_id] = assignment.assignment
        on_commit = partial(self._on_assignment_recorded, group, group.generation, assignments)
        return CoordinatorDecision((group_record(group, assignments),), waiting, on_commit=on_commit)

    def _on_assignment_recorded(
        self, group: ClassicGroup, generation: int, assignments: dict[str, bytes], error: ErrorCode
    ) -> Decision:
        """The leader's assignment is committed, or failed."""
        if group.state is not State.COMPLETING_REBALANCE or group.generation != generation:
            return EMPTY_DECISION
        if error is not _NONE:
            replies = self._propagate_assignment(group, coordinator_error(error))
            what = f"the assignment was not committed: {error.name}"
            return self.prepare_rebalance(group, what, None).extended(None, replies=replies)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.transition_to(State.STABLE, self._context.wall_ms())
        self._counts.classic_rebalances += 1
        return Decision((), None, self._propagate_assignment(group, _NONE))

    def _propagate_assignment(self, group: ClassicGroup, error: ErrorCode) -> Replies:
        """The replies to all waiting SyncGroups: the assignments or the error."""
        replies: list[Any] = []
        for member in group.members.values():
            if error is not _NONE:
                member.assignment = b""
            response = sync_response(group, member) if error is _NONE else SyncGroupResponse(error_code=error)
            if member.waiting_sync is not None:  # the session is not checked while the member waits
                self.restart_session(group, member, member.session_timeout_ms)
            replies += reply_to_sync(member, response)
        return replies

    # ---- heartbeat and sessions

    def heartbeat(self, request: HeartbeatRequest, mono_ms: int) -> ErrorCode:
        """Handle Heartbeat with a non-empty group id."""
        group = self._groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member = group.members.get(request.member_id)
        if member is None or request.group_instance_id is not None:
            error = group.validate_member(request.member_id, request.group_instance_id)
            if error is not _NONE:
                return error
            member = group.members[request.member_id]
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.on_heartbeat(group, member, mono_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING_REBALANCE else _NONE

    def on_heartbeat(self, group: ClassicGroup, member: Member, mono_ms: int) -> None:
        """The member sent a heartbeat or a commit (rule 4)."""
        deadline = member.deadline
        member.expires_at_mono_ms = mono_ms + member.session_timeout_ms
        if deadline is None or deadline.callback is None:
            self.restart_session(group, member, member.session_timeout_ms)

    def restart_session(self, group: ClassicGroup, member: Member, timeout_ms: int) -> None:
        """Restart the member's session with this timeout."""
        at_mono_ms = member.expires_at_mono_ms = self._context.mono_ms() + timeout_ms
        deadline = member.deadline
        if deadline is not None and deadline.is_pending:
            if deadline.at_mono_ms <= at_mono_ms:
                return
            deadline.cancel()
        member.deadline = self._context.schedule(timeout_ms, lambda: self._check_session(group, member))

    def _check_session(self, group: ClassicGroup, member: Member) -> Decision:
        if group.members.get(member.member_id) is not member or group.state is State.DEAD:
            return EMPTY_DECISION
        left_ms = member.expires_at_mono_ms - self._context.mono_ms()
        if left_ms > 0:
            member.deadline = self._context.schedule(left_ms, lambda: self._check_session(group, member))
            return EMPTY_DECISION
        if member.has_satisfied_heartbeat:
            return EMPTY_DECISION
        _log.info("group %s: the session of member %s has expired", group.group_id, member.member_id)
        replies = self._remove_member(group, member)
        decision = self._on_member_removed(group, f"the session of member {member.member_id} has expired")
        return decision.extended(None, replies=replies)

    def _expire_pending_member(self, group: ClassicGroup, member_id: str) -> Decision:
        """A member id from MEMBER_ID_REQUIRED was not used in time."""
        if group.state is State.DEAD or group.pending_joins.pop(member_id, None) is None:
            return EMPTY_DECISION
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            return self._complete_join(group)
        return EMPTY_DECISION

    def _remove_member(self, group: ClassicGroup, member: Member) -> Replies:
        # A new member may wait in JoinGroup, a member removed by an administrator in SyncGroup (Kafka lets it
        # time out). The client rejoins.
        replies = group.reply_error(member, NO_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member.member_id)
        return replies

    def _on_member_removed(self, group: ClassicGroup, what: str) -> Decision:
        if group.state in {State.STABLE, State.COMPLETING_REBALANCE}:
            return self._rebalance_or_complete_join(group, what, None)
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            return self._complete_join(group)
        return EMPTY_DECISION

    # ---- leave

    def leave(self, request: LeaveGroupRequest) -> CoordinatorDecision[LeaveGroupResponse]:
        """Handle LeaveGroup in the form of version 3 and later, with a non-empty group id."""
        group = self._groups.get(request.group_id)
        replies: list[Any] = []
        answers = [self._leave_member(group, identity, replies) for identity in request.members]
        response = LeaveGroupResponse(error_code=_NONE, members=answers)
        removed_ids = [answer.member_id for answer in answers if answer.error_code == _NONE]
        decision = EMPTY_DECISION
        if group is not None and removed_ids and group.state is not State.EMPTY:
            decision = self._rebalance_or_complete_join(group, f"{', '.join(removed_ids)} left", None)
        return decision.extended(response, replies=replies)

    def _leave_member(self, group: ClassicGroup | None, identity: MemberIdentity, replies: list[Any]) -> MemberResponse:
        """The result for one member; the replies to its waiting requests are added to `replies`."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        error = _NONE
        if group is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id in group.pending_joins:
            group.remove(member_id)
        else:
            leaving_id = member_id
            if member_id == NO_MEMBER_ID:  # an administrator removes a static member
                leaving_id = group.static_members.get(instance_id or "", NO_MEMBER_ID)
            error = group.validate_member(leaving_id, instance_id)
            if error is _NONE:
                reason = identity.reason or "not provided"
                _log.info("group %s: member %s leaves, reason: %s", group.group_id, leaving_id, reason)
                replies += self._remove_member(group, group.members[leaving_id])
        return MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)

    # ---- removal

    def remove_group(self, group: ClassicGroup) -> Replies:
        """Remove a group and cancel its timers; returns NOT_COORDINATOR for its waiting requests."""
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
        replies = group.reply_error_to_all(ErrorCode.NOT_COORDINATOR)
        timers = [member.deadline for member in group.members.values()]
        for deadline in (*timers, *group.pending_joins.values(), group.join_deadline, group.sync_deadline):
            cancel(deadline)
        group.pending_joins.clear()
        group.transition_to(State.DEAD, self._context.wall_ms())
        return replies


def _requested_member(client: ClientInfo, request: JoinGroupRequest) -> Member:
    """The member as the request describes it."""
    return Member(
        request.member_id,
        request.group_instance_id,
        client.client_id,
        client.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocol_type,
        protocols_of(request),
    )


def _reject(member_id: str, error: ErrorCode) -> JoinDecision:
    return CoordinatorDecision((), join_error(member_id, error))


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not _NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if differs(request.protocol_type, group.protocol_type) or differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return _NONE


def differs(given: str | None, current: str | None) -> bool:
    """Whether a name in a request differs from the group's; an unknown name does not."""
    return given is not None and current is not None and given != current


def cancel(deadline: Timer | None) -> None:
    """Cancel a timer, if there is one."""
    if deadline is not None:
        deadline.cancel()

"""What requests and deadlines do to the groups of the classic protocol: join, sync, heartbeat, leave.

RULES    1. Every answer and every state change is Apache Kafka's, error codes and their order included.
         2. A JoinGroup or SyncGroup is answered through the reply handed in with it, at once or when the others
            have come; what must be recorded first is in the Decision, whose `settle` does the rest.
         3. The record of a group is written when it gets its assignment, when it becomes empty, when it is new,
            and when a static member is replaced; nothing else about members outlives this broker.
NOT HERE What a group is made of (`classic_group.py`), when silence is a fault (`heartbeat_timeouts.py`), appending
         (`coordinator_runtime.py`), committed offsets (`offset_manager.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from broker.coordinators.classic.classic_group import (
    NO_MEMBER_ID,
    ClassicGroup,
    JoinReply,
    Member,
    Protocols,
    State,
    SyncReply,
    answer_all,
    answer_sync,
    joined,
    members_of,
    refused_join,
    synced,
)
from broker.coordinators.classic.group_records import empty_group_record, group_record
from broker.coordinators.classic.heartbeat_timeouts import Sessions
from broker.coordinators.consumer_group_config import ConsumerGroupSettings
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host, coordinator_error
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from replication.timer_queue import Deadline

_log = logging.getLogger("barnabas.groups")

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a new member may stand in a rebalance: it does not know its id yet and cannot send heartbeats."""
MAX_PENDING_JOINS: Final = 10_000
"""Member ids given out and not used yet, per group; beyond it the oldest is void, and its owner asks for another."""

Decision = CoordinatorDecision[None]
NOTHING: Final[Decision] = CoordinatorDecision((), None)

_NONE: Final = ErrorCode.NONE


class GroupSettings(NamedTuple):
    """What the settings say about groups and their offsets; defaults as in Kafka."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 0x7FFFFFFF
    offset_metadata_max_size: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    consumer: ConsumerGroupSettings = ConsumerGroupSettings()


class Caller(NamedTuple):
    """Who sent a request: what a group remembers of it, and what the request's version allows."""

    client_id: str
    client_host: str
    api_version: int


class Rebalancer:
    """The classic protocol over one shard's groups."""

    def __init__(
        self,
        groups: dict[str, ClassicGroup],
        host: Host,
        settings: GroupSettings,
        new_uuid: Callable[[], str],
    ) -> None:
        self._groups = groups
        self._host = host
        self._settings = settings
        self._new_uuid = new_uuid
        self.sessions = Sessions(host, self._session_over)

    # ---- join

    def join(self, caller: Caller, request: JoinGroupRequest, reply: JoinReply) -> Decision:
        """A JoinGroup; its group id is not empty."""
        member_id = request.member_id
        group = self._groups.get(request.group_id)
        is_new = group is None
        if group is None:
            if member_id != NO_MEMBER_ID:
                reply(refused_join(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
                return NOTHING
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, self._host.wall_ms())
        decision = self._join_group(group, caller, request, reply)
        if is_new and not decision.records:
            return Decision((empty_group_record(group),), None, settle=lambda error: self._made(group, reply, error))
        return decision

    def _made(self, group: ClassicGroup, reply: JoinReply, error: ErrorCode) -> None:
        """A new group is recorded, or could not be: then it has never been."""
        if error is not _NONE:
            _log.warning("group %s cannot be recorded: %s", group.group_id, error.name)
            for member in list(group.members.values()):
                group.answer_join(member, refused_join(NO_MEMBER_ID, coordinator_error(error)))
            reply(refused_join(NO_MEMBER_ID, coordinator_error(error)))
            self.forget(group)

    def _join_group(self, group: ClassicGroup, caller: Caller, request: JoinGroupRequest, reply: JoinReply) -> Decision:
        member_id = request.member_id
        protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
        if not self._has_room_for(group, member_id):
            group.remove(member_id)
            reply(refused_join(NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED))
            return NOTHING
        if not group.supports(request.protocol_type, protocols):
            reply(refused_join(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return NOTHING
        if member_id == NO_MEMBER_ID:
            return self._join_without_id(group, caller, request, protocols, reply)
        if member_id in group.pending_joins:
            if request.group_instance_id is not None:  # Kafka takes this for impossible
                reply(refused_join(NO_MEMBER_ID, ErrorCode.UNKNOWN_SERVER_ERROR))
                return NOTHING
            return self._add(group, caller, request, protocols, member_id, reply)
        error = group.check_member(member_id, request.group_instance_id)
        if error is not _NONE:
            reply(refused_join(member_id, error))
            return NOTHING
        return self._rejoin(group, group.members[member_id], request, protocols, reply)

    def _has_room_for(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        limit = self._settings.max_size
        if group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING_REBALANCE:
            # Those who wait are counted, not the members: after the limit was lowered, the last to come are left out.
            return (member is not None and member.on_joined is not None) or group.awaiting_join < limit
        return member is not None or len(group.members) < limit

    def _join_without_id(
        self,
        group: ClassicGroup,
        caller: Caller,
        request: JoinGroupRequest,
        protocols: Protocols,
        reply: JoinReply,
    ) -> Decision:
        instance_id = request.group_instance_id
        member_id = f"{caller.client_id if instance_id is None else instance_id}-{self._new_uuid()}"
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is not None:
                return self._replace(group, group.members[known], member_id, caller, request, protocols, reply)
        elif caller.api_version >= 4:
            if len(group.pending_joins) >= MAX_PENDING_JOINS:
                group.forget_pending(next(iter(group.pending_joins)))
            group.pending_joins[member_id] = self._host.after(
                request.session_timeout_ms, lambda: self._pending_over(group, member_id)
            )
            reply(refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return NOTHING
        return self._add(group, caller, request, protocols, member_id, reply)

    def _add(
        self,
        group: ClassicGroup,
        caller: Caller,
        request: JoinGroupRequest,
        protocols: Protocols,
        member_id: str,
        reply: JoinReply,
    ) -> Decision:
        member = Member(
            member_id,
            request.group_instance_id,
            caller.client_id,
            caller.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocol_type,
            protocols,
        )
        member.is_new = True
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.has_new_members = True
        group.add(member, reply)
        self.sessions.start(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._rebalance(group, f"{member_id} joins", request.reason)

    def _rejoin(
        self,
        group: ClassicGroup,
        member: Member,
        request: JoinGroupRequest,
        protocols: Protocols,
        reply: JoinReply,
    ) -> Decision:
        state = group.state
        if state is State.EMPTY:
            reply(refused_join(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
            return NOTHING
        is_leader = group.leader_id == member.member_id
        has_news = state is State.PREPARING_REBALANCE or protocols != member.protocols
        # A leader that joins again in a stable group asks for a rebalance: it knows something that we do not.
        if not has_news and not (state is State.STABLE and is_leader):
            # It has missed our answer, or asks which generation this is.
            reply(joined(group, member.member_id, with_members=is_leader))
            return NOTHING
        group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms, reply)
        return self._rebalance(group, f"{member.member_id} joins again", request.reason)

    def _replace(
        self,
        group: ClassicGroup,
        old: Member,
        member_id: str,
        caller: Caller,
        request: JoinGroupRequest,
        protocols: Protocols,
        reply: JoinReply,
    ) -> Decision:
        """A static member came back without the id that it had."""
        leader_before = group.leader_id
        fenced = ErrorCode.FENCED_INSTANCE_ID
        group.answer_join(old, refused_join(old.member_id, fenced))
        answer_sync(old, SyncGroupResponse(error_code=fenced))
        member = group.replace_static(old, member_id)
        self.sessions.start(group, member, member.session_timeout_ms)
        group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms, reply)
        if group.state is State.STABLE:
            if group.select_protocol() != group.protocol_name:
                return self._rebalance(group, f"static member {member_id} changes the protocol", request.reason)
            assignments = {member.member_id: member.assignment for member in group.members.values()}
            record = group_record(group, assignments)
            return Decision(
                (record,),
                None,
                settle=lambda error: self._replaced(group, old, member, leader_before, caller.api_version, error),
            )
        if group.state is State.COMPLETING_REBALANCE:
            # The leader may be assigning to the old member id already.
            return self.prepare(group, f"static member {member_id} replaces {old.member_id}", request.reason)
        return self._complete_if_all_joined(group)

    def _replaced(
        self,
        group: ClassicGroup,
        old: Member,
        member: Member,
        leader_before: str | None,
        api_version: int,
        error: ErrorCode,
    ) -> None:
        """The replacement of a static member is recorded, or could not be."""
        if error is not _NONE:
            if group.members.get(member.member_id) is member:
                reply, member.on_joined = member.on_joined, None
                group.awaiting_join -= reply is not None
                group.update(member, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms, None)
                self.sessions.start(group, group.replace_static(member, old.member_id), old.session_timeout_ms)
                if reply is not None:
                    reply(refused_join(NO_MEMBER_ID, coordinator_error(error)))
            return
        response = joined(group, member.member_id, with_members=False)
        if api_version < 9:
            # Such a client would compute an assignment if it were told that it leads; naming the old leader stops it.
            response.leader = leader_before or ""
        elif group.leader_id == member.member_id:
            response.members = members_of(group)
            response.skip_assignment = True
        if group.answer_join(member, response):
            self.sessions.start(group, member, member.session_timeout_ms)

    # ---- the course of a rebalance

    def _rebalance(self, group: ClassicGroup, what: str, reason: str | None) -> Decision:
        """Start a rebalance, or see whether the one under way has everyone."""
        if group.can_rebalance:
            return self.prepare(group, what, reason)
        return self._complete_if_all_joined(group)

    def prepare_if_too_large(self, group: ClassicGroup) -> None:
        """After loading: a group above the limit is rebalanced, so that the last to come are left out."""
        if len(group.members) > self._settings.max_size:
            self.prepare(group, "the group is larger than group.max.size allows", None)

    def prepare(self, group: ClassicGroup, what: str, reason: str | None) -> Decision:
        """Have everybody join again."""
        if group.state is State.COMPLETING_REBALANCE:
            self._propagate(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        cancel(group.sync_deadline)
        is_first = group.state is State.EMPTY
        group.become(State.PREPARING_REBALANCE, self._host.wall_ms())
        why = f"{what} ({reason})" if reason else what
        _log.info("group %s rebalances after generation %d: %s", group.group_id, group.generation, why)
        if is_first:
            # The group is new: give the others some time to come, too.
            delay_ms = self._settings.initial_rebalance_delay_ms
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.has_new_members = False
            self._set_join_deadline(group, delay_ms, lambda: self._initial_delay_over(group, delay_ms, left_ms))
            return NOTHING
        if group.has_all_joined:
            return self._complete_join(group)
        self._set_join_deadline(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
        return NOTHING

    def _set_join_deadline(self, group: ClassicGroup, delay_ms: int, event: Callable[[], Decision]) -> None:
        cancel(group.join_deadline)
        group.join_deadline = self._host.after(delay_ms, event)

    def _initial_delay_over(self, group: ClassicGroup, delay_ms: int, left_ms: int) -> Decision:
        if not group.has_new_members or left_ms == 0:
            return self._complete_join(group)
        group.has_new_members = False
        next_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
        then_left_ms = max(left_ms - delay_ms, 0)
        self._set_join_deadline(group, next_ms, lambda: self._initial_delay_over(group, next_ms, then_left_ms))
        return NOTHING

    def _complete_if_all_joined(self, group: ClassicGroup) -> Decision:
        """Go on if nobody is missing; the first rebalance of a group waits for its delay."""
        if (
            group.state is State.PREPARING_REBALANCE
            and group.previous_state is not State.EMPTY
            and group.has_all_joined
        ):
            return self._complete_join(group)
        return NOTHING

    def _complete_join(self, group: ClassicGroup) -> Decision:
        """Everybody has come, or had the time to: on to the next generation, without those who have not."""
        cancel(group.join_deadline)
        if group.state is State.DEAD:
            return NOTHING
        missing = [
            member.member_id
            for member in group.members.values()
            if member.on_joined is None and member.instance_id is None
        ]
        for member_id in missing:
            group.remove(member_id)
        if missing:
            _log.info("group %s goes on without %s", group.group_id, ", ".join(missing))
        if not group.elect_joined_leader() and group.members:
            # Only static members that are away: their sessions end this, not the rebalance.
            self._set_join_deadline(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
            return NOTHING
        group.start_generation(self._host.wall_ms())
        if group.state is State.EMPTY:
            _log.info("group %s is empty after generation %d", group.group_id, group.generation)
            return Decision((group_record(group, {}),), None)
        _log.info("group %s has %d members in generation %d", group.group_id, len(group.members), group.generation)
        for member in list(group.members.values()):
            with_members = group.leader_id == member.member_id
            group.answer_join(member, joined(group, member.member_id, with_members=with_members))
            self.sessions.start(group, member, member.session_timeout_ms)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        generation = group.generation
        group.sync_deadline = self._host.after(group.rebalance_timeout_ms, lambda: self._sync_over(group, generation))
        return NOTHING

    def _sync_over(self, group: ClassicGroup, generation: int) -> Decision:
        """Those who joined had the time to ask for their assignment."""
        late = [member_id for member_id in group.members if member_id in group.pending_syncs]
        if group.generation != generation or not late or group.state not in {State.COMPLETING_REBALANCE, State.STABLE}:
            return NOTHING
        for member_id in late:
            group.remove(member_id)
        return self.prepare(group, f"{', '.join(late)} did not sync", None)

    # ---- sync

    def sync(self, request: SyncGroupRequest, reply: SyncReply) -> Decision:
        """A SyncGroup; its group id is not empty."""
        group = self._groups.get(request.group_id)
        if group is None or group.state is State.EMPTY:
            reply(SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return NOTHING
        error = _check_sync(group, request)
        if error is not _NONE:
            reply(SyncGroupResponse(error_code=error))
            return NOTHING
        member = group.members[request.member_id]
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            cancel(group.sync_deadline)
        if group.state is State.STABLE:
            reply(synced(group, member))
            return NOTHING
        member.on_synced = reply
        if group.leader_id != member.member_id:
            return NOTHING
        assignments = dict.fromkeys(group.members, b"")
        for assignment in request.assignments:
            if assignment.member_id in assignments:
                assignments[assignment.member_id] = assignment.assignment
        generation = group.generation
        return Decision(
            (group_record(group, assignments),),
            None,
            settle=lambda error: self._assigned(group, generation, assignments, error),
        )

    def _assigned(self, group: ClassicGroup, generation: int, assignments: dict[str, bytes], error: ErrorCode) -> None:
        """The leader's assignment is recorded, or could not be."""
        if group.state is not State.COMPLETING_REBALANCE or group.generation != generation:
            return
        if error is not _NONE:
            self._propagate(group, coordinator_error(error))
            self.prepare(group, f"the assignment cannot be recorded: {error.name}", None)
            return
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._propagate(group, _NONE)
        group.become(State.STABLE, self._host.wall_ms())

    def _propagate(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Give everyone who waits its assignment, or the error instead."""
        for member in group.members.values():
            if error is not _NONE:
                member.assignment = b""
            response = synced(group, member) if error is _NONE else SyncGroupResponse(error_code=error)
            if answer_sync(member, response):
                # Its session may have ended while it waited and could not beat.
                self.sessions.start(group, member, member.session_timeout_ms)

    # ---- heartbeat and sessions

    def heartbeat(self, request: HeartbeatRequest, mono_ms: int) -> ErrorCode:
        """A Heartbeat; its group id is not empty."""
        group = self._groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member = group.members.get(request.member_id)
        if member is None or request.group_instance_id is not None:
            error = group.check_member(request.member_id, request.group_instance_id)
            if error is not _NONE:
                return error
            member = group.members[request.member_id]
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.sessions.beat(group, member, mono_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING_REBALANCE else _NONE

    def _session_over(self, group: ClassicGroup, member: Member) -> Decision:
        _log.info("group %s has not heard of %s in time", group.group_id, member.member_id)
        self._drop(group, member)
        return self._after_leaving(group, f"the session of {member.member_id} is over")

    def _pending_over(self, group: ClassicGroup, member_id: str) -> Decision:
        """A member id that was given out has not come back."""
        if group.state is State.DEAD or group.pending_joins.pop(member_id, None) is None:
            return NOTHING
        group.remove(member_id)
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            return self._complete_join(group)
        return NOTHING

    def _drop(self, group: ClassicGroup, member: Member) -> None:
        # It may wait for an answer: a new member in JoinGroup, or one that an administrator removes in SyncGroup (whom
        # Apache Kafka leaves waiting). It shall join anew if it lives.
        group.answer_join(member, refused_join(NO_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID))
        answer_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)

    def _after_leaving(self, group: ClassicGroup, what: str) -> Decision:
        if group.state in {State.STABLE, State.COMPLETING_REBALANCE}:
            return self._rebalance(group, what, None)
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            return self._complete_join(group)
        return NOTHING

    # ---- leave

    def leave(self, request: LeaveGroupRequest) -> CoordinatorDecision[LeaveGroupResponse]:
        """A LeaveGroup in the form of version 3 and later; its group id is not empty."""
        group = self._groups.get(request.group_id)
        if group is None:
            return CoordinatorDecision(
                (), LeaveGroupResponse(error_code=_NONE, members=_unknown_members(request.members))
            )
        answers = [self._leave_one(group, identity) for identity in request.members]
        response = LeaveGroupResponse(error_code=_NONE, members=answers)
        gone = [answer.member_id for answer in answers if answer.error_code == _NONE]
        decision = NOTHING
        if gone:
            if group.state in {State.STABLE, State.COMPLETING_REBALANCE}:
                decision = self._rebalance(group, f"{', '.join(gone)} left", None)
            else:
                decision = self._complete_if_all_joined(group)
        return CoordinatorDecision(decision.records, response, settle=decision.settle)

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity) -> MemberResponse:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        error = _NONE
        if member_id in group.pending_joins:
            group.remove(member_id)
        else:
            known = member_id
            if member_id == NO_MEMBER_ID:  # an administrator removes a static member
                known = group.static_members.get(instance_id or "", NO_MEMBER_ID)
            error = group.check_member(known, instance_id)
            if error is _NONE:
                reason = identity.reason or "not provided"
                _log.info("%s leaves group %s: %s", known, group.group_id, reason)
                self._drop(group, group.members[known])
        return MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)

    # ---- the end

    def forget(self, group: ClassicGroup) -> None:
        """The group is no more: nothing of it may come due."""
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
        self.bury(group)

    def bury(self, group: ClassicGroup) -> None:
        """Answer those who wait that this is not their coordinator, and forget every deadline."""
        answer_all(group, ErrorCode.NOT_COORDINATOR)
        deadlines = [member.deadline for member in group.members.values()]
        for deadline in (*deadlines, *group.pending_joins.values(), group.join_deadline, group.sync_deadline):
            cancel(deadline)
        group.pending_joins.clear()
        group.become(State.DEAD, self._host.wall_ms())


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not _NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return _NONE


def _differs(given: str | None, known: str | None) -> bool:
    return given is not None and known is not None and given != known


def _unknown_members(identities: Iterable[MemberIdentity]) -> list[MemberResponse]:
    return [
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=ErrorCode.UNKNOWN_MEMBER_ID,
        )
        for identity in identities
    ]


def cancel(deadline: Deadline | None) -> None:
    """Let a deadline not come."""
    if deadline is not None:
        deadline.cancel()

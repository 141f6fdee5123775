"""One classic group: members, supported protocols, generation (Kafka: ClassicGroup).

RULES    1. Member ids, generation, protocol, leader and assignments are stored in the GroupMetadata record;
            waiting requests and timers are volatile.
         2. Members are kept in join order; when the leader leaves, the oldest member becomes the leader.
         3. `_VALID_PREVIOUS_STATES` lists the allowed state transitions.
         4. An instance id identifies a static member; only its latest member id is valid.
         5. No function here decides on a response or starts a timer.
NOT HERE The protocol (`classic_protocol.py`), committed offsets (`offset_manager.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from broker.coordinators.runtime.coordinator_runtime import Replies
from broker.coordinators.runtime.java_compat import hash_map_order
from broker.coordinators.runtime.stored_records import version_of
from protocol.codec import decode
from protocol.errors import ErrorCode, MalformedRequest
from protocol.messages.groups import (
    ConsumerProtocolSubscription,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from replication.completion import Completion
from replication.timer_queue import Timer

CONSUMER_PROTOCOL: Final = "consumer"
NO_MEMBER_ID: Final = ""
MAX_GENERATION: Final = 0x7FFFFFFF
MAX_VERSION: Final = 0x7FFF


class MemberProtocol(NamedTuple):
    """A protocol that a member supports, such as an assignor, with the member's data for it."""

    name: str
    metadata: bytes


Protocols = tuple[MemberProtocol, ...]


class State(Enum):
    """State of a group; the value is Kafka's name."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_VALID_PREVIOUS_STATES: Final = {
    State.EMPTY: {State.PREPARING_REBALANCE},
    State.PREPARING_REBALANCE: {State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY},
    State.COMPLETING_REBALANCE: {State.PREPARING_REBALANCE},
    State.STABLE: {State.COMPLETING_REBALANCE},
    State.DEAD: set(State),
}


@dataclass(slots=True, eq=False)
class Member:
    """A member; `waiting_join` and `waiting_sync` are its requests that wait."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    waiting_join: Completion[JoinGroupResponse] | None = None
    waiting_sync: Completion[SyncGroupResponse] | None = None
    is_new: bool = False
    deadline: Timer | None = None
    expires_at_mono_ms: int = 0

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for a protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise AssertionError(f"member {self.member_id} does not support protocol {protocol_name}")

    def vote(self, candidates: set[str]) -> str:
        """The member's first protocol among the candidates."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether the session cannot expire: the member waits for a response."""
        return not self.is_new and (self.waiting_join is not None or self.waiting_sync is not None)


@dataclass(slots=True, eq=False, repr=False)
class ClassicGroup:
    """A classic group; `classic_protocol.py` changes its state."""

    group_id: str
    current_state_wall_ms: int
    """When the state last changed; -1: not in an old record."""
    state: State = State.EMPTY
    previous_state: State = State.DEAD
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_joins: dict[str, Timer] = field(default_factory=dict)
    """Member ids returned with MEMBER_ID_REQUIRED and not used yet."""
    pending_syncs: set[str] = field(default_factory=set)
    protocol_counts: dict[str, int] = field(default_factory=dict)
    awaiting_join: int = 0
    new_member_added: bool = False
    """Whether a member joined since the initial delay was last extended."""
    subscribed_topics: frozenset[str] | None = None
    join_deadline: Timer | None = None
    sync_deadline: Timer | None = None

    def __repr__(self) -> str:
        return f"ClassicGroup({self.group_id!r}, {self.state.value}, {self.generation}, {list(self.members)})"

    # ---- states

    def transition_to(self, state: State, wall_ms: int) -> None:
        """Change the state."""
        assert self.state in _VALID_PREVIOUS_STATES[state], (
            f"group {self.group_id} cannot go from {self.state} to {state}"
        )
        self.previous_state = self.state
        self.state = state
        self.current_state_wall_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start in this state."""
        return self.state in _VALID_PREVIOUS_STATES[State.PREPARING_REBALANCE]

    def init_next_generation(self, wall_ms: int) -> None:
        """Start the next generation with the current members."""
        self.generation = self.generation + 1 if self.generation < MAX_GENERATION else 1
        self.pending_syncs.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.parse_subscriptions()
        self.transition_to(State.COMPLETING_REBALANCE if self.members else State.EMPTY, wall_ms)

    # ---- members

    def add(self, member: Member, waiting_join: Completion[JoinGroupResponse] | None) -> None:
        """Add a member; its JoinGroup waits if `waiting_join` is given."""
        member_id = member.member_id
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members, "a static member added twice"
            self.static_members[member.instance_id] = member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        assert self.protocol_type == member.protocol_type, "members of a group share their protocol type"
        if self.leader_id is None:
            self.leader_id = member_id
        self.members[member_id] = member
        self._count(member.protocols, 1)
        member.waiting_join = waiting_join
        if waiting_join is not None:
            self.awaiting_join += 1
        self.remove_pending_member(member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member id, and cancel its timer."""
        self.remove_pending_member(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            if member.waiting_join is not None:
                self.awaiting_join -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
            if member.deadline is not None:
                member.deadline.cancel()
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, member: Member, member_id: str) -> Member:
        """Replace a static member's member id; position, leadership and assignment are kept."""
        assert member.instance_id is not None, "only a static member is replaced"
        new = replace(
            member,
            member_id=member_id,
            waiting_join=None,
            waiting_sync=None,
            is_new=False,
            deadline=None,
            expires_at_mono_ms=0,
        )
        if member.deadline is not None:
            member.deadline.cancel()
        del self.members[member.member_id]
        self.members[member_id] = new
        if member.member_id in self.pending_syncs:
            self.pending_syncs.remove(member.member_id)
            self.pending_syncs.add(member_id)
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        self.static_members[member.instance_id] = member_id
        return new

    def update(self, member: Member, new: Member, waiting_join: Completion[JoinGroupResponse] | None) -> None:
        """A member rejoined, with the protocols and timeouts of `new`."""
        self._count(member.protocols, -1)
        member.protocols = new.protocols
        self._count(member.protocols, 1)
        member.rebalance_timeout_ms = new.rebalance_timeout_ms
        member.session_timeout_ms = new.session_timeout_ms
        self.awaiting_join += (waiting_join is not None) - (member.waiting_join is not None)
        member.waiting_join = waiting_join

    def remove_pending_member(self, member_id: str) -> None:
        """A pending member id is used or expired."""
        deadline = self.pending_joins.pop(member_id, None)
        if deadline is not None:
            deadline.cancel()

    def reply_to_join(self, member: Member, response: JoinGroupResponse) -> Replies:
        """The reply to a member's JoinGroup, if it waits; then it waits no longer."""
        waiting, member.waiting_join = member.waiting_join, None
        if waiting is None:
            return ()
        self.awaiting_join -= 1
        return ((waiting, response),)

    def reply_error(self, member: Member, member_id: str, error: ErrorCode) -> Replies:
        """The error for the requests of a member that wait; `member_id` is returned in the JoinGroup response."""
        join = self.reply_to_join(member, join_error(member_id, error))
        return (*join, *reply_to_sync(member, SyncGroupResponse(error_code=error)))

    def reply_error_to_all(self, error: ErrorCode) -> Replies:
        """The same error for all requests of members that wait."""
        members = self.members.values()
        return [reply for member in members for reply in self.reply_error(member, member.member_id, error)]

    @property
    def has_all_joined(self) -> bool:
        """Whether all members have joined and no member id is pending."""
        return len(self.members) == self.awaiting_join and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest rebalance timeout of the members."""
        return max((0, *(member.rebalance_timeout_ms for member in self.members.values())))

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader has joined; False if no member has joined."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].waiting_join is not None:
            return True
        for member in self.members.values():
            if member.waiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def validate_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """The error for a member id and instance id."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, is_transactional: bool = False
    ) -> ErrorCode:
        """The error for an offset commit. In a transaction the member id may be missing."""
        if self.state is State.EMPTY and generation < 0:
            return ErrorCode.NONE  # an admin client or a consumer without group management
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.validate_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is State.COMPLETING_REBALANCE and not is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS  # as in Kafka: the member has joined and not synced
        return ErrorCode.NONE

    # ---- protocols

    def _count(self, protocols: Protocols, by: int) -> None:
        counts = self.protocol_counts
        for name in {name for name, _ in protocols}:
            count = counts.get(name, 0) + by
            if count:
                counts[name] = count
            else:
                del counts[name]

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can join."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        size = len(self.members)
        counts = self.protocol_counts
        return self.protocol_type == protocol_type and any(counts.get(name, 0) == size for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with most votes among those that all members support; ties are broken as in Kafka."""
        size = len(self.members)
        candidates = {name for name, count in self.protocol_counts.items() if count == size}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(hash_map_order(votes), key=votes.__getitem__)

    def parse_subscriptions(self) -> frozenset[str] | None:
        """The topics that a consumer group subscribes to; None if unknown."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscription = parse_subscription(member.metadata(self.protocol_name))
            if subscription is None:
                return None
            topics.update(subscription)
        return frozenset(topics)

    @property
    def can_expire_offsets(self) -> bool:
        """Whether offsets may expire: the group is empty, or stable with known subscriptions."""
        if self.protocol_type is None or self.state is State.EMPTY:
            return True
        return (
            self.protocol_type == CONSUMER_PROTOCOL
            and self.state is State.STABLE
            and self.subscribed_topics is not None
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic; True for a consumer group with unknown subscriptions."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics


def parse_subscription(metadata: bytes) -> list[str] | None:
    """The topics of a consumer subscription, read as version 0 as in Kafka; None if it is malformed."""
    try:
        version_of(metadata, MAX_VERSION)
        return decode(ConsumerProtocolSubscription, 0, metadata, 2).topics
    except MalformedRequest:
        return None


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """The protocols in a request."""
    return tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in request.protocols)


# ---- answers that show a group


def join_response_members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    """The members with their metadata, for the leader's assignor."""
    name = group.protocol_name
    return [
        JoinGroupResponseMember(
            member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata(name)
        )
        for member in group.members.values()
    ]


def join_response(group: ClassicGroup, member_id: str, *, with_members: bool) -> JoinGroupResponse:
    """The JoinGroup response of the current generation."""
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=join_response_members(group) if with_members else [],
    )


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """A failed JoinGroup response."""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def sync_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """The SyncGroup response with the member's assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def reply_to_sync(member: Member, response: SyncGroupResponse) -> Replies:
    """The reply to a member's SyncGroup, if it waits; then it waits no longer."""
    waiting, member.waiting_sync = member.waiting_sync, None
    return () if waiting is None else ((waiting, response),)

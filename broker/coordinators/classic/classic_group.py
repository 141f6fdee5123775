"""One group of the classic protocol: its members, what they can speak, and which generation they are in.

RULES    1. Member ids, generation, chosen protocol, leader and assignments are what a GroupMetadata record holds;
            who waits for an answer and every deadline are volatile and never survive this broker.
         2. Members stand in the order in which they joined; a leader that goes is followed by the oldest member.
         3. A state follows only from those that `_FROM` names.
         4. A static member is known by its instance id; the member id that it had last is the only one that counts.
         5. Nothing here decides about an answer or sets a deadline.
NOT HERE What requests and deadlines do to a group (`classic_protocol.py`), committed offsets (`offset_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from struct import Struct, error
from typing import Final

from broker.coordinators.runtime.java_compat import in_java_order
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse
from replication.timer_queue import Deadline

CONSUMER_PROTOCOL: Final = "consumer"
NO_MEMBER_ID: Final = ""
MAX_GENERATION: Final = 0x7FFFFFFF

Protocols = tuple[tuple[str, bytes], ...]
JoinReply = Callable[[JoinGroupResponse], None]
SyncReply = Callable[[SyncGroupResponse], None]

_I16 = Struct(">h")
_I32 = Struct(">i")


class State(Enum):
    """Where a group stands; the value is what clients are shown."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_FROM: Final = {
    State.EMPTY: {State.PREPARING_REBALANCE},
    State.PREPARING_REBALANCE: {State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY},
    State.COMPLETING_REBALANCE: {State.PREPARING_REBALANCE},
    State.STABLE: {State.COMPLETING_REBALANCE},
    State.DEAD: set(State),
}


class Member:
    """One member; `on_joined` and `on_synced` are set while it waits for that answer."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline",
        "expires_at_mono_ms",
        "instance_id",
        "is_new",
        "member_id",
        "on_joined",
        "on_synced",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.on_joined: JoinReply | None = None
        self.on_synced: SyncReply | None = None
        self.is_new = False
        self.deadline: Deadline | None = None
        self.expires_at_mono_ms = 0

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member said under one protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise AssertionError(f"member {self.member_id} does not support protocol {protocol_name}")

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols that everyone supports."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def may_miss_heartbeats(self) -> bool:
        """Whether silence is no fault now: a member that waits for an answer cannot send anything."""
        return not self.is_new and (self.on_joined is not None or self.on_synced is not None)


class ClassicGroup:
    """A group; `classic_protocol.py` moves it from state to state."""

    __slots__ = (
        "awaiting_join",
        "generation",
        "group_id",
        "has_new_members",
        "join_deadline",
        "leader_id",
        "members",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_counts",
        "protocol_name",
        "protocol_type",
        "state",
        "state_since_wall_ms",
        "static_members",
        "subscribed_topics",
        "sync_deadline",
    )

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.previous_state = State.DEAD
        self.state_since_wall_ms = wall_ms  # -1: an old record that did not say
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: dict[str, Deadline] = {}
        """Member ids given out with MEMBER_ID_REQUIRED, until they are used."""
        self.pending_syncs: set[str] = set()
        self.protocol_counts: dict[str, int] = {}
        self.awaiting_join = 0
        self.has_new_members = False
        """Whether somebody joined since the initial delay was last extended."""
        self.subscribed_topics: frozenset[str] | None = None
        self.join_deadline: Deadline | None = None
        self.sync_deadline: Deadline | None = None

    def __repr__(self) -> str:
        return f"ClassicGroup({self.group_id!r}, {self.state.value}, {self.generation}, {list(self.members)})"

    # ---- states

    def become(self, state: State, wall_ms: int) -> None:
        """Go to the next state."""
        assert self.state in _FROM[state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_since_wall_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start."""
        return self.state in _FROM[State.PREPARING_REBALANCE]

    def start_generation(self, wall_ms: int) -> None:
        """The next generation with those who are members now."""
        self.generation = self.generation + 1 if self.generation < MAX_GENERATION else 1
        self.pending_syncs.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.parse_subscriptions()
        self.become(State.COMPLETING_REBALANCE if self.members else State.EMPTY, wall_ms)

    # ---- members

    def add(self, member: Member, on_joined: JoinReply | None) -> None:
        """A new member; it waits for its JoinGroup answer when `on_joined` is given."""
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
        member.on_joined = on_joined
        if on_joined is not None:
            self.awaiting_join += 1
        self.forget_pending(member_id)

    def remove(self, member_id: str) -> None:
        """A member is gone, or a member id that never came back; its deadline too."""
        self.forget_pending(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            if member.on_joined is not None:
                self.awaiting_join -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
            if member.deadline is not None:
                member.deadline.cancel()
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, member: Member, member_id: str) -> Member:
        """A static member that came back under another member id; it takes the old one's place."""
        assert member.instance_id is not None, "only a static member is replaced"
        new = Member(
            member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.protocol_type,
            member.protocols,
            member.assignment,
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

    def update(
        self,
        member: Member,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        on_joined: JoinReply | None,
    ) -> None:
        """A member joined again."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.awaiting_join += (on_joined is not None) - (member.on_joined is not None)
        member.on_joined = on_joined

    def forget_pending(self, member_id: str) -> None:
        """A member id that was given out is used now, or is void."""
        deadline = self.pending_joins.pop(member_id, None)
        if deadline is not None:
            deadline.cancel()

    def answer_join(self, member: Member, response: JoinGroupResponse) -> bool:
        """Answer a member's JoinGroup, if it waits for that."""
        on_joined = member.on_joined
        if on_joined is None:
            return False
        member.on_joined = None
        self.awaiting_join -= 1
        on_joined(response)
        return True

    @property
    def has_all_joined(self) -> bool:
        """Whether nobody is missing for the next generation."""
        return len(self.members) == self.awaiting_join and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member allows for a rebalance."""
        return max((0, *(member.rebalance_timeout_ms for member in self.members.values())))

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one who has joined; False when nobody has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].on_joined is not None:
            return True
        for member in self.members.values():
            if member.on_joined is not None:
                self.leader_id = member.member_id
                return True
        return False

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether the two ids name a member of this group."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, is_transactional: bool = False
    ) -> ErrorCode:
        """Whether somebody may commit offsets now; with a transaction also who does not say what member it is."""
        if self.state is State.EMPTY and generation < 0:
            return ErrorCode.NONE  # no member: an administrator, or a consumer that manages itself
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is State.COMPLETING_REBALANCE and not is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS  # the member has joined this generation and will sync
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
        """Whether somebody who speaks `protocols` can be a member."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        size = len(self.members)
        counts = self.protocol_counts
        return self.protocol_type == protocol_type and any(counts.get(name, 0) == size for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol that most members like best among those that all support; ties go as in Apache Kafka."""
        size = len(self.members)
        candidates = {name for name, count in self.protocol_counts.items() if count == size}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(in_java_order(votes), key=votes.__getitem__)

    def parse_subscriptions(self) -> frozenset[str] | None:
        """Topics that the members of a consumer group subscribe to; None when that cannot be known."""
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
    def may_forget_offsets(self) -> bool:
        """Whether offsets may expire: nobody is there, or what the members read is known, so that the rest may go."""
        if self.protocol_type is None or self.state is State.EMPTY:
            return True
        return (
            self.protocol_type == CONSUMER_PROTOCOL
            and self.state is State.STABLE
            and self.subscribed_topics is not None
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic, or may do so for all we know."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics


def parse_subscription(metadata: bytes) -> list[str] | None:
    """The topics of a consumer's subscription, whatever its version: they come first in all of them."""
    try:
        if _I16.unpack_from(metadata, 0)[0] < 0:
            return None
        (count,) = _I32.unpack_from(metadata, 2)
        if count < 0 or count > len(metadata):
            return None
        topics, position = [], 6
        for _ in range(count):
            (length,) = _I16.unpack_from(metadata, position)
            position += 2
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (error, UnicodeDecodeError):
        return None
    return topics


# ---- answers that show a group


def members_of(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    """What a leader is told to assign by."""
    name = group.protocol_name
    return [
        JoinGroupResponseMember(
            member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata(name)
        )
        for member in group.members.values()
    ]


def joined(group: ClassicGroup, member_id: str, *, with_members: bool) -> JoinGroupResponse:
    """The generation that a member is in."""
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=members_of(group) if with_members else [],
    )


def refused_join(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """A JoinGroup that led to nothing."""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """What a member is to work on."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def answer_sync(member: Member, response: SyncGroupResponse) -> bool:
    """Answer a member's SyncGroup, if it waits for that."""
    on_synced = member.on_synced
    if on_synced is None:
        return False
    member.on_synced = None
    on_synced(response)
    return True


def answer_all(group: ClassicGroup, error: ErrorCode) -> None:
    """Answer everybody who waits with an error."""
    for member in list(group.members.values()):
        group.answer_join(member, refused_join(member.member_id, error))
        answer_sync(member, SyncGroupResponse(error_code=error))

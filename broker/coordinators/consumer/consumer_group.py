"""One group of the consumer protocol (KIP-848): its members, their targets, and what they have reached.

RULES    1. Three epochs: the group's grows when members, subscriptions or topics change; the assignment's is the group
            epoch that the targets were made for; a member's is the assignment epoch that it has reached.
         2. All of this is what records say, and changes by applying them. Deadlines and what was looked at last are
            volatile.
         3. A partition has at most one owner: the member that may use it, or has not yet confirmed that it gave it up.
         4. Members, and the mappings in them, never change: they are replaced.
NOT HERE What requests and deadlines do to a group (`consumer_group_heartbeat.py`), its records (`consumer_group_records.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from broker.coordinators.classic.classic_group import Protocols
from broker.coordinators.consumer.assignors import Partitions, TopicPartition

JOINING: Final = 0
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2

AssignedPartitions = Mapping[bytes, Mapping[int, int]]
"""The epoch in which each partition was assigned, by topic id and partition."""
_NOTHING: Final[AssignedPartitions] = {}


class GroupState(Enum):
    """Where a group stands; the value is what clients are shown."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(IntEnum):
    """How far a member has come towards its target, numbered as in its record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ClassicSide(NamedTuple):
    """What a member has that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols


class ConsumerMember(NamedTuple):
    """One member."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = _NOTHING
    revoking: AssignedPartitions = _NOTHING

    def in_epoch(self, epoch: int) -> ConsumerMember:
        """The same member, come to an epoch."""
        return self._replace(epoch=epoch, previous_epoch=self.epoch)

    def away(self) -> ConsumerMember:
        """The same static member, gone for a while; for what it keeps it may commit in any epoch when it is back."""
        kept = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in self.assigned.items()}
        return self._replace(epoch=LEAVING_FOR_A_WHILE, assigned=kept, revoking={})

    def has_reached(self, assignment_epoch: int) -> bool:
        """Whether nothing is left to do for it."""
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def partitions(self) -> Iterator[TopicPartition]:
        """All that it owns."""
        for assigned in (self.assigned, self.revoking):
            for topic_id, partitions in assigned.items():
                for partition in partitions:
                    yield topic_id, partition


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched, in which metadata, and when."""

    topics: frozenset[str]
    version: int
    wall_ms: int


class ConsumerGroup:
    """A group; `consumer_group_heartbeat.py` decides, records change it."""

    __slots__ = (
        "assignment_epoch",
        "assignment_wall_ms",
        "checked_topics",
        "epoch",
        "group_id",
        "is_resolving",
        "members",
        "metadata_hash",
        "owners",
        "regexes",
        "resolved_topics",
        "static_members",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_wall_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Partitions] = {}
        self.owners: dict[TopicPartition, str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.checked_topics: object = None
        """The topics of the metadata whose hash was compared last."""
        self.resolved_topics: object = None
        """The topics of the metadata that its regular expressions were sought in last."""
        self.is_resolving = False
        """Whether its regular expressions are about to be resolved."""

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.group_id!r}, {self.state.value}, {self.epoch}, {list(self.members)})"

    @property
    def state(self) -> GroupState:
        """Where the group stands."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        reached = all(member.has_reached(self.assignment_epoch) for member in self.members.values())
        return GroupState.STABLE if reached else GroupState.RECONCILING

    # ---- what records do

    def put(self, member: ConsumerMember) -> None:
        """A member is new, or has changed."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._disown(old)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        for partition in member.partitions():
            self.owners[partition] = member.member_id

    def remove(self, member_id: str) -> None:
        """A member is gone."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._disown(member)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]

    def _disown(self, member: ConsumerMember) -> None:
        owners = self.owners
        for partition in member.partitions():
            if owners.get(partition) == member.member_id:
                del owners[partition]

    # ---- what it reads

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with an instance id."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names that a member subscribes to; an expression that is not resolved yet matches nothing."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def is_waiting_for_others(self, member: ConsumerMember) -> bool:
        """Whether some of a member's target is still somebody's."""
        owners = self.owners
        return any(
            partition not in member.assigned.get(topic_id, ()) and (topic_id, partition) in owners
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    def subscribed_topics(self, members: Iterable[ConsumerMember]) -> frozenset[str]:
        """The names that some members subscribe to."""
        return frozenset().union(*{self.topics_of(member) for member in members})

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return any(topic in self.topics_of(member) for member in self.members.values())

    def regex_counts(self) -> dict[str, int]:
        """How many members subscribe to each regular expression."""
        counts: dict[str, int] = {}
        for member in self.members.values():
            if member.regex:
                counts[member.regex] = counts.get(member.regex, 0) + 1
        return counts

    @property
    def last_resolved(self) -> ResolvedRegex | None:
        """The latest of the resolved expressions."""
        return max(self.regexes.values(), key=lambda one: one.wall_ms, default=None)


def preferred_assignor(members: Iterable[ConsumerMember], known: tuple[str, ...]) -> str:
    """The assignor that most members ask for; of several the first, which is also for those who do not care."""
    votes = dict.fromkeys(known, 0)
    for member in members:
        if member.assignor in votes:
            votes[member.assignor] += 1
    return max(votes, key=votes.__getitem__)

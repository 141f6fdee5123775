"""One consumer group (KIP-848): members, target assignment, current assignment (Kafka: ConsumerGroup).

RULES    1. Three epochs. The group epoch increases when members, subscriptions or topics change. The assignment epoch is the
            group epoch of the target assignment. A member epoch is the assignment epoch that the member has reached.
         2. All state comes from applied records, except timeouts and the metadata of the last checks.
         3. A partition has at most one owner: the member that has it assigned or must still revoke it.
         4. Members and their mappings are immutable and are replaced.
NOT HERE The protocol (`consumer_group_heartbeat.py`), records (`consumer_group_records.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from broker.coordinators.classic.classic_group import Protocols
from broker.coordinators.classic.classic_protocol import ClientInfo
from broker.coordinators.consumer.assignors import Partitions, TopicPartition
from broker.coordinators.runtime.stored_records import StoredRecord
from replication.metadata.image import MetadataImage

JOIN_GROUP_MEMBER_EPOCH: Final = 0
LEAVE_GROUP_MEMBER_EPOCH: Final = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH: Final = -2

AssignedPartitions = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id; each has the epoch in which it was assigned."""
Owned = Mapping[bytes, Collection[int]]
"""The partitions that a member's request contains, by topic id."""
_NO_PARTITIONS: Final[AssignedPartitions] = {}


class GroupState(Enum):
    """State of a group; the value is Kafka's name."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(IntEnum):
    """Reconciliation state of a member, with the numbers of its record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ClassicMemberInfo(NamedTuple):
    """Additional data of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols


class ConsumerMember(NamedTuple):
    """A member."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMemberInfo | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = _NO_PARTITIONS
    revoking: AssignedPartitions = _NO_PARTITIONS

    def with_request(
        self,
        client: ClientInfo,
        *,
        instance_id: str | None,
        rack_id: str | None,
        rebalance_timeout_ms: int,
        assignor: str | None = None,
        topics: Iterable[str] | None,
        regex: str | None,
        classic: ClassicMemberInfo | None = None,
    ) -> ConsumerMember:
        """The member with the values of a request; None, or -1 as timeout, keeps the old value."""
        return self._replace(
            client_id=client.client_id,
            client_host=client.client_host,
            instance_id=self.instance_id if instance_id is None else instance_id,
            rack_id=self.rack_id if rack_id is None else rack_id,
            rebalance_timeout_ms=self.rebalance_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
            assignor=self.assignor if assignor is None else assignor,
            topics=self.topics if topics is None else frozenset(topics),
            regex=self.regex if regex is None else regex,
            classic=classic,
        )

    def with_epoch(self, epoch: int) -> ConsumerMember:
        """The member in another epoch."""
        return self._replace(epoch=epoch, previous_epoch=self.epoch)

    def left_temporarily(self) -> ConsumerMember:
        """The static member after it left temporarily. Its partitions get epoch 0, so that it may commit in any epoch."""
        kept = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in self.assigned.items()}
        return self._replace(epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH, assigned=kept, revoking={})

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether the member has reached this assignment epoch."""
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def partitions(self) -> Iterator[TopicPartition]:
        """All partitions that the member owns."""
        for assigned in (self.assigned, self.revoking):
            for topic_id, partitions in assigned.items():
                for partition in partitions:
                    yield topic_id, partition


class ResolvedRegex(NamedTuple):
    """The topics of a regular expression, the metadata offset, and when it was resolved."""

    topics: frozenset[str]
    version: int
    wall_ms: int


@dataclass(slots=True, eq=False, repr=False)
class ConsumerGroup:
    """A consumer group; changed by records only."""

    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    assignment_epoch: int = 1
    """Until the first target assignment it is the first group epoch: without topics nothing is assigned."""
    assignment_wall_ms: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    regex_counts: dict[str, int] = field(default_factory=dict)
    """The number of members per regular expression."""
    checked_topics: object = None
    """The topics for which the metadata hash was compared last."""
    resolved_topics: object = None
    """The topics for which the regular expressions were resolved last."""
    is_resolving: bool = False
    """Whether a resolution is scheduled."""

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.group_id!r}, {self.state.value}, {self.epoch}, {list(self.members)})"

    @property
    def state(self) -> GroupState:
        """The state of the group."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        reached = all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())
        return GroupState.STABLE if reached else GroupState.RECONCILING

    # ---- changes by records

    def update_member(self, member: ConsumerMember) -> None:
        """Add or replace a member."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._remove_owner(old)
            self._remove_instance(old)
            self._count_regex(old, -1)
        self._count_regex(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        for partition in member.partitions():
            self.owners[partition] = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._remove_owner(member)
        self._remove_instance(member)
        self._count_regex(member, -1)

    def _count_regex(self, member: ConsumerMember, by: int) -> None:
        regex, counts = member.regex, self.regex_counts
        if regex:
            counts[regex] = counts.get(regex, 0) + by
            if not counts[regex]:
                del counts[regex]

    def _remove_owner(self, member: ConsumerMember) -> None:
        owners = self.owners
        for partition in member.partitions():
            if owners.get(partition) == member.member_id:
                del owners[partition]

    def _remove_instance(self, member: ConsumerMember) -> None:
        """Forget the instance id of a member, unless another member has taken it."""
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    # ---- subscriptions

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with an instance id."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def joining_member(self, member_id: str, instance_id: str | None) -> tuple[ConsumerMember, ConsumerMember | None]:
        """The member that joins, known or new, and the static member that it replaces."""
        replaced = self.static_member(instance_id)
        if replaced is None:
            return self.members.get(member_id) or ConsumerMember(member_id), None
        return replaced._replace(member_id=member_id, epoch=0, previous_epoch=0), replaced

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The subscribed topic names; an unresolved regular expression matches nothing."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def waits_for_unreleased_partitions(self, member: ConsumerMember) -> bool:
        """Whether a partition of the member's target still has another owner."""
        owners = self.owners
        return any(
            partition not in member.assigned.get(topic_id, ()) and (topic_id, partition) in owners
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    def subscribed_topics(self, members: Iterable[ConsumerMember]) -> frozenset[str]:
        """The topic names that some members subscribe to."""
        return frozenset().union(*{self.topics_of(member) for member in members})

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return any(topic in self.topics_of(member) for member in self.members.values())


@dataclass(slots=True, eq=False)
class MemberUpdate:
    """A member's request, and what it changes; `target_assignment_updater.py` sets the fields with defaults."""

    group: ConsumerGroup
    old: ConsumerMember
    replaced: ConsumerMember | None
    """The static member that the member replaces: `old` is its copy with the new member id."""
    new: ConsumerMember
    """The member with the values of the request."""
    owned: Owned | None
    """None if the request has no partitions field."""
    records: list[StoredRecord]
    """In write order."""
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    """The members of the group after the update."""
    epoch: int = 0
    """The group epoch after the update."""
    has_new_subscription: bool = False

    @property
    def previous_id(self) -> str:
        """The member id before the update."""
        return (self.replaced or self.new).member_id


def preferred_assignor(members: Iterable[ConsumerMember], known: tuple[str, ...]) -> str:
    """The assignor that most members prefer; ties and no preference go to the first one configured."""
    votes = dict.fromkeys(known, 0)
    for member in members:
        if member.assignor in votes:
            votes[member.assignor] += 1
    return max(votes, key=votes.__getitem__)


def metadata_hash(group: ConsumerGroup, members: Mapping[str, ConsumerMember], image: MetadataImage) -> int:
    """A hash of the subscribed topics and their partition counts."""
    topics = image.topics_by_name
    found = [topics[name] for name in sorted(group.subscribed_topics(members.values())) if name in topics]
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for topic in found:
        digest.update(b"%b%d " % (topic.topic_id, len(topic.partitions)))
    return int.from_bytes(digest.digest(), "big", signed=True)

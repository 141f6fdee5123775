"""What news of a member do to its consumer group: a record of it, the group's epoch, the targets, the member's step.

RULES    1. The epoch grows when a member subscribes to other topics, and when the topics are others than they were.
         2. Targets are made for an epoch that has none, though not more often than the settings say.
         3. What is known of topics is compared by a hash when the metadata has changed since it was compared last.
         4. Records are added to a list in the order in which they are to be written; nothing else changes but deadlines.
NOT HERE Who sent the news (`consumer_group_heartbeat.py`, `classic_protocol_adapter.py`), a step (`reconciliation.py`), targets (`assignors.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.assignors import ASSIGNORS, Partitions, Subscriber
from broker.coordinators.consumer.consumer_group import ConsumerGroup, ConsumerMember, preferred_assignor
from broker.coordinators.consumer.reconciliation import Owned, step
from broker.coordinators.consumer.topic_regexes import MayDescribe, RegexNews, TopicRegexes
from broker.coordinators.consumer_group_config import SettingsOfGroups
from broker.coordinators.runtime.coordinator_runtime import Clock, StoredRecord
from protocol.errors import ErrorCode
from replication.metadata.image import MetadataImage

_log = logging.getLogger("barnabas.groups")


class Joined(NamedTuple):
    """The member that a request is about, as it is before it, and whose place it takes, if it does."""

    member: ConsumerMember
    replaced: ConsumerMember | None = None


class Told(NamedTuple):
    """A group after a member has told of itself."""

    members: Mapping[str, ConsumerMember]
    epoch: int
    has_new_subscription: bool


class MemberProgress:
    """Epochs, targets and steps of one shard's consumer groups."""

    def __init__(
        self,
        clock: Clock,
        assignors: tuple[str, ...],
        settings: SettingsOfGroups,
        image: Callable[[], MetadataImage],
        regexes: TopicRegexes,
    ) -> None:
        self._clock = clock
        self._assignors = assignors
        self._settings = settings
        self._image = image
        self._regexes = regexes

    # ---- the member, and the group's epoch

    def tell(
        self,
        group: ConsumerGroup,
        joined: Joined,
        new: ConsumerMember,
        may_describe: MayDescribe | None,
        records: list[StoredRecord],
    ) -> Told:
        """Record what a member says of itself, and the epoch that the group comes to by that.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        old, replaced = joined
        if replaced is not None:
            records += _replacement(group, replaced, old)
        if new != old:
            records.append(stored.member_record(group.group_id, new))
        news = self._regexes.changed(group, old, new, may_describe, records)
        members = {**group.members, new.member_id: new}
        if replaced is not None and replaced.member_id != new.member_id:
            del members[replaced.member_id]
        has_new_topics = new.topics != old.topics
        epoch = self._epoch_after(group, members, records, must_grow=has_new_topics or news is RegexNews.RESOLVED)
        return Told(members, epoch, has_new_topics or news is not RegexNews.NONE)

    def _epoch_after(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        records: list[StoredRecord],
        *,
        must_grow: bool,
    ) -> int:
        image = self._image()
        if not must_grow and group.checked_topics is image.topics_by_name:
            return group.epoch
        group.checked_topics = image.topics_by_name
        found = metadata_hash(group, members, image)
        if not must_grow and found == group.metadata_hash:
            return group.epoch
        records.append(stored.epoch_record(group.group_id, group.epoch + 1, found))
        return group.epoch + 1

    # ---- its target and its step

    def advance(
        self,
        group: ConsumerGroup,
        joined: Joined,
        new: ConsumerMember,
        told: Told,
        owned: Owned | None,
        records: list[StoredRecord],
    ) -> ConsumerMember:
        """The member after a step towards its target; new targets for all if it is time for that."""
        target_epoch, target = self._target_for(group, new, joined.replaced, told, records)
        return self.step(group, joined, new, target_epoch, target, told, owned, records)

    def step(
        self,
        group: ConsumerGroup,
        joined: Joined,
        new: ConsumerMember,
        target_epoch: int,
        target: Partitions,
        told: Told,
        owned: Owned | None,
        records: list[StoredRecord],
    ) -> ConsumerMember:
        """The member after a step towards a target."""
        if new.has_reached(target_epoch) and not told.has_new_subscription:
            return new
        replaced = joined.replaced
        own = {None, new.member_id, None if replaced is None else replaced.member_id}
        topics = self._image().topics_by_name
        moved = step(
            new,
            target_epoch,
            target,
            {topics[name].topic_id for name in group.topics_of(new) if name in topics},
            lambda topic_id, partition: group.owners.get((topic_id, partition)) in own,
            owned,
            has_new_subscription=told.has_new_subscription,
        )
        if moved != new:
            records.append(stored.current_record(group.group_id, moved))
        return moved

    def _target_for(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        replaced: ConsumerMember | None,
        told: Told,
        records: list[StoredRecord],
    ) -> tuple[int, Partitions]:
        """The member's target and the epoch that it is for."""
        wall_ms = self._clock.wall_ms()
        interval_ms = self._settings.assignment_interval_ms(group.group_id)
        is_time = not group.assignment_wall_ms or not interval_ms or wall_ms >= group.assignment_wall_ms + interval_ms
        place = member.member_id if replaced is None else replaced.member_id
        if told.epoch <= group.assignment_epoch or not is_time:
            return group.assignment_epoch, group.targets.get(place, {})
        owned = {**group.targets, member.member_id: group.targets.get(place, {})}
        targets = self._assign(group, told.members, owned)
        for member_id, target in targets.items():
            known = group.targets.get(member_id)
            if target is not known and target != known:
                records.append(stored.target_record(group.group_id, member_id, target))
        records.append(stored.assignment_epoch_record(group.group_id, told.epoch, wall_ms))
        return told.epoch, targets[member.member_id]

    def _assign(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], owned: Mapping[str, Partitions]
    ) -> dict[str, Partitions]:
        topics = self._image().topics_by_name
        name = preferred_assignor(members.values(), self._assignors)
        read: dict[frozenset[str], frozenset[bytes]] = {}
        counts: dict[bytes, int] = {}
        subscribers = []
        for member_id, member in members.items():
            names = group.topics_of(member)
            topic_ids = read.get(names)
            if topic_ids is None:
                found = [topics[name] for name in names if name in topics]
                counts.update((topic.topic_id, len(topic.partitions)) for topic in found)
                topic_ids = read[names] = frozenset(topic.topic_id for topic in found)
            subscribers.append(Subscriber(member_id, member.instance_id, topic_ids, owned.get(member_id, {})))
        _log.info("group %s: %s assigns %d topics to %d members", group.group_id, name, len(counts), len(members))
        return ASSIGNORS[name](subscribers, counts)


def metadata_hash(group: ConsumerGroup, members: Mapping[str, ConsumerMember], image: MetadataImage) -> int:
    """A hash of all that targets depend on besides members: which topics there are, with how many partitions."""
    topics = image.topics_by_name
    known = [topics[name] for name in sorted(group.subscribed_topics(members.values())) if name in topics]
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for topic in known:
        digest.update(b"%b%d " % (topic.topic_id, len(topic.partitions)))
    return int.from_bytes(digest.digest(), "big", signed=True)


def next_epoch(group: ConsumerGroup, members: Mapping[str, ConsumerMember], image: MetadataImage) -> StoredRecord:
    """What brings a group with these members to its next epoch."""
    return stored.epoch_record(group.group_id, group.epoch + 1, metadata_hash(group, members, image))


def forget_check(group: ConsumerGroup, error: ErrorCode) -> None:
    """When the hash of the topics was not recorded, it is to be compared again."""
    if error is not ErrorCode.NONE:
        group.checked_topics = None


def _replacement(group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember) -> list[StoredRecord]:
    """A static member came back: all that the old one had is the new one's."""
    group_id = group.group_id
    return [
        *stored.member_tombstones(group_id, old.member_id),
        stored.member_record(group_id, new),
        stored.target_record(group_id, new.member_id, group.targets.get(old.member_id, {})),
        stored.current_record(group_id, new),
    ]

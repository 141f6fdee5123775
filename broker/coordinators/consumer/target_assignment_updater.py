"""Updates a consumer group after a member's request: member, group epoch, target assignment, current assignment.

RULES    1. The group epoch is bumped when a subscription or the metadata of subscribed topics change.
         2. A target assignment is computed when the group epoch is above the assignment epoch, at most once per
            assignment interval.
         3. The topics' metadata are compared by hash after each change of the image.
         4. Records are appended to a list in write order; only timeouts change otherwise.
NOT HERE The requests (`consumer_group_heartbeat.py`, `classic_protocol_adapter.py`), reconciliation
         (`reconciliation.py`), assignors (`assignors.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.assignors import ASSIGNORS, Partitions, Subscriber
from broker.coordinators.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    MemberUpdate,
    metadata_hash,
    preferred_assignor,
)
from broker.coordinators.consumer.dependencies import GroupDependencies
from broker.coordinators.consumer.reconciliation import build_current_assignment
from broker.coordinators.consumer.topic_regexes import MayDescribe, TopicRegexes
from broker.coordinators.runtime.stored_records import StoredRecord
from protocol.errors import ErrorCode

_log = logging.getLogger("barnabas.groups")


class TargetAssignmentUpdater:
    """Epochs, targets and assignments of one shard's consumer groups."""

    def __init__(self, deps: GroupDependencies, regexes: TopicRegexes) -> None:
        self._deps = deps
        self._regexes = regexes

    # ---- subscription and group epoch

    def update_member(self, update: MemberUpdate, may_describe: MayDescribe | None) -> None:
        """Write the member's subscription, and bump the epoch if needed; raises KafkaError: INVALID_REGULAR_EXPRESSION."""
        group, old, new, records = update.group, update.old, update.new, update.records
        if update.replaced is not None:
            records += _replacement(group, update.replaced, old)
        if new != old:
            records.append(stored.member_record(group.group_id, new))
        has_resolved_regex = self._regexes.update_regexes(update, may_describe)
        update.members = group.members
        if update.replaced is not None or group.members.get(new.member_id) != new:
            members = update.members = {**group.members, new.member_id: new}
            if update.previous_id != new.member_id:
                del members[update.previous_id]
        has_new_topics = new.topics != old.topics
        update.has_new_subscription = has_new_topics or new.regex != old.regex
        self._update_epoch(update, must_bump=has_new_topics or has_resolved_regex)

    def _update_epoch(self, update: MemberUpdate, *, must_bump: bool) -> None:
        group, image = update.group, self._deps.image()
        update.epoch = group.epoch
        if not must_bump and group.checked_topics is image.topics_by_name:
            return
        group.checked_topics = image.topics_by_name
        found = metadata_hash(group, update.members, image)
        if must_bump or found != group.metadata_hash:
            update.epoch += 1
            update.records.append(stored.epoch_record(group.group_id, update.epoch, found))

    # ---- target and reconciliation

    def reconcile(self, update: MemberUpdate) -> ConsumerMember:
        """Compute a new target assignment if needed, and reconcile the member to it."""
        return self.reconcile_to(update, *self._target_for(update))

    def reconcile_to(self, update: MemberUpdate, target_epoch: int, target: Partitions) -> ConsumerMember:
        """Reconcile the member to a target."""
        group, new = update.group, update.new
        if new.is_reconciled_to(target_epoch) and not update.has_new_subscription:
            return new
        own_ids = {None, new.member_id, update.previous_id}
        topics = self._deps.image().topics_by_name
        reconciled = build_current_assignment(
            new,
            target_epoch,
            target,
            {topics[name].topic_id for name in group.topics_of(new) if name in topics},
            lambda topic_id, partition: group.owners.get((topic_id, partition)) in own_ids,
            update.owned,
            has_new_subscription=update.has_new_subscription,
        )
        if reconciled != new:
            update.records.append(stored.current_record(group.group_id, reconciled))
        return reconciled

    def _target_for(self, update: MemberUpdate) -> tuple[int, Partitions]:
        """The assignment epoch, and the member's target."""
        group, member_id = update.group, update.new.member_id
        wall_ms = self._deps.context.wall_ms()
        interval_ms = self._deps.configs.assignment_interval_ms(group.group_id)
        interval_passed = (
            not group.assignment_wall_ms or not interval_ms or wall_ms >= group.assignment_wall_ms + interval_ms
        )
        previous_target = group.targets.get(update.previous_id, {})
        if update.epoch <= group.assignment_epoch or not interval_passed:
            return group.assignment_epoch, previous_target
        targets = self._assign(group, update.members, {**group.targets, member_id: previous_target})
        for assigned_id, target in targets.items():
            current = group.targets.get(assigned_id)
            if target is not current and target != current:
                update.records.append(stored.target_record(group.group_id, assigned_id, target))
        update.records.append(stored.assignment_epoch_record(group.group_id, update.epoch, wall_ms))
        return update.epoch, targets[member_id]

    def _assign(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], owned: Mapping[str, Partitions]
    ) -> dict[str, Partitions]:
        topics = self._deps.image().topics_by_name
        name = preferred_assignor(members.values(), self._deps.settings.consumer.assignors)
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
        _log.info(
            "group %s: assignor %s assigned %d topics to %d members", group.group_id, name, len(counts), len(members)
        )
        return ASSIGNORS[name](subscribers, counts)


def invalidate_metadata_check(group: ConsumerGroup, error: ErrorCode) -> None:
    """If the records failed, compare the metadata hash again."""
    if error is not ErrorCode.NONE:
        group.checked_topics = None


def _replacement(group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember) -> list[StoredRecord]:
    """The records of a static member's new member id: it gets the target and the assignment of the old one."""
    group_id = group.group_id
    return [
        *stored.member_tombstones(group_id, old.member_id),
        stored.member_record(group_id, new),
        stored.target_record(group_id, new.member_id, group.targets.get(old.member_id, {})),
        stored.current_record(group_id, new),
    ]

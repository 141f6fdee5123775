"""Groups that change their kind while they have members, from classic to consumer groups and back.

RULES    1. A classic group of consumers becomes a consumer group when a member of the consumer protocol joins it: its
            generation is the epoch, its assignments are targets and what members own.
         2. A consumer group becomes a classic group when a member goes and all who are left are classic, or when its last
            member of the consumer protocol is replaced by a classic one with its instance id: what was the target of each
            is its assignment. Members that become classic one by one make no classic group until one of them goes.
         3. What was of the one kind is deleted, and what is of the other written, in one batch.
         4. A classic group is there as soon as it is decided on, and goes again if its records were refused.
NOT HERE Classic members of a consumer group (`classic_protocol_adapter.py`), groups without members, which change with the first
         one that joins (`group_coordinator.py`, `consumer_group_heartbeat.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from broker.coordinators.classic.classic_group import CONSUMER_PROTOCOL, ClassicGroup, State
from broker.coordinators.classic.classic_group import Member as ClassicMember
from broker.coordinators.classic.classic_protocol import GroupSettings, Rebalancer
from broker.coordinators.classic.group_records import group_record, group_tombstone
from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.assignors import Partitions
from broker.coordinators.consumer.consumer_group import ClassicSide, ConsumerGroup, ConsumerMember
from broker.coordinators.consumer.embedded_protocol import (
    by_topic_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from broker.coordinators.consumer.target_assignment_updater import metadata_hash
from broker.coordinators.runtime.coordinator_runtime import Host, StoredRecord
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from replication.metadata.image import MetadataImage

_log = logging.getLogger("barnabas.groups")


class Migration:
    """Changes of kind over one shard's groups."""

    def __init__(
        self,
        classic_groups: dict[str, ClassicGroup],
        consumer_groups: Mapping[str, ConsumerGroup],
        rebalancer: Rebalancer,
        host: Host,
        settings: GroupSettings,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._classic_groups = classic_groups
        self._consumer_groups = consumer_groups
        self._rebalancer = rebalancer
        self._host = host
        self._settings = settings
        self._image = image

    # ---- upwards

    def upgrade(self, classic: ClassicGroup) -> tuple[ConsumerGroup, list[StoredRecord]]:
        """The consumer group that a classic group would be, and what makes it one.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, it cannot become one.
        """
        self._check_upgrade(classic)
        image = self._image()
        group = ConsumerGroup(classic.group_id)
        group.epoch = group.assignment_epoch = classic.generation
        try:
            for member in _consumer_members(classic, image):
                group.put(member)
                group.targets[member.member_id] = _target_of(member)
        except MalformedRequest as error:
            _log.warning("group %s: what its members say of themselves cannot be read: %s", classic.group_id, error)
            raise _not_upgraded(classic, "the embedded consumer protocol is malformed") from None
        group.metadata_hash = metadata_hash(group, group.members, image)
        return group, [group_tombstone(classic.group_id), *stored.group_records(group)]

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        settings = self._settings.consumer
        if not settings.migration_policy.allows_upgrades:
            raise _not_upgraded(classic, "online upgrade is disabled")
        if classic.protocol_type != CONSUMER_PROTOCOL:
            raise _not_upgraded(classic, "the group does not use the consumer embedded protocol")
        if len(classic.members) > settings.max_size:
            raise _not_upgraded(classic, "the group size exceeds the consumer group maximum size")

    # ---- downwards

    def may_downgrade(self, group: ConsumerGroup, leaving: Collection[str], *, is_replaced: bool = False) -> bool:
        """Whether a group becomes classic without some members, or when one takes the place of the one who leaves."""
        left = [member for member_id, member in group.members.items() if member_id not in leaving]
        gone = [member for member_id, member in group.members.items() if member_id in leaving]
        size = len(left) + is_replaced
        return (
            size > 0
            and all(member.classic is not None for member in left)
            and not (is_replaced and any(member.classic is not None for member in gone))
            and self._settings.consumer.migration_policy.allows_downgrades
            and size <= self._settings.max_size
        )

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[str], joining: ConsumerMember | None = None
    ) -> tuple[ClassicGroup, list[StoredRecord]]:
        """The classic group that is left of a consumer group, and what makes it one (rule 4).

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, it cannot become one.
        """
        members = [member for member_id, member in group.members.items() if member_id not in leaving]
        targets = dict(group.targets)
        tombstones = stored.group_tombstones(group)
        if joining is not None:
            replaced = group.static_member(joining.instance_id)
            assert replaced is not None, "somebody is replaced"
            members.append(joining)
            targets[joining.member_id] = group.targets.get(replaced.member_id, {})
            tombstones = stored.group_tombstones(group, {replaced.member_id: joining.member_id})
        try:
            classic = self._classic_group(group, members, targets)
        except MalformedRequest as error:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot downgrade the classic group {group.group_id}: {error}."
            ) from None
        _log.info("group %s becomes a classic group", group.group_id)
        record = group_record(classic, {member.member_id: member.assignment for member in classic.members.values()})
        self._classic_groups[group.group_id] = classic
        for member in classic.members.values():
            self._rebalancer.sessions.start(classic, member, member.session_timeout_ms)
        return classic, [*tombstones, record]

    def downgraded(self, classic: ClassicGroup, error: ErrorCode) -> None:
        """The records of a downgrade were committed, or refused: then it has never been."""
        if error is not ErrorCode.NONE and classic.group_id in self._consumer_groups:
            self._rebalancer.forget(classic)

    def rebalance(self, classic: ClassicGroup, what: str) -> None:
        """Have the members of a classic group that has just been made join again."""
        decision = self._rebalancer.prepare(classic, what, None)
        assert not decision.records, "nobody has joined it yet"

    def _classic_group(
        self, group: ConsumerGroup, members: Collection[ConsumerMember], targets: Mapping[str, Partitions]
    ) -> ClassicGroup:
        image = self._image()
        classic = ClassicGroup(group.group_id, self._host.wall_ms())
        classic.state = State.STABLE
        classic.generation = group.epoch
        for member in members:
            classic.add(_classic_member(member), None)
        classic.protocol_name = classic.select_protocol()
        classic.subscribed_topics = classic.parse_subscriptions()
        for known in classic.members.values():
            metadata = known.metadata(classic.protocol_name)
            known.assignment = write_assignment(targets.get(known.member_id, {}), metadata, image)
        return classic


def _not_upgraded(classic: ClassicGroup, why: str) -> KafkaError:
    message = f"Cannot upgrade classic group {classic.group_id} to consumer group because {why}."
    _log.info("%s", message)
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _consumer_members(classic: ClassicGroup, image: MetadataImage) -> list[ConsumerMember]:
    """The members of a classic group as a consumer group has them."""
    size = len(classic.members)
    name = classic.protocol_name
    if (
        name is None or classic.protocol_counts.get(name, 0) < size
    ):  # it has never had a generation, or the next differs
        name = classic.select_protocol() if size else None
    return [_consumer_member(classic, member, name, image) for member in classic.members.values()]


def _consumer_member(
    classic: ClassicGroup, member: ClassicMember, protocol_name: str | None, image: MetadataImage
) -> ConsumerMember:
    assignment = read_assignment(member.assignment)
    if assignment.user_data:
        raise _not_upgraded(
            classic,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade",
        )
    subscription = read_subscription(member.metadata(protocol_name))
    generation = classic.generation
    owned = by_topic_id(assignment.assigned_partitions, image)
    return ConsumerMember(
        member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
        epoch=generation,
        previous_epoch=generation,
        assigned={topic_id: dict.fromkeys(partitions, generation) for topic_id, partitions in owned.items()},
    )


def _target_of(member: ConsumerMember) -> Partitions:
    return {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}


def _classic_member(member: ConsumerMember) -> ClassicMember:
    assert member.classic is not None, "the others are gone"
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        CONSUMER_PROTOCOL,
        member.classic.protocols,
    )

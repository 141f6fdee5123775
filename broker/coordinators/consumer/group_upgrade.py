"""Online upgrade of classic groups to consumer groups, and downgrade (KIP-848).

RULES    1. A classic group of consumers is upgraded when a member of the consumer protocol joins: the
            generation becomes the epoch, assignments become targets and current assignments.
         2. A consumer group is downgraded when a member leaves and only classic members are left, or when a static
            classic member replaces the last member of the consumer protocol. Targets become assignments.
            Members that become classic one by one cause no downgrade until one leaves.
         3. One batch deletes the old group's records and writes the new group's.
         4. The classic group is created before its records are committed, and removed if they fail.
NOT HERE Classic members of a consumer group (`classic_protocol_adapter.py`), groups without members, which are
         converted by the first join (`group_coordinator.py`, `consumer_group_heartbeat.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from broker.coordinators.classic.classic_group import CONSUMER_PROTOCOL, ClassicGroup, State
from broker.coordinators.classic.classic_group import Member as ClassicMember
from broker.coordinators.classic.classic_protocol import EMPTY_DECISION, ClassicProtocol, Decision
from broker.coordinators.classic.group_records import group_record, group_tombstone
from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.assignors import Partitions
from broker.coordinators.consumer.consumer_group import ClassicMemberInfo, ConsumerGroup, ConsumerMember, metadata_hash
from broker.coordinators.consumer.dependencies import GroupDependencies
from broker.coordinators.consumer.embedded_protocol import (
    by_topic_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from broker.coordinators.group_config import DOWNGRADES, UPGRADES
from broker.coordinators.runtime.stored_records import StoredRecord
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from replication.metadata.image import MetadataImage

_log = logging.getLogger("barnabas.groups")


class GroupUpgrade:
    """Upgrades and downgrades of one shard's groups."""

    def __init__(self, deps: GroupDependencies, classic_protocol: ClassicProtocol) -> None:
        self._deps = deps
        self._classic_protocol = classic_protocol

    # ---- upgrade

    def upgrade(self, classic: ClassicGroup) -> tuple[ConsumerGroup, list[StoredRecord]]:
        """The consumer group for a classic group, and the records; raises KafkaError: GROUP_ID_NOT_FOUND if impossible."""
        self._check_upgrade(classic)
        image = self._deps.image()
        group = ConsumerGroup(classic.group_id)
        group.epoch = group.assignment_epoch = classic.generation
        try:
            for member in _consumer_members(classic, image):
                group.update_member(member)
                target = {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}
                group.targets[member.member_id] = target
        except MalformedRequest as error:
            _log.warning(
                "group %s cannot be upgraded, malformed subscription or assignment: %s", classic.group_id, error
            )
            raise _upgrade_error(classic, "the embedded consumer protocol is malformed") from None
        group.metadata_hash = metadata_hash(group, group.members, image)
        return group, [group_tombstone(classic.group_id), *stored.group_records(group)]

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        settings = self._deps.settings.consumer
        if settings.migration_policy not in UPGRADES:
            raise _upgrade_error(classic, "online upgrade is disabled")
        if classic.protocol_type != CONSUMER_PROTOCOL:
            raise _upgrade_error(classic, "the group does not use the consumer embedded protocol")
        if len(classic.members) > settings.max_size:
            raise _upgrade_error(classic, "the group size exceeds the consumer group maximum size")

    # ---- downgrade

    def may_downgrade(self, group: ConsumerGroup, leaving: Collection[str], *, is_replaced: bool = False) -> bool:
        """Whether the group is downgraded when some members leave, or when a joining member replaces one."""
        remaining = [member for member_id, member in group.members.items() if member_id not in leaving]
        leaving_members = [member for member_id, member in group.members.items() if member_id in leaving]
        size = len(remaining) + is_replaced
        return (
            size > 0
            and all(member.classic is not None for member in remaining)
            and not (is_replaced and any(member.classic is not None for member in leaving_members))
            and self._deps.settings.consumer.migration_policy in DOWNGRADES
            and size <= self._deps.settings.max_size
        )

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[str], joining: ConsumerMember | None = None
    ) -> tuple[ClassicGroup, list[StoredRecord]]:
        """The classic group of the remaining members, and the records (rule 4); raises KafkaError: GROUP_ID_NOT_FOUND."""
        members = [member for member_id, member in group.members.items() if member_id not in leaving]
        targets = dict(group.targets)
        renamed = {}
        if joining is not None:
            replaced = group.static_member(joining.instance_id)
            assert replaced is not None, "a static member is replaced"
            members.append(joining)
            targets[joining.member_id] = group.targets.get(replaced.member_id, {})
            renamed = {replaced.member_id: joining.member_id}
        try:
            classic = self._classic_group(group, members, targets)
        except MalformedRequest as error:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot downgrade the classic group {group.group_id}: {error}."
            ) from None
        _log.info("group %s is downgraded to a classic group", group.group_id)
        record = group_record(classic, {member.member_id: member.assignment for member in classic.members.values()})
        self._deps.classic_groups[group.group_id] = classic
        for member in classic.members.values():
            self._classic_protocol.restart_session(classic, member, member.session_timeout_ms)
        return classic, [*stored.group_tombstones(group, renamed), record]

    def on_downgrade_committed(self, classic: ClassicGroup, error: ErrorCode) -> Decision:
        """The records are committed, or failed: then the classic group is removed."""
        if error is ErrorCode.NONE or classic.group_id not in self._deps.consumer_groups:
            return EMPTY_DECISION
        return Decision((), None, self._classic_protocol.remove_group(classic))

    def rebalance(self, classic: ClassicGroup, what: str) -> None:
        """Start a rebalance of a downgraded group."""
        decision = self._classic_protocol.prepare_rebalance(classic, what, None)
        assert not decision.records, "no member has rejoined yet"
        assert not decision.replies, "no member waits yet"

    def _classic_group(
        self, group: ConsumerGroup, members: Collection[ConsumerMember], targets: Mapping[str, Partitions]
    ) -> ClassicGroup:
        image = self._deps.image()
        classic = ClassicGroup(group.group_id, self._deps.context.wall_ms())
        classic.state = State.STABLE
        classic.generation = group.epoch
        for member in members:
            classic.add(_classic_member(member), None)
        classic.protocol_name = classic.select_protocol()
        classic.subscribed_topics = classic.parse_subscriptions()
        for classic_member in classic.members.values():
            metadata = classic_member.metadata(classic.protocol_name)
            classic_member.assignment = write_assignment(targets.get(classic_member.member_id, {}), metadata, image)
        return classic


def _upgrade_error(classic: ClassicGroup, reason: str) -> KafkaError:
    message = f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}."
    _log.info("%s", message)
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _consumer_members(classic: ClassicGroup, image: MetadataImage) -> list[ConsumerMember]:
    """The members of a classic group as consumer group members."""
    size = len(classic.members)
    name = classic.protocol_name
    if name is None or classic.protocol_counts.get(name, 0) < size:  # no generation yet, or a changed set of protocols
        name = classic.select_protocol() if size else None
    return [_consumer_member(classic, member, name, image) for member in classic.members.values()]


def _consumer_member(
    classic: ClassicGroup, member: ClassicMember, protocol_name: str | None, image: MetadataImage
) -> ConsumerMember:
    assignment = read_assignment(member.assignment)
    if assignment.user_data:
        raise _upgrade_error(
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
        classic=ClassicMemberInfo(member.session_timeout_ms, member.protocols),
        epoch=generation,
        previous_epoch=generation,
        assigned={topic_id: dict.fromkeys(partitions, generation) for topic_id, partitions in owned.items()},
    )


def _classic_member(member: ConsumerMember) -> ClassicMember:
    assert member.classic is not None, "only classic members are left"
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

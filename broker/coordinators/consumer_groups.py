"""What heartbeats and deadlines do to consumer groups (KIP-848): join, stay, leave, be fenced.

RULES    1. A heartbeat does up to three things, each with its records: it tells of the member, which may bring the group to
            its next epoch; targets are made for an epoch that has none, though not more often than the settings say; the
            member comes a step nearer to its target.
         2. Answers, and what is refused in which order and words, are Apache Kafka's.
         3. All that counts is in records. A deadline that comes looks whether what it was set for is still so.
         4. What is known of topics is compared by a hash when the metadata has changed since it was compared last.
NOT HERE What a group is (`consumer_group.py`), a step (`reconciliation.py`), targets (`assignors.py`), regular expressions
         (`topic_regexes.py`), what administrators see (`consumer_group_views.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from broker.coordinators import consumer_group_records as stored
from broker.coordinators.assignors import ASSIGNORS, Partitions, Subscriber
from broker.coordinators.classic_group import ClassicGroup, State
from broker.coordinators.consumer_group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    preferred_assignor,
)
from broker.coordinators.consumer_requests import check_epoch, check_heartbeat, owned_by
from broker.coordinators.consumer_settings import ConsumerGroupSettings
from broker.coordinators.group_records import group_tombstone
from broker.coordinators.member_deadlines import MemberDeadlines
from broker.coordinators.reconciliation import step
from broker.coordinators.runtime import CoordinatorDecision, Host, StoredRecord
from broker.coordinators.topic_regexes import RegexNews, TopicRegexes
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from replication.image import MetadataImage

_log = logging.getLogger("barnabas.groups")

RETRY_MS: Final = 500
"""After a deadline's records were not taken."""

Decision = CoordinatorDecision[ConsumerGroupHeartbeatResponse]


class HeartbeatCaller(NamedTuple):
    """Who sent a heartbeat, and which topics it may know of."""

    client_id: str
    client_host: str
    api_version: int
    may_describe: Callable[[str], bool]


class _Joined(NamedTuple):
    """The member that a heartbeat is about, as it is before it, and whose place it takes, if it does."""

    member: ConsumerMember
    replaced: ConsumerMember | None = None


class ConsumerGroups:
    """The consumer protocol over one shard's groups."""

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        classic_groups: Mapping[str, ClassicGroup],
        host: Host,
        settings: ConsumerGroupSettings,
        image: Callable[[], MetadataImage],
        new_uuid: Callable[[], str],
    ) -> None:
        self._groups = groups
        self._classic_groups = classic_groups
        self._host = host
        self._settings = settings
        self._image = image
        self._new_uuid = new_uuid
        self._regexes = TopicRegexes(groups, host, settings.regex_refresh_interval_ms, image, self.next_epoch)
        self.sessions = MemberDeadlines(host, self._session_over)
        self.revocations = MemberDeadlines(host, self._revocation_over)

    # ---- heartbeat

    def heartbeat(self, caller: HeartbeatCaller, request: ConsumerGroupHeartbeatRequest) -> Decision:
        """A ConsumerGroupHeartbeat."""
        try:
            check_heartbeat(request, caller.api_version, self._settings.assignors)
            if request.member_epoch in {LEAVING, LEAVING_FOR_A_WHILE}:
                return self._leave(request)
            return self._beat(caller, request)
        except KafkaError as error:
            return CoordinatorDecision(
                (), ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            )

    def _beat(self, caller: HeartbeatCaller, request: ConsumerGroupHeartbeatRequest) -> Decision:
        group = self._find_group(request)
        old, replaced = self._find_member(group, request)
        new = _described(old, caller, request)
        records = [group_tombstone(group.group_id)] if group.group_id in self._classic_groups else []
        if replaced is not None:
            records += self._replacement(group, replaced, old)
        if new != old:
            records.append(stored.member_record(group.group_id, new))
        news = self._regexes.changed(group, old, new, caller.may_describe, records)
        members = {**group.members, new.member_id: new}
        if replaced is not None and replaced.member_id != new.member_id:
            del members[replaced.member_id]
        epoch = self._epoch_after(
            group, members, records, must_grow=new.topics != old.topics or news is RegexNews.RESOLVED
        )
        target_epoch, target = self._target_for(group, new, replaced, members, epoch, records)
        moved = self._step(
            group,
            new,
            replaced,
            target_epoch,
            target,
            request,
            has_new_subscription=new.topics != old.topics or news is not RegexNews.NONE,
        )
        if moved != new:
            records.append(stored.current_record(group.group_id, moved))
            self._expect_revocation(group, moved)
        self.sessions.start(group.group_id, moved.member_id, self.session_timeout_ms(group.group_id))
        response = self._answer(request, old, moved)
        return CoordinatorDecision(records, response, settle=lambda error: _forget_check(group, error))

    def _answer(
        self, request: ConsumerGroupHeartbeatRequest, old: ConsumerMember, moved: ConsumerMember
    ) -> ConsumerGroupHeartbeatResponse:
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=moved.member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(request.group_id),
        )
        has_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        is_full = request.rebalance_timeout_ms != -1 and has_topics and request.topic_partitions is not None
        if request.member_epoch == JOINING or is_full or moved.assigned != old.assigned:
            response.assignment = ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in moved.assigned.items()
                ]
            )
        return response

    # ---- who it is

    def _find_group(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        """The group, or one that the records of a first member will make."""
        group = self._groups.get(request.group_id)
        if group is None:
            classic = self._classic_groups.get(request.group_id)
            if classic is not None and (classic.state is not State.EMPTY or request.member_epoch != JOINING):
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
            if request.member_epoch != JOINING:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
            group = ConsumerGroup(request.group_id)
        if len(group.members) >= self._settings.max_size and request.member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self._settings.max_size} members.",
            )
        return group

    def _find_member(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> _Joined:
        member_id = request.member_id or self._new_uuid()
        is_joining = request.member_epoch == JOINING
        if request.instance_id is not None:
            if is_joining:
                return self._join_as_static(group, member_id, request.instance_id)
            known = _static_member(group, member_id, request.instance_id)
        else:
            found = group.members.get(member_id)
            if found is None and is_joining:
                return _Joined(ConsumerMember(member_id))
            known = _member(group, member_id)
        check_epoch(known, request)
        return _Joined(known)

    def _join_as_static(self, group: ConsumerGroup, member_id: str, instance_id: str) -> _Joined:
        known = group.static_member(instance_id)
        if known is None:
            return _Joined(group.members.get(member_id) or ConsumerMember(member_id))
        if known.classic is None and known.epoch != LEAVING_FOR_A_WHILE:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {known.member_id} member.",
            )
        return _Joined(known._replace(member_id=member_id, epoch=0, previous_epoch=0), known)

    def _replacement(self, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember) -> list[StoredRecord]:
        """A static member came back: all that the old one had is the new one's."""
        group_id = group.group_id
        return [
            *stored.member_tombstones(group_id, old.member_id),
            stored.member_record(group_id, new),
            stored.target_record(group_id, new.member_id, group.targets.get(old.member_id, {})),
            stored.current_record(group_id, new),
        ]

    # ---- epochs and targets

    def _epoch_after(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        records: list[StoredRecord],
        *,
        must_grow: bool,
    ) -> int:
        """The group's epoch after a heartbeat."""
        image = self._image()
        if not must_grow and group.checked_topics is image.topics_by_name:
            return group.epoch
        group.checked_topics = image.topics_by_name
        found = self._metadata_hash(group, members)
        if not must_grow and found == group.metadata_hash:
            return group.epoch
        records.append(stored.epoch_record(group.group_id, group.epoch + 1, found))
        return group.epoch + 1

    def next_epoch(self, group: ConsumerGroup, members: Mapping[str, ConsumerMember]) -> StoredRecord:
        """What brings a group with these members to its next epoch."""
        return stored.epoch_record(group.group_id, group.epoch + 1, self._metadata_hash(group, members))

    def _metadata_hash(self, group: ConsumerGroup, members: Mapping[str, ConsumerMember]) -> int:
        """A hash of all that targets depend on besides members: which topics there are, with how many partitions."""
        topics = self._image().topics_by_name
        known = [topics[name] for name in sorted(group.subscribed_topics(members.values())) if name in topics]
        if not known:
            return 0
        digest = blake2b(digest_size=8)
        for topic in known:
            digest.update(b"%b%d " % (topic.topic_id, len(topic.partitions)))
        return int.from_bytes(digest.digest(), "big", signed=True)

    def _target_for(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        replaced: ConsumerMember | None,
        members: Mapping[str, ConsumerMember],
        epoch: int,
        records: list[StoredRecord],
    ) -> tuple[int, Partitions]:
        """The member's target and the epoch that it is for; new targets for all if it is time for that."""
        wall_ms = self._host.wall_ms()
        interval_ms = self._group_setting(
            group.group_id, "assignment.interval.ms", self._settings.assignment_interval_ms
        )
        is_time = not group.assignment_wall_ms or not interval_ms or wall_ms >= group.assignment_wall_ms + interval_ms
        place = member.member_id if replaced is None else replaced.member_id
        if epoch <= group.assignment_epoch or not is_time:
            return group.assignment_epoch, group.targets.get(place, {})
        owned = {**group.targets, member.member_id: group.targets.get(place, {})}
        targets = self._assign(group, members, owned)
        for member_id, target in targets.items():
            if target != group.targets.get(member_id):
                records.append(stored.target_record(group.group_id, member_id, target))
        records.append(stored.assignment_epoch_record(group.group_id, epoch, wall_ms))
        return epoch, targets[member.member_id]

    def _assign(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], owned: Mapping[str, Partitions]
    ) -> dict[str, Partitions]:
        topics = self._image().topics_by_name
        name = preferred_assignor(members.values(), self._settings.assignors)
        ids: dict[frozenset[str], frozenset[bytes]] = {}
        counts: dict[bytes, int] = {}
        subscribers = []
        for member_id, member in members.items():
            names = group.topics_of(member)
            if names not in ids:
                found = [topics[name] for name in names if name in topics]
                counts.update((topic.topic_id, len(topic.partitions)) for topic in found)
                ids[names] = frozenset(topic.topic_id for topic in found)
            subscribers.append(Subscriber(member_id, member.instance_id, ids[names], owned.get(member_id, {})))
        _log.info("group %s: %s assigns %d topics to %d members", group.group_id, name, len(counts), len(members))
        return ASSIGNORS[name](subscribers, counts)

    def _step(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        replaced: ConsumerMember | None,
        target_epoch: int,
        target: Partitions,
        request: ConsumerGroupHeartbeatRequest,
        *,
        has_new_subscription: bool,
    ) -> ConsumerMember:
        if member.has_reached(target_epoch) and not has_new_subscription:
            return member
        own = {None, member.member_id, None if replaced is None else replaced.member_id}
        topics = self._image().topics_by_name
        return step(
            member,
            target_epoch,
            target,
            {topics[name].topic_id for name in group.topics_of(member) if name in topics},
            lambda topic_id, partition: group.owners.get((topic_id, partition)) in own,
            owned_by(request),
            has_new_subscription=has_new_subscription,
        )

    # ---- leave

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> Decision:
        group = self._groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
        if request.instance_id is None:
            member = _member(group, request.member_id)
        else:
            member = _static_member(group, request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch
        )
        if request.member_epoch == LEAVING_FOR_A_WHILE:
            _log.info("group %s: static member %s is away", group.group_id, member.member_id)
            self.revocations.forget(group.group_id, member.member_id)
            away = member._replace(epoch=LEAVING_FOR_A_WHILE, revoking={})
            return CoordinatorDecision([stored.current_record(group.group_id, away)], response)
        _log.info("group %s: %s leaves", group.group_id, member.member_id)
        return CoordinatorDecision(self.removal(group, [member]), response)

    def removal(self, group: ConsumerGroup, leaving: list[ConsumerMember]) -> list[StoredRecord]:
        """What takes members out of a group."""
        gone = {member.member_id for member in leaving}
        left = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
        used = {member.regex for member in left.values()}
        return [
            *(record for member_id in gone for record in stored.member_tombstones(group.group_id, member_id)),
            *(stored.regex_tombstone(group.group_id, regex) for regex in group.regexes if regex not in used),
            self.next_epoch(group, left),
        ]

    # ---- deadlines

    def start_deadlines(self, group: ConsumerGroup) -> None:
        """After loading: every member has one session to be heard of."""
        for member in group.members.values():
            classic = member.classic
            timeout_ms = self.session_timeout_ms(group.group_id) if classic is None else classic.session_timeout_ms
            self.sessions.start(group.group_id, member.member_id, timeout_ms)
            self._expect_revocation(group, member)

    def _expect_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            self.revocations.start(group.group_id, member.member_id, member.rebalance_timeout_ms)
        else:
            self.revocations.forget(group.group_id, member.member_id)

    def _session_over(self, group_id: str, member_id: str) -> CoordinatorDecision[None] | None:
        return self._fence(group_id, member_id, "its session is over")

    def _revocation_over(self, group_id: str, member_id: str) -> CoordinatorDecision[None] | None:
        return self._fence(group_id, member_id, "it did not give up its partitions in time")

    def _fence(self, group_id: str, member_id: str, why: str) -> CoordinatorDecision[None] | None:
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return None
        _log.info("group %s: %s is fenced, %s", group_id, member_id, why)

        def settle(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                self.sessions.start(group_id, member_id, RETRY_MS)

        return CoordinatorDecision(self.removal(group, [member]), None, settle=settle)

    def close(self) -> None:
        """Somebody else coordinates these groups now."""
        self.sessions.close()
        self.revocations.close()

    # ---- settings

    def session_timeout_ms(self, group_id: str) -> int:
        """How long a member of a group may be silent."""
        return self._group_setting(group_id, "session.timeout.ms", self._settings.session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often a member of a group shall be heard of."""
        return self._group_setting(group_id, "heartbeat.interval.ms", self._settings.heartbeat_interval_ms)

    def _group_setting(self, group_id: str, name: str, otherwise: int) -> int:
        """A setting of one group, within the broker's limits; the broker's where it has none."""
        text = self._image().group_config(group_id).get(f"consumer.{name}")
        if text is None:
            return otherwise
        lowest, highest = self._settings.limits[name]
        return min(max(int(text), lowest), highest)


def _described(
    member: ConsumerMember, caller: HeartbeatCaller, request: ConsumerGroupHeartbeatRequest
) -> ConsumerMember:
    """The member with what it says of itself; null is as before."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return member._replace(
        client_id=caller.client_id,
        client_host=caller.client_host,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        classic=None,
    )


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
    return member


def _static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def _forget_check(group: ConsumerGroup, error: ErrorCode) -> None:
    """The hash of the topics was not recorded: it is to be compared again."""
    if error is not ErrorCode.NONE:
        group.checked_topics = None

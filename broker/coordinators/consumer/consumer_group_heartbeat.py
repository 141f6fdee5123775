"""What heartbeats and deadlines do to consumer groups (KIP-848): join, stay, leave, be fenced.

RULES    1. A heartbeat does up to three things, each with its records: it tells of the member, which may bring the group to
            its next epoch; targets are made; the member comes a step nearer to its target (`target_assignment_updater.py`).
         2. Answers, and what is refused in which order and words, are Apache Kafka's.
         3. All that counts is in records. A deadline that comes looks whether what it was set for is still so.
         4. A group may change its kind with who joins and who goes (`group_upgrade.py`).
NOT HERE What a group is (`consumer_group.py`), its classic members (`classic_protocol_adapter.py`), what administrators see
         (`describe.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from broker.coordinators.classic.classic_group import ClassicGroup, State, answer_all
from broker.coordinators.classic.group_records import group_tombstone
from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.consumer_group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from broker.coordinators.consumer.consumer_requests import check_epoch, check_heartbeat, owned_by
from broker.coordinators.consumer.group_upgrade import Migration
from broker.coordinators.consumer.member_timeouts import MemberDeadlines
from broker.coordinators.consumer.target_assignment_updater import Joined, MemberProgress, forget_check, next_epoch
from broker.coordinators.consumer.topic_regexes import MayDescribe
from broker.coordinators.consumer_group_config import ConsumerGroupSettings, SettingsOfGroups
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host, StoredRecord
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from replication.metadata.image import MetadataImage

_log = logging.getLogger("barnabas.groups")

RETRY_MS: Final = 500
"""After a deadline's records were not taken."""

Decision = CoordinatorDecision[ConsumerGroupHeartbeatResponse]
Reply = TypeVar("Reply")


class HeartbeatCaller(NamedTuple):
    """Who sent a heartbeat, and which topics it may know of."""

    client_id: str
    client_host: str
    api_version: int
    may_describe: MayDescribe


class ConsumerGroups:
    """The consumer protocol over one shard's groups."""

    def __init__(
        self,
        groups: Mapping[str, ConsumerGroup],
        classic_groups: Mapping[str, ClassicGroup],
        host: Host,
        broker: ConsumerGroupSettings,
        settings: SettingsOfGroups,
        image: Callable[[], MetadataImage],
        new_uuid: Callable[[], str],
        progress: MemberProgress,
        migration: Migration,
    ) -> None:
        self._groups = groups
        self._classic_groups = classic_groups
        self._host = host
        self._broker = broker
        self._settings = settings
        self._image = image
        self._new_uuid = new_uuid
        self._progress = progress
        self._migration = migration
        self.sessions = MemberDeadlines(host, partial(self.fence, why="its session is over"))
        late = "it did not give up its partitions in time"
        self._revocations = MemberDeadlines(host, partial(self.fence, why=late))
        self.joins = MemberDeadlines(host, partial(self.fence, why="it did not join again in time"))
        """Of classic members that were asked to."""
        self.syncs = MemberDeadlines(host, partial(self.fence, why="it did not sync in time"))
        """Of classic members that have joined."""

    # ---- heartbeat

    def heartbeat(self, caller: HeartbeatCaller, request: ConsumerGroupHeartbeatRequest) -> Decision:
        """A ConsumerGroupHeartbeat."""
        try:
            check_heartbeat(request, caller.api_version, self._broker.assignors)
            if request.member_epoch in {LEAVING, LEAVING_FOR_A_WHILE}:
                return self._leave(request)
            return self._beat(caller, request)
        except KafkaError as error:
            return CoordinatorDecision(
                (), ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            )

    def _beat(self, caller: HeartbeatCaller, request: ConsumerGroupHeartbeatRequest) -> Decision:
        group, records = self._find_group(request)
        self.check_room(group, request.member_id)
        joined = self._find_member(group, request)
        old = joined.member
        new = _described(old, caller, request)
        told = self._progress.tell(group, joined, new, caller.may_describe, records)
        moved = self._progress.advance(group, joined, new, told, owned_by(request), records)
        self._end_classic_group(group.group_id)
        if moved != new:
            self.expect_revocation(group, moved)
        self.sessions.start(group.group_id, moved.member_id, self._settings.session_timeout_ms(group.group_id))
        response = self._answer(request, old, moved)
        return CoordinatorDecision(records, response, settle=lambda error: forget_check(group, error))

    def _end_classic_group(self, group_id: str) -> None:
        """What was a classic group is about to be a consumer group: whoever waits in it shall join again."""
        classic = self._classic_groups.get(group_id)
        if classic is not None:
            _log.info("group %s becomes a consumer group", group_id)
            answer_all(classic, ErrorCode.REBALANCE_IN_PROGRESS)
            for member_id, member in classic.members.items():
                self.sessions.start(group_id, member_id, member.session_timeout_ms)
                self.joins.forget(group_id, member_id)  # those that ran when the group was a consumer group before
                self.syncs.forget(group_id, member_id)

    def _answer(
        self, request: ConsumerGroupHeartbeatRequest, old: ConsumerMember, moved: ConsumerMember
    ) -> ConsumerGroupHeartbeatResponse:
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=moved.member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms(request.group_id),
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

    def _find_group(self, request: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, list[StoredRecord]]:
        """The group, or one that the records of a first member will make, with what has to be written before."""
        group_id = request.group_id
        group = self._groups.get(group_id)
        if group is not None:
            return group, []
        classic = self._classic_groups.get(group_id)
        if request.member_epoch != JOINING:
            what = f"Consumer group {group_id} not found." if classic is None else _not_consumer(group_id)
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, what)
        if classic is None:
            return ConsumerGroup(group_id), []
        if classic.state is State.EMPTY:
            return ConsumerGroup(group_id), [group_tombstone(group_id)]
        return self._migration.upgrade(classic)

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        """Refuse one member more than there may be.

        Raises:
            KafkaError: GROUP_MAX_SIZE_REACHED.
        """
        limit = self._broker.max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _find_member(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> Joined:
        member_id = request.member_id or self._new_uuid()
        if request.member_epoch == JOINING:
            if request.instance_id is not None:
                return self._join_as_static(group, member_id, request.instance_id)
            return Joined(group.members.get(member_id) or ConsumerMember(member_id))
        known = find_member(group, member_id, request.instance_id)
        check_epoch(known, request)
        return Joined(known)

    def _join_as_static(self, group: ConsumerGroup, member_id: str, instance_id: str) -> Joined:
        known = group.static_member(instance_id)
        if known is None:
            return Joined(group.members.get(member_id) or ConsumerMember(member_id))
        if known.classic is None and known.epoch != LEAVING_FOR_A_WHILE:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {known.member_id} member.",
            )
        return Joined(known._replace(member_id=member_id, epoch=0, previous_epoch=0), known)

    # ---- leave

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> Decision:
        group_id = request.group_id
        group = self._groups.get(group_id)
        if group is None:
            is_classic = group_id in self._classic_groups
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, _not_consumer(group_id) if is_classic else f"Group {group_id} not found."
            )
        member = find_member(group, request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch
        )
        if request.member_epoch == LEAVING_FOR_A_WHILE:
            _log.info("group %s: static member %s is away", group_id, member.member_id)
            self._revocations.forget(group_id, member.member_id)
            return CoordinatorDecision([stored.current_record(group_id, member.away())], response)
        _log.info("group %s: %s leaves", group_id, member.member_id)
        return self.remove(group, [member], response)

    def remove(self, group: ConsumerGroup, leaving: list[ConsumerMember], reply: Reply) -> CoordinatorDecision[Reply]:
        """Take members out of a group; those who are left may be a classic one."""
        gone = [member.member_id for member in leaving]
        if self._migration.may_downgrade(group, gone):
            try:
                classic, records = self._migration.downgrade(group, gone)
            except KafkaError as error:
                _log.warning("%s", error.message)
            else:
                self._migration.rebalance(classic, "it has become a classic group")
                return CoordinatorDecision(records, reply, settle=partial(self._migration.downgraded, classic))
        return CoordinatorDecision(self._removal(group, gone), reply)

    def _removal(self, group: ConsumerGroup, gone: Collection[str]) -> list[StoredRecord]:
        left = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
        used = {member.regex for member in left.values()}
        return [
            *(record for member_id in gone for record in stored.member_tombstones(group.group_id, member_id)),
            *(stored.regex_tombstone(group.group_id, regex) for regex in group.regexes if regex not in used),
            next_epoch(group, left, self._image()),
        ]

    # ---- deadlines

    def start_deadlines(self, group: ConsumerGroup) -> None:
        """After loading: every member has one session to be heard of."""
        for member in group.members.values():
            classic = member.classic
            session_timeout_ms = self._settings.session_timeout_ms(group.group_id)
            timeout_ms = session_timeout_ms if classic is None else classic.session_timeout_ms
            self.sessions.start(group.group_id, member.member_id, timeout_ms)
            self.expect_revocation(group, member)

    def expect_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member of the consumer protocol that is to give something up has its rebalance timeout for it."""
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            self._revocations.start(group.group_id, member.member_id, member.rebalance_timeout_ms)
        else:
            self._revocations.forget(group.group_id, member.member_id)

    def fence(self, group_id: str, member_id: str, why: str) -> CoordinatorDecision[None] | None:
        """Take a member out of its group that has not done in time what it should."""
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return None
        _log.info("group %s: %s is fenced, %s", group_id, member_id, why)
        decision = self.remove(group, [member], None)
        settle = decision.settle

        def settled(error: ErrorCode) -> None:
            if settle is not None:
                settle(error)
            if error is not ErrorCode.NONE:
                self.sessions.start(group_id, member_id, RETRY_MS)

        decision.settle = settled
        return decision

    def close(self) -> None:
        """Somebody else coordinates these groups now."""
        for deadlines in (self.sessions, self._revocations, self.joins, self.syncs):
            deadlines.close()


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


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """The member of an id, or of an instance id that must have this member id too.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
    """
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            what = f"Member {member_id} is not a member of group {group.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, what)
        return member
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def _not_consumer(group_id: str) -> str:
    return f"Group {group_id} is not a consumer group."

"""The group coordinator of one partition of `__consumer_offsets`: its groups, their offsets, their end.

RULES    1. A group is there when somebody has joined it or committed for it; one that nobody has joined and that has
            no generation is a simple group: offsets and nothing else.
         2. Committed offsets change by applying records. Who is a member is volatile and changed when it is
            decided; the record of a group is a snapshot for the next coordinator, and applying it here changes nothing.
         3. A tombstone ends a group, whoever still waits in it.
         4. A stable group that is read back keeps its generation, members and assignments; each member has one
            session from then on to be heard of.
NOT HERE The classic protocol (`classic_protocol.py`), offsets (`offset_manager.py`), appending and loading (`coordinator_runtime.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from broker.coordinators.classic.classic_group import (
    CONSUMER_PROTOCOL,
    ClassicGroup,
    JoinReply,
    State,
    SyncReply,
    refused_join,
)
from broker.coordinators.classic.classic_protocol import NOTHING, Caller, Decision, GroupSettings, Rebalancer
from broker.coordinators.classic.group_records import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    CommitKey,
    group_tombstone,
    read_group,
    read_group_key,
)
from broker.coordinators.consumer import consumer_group_records
from broker.coordinators.consumer.classic_protocol_adapter import ClassicMembers
from broker.coordinators.consumer.consumer_group import ConsumerGroup, GroupState
from broker.coordinators.consumer.consumer_group_heartbeat import ConsumerGroups, HeartbeatCaller
from broker.coordinators.consumer.consumer_requests import check_commit, check_fetch
from broker.coordinators.consumer.describe import describe, not_described
from broker.coordinators.consumer.group_upgrade import Migration
from broker.coordinators.consumer.target_assignment_updater import MemberProgress, next_epoch
from broker.coordinators.consumer.topic_regexes import TopicRegexes
from broker.coordinators.consumer_group_config import SettingsOfGroups
from broker.coordinators.offset_manager import STEP, CommittedOffsets
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host, StoredRecord
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponseGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from protocol.messages.groups import (
    DeletableGroupResult,
    DescribedGroup,
    DescribedGroupMember,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    SyncGroupRequest,
)
from protocol.messages.stored_records import GroupMetadataKey
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from replication.metadata.image import MetadataImage
from replication.timer_queue import Deadline

_log = logging.getLogger("barnabas.groups")

OFFSETS_TOPIC: Final = "__consumer_offsets"
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"

_NONE: Final = ErrorCode.NONE


class GroupCoordinator:
    """The state machine of one shard."""

    def __init__(
        self,
        host: Host,
        settings: GroupSettings,
        of_groups: SettingsOfGroups,
        new_uuid: Callable[[], str],
        image: Callable[[], MetadataImage],
    ) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets = CommittedOffsets(settings.offset_metadata_max_size)
        self._host = host
        self._settings = settings
        self._image = image
        self._rebalancer = Rebalancer(self.groups, host, settings, new_uuid)
        consumer = settings.consumer
        regexes = TopicRegexes(self.consumer_groups, host, consumer.regex_refresh_interval_ms, image, next_epoch)
        progress = MemberProgress(host, consumer.assignors, of_groups, image, regexes)
        migration = Migration(self.groups, self.consumer_groups, self._rebalancer, host, settings, image)
        self._consumers = ConsumerGroups(
            self.consumer_groups, self.groups, host, consumer, of_groups, image, new_uuid, progress, migration
        )
        self._classic_members = ClassicMembers(
            host, consumer.migration_policy, image, new_uuid, self._consumers, progress, migration
        )
        self._expiry: Deadline | None = None
        self._unknown_types: set[int] = set()

    # ---- members

    def join(self, caller: Caller, request: JoinGroupRequest, reply: JoinReply) -> Decision:
        """JoinGroup; the answer goes to `reply`."""
        session_timeout_ms, settings = request.session_timeout_ms, self._settings
        if not settings.min_session_timeout_ms <= session_timeout_ms <= settings.max_session_timeout_ms:
            reply(refused_join(request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
            return NOTHING
        if caller.api_version == 0:  # no rebalance timeout yet
            request.rebalance_timeout_ms = session_timeout_ms
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is None:
            return self._rebalancer.join(caller, request, reply)
        if consumers.members:
            return self._classic_members.join(consumers, caller, request, reply)
        decision = self._rebalancer.join(caller, request, reply)
        if not decision.records:
            return decision
        tombstones = consumer_group_records.group_tombstones(consumers)
        return CoordinatorDecision([*tombstones, *decision.records], None, settle=decision.settle)

    def sync(self, request: SyncGroupRequest, reply: SyncReply) -> Decision:
        """SyncGroup; the answer goes to `reply`."""
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is not None:
            return self._classic_members.sync(consumers, request, reply)
        return self._rebalancer.sync(request, reply)

    def heartbeat(self, request: HeartbeatRequest, mono_ms: int) -> ErrorCode:
        """Heartbeat: the code is the whole answer."""
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is not None:
            return self._classic_members.heartbeat(consumers, request)
        return self._rebalancer.heartbeat(request, mono_ms)

    def leave(self, request: LeaveGroupRequest) -> CoordinatorDecision[LeaveGroupResponse]:
        """LeaveGroup, in the form of version 3 and later."""
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is not None:
            return self._classic_members.leave(consumers, request)
        return self._rebalancer.leave(request)

    def consumer_heartbeat(
        self, caller: HeartbeatCaller, request: ConsumerGroupHeartbeatRequest
    ) -> CoordinatorDecision[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat; its group id is not empty."""
        return self._consumers.heartbeat(caller, request)

    # ---- offsets

    def commit(
        self, request: OffsetCommitRequest, api_version: int, mono_ms: int, wall_ms: int
    ) -> CoordinatorDecision[OffsetCommitResponse]:
        """OffsetCommit, of topics and partitions that exist."""
        group = self.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is not None:
            partitions = [(topic.topic_id, one.partition_index) for topic in request.topics for one in topic.partitions]
            instance_id = request.group_instance_id
            error = check_commit(consumers, request.member_id, instance_id, generation, partitions, api_version)
            if error is not _NONE:
                return CoordinatorDecision((), refused_commit(request, error))
        elif group is None:
            if generation >= 0:
                error = ErrorCode.GROUP_ID_NOT_FOUND if api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
                return CoordinatorDecision((), refused_commit(request, error))
        else:
            member_id = request.member_id
            error = group.check_commit(member_id, request.group_instance_id, generation)
            if error is not _NONE:
                return CoordinatorDecision((), refused_commit(request, error))
            if group.state is not State.EMPTY:
                self._rebalancer.sessions.beat(group, group.members[member_id], mono_ms)
        records, response = self.offsets.commit(request, wall_ms)
        return CoordinatorDecision(records, response, is_atomic=False)

    def commit_with_transaction(
        self, request: TxnOffsetCommitRequest, topic_ids: Mapping[str, bytes], wall_ms: int
    ) -> CoordinatorDecision[TxnOffsetCommitResponse]:
        """TxnOffsetCommit, of topics and partitions that exist: the offsets count when the transaction is committed."""
        group = self.groups.get(request.group_id)
        generation = request.generation_id
        error = _NONE
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is not None:
            partitions = [
                (topic_ids[topic.name], one.partition_index) for topic in request.topics for one in topic.partitions
            ]
            instance_id = request.group_instance_id
            error = check_commit(consumers, request.member_id, instance_id, generation, partitions, None)
        elif group is not None:
            error = group.check_commit(request.member_id, request.group_instance_id, generation, is_transactional=True)
        elif generation >= 0:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is not _NONE:
            return CoordinatorDecision((), refused_transactional_commit(request, error))
        records, response = self.offsets.commit_with_transaction(request, topic_ids, wall_ms)
        producer = (request.producer_id, request.producer_epoch)
        return CoordinatorDecision(records, response, producer=producer)

    def fetch(self, request: OffsetFetchRequestGroup, *, is_stable: bool) -> OffsetFetchResponseGroup:
        """The part of one group in OffsetFetch."""
        consumers = self.consumer_groups.get(request.group_id)
        error = _NONE if consumers is None else check_fetch(consumers, request.member_id, request.member_epoch)
        if error is not _NONE:
            return OffsetFetchResponseGroup(group_id=request.group_id, topics=[], error_code=error)
        return self.offsets.fetch(request, is_stable=is_stable)

    # ---- administration

    def describe(self, group_id: str, api_version: int) -> DescribedGroup:
        """One group in full."""
        group = self.groups.get(group_id)
        if group is None:
            is_error = api_version >= 6
            why = "is not a classic group" if group_id in self.consumer_groups else "not found"
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else _NONE,
                error_message=f"Group {group_id} {why}." if is_error else None,
                group_id=group_id,
                group_state=State.DEAD.value,
            )
        is_stable = group.state is State.STABLE
        name = group.protocol_name
        return DescribedGroup(
            error_code=_NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(name or "") if is_stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(name) if is_stable else b"",
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """The groups in some of these states and of these types, in lower case; empty: all."""
        found = []
        if not types or CLASSIC in types:
            found += [
                (group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
                for group in self.groups.values()
            ]
        if not types or CONSUMER in types:
            found += [
                (group.group_id, CONSUMER, group.state.value, CONSUMER) for group in self.consumer_groups.values()
            ]
        return [
            ListedGroup(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=kind)
            for group_id, protocol_type, state, kind in found
            if not states or state.lower() in states
        ]

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescribeResponseGroup:
        """One consumer group in full."""
        group = self.consumer_groups.get(group_id)
        if group is not None:
            return describe(group, self._settings.consumer.assignors, self._image())
        why = "is not a consumer group" if group_id in self.groups else "not found"
        return not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")

    def delete(self, group_ids: list[str]) -> CoordinatorDecision[list[DeletableGroupResult]]:
        """Delete groups that have no members."""
        records: list[StoredRecord] = []
        results = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            consumers = self.consumer_groups.get(group_id)
            error = _NONE
            if consumers is not None and consumers.state is GroupState.EMPTY:
                records += self.offsets.tombstones(group_id)
                records += consumer_group_records.group_tombstones(consumers)
            elif consumers is None and group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif group is None or group.state is not State.EMPTY:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                records += self.offsets.tombstones(group_id)
                records.append(group_tombstone(group_id))
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        return CoordinatorDecision(records, results, is_atomic=False)

    def delete_offsets(self, request: OffsetDeleteRequest) -> CoordinatorDecision[OffsetDeleteResponse]:
        """Forget offsets of topics and partitions that exist, and that nobody in the group reads."""
        group = self.groups.get(request.group_id)
        consumers = self.consumer_groups.get(request.group_id)
        error = _NONE
        if consumers is None and group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif group is not None and group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
            error = ErrorCode.NON_EMPTY_GROUP
        if error is not _NONE:
            return CoordinatorDecision((), OffsetDeleteResponse(error_code=error))
        is_read = consumers.is_subscribed_to if group is None else group.is_subscribed_to  # type: ignore[union-attr]
        records, response = self.offsets.delete(request, is_read)
        return CoordinatorDecision(records, response, is_atomic=False)

    def topics_deleted(self, deleted: Mapping[str, bytes]) -> Decision | None:
        """Forget the offsets of topics that are no more, given as name -> id."""
        records = self.offsets.tombstones_of_topics(deleted)
        return CoordinatorDecision(records, None, is_atomic=False) if records else None

    # ---- expiry

    def _expect_expiry(self) -> None:
        """Look for expired offsets from time to time while there are groups."""
        if self._expiry is None and (self.groups or self.consumer_groups):
            interval_ms = self._settings.offsets_retention_check_interval_ms
            groups = self.groups, self.consumer_groups
            self._expiry = self._host.after(interval_ms, lambda: self._expire([key for kind in groups for key in kind]))

    def _expire(self, left: list[str]) -> Decision:
        """Let go what has expired, some groups at a time."""
        self._expiry = None
        records: list[StoredRecord] = []
        looked_at = 0
        wall_ms = self._host.wall_ms()
        while left and looked_at < STEP:
            group_id = left.pop()
            records += self._expired_in(group_id, wall_ms)
            looked_at += 1 + sum(map(len, self.offsets.by_group.get(group_id, {}).values()))
        if left:
            self._expiry = self._host.after(1, lambda: self._expire(left))
        else:
            self._expect_expiry()
        return CoordinatorDecision(records, None, is_atomic=False)

    def _expired_in(self, group_id: str, wall_ms: int) -> list[StoredRecord]:
        """What has expired in one group, and the group itself when it is empty then."""
        retention_ms = self._settings.offsets_retention_ms
        group = self.groups.get(group_id)
        if group is not None and group.may_forget_offsets:
            is_left = group.protocol_type is not None and group.state is State.EMPTY
            since_wall_ms = group.state_since_wall_ms if is_left else -1
            records, is_bare = self.offsets.expire(
                group_id, group.is_subscribed_to, since_wall_ms, wall_ms, retention_ms
            )
            if is_bare and group.state is State.EMPTY and not group.pending_joins:
                records.append(group_tombstone(group_id))
            return records
        consumers = self.consumer_groups.get(group_id)
        if consumers is None:
            return []
        records, is_bare = self.offsets.expire(group_id, consumers.is_subscribed_to, -1, wall_ms, retention_ms)
        if is_bare and not consumers.members:
            records += consumer_group_records.group_tombstones(consumers)
        return records

    # ---- records

    def apply(self, record: StoredRecord, producer_id: int) -> None:
        """Change what is durable."""
        key = record.key
        if type(key) is CommitKey:
            self.offsets.apply(key, record.value, producer_id)
            if record.value is not None and key.group not in self.groups and key.group not in self.consumer_groups:
                self.groups[key.group] = ClassicGroup(key.group, self._host.wall_ms())
                self._expect_expiry()
        elif type(key) is GroupMetadataKey:
            if record.value is None:
                group = self.groups.get(key.group)
                if group is not None:
                    self._rebalancer.forget(group)
            else:
                self._expect_expiry()
        elif type(key) in consumer_group_records.KEYS:
            consumer_group_records.apply(self.consumer_groups, record)
            self._expect_expiry()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Offsets that were committed with a transaction count now, or never."""
        self.offsets.end_transaction(producer_id, is_commit=is_commit)

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """A record read back."""
        kind = key[0] << 8 | key[1] if len(key) >= 2 else -1
        if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            self.offsets.load(key, value, producer_id)
        elif kind == GROUP_METADATA:
            group_id = read_group_key(key)
            if value is None:
                self.groups.pop(group_id, None)
            else:
                self.groups[group_id] = read_group(group_id, value)
        elif kind in consumer_group_records.TYPES:
            consumer_group_records.apply(self.consumer_groups, consumer_group_records.read(kind, key, value))
        elif kind not in self._unknown_types:
            self._unknown_types.add(kind)
            _log.warning("records of type %d in %s are passed over", kind, OFFSETS_TOPIC)

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """A transaction's end read back."""
        self.offsets.load_marker(producer_id, is_commit)

    def finish_loading(self) -> Iterator[None]:
        """Everything is read: decode what counts, let the members' sessions begin."""
        yield from self.offsets.finish_loading()
        wall_ms = self._host.wall_ms()
        pending = {group_id for commits in self.offsets.open_transactions.values() for group_id, _, _ in commits}
        for group_id in (*self.offsets.by_group, *pending):
            if group_id not in self.groups and group_id not in self.consumer_groups:
                self.groups[group_id] = ClassicGroup(group_id, wall_ms)
        for consumers in self.consumer_groups.values():
            self._consumers.start_deadlines(consumers)
        for count, group in enumerate(self.groups.values(), 1):
            for member in group.members.values():
                self._rebalancer.sessions.start(group, member, member.session_timeout_ms)
            self._rebalancer.prepare_if_too_large(group)
            if count % STEP == 0:
                yield
        self._expect_expiry()

    def unload(self) -> None:
        """Somebody else coordinates these groups now."""
        if self._expiry is not None:
            self._expiry.cancel()
        for group in list(self.groups.values()):
            self._rebalancer.bury(group)
        self.groups.clear()
        self._consumers.close()
        self.consumer_groups.clear()


def refused_commit(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refused_transactional_commit(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )

"""The group coordinator of one partition of `__consumer_offsets` (Kafka: GroupCoordinatorShard).

RULES    1. A group exists after a join or an offset commit. A group without members and generation is a simple group:
            it has offsets only.
         2. Committed offsets and consumer groups change by applying records. Members of classic groups are volatile and
            change at once; their group record is a snapshot for the next coordinator and changes nothing when it is applied.
         3. A tombstone removes a group.
         4. A loaded classic group with members is stable; each member's session starts after loading.
         5. A share or streams group is not served, and does not become a consumer group: Apache Kafka could not load the
            partition any more.
NOT HERE The classic protocol (`classic_protocol.py`), offsets (`offset_manager.py`), appending and loading
         (`coordinator_runtime.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from broker.coordinators.classic.classic_group import (
    CONSUMER_PROTOCOL,
    ClassicGroup,
    State,
    join_error,
)
from broker.coordinators.classic.classic_protocol import (
    ClassicProtocol,
    ClientInfo,
    Decision,
    JoinDecision,
    SyncDecision,
)
from broker.coordinators.classic.group_records import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    CommitKey,
    group_tombstone,
    read_group,
    read_group_key,
)
from broker.coordinators.classic.plain_commits import MAX_COMMITS, PlainCommits
from broker.coordinators.consumer import consumer_group_records
from broker.coordinators.consumer.assignors import TopicPartition
from broker.coordinators.consumer.classic_protocol_adapter import ClassicProtocolAdapter
from broker.coordinators.consumer.consumer_group import ConsumerGroup, GroupState
from broker.coordinators.consumer.consumer_group_heartbeat import ConsumerProtocol
from broker.coordinators.consumer.consumer_requests import check_fetch, validate_offset_commit
from broker.coordinators.consumer.dependencies import GroupDependencies
from broker.coordinators.consumer.describe import describe, describe_error
from broker.coordinators.consumer.group_upgrade import GroupUpgrade
from broker.coordinators.consumer.target_assignment_updater import TargetAssignmentUpdater
from broker.coordinators.consumer.topic_regexes import MayDescribe, TopicRegexes
from broker.coordinators.group_config import GroupConfigManager, GroupSettings
from broker.coordinators.group_counts import GroupCounts
from broker.coordinators.offset_manager import (
    ITEMS_PER_STEP,
    OffsetMetadataManager,
    commit_response,
    txn_commit_response,
)
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Replies, ShardContext
from broker.coordinators.runtime.stored_records import EncodedRecords, StoredRecord
from broker.coordinators.schedule_groups import has_schedule_positions, has_schedule_topic, is_deliverer
from protocol.errors import ErrorCode
from protocol.frame_codecs.offset_commit_codec import OffsetCommitRows
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
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    SyncGroupRequest,
)
from protocol.messages.stored_records import ConsumerGroupMetadataKey, GroupMetadataKey
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from replication.metadata.image import MetadataImage
from replication.timer_queue import Timer

_log = logging.getLogger("barnabas.groups")

OFFSETS_TOPIC: Final = "__consumer_offsets"
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"

_NONE: Final = ErrorCode.NONE


class GroupCoordinator:
    """The group coordinator of one shard."""

    def __init__(
        self,
        context: ShardContext,
        settings: GroupSettings,
        group_config_manager: GroupConfigManager,
        new_uuid: Callable[[], str],
        image: Callable[[], MetadataImage],
        counts: GroupCounts,
    ) -> None:
        self.classic_groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets = OffsetMetadataManager(settings.offset_metadata_max_size)
        self._context = context
        self._settings = settings
        self._image = image
        self._counts = counts
        self._other_groups: set[str] = set()
        groups = self.classic_groups, self.consumer_groups, self._other_groups
        deps = GroupDependencies(*groups, context, settings, group_config_manager, image, new_uuid)
        self._classic_protocol = ClassicProtocol(self.classic_groups, context, settings, new_uuid, counts)
        target_updater = TargetAssignmentUpdater(deps, TopicRegexes(deps))
        group_upgrade = GroupUpgrade(deps, self._classic_protocol)
        self._consumer_protocol = ConsumerProtocol(deps, target_updater, group_upgrade)
        self._classic_adapter = ClassicProtocolAdapter(deps, self._consumer_protocol, target_updater, group_upgrade)
        self._expiry: Timer | None = None
        self._unknown_types: set[int] = set()

    # ---- members

    def join(self, client: ClientInfo, request: JoinGroupRequest) -> JoinDecision:
        """Handle JoinGroup."""
        session_timeout_ms, settings = request.session_timeout_ms, self._settings
        if not settings.min_session_timeout_ms <= session_timeout_ms <= settings.max_session_timeout_ms:
            return CoordinatorDecision((), join_error(request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
        if client.api_version == 0:  # version 0 has no rebalance timeout
            request.rebalance_timeout_ms = session_timeout_ms
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is None:
            return self._classic_protocol.join(client, request)
        if consumer_group.members:
            return self._classic_adapter.join(consumer_group, client, request)
        decision = self._classic_protocol.join(client, request)
        if not decision.records:
            return decision
        return decision.extended(decision.reply, consumer_group_records.group_tombstones(consumer_group))

    def sync(self, request: SyncGroupRequest) -> SyncDecision:
        """Handle SyncGroup."""
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            return self._classic_adapter.sync(consumer_group, request)
        return self._classic_protocol.sync(request)

    def heartbeat(self, request: HeartbeatRequest, mono_ms: int) -> HeartbeatResponse:
        """Handle Heartbeat."""
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            error = self._classic_adapter.heartbeat(consumer_group, request)
        else:
            error = self._classic_protocol.heartbeat(request, mono_ms)
        return HeartbeatResponse(error_code=error)

    def leave(self, request: LeaveGroupRequest) -> CoordinatorDecision[LeaveGroupResponse]:
        """Handle LeaveGroup in the form of version 3 and later."""
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            return self._classic_adapter.leave(consumer_group, request)
        return self._classic_protocol.leave(request)

    def consumer_heartbeat(
        self, client: ClientInfo, request: ConsumerGroupHeartbeatRequest, may_describe: MayDescribe
    ) -> CoordinatorDecision[ConsumerGroupHeartbeatResponse]:
        """Handle ConsumerGroupHeartbeat with valid ids."""
        return self._consumer_protocol.heartbeat(client, request, may_describe)

    # ---- offsets

    def commit(
        self, request: OffsetCommitRequest, api_version: int, mono_ms: int, wall_ms: int
    ) -> CoordinatorDecision[OffsetCommitResponse]:
        """Handle OffsetCommit for existing partitions."""
        partitions = ((topic.topic_id, one.partition_index) for topic in request.topics for one in topic.partitions)
        error = self._accept_commit(request, partitions, api_version, mono_ms)
        if error is not _NONE:
            return CoordinatorDecision((), commit_response(request, error))
        records, response = self.offsets.commit(request, wall_ms)
        return CoordinatorDecision(records, response, is_atomic=False)

    def commit_plain(
        self, request: OffsetCommitRows, commits: PlainCommits, api_version: int, mono_ms: int
    ) -> EncodedRecords | None:
        """The records of an OffsetCommit for existing partitions without metadata; None if it is refused, or too large."""
        partitions = ((topic.topic_id, index) for topic in commits.topics for index, _ in topic.values)
        size = commits.size
        if size > MAX_COMMITS or self._accept_commit(request, partitions, api_version, mono_ms):
            return None
        return EncodedRecords(commits.encode(), size, partial(self._apply_plain, commits))

    def _accept_commit(
        self,
        request: OffsetCommitRequest | OffsetCommitRows,
        partitions: Iterable[TopicPartition],
        api_version: int,
        mono_ms: int,
    ) -> ErrorCode:
        """Validate an offset commit; an accepted one of a classic member is also its heartbeat."""
        if self._is_of_deliverers(request.group_id):
            partitions = list(partitions)
            if has_schedule_topic(request.group_id, self._image(), partitions):
                return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._validate_commit(request, request.generation_id_or_member_epoch, partitions, api_version)
        group = None if request.group_id in self.consumer_groups else self.classic_groups.get(request.group_id)
        if error is _NONE and group is not None and group.state is not State.EMPTY:
            self._classic_protocol.on_heartbeat(group, group.members[request.member_id], mono_ms)
        return error

    def commit_transactional(
        self, request: TxnOffsetCommitRequest, topic_ids: Mapping[str, bytes], wall_ms: int
    ) -> CoordinatorDecision[TxnOffsetCommitResponse]:
        """Handle TxnOffsetCommit for existing partitions; the offsets become valid when the transaction commits."""
        partitions = [
            (topic_ids[topic.name], one.partition_index) for topic in request.topics for one in topic.partitions
        ]
        error = self._validate_commit(request, request.generation_id, partitions, None)
        is_foreign = self._is_of_deliverers(request.group_id) and not is_deliverer(request)
        if is_foreign and has_schedule_topic(request.group_id, self._image(), partitions):
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not _NONE:
            return CoordinatorDecision((), txn_commit_response(request, error))
        records, response = self.offsets.commit_transactional(request, topic_ids, wall_ms)
        producer = (request.producer_id, request.producer_epoch)
        return CoordinatorDecision(records, response, producer=producer)

    def _validate_commit(
        self,
        request: OffsetCommitRequest | OffsetCommitRows | TxnOffsetCommitRequest,
        generation: int,
        partitions: Iterable[TopicPartition],
        api_version: int | None,
    ) -> ErrorCode:
        """The error of an offset commit; `api_version` is None in a transaction."""
        member_id, instance_id = request.member_id, request.group_instance_id
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            return validate_offset_commit(consumer_group, member_id, instance_id, generation, partitions, api_version)
        group = self.classic_groups.get(request.group_id)
        if group is not None:
            is_transactional = api_version is None
            return group.validate_offset_commit(member_id, instance_id, generation, is_transactional=is_transactional)
        if generation < 0:
            return _NONE
        has_not_found = api_version is not None and api_version >= 9
        return ErrorCode.GROUP_ID_NOT_FOUND if has_not_found else ErrorCode.ILLEGAL_GENERATION

    def fetch(self, request: OffsetFetchRequestGroup, *, is_stable: bool) -> OffsetFetchResponseGroup:
        """Handle OffsetFetch for one group."""
        consumer_group = self.consumer_groups.get(request.group_id)
        error = (
            _NONE if consumer_group is None else check_fetch(consumer_group, request.member_id, request.member_epoch)
        )
        if error is not _NONE:
            return OffsetFetchResponseGroup(group_id=request.group_id, topics=[], error_code=error)
        return self.offsets.fetch(request, is_stable=is_stable)

    # ---- administration

    def describe(self, group_id: str, api_version: int) -> DescribedGroup:
        """Describe one classic group."""
        group = self.classic_groups.get(group_id)
        if group is None:
            is_error = api_version >= 6
            reason = "is not a classic group" if group_id in self.consumer_groups else "not found"
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else _NONE,
                error_message=f"Group {group_id} {reason}." if is_error else None,
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
        """The groups in these states and of these types, in lower case; empty filters match all."""
        classic = [
            (one.group_id, one.protocol_type or "", one.state.value, CLASSIC) for one in self.classic_groups.values()
        ]
        consumer = [(one.group_id, CONSUMER, one.state.value, CONSUMER) for one in self.consumer_groups.values()]
        return [
            ListedGroup(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=group_type)
            for group_id, protocol_type, state, group_type in classic + consumer
            if (not types or group_type in types) and (not states or state.lower() in states)
        ]

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescribeResponseGroup:
        """Describe one consumer group."""
        group = self.consumer_groups.get(group_id)
        if group is not None:
            return describe(group, self._settings.consumer.assignors, self._image())
        reason = "is not a consumer group" if group_id in self.classic_groups else "not found"
        return describe_error(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")

    def delete(self, group_ids: list[str]) -> CoordinatorDecision[list[DeletableGroupResult]]:
        """Delete groups without members."""
        records: list[StoredRecord] = []
        results = []
        for group_id in group_ids:
            group = self.classic_groups.get(group_id)
            consumer_group = self.consumer_groups.get(group_id)
            error = _NONE
            if self._is_of_deliverers(group_id):
                error = ErrorCode.NON_EMPTY_GROUP
            elif consumer_group is not None and consumer_group.state is GroupState.EMPTY:
                records += self.offsets.tombstones(group_id)
                records += consumer_group_records.group_tombstones(consumer_group)
            elif consumer_group is None and group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif group is None or group.state is not State.EMPTY:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                records += self.offsets.tombstones(group_id)
                records.append(group_tombstone(group_id))
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        return CoordinatorDecision(records, results, is_atomic=False)

    def delete_offsets(self, request: OffsetDeleteRequest) -> CoordinatorDecision[OffsetDeleteResponse]:
        """Delete offsets of existing partitions whose topics the group does not subscribe to."""
        group = self.classic_groups.get(request.group_id)
        consumer_group = self.consumer_groups.get(request.group_id)
        error = _NONE
        if consumer_group is None and group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif self._is_of_deliverers(request.group_id) or (
            group is not None and group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL
        ):
            error = ErrorCode.NON_EMPTY_GROUP
        if error is not _NONE:
            return CoordinatorDecision((), OffsetDeleteResponse(error_code=error))
        is_subscribed = consumer_group.is_subscribed_to if group is None else group.is_subscribed_to  # type: ignore[union-attr]
        records, response = self.offsets.delete(request, is_subscribed)
        self._counts.offset_deletions += len(records)
        return CoordinatorDecision(records, response, is_atomic=False)

    def _is_of_deliverers(self, group_id: str) -> bool:
        return has_schedule_positions(group_id, self._image())

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> Decision | None:
        """Delete the offsets of deleted topics, given as name -> id."""
        records = self.offsets.tombstones_of_topics(deleted)
        return CoordinatorDecision(records, None, is_atomic=False) if records else None

    # ---- expiry

    def _schedule_expiry(self) -> None:
        """Schedule the check for expired offsets while there are groups."""
        if self._expiry is None and (self.classic_groups or self.consumer_groups):
            interval_ms = self._settings.offsets_retention_check_interval_ms
            groups = self.classic_groups, self.consumer_groups
            self._expiry = self._context.schedule(
                interval_ms, lambda: self._expire_offsets([key for record_type in groups for key in record_type])
            )

    def _expire_offsets(self, remaining: list[str], cut: tuple[str, int] | None = None) -> Decision:
        """Delete expired offsets, in steps of some groups, or of some offsets of one.

        `cut`: the group of which the last step deleted only some, and how many it had before.
        """
        self._expiry = None
        if cut is not None and self.offsets.count_of(cut[0]) < cut[1]:  # else that failed; the next check repeats it
            remaining.append(cut[0])
        cut = None
        records: list[StoredRecord] = []
        checked = 0
        wall_ms = self._context.wall_ms()
        while remaining and checked < ITEMS_PER_STEP:
            group_id = remaining.pop()
            count, expired = self.offsets.count_of(group_id), self._expiry_records(group_id, wall_ms)
            records += expired
            checked += 1 + count
            if len(expired) >= ITEMS_PER_STEP:
                cut = group_id, count
        if remaining or cut is not None:
            self._expiry = self._context.schedule(1, lambda: self._expire_offsets(remaining, cut))
        else:
            self._schedule_expiry()
        self._counts.offset_expirations += sum(type(record.key) is CommitKey for record in records)
        return CoordinatorDecision(records, None, is_atomic=False)

    def _expiry_records(self, group_id: str, wall_ms: int) -> list[StoredRecord]:
        """The tombstones of a group's expired offsets, and of the group if it is empty then."""
        retention_ms = self._settings.offsets_retention_ms
        if self._is_of_deliverers(group_id):
            return []
        group = self.classic_groups.get(group_id)
        if group is not None and group.can_expire_offsets:
            is_empty = group.protocol_type is not None and group.state is State.EMPTY
            since_wall_ms = group.current_state_wall_ms if is_empty else -1
            records, all_expired = self.offsets.expire_offsets(
                group_id, group.is_subscribed_to, since_wall_ms, wall_ms, retention_ms, ITEMS_PER_STEP
            )
            if all_expired and group.state is State.EMPTY and not group.pending_joins:
                records.append(group_tombstone(group_id))
            return records
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is None:
            return []
        records, all_expired = self.offsets.expire_offsets(
            group_id, consumer_group.is_subscribed_to, -1, wall_ms, retention_ms, ITEMS_PER_STEP
        )
        if all_expired and not consumer_group.members:
            records += consumer_group_records.group_tombstones(consumer_group)
        return records

    # ---- records

    def apply(self, record: StoredRecord, producer_id: int) -> None:
        """Replay a record."""
        key = record.key
        if type(key) is CommitKey:
            self.offsets.apply(key, record.value, producer_id)
            if record.value is not None:
                self._counts.offset_commits += 1
                self._on_offsets_stored(key.group)
        elif type(key) is GroupMetadataKey:
            if record.value is None:
                group = self.classic_groups.get(key.group)
                if group is not None:
                    replies = self._classic_protocol.remove_group(group)
                    assert not replies, "the group has no members, or its requests were failed by an upgrade"
            else:
                self._schedule_expiry()
        elif type(key) in consumer_group_records.KEYS:
            consumer_group_records.apply(self.consumer_groups, record)
            if type(key) is ConsumerGroupMetadataKey and record.value is not None:
                self._counts.consumer_rebalances += 1
            self._schedule_expiry()

    def _apply_plain(self, commits: PlainCommits) -> None:
        self.offsets.apply_plain(commits)
        self._counts.offset_commits += commits.size
        self._on_offsets_stored(commits.group_id)

    def _on_offsets_stored(self, group_id: str) -> None:
        """A group with offsets exists (rule 1)."""
        if group_id not in self.classic_groups and group_id not in self.consumer_groups:
            self.classic_groups[group_id] = ClassicGroup(group_id, self._context.wall_ms())
            self._schedule_expiry()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply a marker: offsets of the transaction become valid or are dropped."""
        self.offsets.end_transaction(producer_id, is_commit=is_commit)

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Load a record."""
        record_type = key[0] << 8 | key[1] if len(key) >= 2 else -1
        if record_type in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            self.offsets.load(key, value, producer_id)
        elif record_type == GROUP_METADATA:
            group_id = read_group_key(key)
            if value is None:
                self.classic_groups.pop(group_id, None)
            else:
                self.classic_groups[group_id] = read_group(group_id, value)
        elif record_type in consumer_group_records.TYPES:
            consumer_group_records.apply(self.consumer_groups, consumer_group_records.read(record_type, key, value))
        elif record_type in consumer_group_records.TYPES_OF_OTHER_GROUPS:
            group_id = consumer_group_records.read_group_id(key)
            (self._other_groups.discard if value is None else self._other_groups.add)(group_id)
        elif record_type not in self._unknown_types:
            self._unknown_types.add(record_type)
            _log.warning("skipping records of unknown type %d in %s", record_type, OFFSETS_TOPIC)

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """Load a transaction marker."""
        self.offsets.load_marker(producer_id, is_commit)

    def finish_loading(self) -> Iterator[None]:
        """Decode the loaded offsets and start the members' sessions."""
        yield from self.offsets.finish_loading()
        for group_id in self.classic_groups.keys() & self.consumer_groups.keys():
            # A classic group whose first record was committed too late: it was removed without a tombstone.
            del self.classic_groups[group_id]
        wall_ms = self._context.wall_ms()
        pending = {key.group for key in self.offsets.open_transactions.keys}
        for group_id in (*self.offsets.by_group, *pending):
            if group_id not in self.classic_groups and group_id not in self.consumer_groups:
                self.classic_groups[group_id] = ClassicGroup(group_id, wall_ms)
        for consumer_group in self.consumer_groups.values():
            self._consumer_protocol.start_timeouts(consumer_group)
        for count, group in enumerate(self.classic_groups.values(), 1):
            for member in group.members.values():
                self._classic_protocol.restart_session(group, member, member.session_timeout_ms)
            self._classic_protocol.rebalance_if_too_large(group)
            if count % ITEMS_PER_STEP == 0:
                yield
        self._schedule_expiry()

    def unload(self) -> Replies:
        """Another broker is the coordinator now."""
        if self._expiry is not None:
            self._expiry.cancel()
        groups = list(self.classic_groups.values())
        replies = [reply for group in groups for reply in self._classic_protocol.remove_group(group)]
        self._consumer_protocol.close()
        self.consumer_groups.clear()
        return replies

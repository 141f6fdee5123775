"""The group coordinator of one partition of `__consumer_offsets`: its groups, their offsets, their end.

RULES    1. A group is there when somebody has joined it or committed for it; one that nobody has joined and that has
            no generation is a simple group: offsets and nothing else.
         2. Committed offsets change by applying records. Who is a member is volatile and changed when it is
            decided; the record of a group is a snapshot for the next coordinator, and applying it here changes nothing.
         3. A tombstone ends a group, whoever still waits in it.
         4. A stable group that is read back keeps its generation, members and assignments; each member has one
            session from then on to be heard of.
NOT HERE The classic protocol (`rebalance.py`), offsets (`offsets.py`), appending and loading (`runtime.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from broker.coordinators.classic_group import ClassicGroup, JoinReply, State, SyncReply
from broker.coordinators.group_records import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    group_tombstone,
    read_group,
    read_group_key,
)
from broker.coordinators.offsets import STEP, CommittedOffsets
from broker.coordinators.rebalance import Caller, Decision, GroupSettings, Rebalancer
from broker.coordinators.runtime import CoordinatorDecision, Host, StoredRecord
from protocol.errors import ErrorCode
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
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    SyncGroupRequest,
)
from protocol.messages.stored import GroupMetadataKey, OffsetCommitKey
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from replication.deadlines import Deadline

_log = logging.getLogger("barnabas.groups")

OFFSETS_TOPIC: Final = "__consumer_offsets"
CLASSIC: Final = "classic"

_NONE: Final = ErrorCode.NONE


class GroupCoordinator:
    """The state machine of one shard."""

    def __init__(self, host: Host, settings: GroupSettings, new_uuid: Callable[[], str]) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = CommittedOffsets(settings.offset_metadata_max_size)
        self._host = host
        self._settings = settings
        self._rebalancer = Rebalancer(self.groups, host, settings, new_uuid)
        self._expiry: Deadline | None = None
        self._unknown_types: set[int] = set()

    # ---- members

    def join(self, caller: Caller, request: JoinGroupRequest, reply: JoinReply) -> Decision:
        """JoinGroup; the answer goes to `reply`."""
        return self._rebalancer.join(caller, request, reply)

    def sync(self, request: SyncGroupRequest, reply: SyncReply) -> Decision:
        """SyncGroup; the answer goes to `reply`."""
        return self._rebalancer.sync(request, reply)

    def heartbeat(self, request: HeartbeatRequest, mono_ms: int) -> ErrorCode:
        """Heartbeat: the code is the whole answer."""
        return self._rebalancer.heartbeat(request, mono_ms)

    def leave(self, request: LeaveGroupRequest) -> CoordinatorDecision[LeaveGroupResponse]:
        """LeaveGroup, in the form of version 3 and later."""
        return self._rebalancer.leave(request)

    # ---- offsets

    def commit(
        self, request: OffsetCommitRequest, api_version: int, mono_ms: int, wall_ms: int
    ) -> CoordinatorDecision[OffsetCommitResponse]:
        """OffsetCommit, of topics and partitions that exist."""
        group = self.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
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
        if group is not None:
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
        return self.offsets.fetch(request, is_stable=is_stable)

    # ---- administration

    def describe(self, group_id: str, api_version: int) -> DescribedGroup:
        """One group in full."""
        group = self.groups.get(group_id)
        if group is None:
            is_error = api_version >= 6
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else _NONE,
                error_message=f"Group {group_id} not found." if is_error else None,
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
        if types and CLASSIC not in types:
            return []
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC,
            )
            for group in self.groups.values()
            if not states or group.state.value.lower() in states
        ]

    def delete(self, group_ids: list[str]) -> CoordinatorDecision[list[DeletableGroupResult]]:
        """Delete groups that have no members."""
        records: list[StoredRecord] = []
        results = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            error = _NONE
            if group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not State.EMPTY:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                records += self.offsets.tombstones(group_id)
                records.append(group_tombstone(group_id))
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        return CoordinatorDecision(records, results, is_atomic=False)

    def topics_deleted(self, deleted: Mapping[str, bytes]) -> Decision | None:
        """Forget the offsets of topics that are no more, given as name -> id."""
        records = self.offsets.tombstones_of_topics(deleted)
        return CoordinatorDecision(records, None, is_atomic=False) if records else None

    # ---- expiry

    def _expect_expiry(self) -> None:
        """Look for expired offsets from time to time while there are groups."""
        if self._expiry is None and self.groups:
            interval_ms = self._settings.offsets_retention_check_interval_ms
            self._expiry = self._host.after(interval_ms, lambda: self._expire(list(self.groups)))

    def _expire(self, left: list[str]) -> Decision:
        """Let go what has expired, some groups at a time."""
        self._expiry = None
        records: list[StoredRecord] = []
        looked_at = 0
        wall_ms = self._host.wall_ms()
        while left and looked_at < STEP:
            group = self.groups.get(left.pop())
            if group is None:
                continue
            expired, is_bare = self.offsets.expire(group, wall_ms, self._settings.offsets_retention_ms)
            records += expired
            if is_bare and group.state is State.EMPTY and not group.pending_joins:
                records.append(group_tombstone(group.group_id))
            looked_at += 1 + sum(map(len, self.offsets.by_group.get(group.group_id, {}).values()))
        if left:
            self._expiry = self._host.after(1, lambda: self._expire(left))
        else:
            self._expect_expiry()
        return CoordinatorDecision(records, None, is_atomic=False)

    # ---- records

    def apply(self, record: StoredRecord, producer_id: int) -> None:
        """Change what is durable."""
        key = record.key
        if type(key) is OffsetCommitKey:
            self.offsets.apply(key, record.value, producer_id)  # type: ignore[arg-type]  # the value goes with the key
            if record.value is not None and key.group not in self.groups:
                self.groups[key.group] = ClassicGroup(key.group, self._host.wall_ms())
                self._expect_expiry()
        elif type(key) is GroupMetadataKey:
            if record.value is None:
                group = self.groups.get(key.group)
                if group is not None:
                    self._rebalancer.forget(group)
            else:
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
            if group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, wall_ms)
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

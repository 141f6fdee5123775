"""Committed offsets of the groups of one shard: commit, fetch, forget.

RULES    1. An offset is stored for every partition that is asked for, with what the client notes beside it; only a
            note that is too long refuses its partition.
         2. An offset belongs to a topic by id where the id is known: after a topic was deleted and made anew under
            its name, the old offset counts no more.
         3. Offsets expire when their group has been empty for the retention time; those of a group without members
            of its own (a simple group) when they were last committed so long ago; those of a stable consumer group
            only for topics that it does not read. A client's own expiry overrules all of that.
         4. What a transaction committed counts when its marker comes, unless somebody has committed for the same
            partition behind it meanwhile.
         5. A commit is kept as the bytes of its record where they are of the usual form: no decoding at the start, a third of
            the memory, and nothing for the garbage collector to walk through.
NOT HERE Who may commit (`classic_group.py`), which topics exist (`handlers/groups/classic_groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from broker.coordinators.classic.group_records import (
    NO_EXPIRY,
    CommitKey,
    Committed,
    commit_records,
    commit_tombstone,
    committed_of,
    is_usual_commit,
    read_commit_key,
    read_commit_value,
    usual_commit,
)
from broker.coordinators.runtime.coordinator_runtime import StoredRecord
from broker.coordinators.runtime.java_compat import utf16_units
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from protocol.primitives import ZERO_UUID

NO_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
DEFAULT_RETENTION: Final = -1
STEP: Final = 2000
"""So many offsets are decoded, or looked at, in one step."""

Partitions = dict[int, "Committed | bytes"]
Topics = dict[str, Partitions]

K = TypeVar("K")

_END_OF_TIME_MS: Final = 2**63 - 1
_NONE: Final = ErrorCode.NONE
_NOTHING: Final[Mapping[str, Partitions]] = {}


class CommittedOffsets:
    """All offsets of one shard."""

    def __init__(self, metadata_max_size: int) -> None:
        self.by_group: dict[str, Topics] = {}
        self.open_transactions: dict[int, dict[CommitKey, Committed | bytes | None]] = {}
        """Offsets by producer id that wait for the end of their transaction; None: a later commit overrules it."""
        self._metadata_max_size = metadata_max_size
        self._unread: dict[bytes, bytes | None] = {}
        self._unread_transactions: dict[int, dict[bytes, bytes | None]] = {}

    def __len__(self) -> int:
        return sum(len(partitions) for topics in self.by_group.values() for partitions in topics.values())

    # ---- commit

    def commit(self, request: OffsetCommitRequest, wall_ms: int) -> tuple[list[StoredRecord], OffsetCommitResponse]:
        """The records of a commit that the group allows, and the answer for when they are committed."""
        retention_ms = request.retention_time_ms
        expire_wall_ms = (
            NO_EXPIRY if retention_ms == DEFAULT_RETENTION else min(wall_ms + retention_ms, _END_OF_TIME_MS)
        )
        group_id = request.group_id
        records: list[StoredRecord] = []
        topics = []
        for topic in request.topics:
            name, topic_id = topic.name, topic.topic_id
            answers, commits = [], []
            for partition in topic.partitions:
                index = partition.partition_index
                error = _NONE
                if partition.committed_metadata and self._is_too_long(partition.committed_metadata):
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    commits.append((index, _committed(partition, wall_ms, expire_wall_ms, topic_id)))
                answers.append(OffsetCommitResponsePartition(partition_index=index, error_code=error))
            records += commit_records(group_id, name, commits)
            topics.append(OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=answers))
        return records, OffsetCommitResponse(topics=topics)

    def commit_with_transaction(
        self, request: TxnOffsetCommitRequest, topic_ids: Mapping[str, bytes], wall_ms: int
    ) -> tuple[list[StoredRecord], TxnOffsetCommitResponse]:
        """The records of a commit that is part of a transaction, and the answer for when they are committed."""
        records: list[StoredRecord] = []
        topics = []
        for topic in request.topics:
            answers, commits = [], []
            for partition in topic.partitions:
                index = partition.partition_index
                error = _NONE
                if partition.committed_metadata and self._is_too_long(partition.committed_metadata):
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    commits.append((index, _committed(partition, wall_ms, NO_EXPIRY, topic_ids[topic.name])))
                answers.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=error))
            records += commit_records(request.group_id, topic.name, commits)
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
        return records, TxnOffsetCommitResponse(topics=topics)

    def _is_too_long(self, metadata: str) -> bool:
        limit = self._metadata_max_size
        length = len(metadata)
        return length > limit or (length * 2 > limit and not metadata.isascii() and len(utf16_units(metadata)) > limit)

    def apply(self, key: CommitKey, committed: Committed | bytes | None, producer_id: int) -> None:
        """Store or forget one offset; that of a transaction is only noted."""
        if committed is None:
            self._forget(key)
        elif producer_id < 0:
            self._store(*key, committed)
            if self.open_transactions:
                _overrule(self.open_transactions, key)
        else:
            self.open_transactions.setdefault(producer_id, {})[key] = committed

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """What a producer's transaction committed counts now, or never."""
        pending = self.open_transactions.pop(producer_id, {})
        if is_commit:
            for key, committed in pending.items():
                if committed is not None:
                    self._store(*key, committed)

    def _store(self, group_id: str, topic: str, partition: int, committed: Committed | bytes) -> None:
        topics = self.by_group.get(group_id)
        if topics is None:
            topics = self.by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = committed

    def _forget(self, key: CommitKey) -> None:
        group_id, topic, partition = key
        topics = self.by_group.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        if topics is not None and partitions is not None and partitions.pop(partition, None) is not None:
            if not partitions:
                del topics[topic]
            if not topics:
                del self.by_group[group_id]
        _overrule(self.open_transactions, key, is_tombstone=True)

    # ---- fetch

    def fetch(self, request: OffsetFetchRequestGroup, *, is_stable: bool) -> OffsetFetchResponseGroup:
        """The offsets of some partitions, or of all that the group has."""
        group_id = request.group_id
        known: Mapping[str, Partitions] = self.by_group.get(group_id, _NOTHING)
        unstable = self._unstable(group_id) if is_stable and self.open_transactions else set()
        topics = []
        if request.topics is None:
            for name, partitions in known.items():
                answers = [
                    _unstable_offset(index) if (name, index) in unstable else _offset(index, committed_of(stored))
                    for index, stored in partitions.items()
                ]
                topics.append(OffsetFetchResponseTopics(name=name, partitions=answers))
        else:
            for topic in request.topics:
                name, topic_id = topic.name, topic.topic_id
                partitions = known.get(name, {})
                answers = []
                for index in topic.partition_indexes:
                    stored = partitions.get(index)
                    committed = None if stored is None else committed_of(stored)
                    if committed is not None and not _may_be(committed.topic_id, topic_id):
                        committed = None
                    is_open = (name, index) in unstable
                    answers.append(_unstable_offset(index) if is_open else _offset(index, committed))
                topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=answers))
        return OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    def _unstable(self, group_id: str) -> set[tuple[str, int]]:
        return {
            (topic, partition)
            for pending in self.open_transactions.values()
            for group, topic, partition in pending
            if group == group_id
        }

    # ---- forgetting

    def delete(
        self, request: OffsetDeleteRequest, is_read: Callable[[str], bool]
    ) -> tuple[list[StoredRecord], OffsetDeleteResponse]:
        """The records that delete some offsets, and the answer for when they are committed; what is read stays."""
        records: list[StoredRecord] = []
        topics = []
        for topic in request.topics:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read(topic.name) else _NONE
            indexes = [one.partition_index for one in topic.partitions]
            if error is _NONE:
                records += self._tombstones_of(request.group_id, topic.name, indexes)
            partitions = [OffsetDeleteResponsePartition(partition_index=index, error_code=error) for index in indexes]
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        return records, OffsetDeleteResponse(error_code=_NONE, topics=topics)

    def _tombstones_of(self, group_id: str, topic: str, indexes: Iterable[int]) -> list[StoredRecord]:
        """For those partitions that have an offset, or would get one from an open transaction."""
        committed = self.by_group.get(group_id, _NOTHING).get(topic, ())
        open_transactions = self.open_transactions.values()
        return [
            commit_tombstone(group_id, topic, index)
            for index in indexes
            if index in committed or any((group_id, topic, index) in pending for pending in open_transactions)
        ]

    def tombstones(self, group_id: str) -> list[StoredRecord]:
        """What deletes every offset of a group, those of open transactions too."""
        keys = {
            (topic, partition): None
            for topic, partitions in self.by_group.get(group_id, _NOTHING).items()
            for partition in partitions
        }
        for pending in self.open_transactions.values():
            keys.update(((topic, partition), None) for group, topic, partition in pending if group == group_id)
        return [commit_tombstone(group_id, topic, partition) for topic, partition in keys]

    def tombstones_of_topics(self, deleted: Mapping[str, bytes]) -> list[StoredRecord]:
        """What deletes the offsets of topics that are no more, given as name -> id."""
        records: dict[CommitKey, StoredRecord] = {}
        for group_id, topics in self.by_group.items():
            for topic in topics.keys() & deleted.keys():
                for partition, stored in topics[topic].items():
                    if _may_be(committed_of(stored).topic_id, deleted[topic]):
                        key = CommitKey(group_id, topic, partition)
                        records[key] = commit_tombstone(*key)
        for pending in self.open_transactions.values():
            for key, committed in pending.items():
                if key[1] in deleted and (
                    committed is None or _may_be(committed_of(committed).topic_id, deleted[key[1]])
                ):
                    records[key] = commit_tombstone(*key)
        return list(records.values())

    def expire(
        self, group_id: str, is_read: Callable[[str], bool], since_wall_ms: int, wall_ms: int, retention_ms: int
    ) -> tuple[list[StoredRecord], bool]:
        """What deletes the offsets that have expired, and whether the group has none left then.

        Those of topics that are read stay; time is counted since `since_wall_ms`, or since the commit where that is -1.
        """
        topics = self.by_group.get(group_id, _NOTHING)
        unstable = self._unstable(group_id) if self.open_transactions else set()
        records: list[StoredRecord] = []
        is_bare = not unstable
        for topic, partitions in topics.items():
            if is_read(topic):
                is_bare = False
                continue
            for partition, stored in partitions.items():
                committed = committed_of(stored)
                if (topic, partition) not in unstable and _has_expired(committed, since_wall_ms, wall_ms, retention_ms):
                    records.append(commit_tombstone(group_id, topic, partition))
                else:
                    is_bare = False
        return records, is_bare

    # ---- loading

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Note a commit or its tombstone; only what is left at the end is decoded."""
        if producer_id < 0:
            self._unread[key] = value
            _overrule(self._unread_transactions, key, is_tombstone=value is None)
        else:
            self._unread_transactions.setdefault(producer_id, {})[key] = value

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """A transaction ended."""
        pending = self._unread_transactions.pop(producer_id, None)
        if pending and is_commit:
            self._unread.update((key, value) for key, value in pending.items() if value is not None)

    def finish_loading(self) -> Iterator[None]:
        """Decode what is left, step by step."""
        unread, self._unread = self._unread, {}
        count = 0
        for key, value in unread.items():
            if value is not None:
                stored = value if is_usual_commit(value) else read_commit_value(value)
                self._store(*read_commit_key(key), stored)
                count += 1
                if count % STEP == 0:
                    yield
        for producer_id, pending in self._unread_transactions.items():
            self.open_transactions[producer_id] = {
                read_commit_key(key): None if value is None else read_commit_value(value)
                for key, value in pending.items()
            }
        self._unread_transactions = {}


def _overrule(transactions: dict[int, dict[K, Any]], key: K, *, is_tombstone: bool = False) -> None:
    """A commit or a tombstone came behind what open transactions have noted for a partition."""
    for pending in transactions.values():
        if is_tombstone:
            pending.pop(key, None)
        elif key in pending:
            pending[key] = None


def _committed(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    wall_ms: int,
    expire_wall_ms: int,
    topic_id: bytes,
) -> Committed | bytes:
    """What is kept of a commit: its bytes where they are of the usual form (rule 5)."""
    offset, leader_epoch = partition.committed_offset, partition.committed_leader_epoch
    metadata = partition.committed_metadata
    if not metadata and expire_wall_ms == NO_EXPIRY and topic_id != ZERO_UUID:
        return usual_commit(offset, leader_epoch, wall_ms, topic_id)
    return Committed(offset, leader_epoch, metadata or "", wall_ms, expire_wall_ms, topic_id)


def _may_be(one: bytes, other: bytes) -> bool:
    """Whether two topic ids name one topic, as far as they are known."""
    return one == other or ZERO_UUID in {one, other}


def _has_expired(committed: Committed, since_wall_ms: int, wall_ms: int, retention_ms: int) -> bool:
    if committed.expire_wall_ms != NO_EXPIRY:
        return wall_ms >= committed.expire_wall_ms
    if since_wall_ms < 0:
        since_wall_ms = committed.commit_wall_ms
    return wall_ms - since_wall_ms >= retention_ms


def _offset(index: int, committed: Committed | None) -> OffsetFetchResponsePartitions:
    if committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=_NONE
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=_NONE,
    )


def _unstable_offset(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )

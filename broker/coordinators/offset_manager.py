"""Committed offsets of one shard's groups (Kafka: OffsetMetadataManager).

RULES    1. Every requested offset is stored with its metadata; a partition whose metadata are too large fails.
         2. An offset belongs to a topic id, if known: after a topic is deleted and recreated under the same
            name, the old offset is not returned.
         3. Offsets expire offsets.retention.minutes after their group became empty; in a simple group after their commit;
            in a stable consumer group only for topics without a subscription. An expiry set by the client overrides this.
         4. Offsets of a transaction become valid at its commit marker, unless a later commit for the same partition is valid:
            one without a transaction, or of another transaction. The last record of a partition wins, as in compaction.
         5. A plain commit (`group_records.py`) is kept as its bytes: no decoding at start, a third of the memory, and no
            objects for the garbage collector.
NOT HERE Validation of commits (`classic_group.py`), existing topics (`handlers/groups/group_offsets.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from broker.coordinators.classic.group_records import (
    NO_EXPIRY,
    CommitKey,
    OffsetAndMetadata,
    commit_records,
    commit_tombstone,
    encode_plain_commit,
    is_plain_commit,
    read_commit_key,
    read_commit_value,
    to_offset_and_metadata,
)
from broker.coordinators.classic.plain_commits import PlainCommits
from broker.coordinators.pending_offsets import PendingOffset, PendingOffsets
from broker.coordinators.runtime.java_compat import utf16_units
from broker.coordinators.runtime.stored_records import StoredRecord
from protocol.errors import ErrorCode
from protocol.messages.common import PartitionError, Topic
from protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetsTopic,
)
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
)
from protocol.primitives import ZERO_UUID
from storage.config.config_def import MAX_INT

NO_OFFSET: Final = -1
DEFAULT_RETENTION: Final = -1
ITEMS_PER_STEP: Final = 2000
"""Offsets decoded or checked in one step."""

Partitions = dict[int, "OffsetAndMetadata | bytes"]
Topics = dict[str, Partitions]

_END_OF_TIME_MS: Final = 2**63 - 1
_NONE: Final = ErrorCode.NONE
_NO_TOPICS: Final[Mapping[str, Partitions]] = {}


class OffsetMetadataManager:
    """All offsets of one shard."""

    def __init__(self, metadata_max_size: int) -> None:
        self.by_group: dict[str, Topics] = {}
        self.open_transactions: PendingOffsets[CommitKey] = PendingOffsets()
        self._transactional_commits = 0
        self._metadata_max_size = metadata_max_size
        self._undecoded: dict[bytes, bytes | None] = {}
        self._undecoded_transactions: PendingOffsets[bytes] = PendingOffsets()

    # ---- commit

    def commit(self, request: OffsetCommitRequest, wall_ms: int) -> tuple[list[StoredRecord], OffsetCommitResponse]:
        """The records of a commit, and the response after they are committed."""
        retention_ms = request.retention_time_ms
        expire_wall_ms = (
            NO_EXPIRY if retention_ms == DEFAULT_RETENTION else min(wall_ms + retention_ms, _END_OF_TIME_MS)
        )
        records: list[StoredRecord] = []
        topics = []
        for topic in request.topics:
            results = self._commit_topic(records, request.group_id, topic, topic.topic_id, wall_ms, expire_wall_ms)
            topics.append(OffsetsTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
        return records, OffsetCommitResponse(topics=topics)

    def commit_transactional(
        self, request: TxnOffsetCommitRequest, topic_ids: Mapping[str, bytes], wall_ms: int
    ) -> tuple[list[StoredRecord], TxnOffsetCommitResponse]:
        """The records of a transactional commit, and the response after they are committed."""
        records: list[StoredRecord] = []
        topics = []
        for topic in request.topics:
            results = self._commit_topic(records, request.group_id, topic, topic_ids[topic.name], wall_ms, NO_EXPIRY)
            topics.append(Topic(name=topic.name, partitions=results))
        return records, TxnOffsetCommitResponse(topics=topics)

    def _commit_topic(
        self,
        records: list[StoredRecord],
        group_id: str,
        topic: OffsetsTopic[OffsetCommitRequestPartition] | Topic[TxnOffsetCommitRequestPartition],
        topic_id: bytes,
        wall_ms: int,
        expire_wall_ms: int,
    ) -> list[PartitionError]:
        """Add the records of one topic's commits; returns the results of its partitions (rule 1)."""
        results, commits = [], []
        for partition in topic.partitions:
            index = partition.partition_index
            error = _NONE
            if partition.committed_metadata and self._is_metadata_too_long(partition.committed_metadata):
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                commits.append((index, _to_stored(partition, wall_ms, expire_wall_ms, topic_id)))
            results.append(PartitionError(partition_index=index, error_code=error))
        records += commit_records(group_id, topic.name, commits)
        return results

    def _is_metadata_too_long(self, metadata: str) -> bool:
        limit = self._metadata_max_size
        length = len(metadata)
        return length > limit or (length * 2 > limit and not metadata.isascii() and len(utf16_units(metadata)) > limit)

    def apply(self, key: CommitKey, committed: OffsetAndMetadata | bytes | None, producer_id: int) -> None:
        """Store or remove an offset; that of a transaction is pending."""
        if committed is None:
            self._remove(key)
        elif producer_id < 0:
            self._store(*key, committed)
            self.open_transactions.supersede(key)
        else:
            self.open_transactions.add(producer_id, key, self._pending(committed))

    def _pending(self, committed: OffsetAndMetadata | bytes | None) -> PendingOffset:
        self._transactional_commits += 1
        return PendingOffset(self._transactional_commits, committed)

    def apply_plain(self, commits: PlainCommits) -> None:
        """Store the commits of a request."""
        group_id = commits.group_id
        for topic, _, values in commits.topics:
            self._partitions(group_id, topic).update(values)
            if self.open_transactions.by_producer:
                for index, _ in values:
                    self.open_transactions.supersede(CommitKey(group_id, topic, index))

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """The pending offsets of a producer become valid or are dropped."""
        pending = self.open_transactions.pop(producer_id)
        if is_commit:
            for key, (number, committed) in pending.items():
                if committed is not None:
                    self._store(*key, committed)
                    self.open_transactions.supersede(key, number)

    def _store(self, group_id: str, topic: str, partition: int, committed: OffsetAndMetadata | bytes) -> None:
        self._partitions(group_id, topic)[partition] = committed

    def _partitions(self, group_id: str, topic: str) -> Partitions:
        """The offsets of a group's topic."""
        topics = self.by_group.get(group_id)
        if topics is None:
            topics = self.by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        return partitions

    def _remove(self, key: CommitKey) -> None:
        group_id, topic, partition = key
        topics = self.by_group.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        if topics is not None and partitions is not None and partitions.pop(partition, None) is not None:
            if not partitions:
                del topics[topic]
            if not topics:
                del self.by_group[group_id]
        self.open_transactions.remove(key)

    # ---- fetch

    def count_of(self, group_id: str) -> int:
        """The number of a group's offsets."""
        return sum(map(len, self.by_group.get(group_id, _NO_TOPICS).values()))

    def fetch(self, request: OffsetFetchRequestGroup, *, is_stable: bool) -> OffsetFetchResponseGroup:
        """The offsets of some partitions, or of all of the group."""
        group_id = request.group_id
        stored_topics: Mapping[str, Partitions] = self.by_group.get(group_id, _NO_TOPICS)
        open_transactions = self.open_transactions
        is_stable = is_stable and bool(open_transactions.by_producer)
        if request.topics is None:
            requested = [(name, ZERO_UUID, list(partitions)) for name, partitions in stored_topics.items()]
        else:
            requested = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in request.topics]
        topics = []
        for name, topic_id, indexes in requested:
            partitions = stored_topics.get(name, {})
            results = []
            for index in indexes:
                stored = partitions.get(index)
                if is_stable and CommitKey(group_id, name, index) in open_transactions:
                    results.append(_no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                else:
                    results.append(_fetched_offset(index, topic_id, stored))
            topics.append(OffsetsTopic(name=name, topic_id=topic_id, partitions=results))
        return OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    def _unstable(self, group_id: str) -> list[tuple[str, int]]:
        """The partitions of a group that have an offset in an open transaction."""
        return [(topic, partition) for group, topic, partition in self.open_transactions.keys if group == group_id]

    # ---- deletion and expiry

    def delete(
        self, request: OffsetDeleteRequest, is_subscribed: Callable[[str], bool]
    ) -> tuple[list[StoredRecord], OffsetDeleteResponse]:
        """The tombstones of some offsets, and the response after they are committed; subscribed topics fail."""
        records: list[StoredRecord] = []
        topics = []
        for topic in request.topics:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed(topic.name) else _NONE
            if error is _NONE:
                indexes = [one.partition_index for one in topic.partitions]
                records += self._tombstones_of(request.group_id, topic.name, indexes)
            partitions = partition_errors(topic.partitions, error)
            topics.append(Topic(name=topic.name, partitions=partitions))
        return records, OffsetDeleteResponse(error_code=_NONE, topics=topics)

    def _tombstones_of(self, group_id: str, topic: str, indexes: Iterable[int]) -> list[StoredRecord]:
        """For partitions with an offset, committed or in an open transaction."""
        committed, pending = self.by_group.get(group_id, _NO_TOPICS).get(topic, ()), self.open_transactions
        return [
            commit_tombstone(group_id, topic, index)
            for index in indexes
            if index in committed or CommitKey(group_id, topic, index) in pending
        ]

    def tombstones(self, group_id: str) -> list[StoredRecord]:
        """The tombstones of all offsets of a group, including those in open transactions."""
        keys = {
            (topic, partition): None
            for topic, partitions in self.by_group.get(group_id, _NO_TOPICS).items()
            for partition in partitions
        }
        keys.update(dict.fromkeys(self._unstable(group_id)))
        return [commit_tombstone(group_id, topic, partition) for topic, partition in keys]

    def tombstones_of_topics(self, deleted: Mapping[str, bytes]) -> list[StoredRecord]:
        """The tombstones of the offsets of deleted topics, given as name -> id."""
        records: dict[CommitKey, StoredRecord] = {}
        for group_id, topics in self.by_group.items():
            for topic in topics.keys() & deleted.keys():
                for partition, stored in topics[topic].items():
                    if _is_same_topic(to_offset_and_metadata(stored).topic_id, deleted[topic]):
                        key = CommitKey(group_id, topic, partition)
                        records[key] = commit_tombstone(*key)
        for pending in self.open_transactions.by_producer.values():
            for key, (_, committed) in pending.items():
                if key[1] in deleted and (
                    committed is None or _is_same_topic(to_offset_and_metadata(committed).topic_id, deleted[key[1]])
                ):
                    records[key] = commit_tombstone(*key)
        return list(records.values())

    def expire_offsets(
        self,
        group_id: str,
        is_subscribed: Callable[[str], bool],
        since_wall_ms: int,
        wall_ms: int,
        retention_ms: int,
        limit: int = MAX_INT,
    ) -> tuple[list[StoredRecord], bool]:
        """The tombstones of expired offsets, at most `limit`, and whether the group has no others.

        Offsets of subscribed topics stay. The retention starts at `since_wall_ms`, or at the commit if that is -1.
        """
        topics = self.by_group.get(group_id, _NO_TOPICS)
        unstable = set(self._unstable(group_id))
        records: list[StoredRecord] = []
        all_expired = not unstable
        for topic, partitions in topics.items():
            if is_subscribed(topic):
                all_expired = False
                continue
            for partition, stored in partitions.items():
                committed = to_offset_and_metadata(stored)
                if (topic, partition) not in unstable and _has_expired(committed, since_wall_ms, wall_ms, retention_ms):
                    if len(records) == limit:
                        return records, False
                    records.append(commit_tombstone(group_id, topic, partition))
                else:
                    all_expired = False
        return records, all_expired

    # ---- loading

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Keep a commit or tombstone; `finish_loading` decodes the remaining ones."""
        if producer_id < 0:
            self._undecoded[key] = value
            if value is None:
                self._undecoded_transactions.remove(key)
            else:
                self._undecoded_transactions.supersede(key)
        else:
            self._undecoded_transactions.add(producer_id, key, self._pending(value))

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """Load a transaction marker."""
        pending = self._undecoded_transactions.pop(producer_id)
        if is_commit:
            for key, (number, value) in pending.items():
                if isinstance(value, bytes):
                    self._undecoded[key] = value
                    self._undecoded_transactions.supersede(key, number)

    def finish_loading(self) -> Iterator[None]:
        """Decode the remaining commits, in steps."""
        unread, self._undecoded = self._undecoded, {}
        count = 0
        for key, value in unread.items():
            if value is not None:
                stored = value if is_plain_commit(value) else read_commit_value(value)
                self._store(*read_commit_key(key), stored)
                count += 1
                if count % ITEMS_PER_STEP == 0:
                    yield
        for producer_id, pending in self._undecoded_transactions.by_producer.items():
            for key, (number, encoded) in pending.items():
                committed = read_commit_value(encoded) if isinstance(encoded, bytes) else None
                self.open_transactions.add(producer_id, read_commit_key(key), PendingOffset(number, committed))
        self._undecoded_transactions = PendingOffsets()


def _to_stored(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    wall_ms: int,
    expire_wall_ms: int,
    topic_id: bytes,
) -> OffsetAndMetadata | bytes:
    """A commit as it is kept: bytes for a plain commit (rule 5)."""
    offset, leader_epoch = partition.committed_offset, partition.committed_leader_epoch
    metadata = partition.committed_metadata
    if not metadata and expire_wall_ms == NO_EXPIRY and topic_id != ZERO_UUID:
        return encode_plain_commit(offset, leader_epoch, wall_ms, topic_id)
    return OffsetAndMetadata(offset, leader_epoch, metadata or "", wall_ms, expire_wall_ms, topic_id)


def _is_same_topic(one: bytes, other: bytes) -> bool:
    """Whether two topic ids are equal or unknown."""
    return one == other or ZERO_UUID in {one, other}


def _has_expired(committed: OffsetAndMetadata, since_wall_ms: int, wall_ms: int, retention_ms: int) -> bool:
    if committed.expire_wall_ms != NO_EXPIRY:
        return wall_ms >= committed.expire_wall_ms
    if since_wall_ms < 0:
        since_wall_ms = committed.commit_wall_ms
    return wall_ms - since_wall_ms >= retention_ms


def _fetched_offset(
    index: int, topic_id: bytes, stored: OffsetAndMetadata | bytes | None
) -> OffsetFetchResponsePartition:
    committed = None if stored is None else to_offset_and_metadata(stored)
    if committed is None or not _is_same_topic(committed.topic_id, topic_id):
        return _no_offset(index, _NONE)
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=_NONE,
    )


def _no_offset(index: int, error: ErrorCode) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error
    )


def commit_response(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetsTopic(name=topic.name, topic_id=topic.topic_id, partitions=partition_errors(topic.partitions, error))
            for topic in request.topics
        ]
    )


def txn_commit_response(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            Topic(name=topic.name, partitions=partition_errors(topic.partitions, error)) for topic in request.topics
        ]
    )


def partition_errors(partitions: Iterable[Any], error: ErrorCode) -> list[PartitionError]:
    """The same error for all partitions of a request's topic."""
    return [PartitionError(partition_index=one.partition_index, error_code=error) for one in partitions]

"""Incremental fetch sessions (KIP-227).

RULES    1. A session's epoch is 1 after creation and increases with every request; another epoch gets
            INVALID_FETCH_SESSION_EPOCH. Epoch 0 creates a session and closes the one in the request, epoch -1 closes it.
         2. A partition is *dirty* when a read may return something new: at first, after a request changed it, after its end
            offset, high watermark, leader or ACLs or the session's isolation level changed, and while the last read returned
            records, an error, or was cut by a limit. A fetch reads dirty partitions only. A partition that returned records
            moves to the end of the order, so that no partition starves.
         3. A session watches its partitions all the time; a sessionless fetch only while it waits.
         4. At most `slots` sessions. A full cache evicts the least recently used session if it is unused for two minutes;
            else one of lower priority: consumers before followers, then the smaller one. A session younger than two minutes
            is evicted only if a follower evicts a consumer. Otherwise the request gets no session. A refusal holds for
            `_REFUSAL_MS` for consumers with as many partitions or fewer: a search of the cache for each of their requests
            would cost more than the fetch.
         5. Followers wait for the log end offset, consumers for the high watermark; where consumers may read
            from followers, followers wait for both.
NOT HERE Reading and responses (`delayed_fetch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from protocol.errors import ErrorCode
from protocol.frame_codecs.fetch_codec import PartitionFetch, TopicsFetch
from protocol.frame_codecs.single_partition_codec import SinglePartitionFetch
from protocol.messages.produce_fetch import FetchPartition, FetchRequest
from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import end_key, state_key
from replication.purgatory import DelayedOperation, Key, Purgatory
from storage.log.log_reader import ReadInfo

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
DEFAULT_SLOTS: Final = 1000
_REFUSAL_MS: Final = 1_000
_MAX_EPOCH: Final = 0x7FFFFFFF
_FIRST_VERSION_WITH_SESSIONS: Final = 7
_FIRST_VERSION_WITH_IDS: Final = 13

PartitionKey = tuple[str | bytes, int]
"""A partition as the client names it: topic name, from version 13 on topic id, and partition index."""


def has_session(request: SinglePartitionFetch | TopicsFetch) -> bool:
    """Whether a request names a session or wants one; rule 1 is checked later."""
    return request.session_id != NO_SESSION or request.session_epoch != FINAL_EPOCH


class FetchedPartition(FetchPosition):
    """One partition of a fetch: requested position and last sent response values (Kafka: CachedPartition)."""

    __slots__ = (
        "_removed_mono_ms", "fetch_context", "index", "log_start_offset", "max_bytes", "sent_high_watermark",
        "sent_log_start_offset", "topic", "topic_id", "watched",
    )  # fmt: skip

    def __init__(
        self, fetch_context: FetchContext, topic: str | None, topic_id: bytes, requested: FetchPartition
    ) -> None:
        self.fetch_context = fetch_context
        self.topic = topic
        self.topic_id = topic_id
        self.index = requested.partition
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.watched: tuple[Key, ...] = ()
        self.log_start_offset = requested.log_start_offset
        self._removed_mono_ms: int | None = None
        self.leader_epoch = requested.current_leader_epoch
        self.update_request(requested)

    @property
    def requested_mono_ms(self) -> int:
        """When it was requested last: at the last request of the session, unless it was removed before."""
        return self.fetch_context.requested_mono_ms if self._removed_mono_ms is None else self._removed_mono_ms

    def on_removed(self) -> None:
        """The session no longer contains the partition."""
        self._removed_mono_ms = self.requested_mono_ms

    def on_superseded(self) -> None:
        """The leader has taken the follower's position from another session: the next request of this one counts again."""
        if self._removed_mono_ms is None:
            self.fetch_context.superseded[self] = None

    def update_request(self, requested: FetchPartition | SinglePartitionFetch) -> None:
        """Store the request parameters of this partition.

        With another leader epoch the fetcher has discarded the response to its last request, so its offsets are sent again.
        """
        if requested.current_leader_epoch != self.leader_epoch:
            self.sent_high_watermark = -1
        self.offset = requested.fetch_offset
        self.max_bytes = requested.partition_max_bytes
        self.leader_epoch = requested.current_leader_epoch
        self.last_fetched_epoch = requested.last_fetched_epoch

    def has_changed(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether these values are not the sent ones."""
        return self.sent_high_watermark != high_watermark or self.sent_log_start_offset != log_start_offset

    def update_response(self, high_watermark: int, log_start_offset: int) -> None:
        """Store the sent response values."""
        self.sent_high_watermark = high_watermark
        self.sent_log_start_offset = log_start_offset

    def on_key_changed(self, key: Key) -> None:
        """The partition has changed: mark it dirty and wake a waiting request."""
        fetch_context = self.fetch_context
        fetch_context.dirty[self] = None
        waiter = fetch_context.waiter
        if waiter is not None and (fetch_context.is_woken_by_all or key == self.watched[-1]):
            waiter.wake()


class FetchContext:
    """The partitions of one fetch and which of them are dirty; without a session (Kafka: SessionlessFetchContext)."""

    __slots__ = (
        "_is_watching", "_purgatory", "dirty", "is_follower", "is_woken_by_all", "partitions", "requested_mono_ms",
        "superseded", "waiter",
    )  # fmt: skip

    session_id = NO_SESSION
    is_incremental = False

    def __init__(self, purgatory: Purgatory, *, is_follower: bool) -> None:
        self._purgatory = purgatory
        self._is_watching = False
        self.requested_mono_ms = 0
        """When the last request came that was looked at."""
        self.is_follower = is_follower
        self.is_woken_by_all = not is_follower
        self.partitions: dict[PartitionKey, FetchedPartition] = {}
        self.dirty: dict[FetchedPartition, None] = {}
        self.superseded: dict[FetchedPartition, None] = {}
        """Partitions of a follower that are dirty at its next request."""
        self.waiter: DelayedOperation | None = None

    def update(self, request: FetchRequest, *, uses_topic_ids: bool) -> None:
        """Add the requested partitions."""
        partitions = self.partitions
        for topic in request.topics:
            name: str | bytes = topic.topic_id if uses_topic_ids else topic.topic
            for requested in topic.partitions:
                key = (name, requested.partition)
                partition = partitions.get(key)
                if partition is None:
                    partition = FetchedPartition(
                        self, None if uses_topic_ids else topic.topic, topic.topic_id, requested
                    )
                    partitions[key] = partition
                    if self._is_watching:
                        self.watch(partition)
                else:
                    partition.update_request(requested)
                    partition.log_start_offset = requested.log_start_offset
                self.dirty[partition] = None

    def set_topic_name(self, partition: FetchedPartition, topic: str) -> None:
        """Set the topic name after it is known; before that nothing can be watched."""
        partition.topic = topic
        if self._is_watching:
            self.watch(partition)

    def count_of_topic(self, one: FetchedPartition) -> int:
        """How many partitions of its topic are fetched; the names of others may not be known yet."""
        key = (one.topic_id, None if any(one.topic_id) else one.topic)
        others = self.partitions.values()
        return sum((other.topic_id, None if any(other.topic_id) else other.topic) == key for other in others)

    def watch(self, partition: FetchedPartition) -> None:
        """Watch the changes of a partition, if its topic name is known."""
        topic = partition.topic
        if topic is None or partition.watched:
            return
        # The last key wakes a waiting request.
        keys: tuple[Key, ...] = (state_key(topic, partition.index),)
        if self.is_follower:
            keys = (*keys, end_key(topic, partition.index))
        partition.watched = keys
        for key in keys:
            self._purgatory.watch(partition, key)

    def watch_all(self) -> None:
        """Watch all partitions from now on."""
        self._is_watching = True
        for partition in self.partitions.values():
            self.watch(partition)

    def unwatch_all(self) -> None:
        """Stop watching."""
        self._is_watching = False
        for partition in self.partitions.values():
            self._unwatch(partition)

    def _unwatch(self, partition: FetchedPartition) -> None:
        for key in partition.watched:
            self._purgatory.unwatch(partition, key)
        partition.watched = ()


class FetchSession(FetchContext):
    """A fetch session, kept between requests (Kafka: FetchSession)."""

    __slots__ = (
        "authorizer_version", "created_mono_ms", "epoch", "is_closed", "isolation_level", "last_used_mono_ms", "session_id",
        "uses_topic_ids",
    )  # fmt: skip

    is_incremental = True

    def __init__(
        self, purgatory: Purgatory, session_id: int, mono_ms: int, *, is_follower: bool, uses_topic_ids: bool
    ) -> None:
        super().__init__(purgatory, is_follower=is_follower)
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = INITIAL_EPOCH + 1
        self.created_mono_ms = mono_ms
        self.last_used_mono_ms = mono_ms
        self.is_closed = False
        self.authorizer_version = 0
        """The version of the decisions that clean partitions were read with."""
        self.isolation_level = 0
        """The isolation level that clean partitions were read with."""

    @property
    def eviction_order(self) -> tuple[bool, int, int]:
        """Sort key: the lowest is evicted first."""
        return self.is_follower, len(self.partitions), self.session_id

    def forget(self, request: FetchRequest) -> None:
        """Remove the forgotten partitions of a request that continues the session; others have none, as in Kafka."""
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.uses_topic_ids else forgotten.topic
            for index in forgotten.partitions:
                removed = self.partitions.pop((name, index), None)
                if removed is not None:
                    removed.on_removed()
                    self.dirty.pop(removed, None)
                    self.superseded.pop(removed, None)
                    self._unwatch(removed)

    def close(self) -> None:
        """The session was evicted; a waiting request completes."""
        self.is_closed = True
        self.unwatch_all()
        if self.waiter is not None:
            self.waiter.wake()


class FetchSessions:
    """The fetch session cache of this broker (Kafka: FetchSessionCache)."""

    def __init__(self, purgatory: Purgatory, new_id: Callable[[], int], slots: int = DEFAULT_SLOTS) -> None:
        """Keep at most `slots` sessions; `new_id` returns random numbers from 1 to 2^31 - 1."""
        self._purgatory = purgatory
        self._new_id = new_id
        self.slots = slots
        self.sends_high_watermarks = False
        """Whether followers get a new high watermark at once."""
        self.authorizer_version: Callable[[], int] = lambda: 0
        """The version of the decisions about clients."""
        self._by_id: dict[int, FetchSession] = {}  # least recently used first
        self._refused_size = self._refused_until_mono_ms = 0  # of the last new session that evicted none

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, request: FetchRequest, version: int, mono_ms: int, *, is_follower: bool) -> FetchContext | ErrorCode:
        """The fetch context of a request, or the session error."""
        if version < _FIRST_VERSION_WITH_SESSIONS:
            return self._sessionless(request, is_follower=is_follower, uses_topic_ids=False)
        session_id, epoch = request.session_id, request.session_epoch
        uses_topic_ids = version >= _FIRST_VERSION_WITH_IDS
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION:
                self.remove(session_id)
            session = None
            if epoch == INITIAL_EPOCH:
                size = sum(len(topic.partitions) for topic in request.topics)
                session = self._create(size, mono_ms, is_follower=is_follower, uses_topic_ids=uses_topic_ids)
            if session is None:
                return self._sessionless(request, is_follower=is_follower, uses_topic_ids=uses_topic_ids)
            session.isolation_level = request.isolation_level
            session.update(request, uses_topic_ids=uses_topic_ids)
            return session
        return self._resume(request, mono_ms, uses_topic_ids=uses_topic_ids)

    def complete_follower_fetches(self) -> None:
        """Complete all waiting follower fetches: the followers may know new partitions."""
        for session in list(self._by_id.values()):
            if session.is_follower and session.waiter is not None:
                self._purgatory.expire(session.waiter)

    def remove(self, session_id: int) -> None:
        """Close a session, if it exists."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            session.close()

    def _sessionless(self, request: FetchRequest, *, is_follower: bool, uses_topic_ids: bool) -> FetchContext:
        fetch_context = FetchContext(self._purgatory, is_follower=is_follower)
        fetch_context.update(request, uses_topic_ids=uses_topic_ids)
        return fetch_context

    def _resume(self, request: FetchRequest, mono_ms: int, *, uses_topic_ids: bool) -> FetchContext | ErrorCode:
        session = self._find(request.session_id, request.session_epoch)
        if isinstance(session, ErrorCode):
            return session
        if uses_topic_ids is not session.uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.update(request, uses_topic_ids=uses_topic_ids)
        session.forget(request)
        if not session.partitions:
            is_follower = session.is_follower
            self.remove(session.session_id)
            return FetchContext(self._purgatory, is_follower=is_follower)
        if session.superseded:
            session.dirty.update(session.superseded)
            session.superseded.clear()
        self._recheck(session, request.isolation_level)
        self._advance(session, mono_ms)
        return session

    def _recheck(self, session: FetchSession, isolation_level: int) -> None:
        """Read all partitions if ACLs or the isolation level have changed: the client may see less or more of them now."""
        version = self.authorizer_version()
        if (session.authorizer_version, session.isolation_level) != (version, isolation_level):
            session.authorizer_version, session.isolation_level = version, isolation_level
            session.dirty.update(dict.fromkeys(session.partitions.values()))

    def _find(self, session_id: int, epoch: int) -> FetchSession | ErrorCode:
        """The session whose next request has this epoch (rule 1)."""
        session = self._by_id.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return session if session.epoch == epoch else ErrorCode.INVALID_FETCH_SESSION_EPOCH

    def find_idle(self, request: SinglePartitionFetch | TopicsFetch) -> FetchSession | None:
        """The session that a request continues, if none of its requests waits, and ACLs and isolation level are the same."""
        session = self._find(request.session_id, request.session_epoch)
        if isinstance(session, ErrorCode) or session.waiter is not None:
            return None
        if session.isolation_level != request.isolation_level:
            return None
        return session if session.authorizer_version == self.authorizer_version() else None

    def find_only_dirty(self, request: SinglePartitionFetch) -> FetchedPartition | None:
        """The requested partition of an idle session, if no other one is dirty."""
        session = self.find_idle(request)
        if session is None:
            return None
        partition = session.partitions.get((request.topic_id or request.topic, request.partition))
        if partition is None or partition.topic is None:
            return None
        dirty = session.dirty
        return partition if not dirty or (len(dirty) == 1 and partition in dirty) else None

    def answer_single(
        self, partition: FetchedPartition, request: SinglePartitionFetch, info: ReadInfo, mono_ms: int
    ) -> None:
        """Accept a request of a session and its response with records; more may follow, so the partition stays dirty."""
        session = partition.fetch_context
        assert isinstance(session, FetchSession)
        partition.update_request(request)
        partition.update_response(info.high_watermark, info.log_start_offset)
        session.dirty[partition] = None
        self._advance(session, mono_ms)

    def answer_several(
        self, session: FetchSession, read: Mapping[FetchedPartition, tuple[PartitionFetch, ReadInfo]], mono_ms: int
    ) -> None:
        """Accept a request of a session and its response; partitions with records stay dirty, as more may follow.

        The leader epochs are those of the last request.
        """
        for partition, (fetch, info) in read.items():
            _, _, partition.offset, partition.last_fetched_epoch, partition.max_bytes = fetch
            partition.update_response(info.high_watermark, info.log_start_offset)
        session.dirty = {partition: None for partition, (_, info) in read.items() if info.size}
        self._advance(session, mono_ms)

    def _advance(self, session: FetchSession, mono_ms: int) -> None:
        """Accept the next request of a session."""
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.last_used_mono_ms = mono_ms
        by_id = self._by_id
        by_id[session.session_id] = by_id.pop(session.session_id)

    def _create(self, size: int, mono_ms: int, *, is_follower: bool, uses_topic_ids: bool) -> FetchSession | None:
        by_id = self._by_id
        if len(by_id) >= self.slots and not self._evict(size, mono_ms, is_follower=is_follower):
            return None
        session_id = self._new_id()
        while session_id in by_id:
            session_id = self._new_id()
        session = FetchSession(
            self._purgatory, session_id, mono_ms, is_follower=is_follower, uses_topic_ids=uses_topic_ids
        )
        session.is_woken_by_all |= self.sends_high_watermarks
        session.authorizer_version = self.authorizer_version()
        session.watch_all()
        by_id[session_id] = session
        return session

    def _evict(self, size: int, mono_ms: int, *, is_follower: bool) -> bool:
        """Evict a session for a new one (rule 4)."""
        by_id = self._by_id
        oldest = next(iter(by_id.values()), None)
        if oldest is None:
            return False
        if mono_ms - oldest.last_used_mono_ms > EVICTION_MS:
            victim = oldest
        elif not is_follower and size <= self._refused_size and mono_ms < self._refused_until_mono_ms:
            return False
        else:
            candidates = [
                session
                for session in by_id.values()
                if mono_ms - session.created_mono_ms > EVICTION_MS or (is_follower and not session.is_follower)
            ]
            smallest = min(candidates, key=lambda session: session.eviction_order, default=None)
            if smallest is None or (is_follower, size, NO_SESSION) < smallest.eviction_order:
                self._refused_size, self._refused_until_mono_ms = size, mono_ms + _REFUSAL_MS
                return False
            victim = smallest
        self.remove(victim.session_id)
        return True

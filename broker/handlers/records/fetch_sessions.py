"""What a fetch is about, remembered between requests: incremental fetch sessions (KIP-227, seeds.md F3).

RULES    1. A session's epoch is 1 after its creation and grows by one with every request; a request that names
            another is refused. Epoch 0 makes a session (and ends the one it names), epoch -1 ends it.
         2. A partition is *dirty* when looking at it may tell the client something new. It is so at first, when a
            request changed what is asked, when it moved, and as long as the last look found records, or more than
            there was room for, or an error. A fetch looks at dirty partitions only, and who was given something
            goes to the end of the line, so that none starves behind a busy one.
         3. A session watches its partitions all the time, a sessionless fetch only while it is parked.
         4. At most `slots` sessions. A full cache gives up the least recently used one that was idle for two
            minutes; else one that is worth less: followers before consumers, then the larger one, never one
            younger than two minutes, except that a follower may push out any consumer's. Nothing worth
            less there: the client gets no session.
         5. Followers and consumers differ in what wakes them: the log's end, or the high watermark; where consumers may read
            from followers, these are woken by both.
NOT HERE Reading and answering (`fetch.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchPartition, FetchRequest
from protocol.single_partition_codec import FetchOfOne
from replication.partition.partition import FetchPosition, end_key, state_key
from replication.purgatory import Key, Purgatory, Waiter

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
DEFAULT_SLOTS: Final = 1000
_MAX_EPOCH: Final = 0x7FFFFFFF
_FIRST_VERSION_WITH_SESSIONS: Final = 7
_FIRST_VERSION_WITH_IDS: Final = 13

Identity = tuple[str | bytes, int]
"""How a client names a partition: by topic name, or by topic id from version 13 on; and its index."""


class FetchedPartition(FetchPosition):
    """One partition of a fetch: what is asked of it and what its reader was told."""

    __slots__ = (
        "_forgotten_mono_ms", "index", "log_start_offset", "max_bytes", "told_high_watermark", "told_log_start_offset", "topic",
        "topic_id", "watched", "watchlist",
    )  # fmt: skip

    def __init__(self, watchlist: Watchlist, topic: str | None, topic_id: bytes, asked: FetchPartition) -> None:
        self.watchlist = watchlist
        self.topic = topic
        self.topic_id = topic_id
        self.index = asked.partition
        self.told_high_watermark = -1
        self.told_log_start_offset = -1
        self.watched: tuple[Key, ...] = ()
        self.log_start_offset = asked.log_start_offset
        self._forgotten_mono_ms: int | None = None
        self.ask(asked)

    @property
    def asked_mono_ms(self) -> int:  # type: ignore[override]
        """When it was asked for last: with the last request that was looked at, unless it was forgotten before."""
        return self.watchlist.asked_mono_ms if self._forgotten_mono_ms is None else self._forgotten_mono_ms

    def forget(self) -> None:
        """Its reader does not ask for it any more."""
        self._forgotten_mono_ms = self.asked_mono_ms

    def ask(self, asked: FetchPartition | FetchOfOne) -> None:
        """Take over what a request says of this partition."""
        self.offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch

    def tell(self, high_watermark: int, log_start_offset: int) -> None:
        """Remember what the client knows now."""
        self.told_high_watermark = high_watermark
        self.told_log_start_offset = log_start_offset

    def moved(self, key: Key) -> None:
        """The partition moved: look again, and have a parked request look if this is what it waits for."""
        watchlist = self.watchlist
        watchlist.dirty[self] = None
        waiter = watchlist.waiter
        if waiter is not None and (watchlist.is_woken_by_all or key == self.watched[-1]):
            waiter.wake()


class Watchlist:
    """The partitions of one fetch, and which of them to look at; by itself, of a fetch without a session."""

    __slots__ = (
        "_is_watching", "_purgatory", "asked_mono_ms", "dirty", "is_follower", "is_woken_by_all", "partitions", "waiter",
    )  # fmt: skip

    session_id = NO_SESSION
    is_incremental = False

    def __init__(self, purgatory: Purgatory, *, is_follower: bool) -> None:
        self._purgatory = purgatory
        self._is_watching = False
        self.asked_mono_ms = 0
        """When the last request came that was looked at."""
        self.is_follower = is_follower
        self.is_woken_by_all = not is_follower
        self.partitions: dict[Identity, FetchedPartition] = {}
        self.dirty: dict[FetchedPartition, None] = {}
        self.waiter: Waiter | None = None

    def take(self, request: FetchRequest, *, uses_topic_ids: bool) -> None:
        """Add what a request asks for, and drop what it forgets."""
        partitions = self.partitions
        for topic in request.topics:
            name: str | bytes = topic.topic_id if uses_topic_ids else topic.topic
            for asked in topic.partitions:
                identity = (name, asked.partition)
                partition = partitions.get(identity)
                if partition is None:
                    partition = FetchedPartition(self, None if uses_topic_ids else topic.topic, topic.topic_id, asked)
                    partitions[identity] = partition
                    if self._is_watching:
                        self.watch(partition)
                else:
                    partition.ask(asked)
                    partition.log_start_offset = asked.log_start_offset
                self.dirty[partition] = None
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if uses_topic_ids else forgotten.topic
            for index in forgotten.partitions:
                gone = partitions.pop((name, index), None)
                if gone is not None:
                    gone.forget()
                    self.dirty.pop(gone, None)
                    self._unwatch(gone)

    def name(self, partition: FetchedPartition, topic: str) -> None:
        """The topic's name is known now; until then nothing could be watched."""
        partition.topic = topic
        if self._is_watching:
            self.watch(partition)

    def watch(self, partition: FetchedPartition) -> None:
        """Have `partition` hear of its movements, if its name is known."""
        topic = partition.topic
        if topic is None or partition.watched:
            return
        # The key that wakes a parked request comes last.
        keys: tuple[Key, ...] = (state_key(topic, partition.index),)
        if self.is_follower:
            keys = (*keys, end_key(topic, partition.index))
        partition.watched = keys
        for key in keys:
            self._purgatory.watch(partition, key)

    def watch_all(self) -> None:
        """Hear of every movement from now on."""
        self._is_watching = True
        for partition in self.partitions.values():
            self.watch(partition)

    def unwatch_all(self) -> None:
        """Hear of nothing any more."""
        self._is_watching = False
        for partition in self.partitions.values():
            self._unwatch(partition)

    def _unwatch(self, partition: FetchedPartition) -> None:
        for key in partition.watched:
            self._purgatory.unwatch(partition, key)
        partition.watched = ()


class FetchSession(Watchlist):
    """A watchlist that outlives its requests."""

    __slots__ = ("created_mono_ms", "epoch", "is_closed", "last_used_mono_ms", "session_id", "uses_topic_ids")

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

    @property
    def worth(self) -> tuple[bool, int, int]:
        """The order in which sessions give way: the least first."""
        return self.is_follower, len(self.partitions), self.session_id

    def close(self) -> None:
        """The cache has given it up; a parked request is answered with what there is."""
        self.is_closed = True
        self.unwatch_all()
        if self.waiter is not None:
            self.waiter.wake()


class FetchSessions:
    """The sessions of this broker."""

    def __init__(self, purgatory: Purgatory, new_id: Callable[[], int], slots: int = DEFAULT_SLOTS) -> None:
        """Keep at most `slots` sessions; `new_id` draws numbers from 1 to 2^31 - 1."""
        self._purgatory = purgatory
        self._new_id = new_id
        self.slots = slots
        self.tells_watermarks = False
        """Whether followers are to hear of a high watermark at once."""
        self._by_id: dict[int, FetchSession] = {}  # the least recently used first
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def partitions(self) -> int:
        """Partitions of all sessions together."""
        return sum(len(session.partitions) for session in self._by_id.values())

    def find(self, session_id: int) -> FetchSession | None:
        """The session of that id."""
        return self._by_id.get(session_id)

    def open(self, request: FetchRequest, version: int, mono_ms: int, *, is_follower: bool) -> Watchlist | ErrorCode:
        """What this request is about, or why its session cannot serve it."""
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
            session.take(request, uses_topic_ids=uses_topic_ids)
            return session
        return self._resume(request, mono_ms, uses_topic_ids=uses_topic_ids)

    def call_followers(self) -> None:
        """Answer the followers that wait for records, whatever there is: they may know of more to ask for."""
        for session in list(self._by_id.values()):
            if session.is_follower and session.waiter is not None:
                self._purgatory.expire(session.waiter)

    def remove(self, session_id: int) -> None:
        """End a session, if there is one of that id."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            session.close()

    def _sessionless(self, request: FetchRequest, *, is_follower: bool, uses_topic_ids: bool) -> Watchlist:
        watchlist = Watchlist(self._purgatory, is_follower=is_follower)
        watchlist.take(request, uses_topic_ids=uses_topic_ids)
        return watchlist

    def _resume(self, request: FetchRequest, mono_ms: int, *, uses_topic_ids: bool) -> Watchlist | ErrorCode:
        session = self._by_id.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if request.session_epoch != session.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if uses_topic_ids is not session.uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.take(request, uses_topic_ids=uses_topic_ids)
        if not session.partitions:
            is_follower = session.is_follower
            self.remove(session.session_id)
            return Watchlist(self._purgatory, is_follower=is_follower)
        self.advance(session, mono_ms)
        return session

    def advance(self, session: FetchSession, mono_ms: int) -> None:
        """One more request of the session is taken on."""
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
        session.is_woken_by_all |= self.tells_watermarks
        session.watch_all()
        by_id[session_id] = session
        return session

    def _evict(self, size: int, mono_ms: int, *, is_follower: bool) -> bool:
        """Make room for a new session (rule 4)."""
        by_id = self._by_id
        oldest = next(iter(by_id.values()), None)
        if oldest is None:
            return False
        if mono_ms - oldest.last_used_mono_ms > EVICTION_MS:
            victim = oldest
        else:
            candidates = [
                session
                for session in by_id.values()
                if mono_ms - session.created_mono_ms > EVICTION_MS or (is_follower and not session.is_follower)
            ]
            if not candidates:
                return False
            victim = min(candidates, key=lambda session: session.worth)
            if (is_follower, size, NO_SESSION) < victim.worth:
                return False
        self.remove(victim.session_id)
        self.evictions += 1
        return True

"""What this broker fetches from one leader: which request comes next, and what its answer means.

RULES    1. One request is under way, for all partitions; the next one leaves when what the last one brought is written.
         2. It belongs to a session: only what has moved is named (KIP-227). A leader that lost it gets all again.
         3. A partition that cannot be fetched now is left out for a while: for a short time where leader and follower have
            not read the same metadata yet, else for replica.fetch.backoff.ms.
         4. The leader's epochs tell where the logs part (KIP-595's truncation on fetch): what it does not have is cut.
         5. Who asks for what the leader has not got asks where the leader's log begins, and begins anew there if that lies
            behind its own end; else where the leader's log ends, and is cut there if that lies before its own.
         6. A replica that is throttled, and not in sync, is left out until its bytes are paid for (KIP-73).
         7. While a partition is left out, a request waits at the leader no longer than until it is its turn again.
NOT HERE Writing (`follower_log.py`), sockets and time (`broker/peers/replica_fetchers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
    ReplicaState,
)
from protocol.schema import Message
from replication.partition.follower_log import Following, LeaderBounds
from replication.partition.partition import EARLIEST, LATEST, Partition

_log = logging.getLogger("barnabas.fetcher")

_SOON_MS: Final = 20
"""The image that tells the same is on its way to one of both."""
_DIFFERENT_METADATA: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
_LOST_SESSION: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)

Key = tuple[bytes, int]
"""Topic id and index."""


class FetchSettings(NamedTuple):
    """Kafka's replica.fetch.* settings."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000


class _Position(NamedTuple):
    """What a request says of a partition."""

    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int


class _Followed:
    """One partition."""

    __slots__ = ("_last_known", "asks_for", "is_busy", "is_held", "is_open", "key", "partition", "until_ms")

    def __init__(self, key: Key, partition: Partition) -> None:
        self.key = key
        self.partition = partition
        self.is_open = False
        self.is_busy = False
        self.asks_for: int | None = None
        """Which end of the leader's log, EARLIEST or LATEST, it must know before it can go on (rule 5)."""
        self.until_ms = 0
        """Left out until then."""
        self.is_held = False
        """Left out since it is throttled: it is looked then whether its bytes are paid for."""
        self._last_known = (0, 0, 0)

    @property
    def is_ready(self) -> bool:
        """Whether it can be fetched, as far as it goes."""
        return self.is_at_rest and self.asks_for is None

    @property
    def is_at_rest(self) -> bool:
        """Whether it is known where its log ends."""
        return self.is_open and not self.is_busy and not self.partition.is_offline

    def position(self) -> _Position:
        """From where to fetch; of a log that was closed meanwhile, as it was."""
        log = self.partition.log
        if log.is_open:
            self._last_known = log.log_end_offset, log.latest_epoch, log.log_start_offset
        return _Position(self.partition.leader_epoch, *self._last_known)


class Fetcher:
    """Fetches from one leader."""

    def __init__(
        self,
        leader_id: int,
        own_id: int,
        broker_epoch: Callable[[], int],
        following: Following,
        settings: FetchSettings,
    ) -> None:
        """Follow nothing yet.

        Args:
            leader_id: the broker to fetch from.
            own_id: this broker.
            broker_epoch: of this broker's registration.
            following: who writes.
            settings: how much, and how patiently.
        """
        self.leader_id = leader_id
        self._own_id = own_id
        self._broker_epoch = broker_epoch
        self._following = following
        self._settings = settings
        self._followed: dict[Key, _Followed] = {}
        self._dirty: dict[Key, None] = {}
        """Partitions whose part of the next request has to be looked at; always in the same order, as below."""
        self._delayed: dict[Key, None] = {}
        self._out_of_range: dict[Key, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._named: dict[Key, _Position] = {}
        """What the leader's session holds."""
        self._is_asking = False
        self._writing = 0
        self.on_ready: Callable[[], None] = _nothing
        """There may be something to ask again."""

    def __len__(self) -> int:
        return len(self._followed)

    # ------------------------------------------------------------ what is followed
    def follow(self, partition: Partition) -> None:
        """Fetch a partition from this leader, under the leader epoch that it has now."""
        assert partition.topic_id is not None, "what is followed is in the image, by its id"
        key = (partition.topic_id, partition.index)
        followed = self._followed.get(key)
        if followed is None or followed.partition is not partition:
            followed = self._followed[key] = _Followed(key, partition)
        followed.asks_for = None
        followed.until_ms = 0
        self._open(followed)

    def forget(self, partition: Partition) -> None:
        """Fetch it no more."""
        assert partition.topic_id is not None, "it was followed"
        key = (partition.topic_id, partition.index)
        if self._followed.pop(key, None) is not None:
            self._dirty[key] = None

    def _open(self, followed: _Followed) -> None:
        followed.is_open = False
        self._following.open(followed.partition, partial(self._opened, followed))

    def _opened(self, followed: _Followed) -> None:
        followed.is_open = True
        followed.position()
        self._touch(followed)

    def _touch(self, followed: _Followed) -> None:
        if self._followed.get(followed.key) is followed:
            self._dirty[followed.key] = None
            if not self._is_asking and not self._writing:
                self.on_ready()

    # ------------------------------------------------------------ asking
    def next_request(self, mono_ms: int) -> FetchRequest | ListOffsetsRequest | None:
        """What to ask now; None: nothing, until `on_ready` or `next_deadline_ms`."""
        if self._is_asking or self._writing:
            return None
        for key in [key for key in self._delayed if self._is_over(key, mono_ms)]:
            del self._delayed[key]
            self._dirty[key] = None
        request = self._offsets_request(mono_ms) or self._fetch_request(mono_ms)
        self._is_asking = request is not None
        return request

    def _is_over(self, key: Key, mono_ms: int) -> bool:
        followed = self._followed.get(key)
        if followed is not None and followed.is_held and followed.until_ms <= mono_ms:
            followed.until_ms = mono_ms + self._unpaid_ms(followed, mono_ms)
        return followed is None or followed.until_ms <= mono_ms

    @property
    def next_deadline_ms(self) -> int | None:
        """When a partition that is left out is tried again; None while something is under way: `on_ready` comes behind it."""
        if self._is_asking or self._writing:
            return None
        return min((self._followed[key].until_ms for key in self._delayed if key in self._followed), default=None)

    def _fetch_request(self, mono_ms: int) -> FetchRequest | None:
        changed, forgotten = self._changes(mono_ms)
        if not self._named:
            if self._session_epoch and forgotten:
                self._forget_session()
            return None
        is_full = self._session_epoch == 0
        settings = self._settings
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._own_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=self._patience_ms(mono_ms),
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=self._topics(self._named if is_full else changed),
            forgotten_topics_data=[] if is_full else _forgotten(forgotten),
        )

    def _patience_ms(self, mono_ms: int) -> int:
        """Rule 7."""
        due_ms, longest_ms = self.next_deadline_ms, self._settings.wait_max_ms
        return longest_ms if due_ms is None else min(longest_ms, max(due_ms - mono_ms, 0))

    def _changes(self, mono_ms: int) -> tuple[dict[Key, _Position], list[Key]]:
        """Bring `_named` up to date; what is new in it, and what has gone."""
        changed: dict[Key, _Position] = {}
        forgotten: list[Key] = []
        named = self._named
        for key in self._dirty:
            followed = self._followed.get(key)
            if followed is None or not followed.is_ready or followed.until_ms > mono_ms:
                if named.pop(key, None) is not None:
                    forgotten.append(key)
                continue
            position = followed.position()
            if named.get(key) != position:
                named[key] = changed[key] = position
        self._dirty.clear()
        return changed, forgotten

    def _topics(self, positions: dict[Key, _Position]) -> list[FetchTopic]:
        topics: dict[bytes, list[FetchPartition]] = {}
        for (topic_id, index), position in positions.items():
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=self._settings.max_bytes,
                )
            )
        return [FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]

    # ------------------------------------------------------------ answers
    def received(self, answer: Message | None, mono_ms: int, wall_ms: int) -> None:
        """The answer to the last request; None: there was none."""
        self._is_asking = False
        if isinstance(answer, FetchResponse) and answer.error_code == ErrorCode.NONE:
            self._take(answer, mono_ms, wall_ms)
        elif isinstance(answer, ListOffsetsResponse):
            self._take_offsets(answer, mono_ms)
        else:
            self._not_answered(answer, mono_ms)
        if not self._writing:
            self.on_ready()

    def _not_answered(self, answer: Message | None, mono_ms: int) -> None:
        self._forget_session()
        if isinstance(answer, FetchResponse) and answer.error_code in _LOST_SESSION:
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = 0
            return
        for followed in self._followed.values():
            self._leave_out(followed, mono_ms + self._settings.backoff_ms)

    def _forget_session(self) -> None:
        """Begin another one, in whose first request the leader is told that this one is over."""
        self._session_epoch = 0
        self._named.clear()
        self._dirty.update(dict.fromkeys(self._followed))

    def _take(self, answer: FetchResponse, mono_ms: int, wall_ms: int) -> None:
        self._session_id = answer.session_id
        self._session_epoch = self._session_epoch % 0x7FFF_FFFF + 1 if self._session_id else 0
        self._writing += 1  # so that the next request waits for all of it
        for topic in answer.responses:
            for data in topic.partitions:
                followed = self._followed.get((topic.topic_id, data.partition_index))
                if followed is not None and self._is_about_now(followed):
                    self._take_partition(followed, data, mono_ms, wall_ms)
        self._writing -= 1

    def _is_about_now(self, followed: _Followed) -> bool:
        """Whether an answer belongs to what the partition is now: it may have another leader, or epoch, since."""
        asked = self._named.get(followed.key)
        partition = followed.partition
        return (
            asked is not None
            and followed.is_ready
            and not partition.is_leader
            and not partition.is_offline
            and asked.leader_epoch == partition.leader_epoch
            and asked.offset == followed.position().offset
        )

    def _take_partition(self, followed: _Followed, data: PartitionData, mono_ms: int, wall_ms: int) -> None:
        code, diverging = data.error_code, data.diverging_epoch
        partition = followed.partition
        if code == ErrorCode.NONE and diverging is not None and diverging.epoch >= 0:
            done = self._begin(followed, mono_ms)
            self._following.truncate(partition, diverging.epoch, diverging.end_offset, done)
        elif code == ErrorCode.NONE:
            bounds = LeaderBounds(data.high_watermark, data.log_start_offset)
            records = data.records or b""
            if len(records):
                self._following.throttle.took(partition.topic, partition.index, len(records), mono_ms)
            done = self._begin(followed, mono_ms, bounds.high_watermark)
            self._following.append(partition, records, bounds, wall_ms, done)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._ask_for(followed, EARLIEST)
        else:
            is_soon = code in _DIFFERENT_METADATA
            if not is_soon:
                _log.warning("%s cannot be fetched: %s", partition.log.name, ErrorCode(code).name)
            self._leave_out(followed, mono_ms + (_SOON_MS if is_soon else self._settings.backoff_ms))

    def _begin(self, followed: _Followed, mono_ms: int, high_watermark: int = 0) -> Callable[[bool], None]:
        """Something is written to a partition; what is called when that is done. In sync is who has the high watermark."""
        self._writing += 1
        followed.is_busy = True

        def done(can_go_on: bool) -> None:  # noqa: FBT001
            self._writing -= 1
            followed.is_busy = False
            pause_ms = self._pause_ms(followed, high_watermark, mono_ms) if can_go_on else 0
            if pause_ms:
                self._leave_out(followed, mono_ms + pause_ms, is_held=True)
            elif can_go_on:
                self._touch(followed)
            else:
                self._leave_out(followed, mono_ms + self._settings.backoff_ms)
            if not self._writing and not self._is_asking:
                self.on_ready()

        return done

    def _pause_ms(self, followed: _Followed, high_watermark: int, mono_ms: int) -> int:
        """Rule 6."""
        partition = followed.partition
        if partition.is_offline or followed.position().offset >= high_watermark:
            return 0
        return self._unpaid_ms(followed, mono_ms)

    def _unpaid_ms(self, followed: _Followed, mono_ms: int) -> int:
        return self._following.throttle.wait_ms(followed.partition.topic, followed.partition.index, mono_ms)

    def _leave_out(self, followed: _Followed, until_ms: int, *, is_held: bool = False) -> None:
        """Rules 3 and 6."""
        if self._followed.get(followed.key) is followed:
            followed.until_ms = until_ms
            followed.is_held = is_held
            self._delayed[followed.key] = None
            self._dirty[followed.key] = None

    # ------------------------------------------------------------ out of range
    def _ask_for(self, followed: _Followed, end: int) -> None:
        followed.asks_for = end
        self._out_of_range[followed.key] = None
        self._dirty[followed.key] = None

    def _offsets_request(self, mono_ms: int) -> ListOffsetsRequest | None:
        """Ask where the leader's logs begin, or end (rule 5)."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for key in list(self._out_of_range):
            followed = self._followed.get(key)
            if followed is None or followed.asks_for is None:
                self._out_of_range.pop(key, None)
            elif followed.is_at_rest and followed.until_ms <= mono_ms:
                partition = followed.partition
                asked = ListOffsetsPartition(
                    partition_index=partition.index,
                    current_leader_epoch=partition.leader_epoch,
                    timestamp=followed.asks_for,
                )
                topics.setdefault(partition.topic, []).append(asked)
        if not topics:
            return None
        return ListOffsetsRequest(
            replica_id=self._own_id,
            topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        )

    def _take_offsets(self, answer: ListOffsetsResponse, mono_ms: int) -> None:
        asking = [followed for key in self._out_of_range if (followed := self._followed.get(key)) is not None]
        by_name = {(followed.partition.topic, followed.partition.index): followed for followed in asking}
        self._writing += 1
        for topic in answer.topics:
            for found in topic.partitions:
                followed = by_name.get((topic.name, found.partition_index))
                if followed is None or not followed.is_at_rest or followed.asks_for is None:
                    continue
                end, followed.asks_for = followed.asks_for, None
                if found.error_code != ErrorCode.NONE:
                    is_soon = found.error_code in _DIFFERENT_METADATA
                    self._leave_out(followed, mono_ms + (_SOON_MS if is_soon else self._settings.backoff_ms))
                else:
                    self._take_end(followed, end, found.offset, mono_ms)
        self._writing -= 1

    def _take_end(self, followed: _Followed, end: int, offset: int, mono_ms: int) -> None:
        own_end = followed.position().offset
        if end == EARLIEST:
            if own_end < offset:
                self._following.begin_anew(followed.partition, offset, self._begin(followed, mono_ms))
            else:
                self._ask_for(followed, LATEST)
        elif offset < own_end:
            self._following.cut(followed.partition, offset, self._begin(followed, mono_ms))
        else:
            self._leave_out(followed, mono_ms + _SOON_MS)  # it was moving: ask again


def _forgotten(keys: list[Key]) -> list[ForgottenTopic]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [ForgottenTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics.items()]


def _nothing() -> None:
    pass

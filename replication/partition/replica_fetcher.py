"""Fetching from one leader: builds the next request and processes the response.

RULES    1. One request for all partitions is pending at a time. The next one is sent when the records of the last response
            are written.
         2. Requests belong to a fetch session: only partitions that changed are named (KIP-227). If the leader lost the
            session, the next request names all partitions.
         3. A partition that cannot be fetched is left out: for 20 ms if leader and follower have not applied the same
            metadata yet, otherwise for replica.fetch.backoff.ms.
         4. The leader detects diverging logs by leader epoch (KIP-595, truncation on fetch); the follower truncates.
         5. On OFFSET_OUT_OF_RANGE, the fetcher queries the leader's log start offset. If it is above the local log end, the
            log is truncated fully and starts there. Otherwise the fetcher queries the leader's log end offset, and truncates
            the log there if it is below the local log end.
         6. A throttled replica that is not in sync is left out until its quota allows more bytes (KIP-73).
         7. While a partition is left out, a request waits at the leader only until the partition can be fetched again.
         8. Under a new broker epoch a new session begins, which names all partitions: the leader adds a follower to the ISR of
            a partition only if it has fetched the partition under its present registration (KIP-903).
NOT HERE Writing (`follower_log.py`), sockets and time (`broker/peers/replica_fetchers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages import common, produce_fetch
from protocol.messages.produce_fetch import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from protocol.schema import Message
from replication.completion import Completion
from replication.cooperative_tasks import no_op
from replication.partition.follower_log import FollowerLog, LeaderOffsets
from replication.partition.list_offsets import EARLIEST, LATEST
from replication.partition.partition import Partition

_log = logging.getLogger("barnabas.fetcher")

_METADATA_BACKOFF_MS: Final = 20
"""The leader or the follower is about to apply the same metadata."""
_STALE_METADATA: Final = (
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

PartitionKey = tuple[bytes, int]
"""Topic id and partition index."""


class FetchSettings(NamedTuple):
    """The replica.fetch.* settings."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000


class _SessionPosition(NamedTuple):
    """What the fetch session holds for a partition."""

    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int


@dataclass(slots=True, eq=False)
class _PartitionFetchState:
    """The fetch state of one partition."""

    key: PartitionKey
    partition: Partition
    is_open: bool = False
    is_writing: bool = False
    queried_timestamp: int | None = None
    """The special timestamp, EARLIEST or LATEST, that must be queried before the next fetch (rule 5)."""
    delayed_until_ms: int = 0
    """Left out until this monotonic time."""
    is_throttled: bool = False
    """Left out by the quota: the quota is checked again after the delay."""
    _last_known: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_ready(self) -> bool:
        """Whether it can be fetched, apart from a delay."""
        return self.is_idle and self.queried_timestamp is None

    @property
    def is_idle(self) -> bool:
        """Whether the log end offset is known and no write is pending."""
        return self.is_open and not self.is_writing and not self.partition.is_offline

    def position(self) -> _SessionPosition:
        """The position to fetch from; of a log that was closed since, the last known one."""
        log = self.partition.log
        if log.opened is not None:
            self._last_known = log.log_end_offset, log.opened.epochs.latest, log.log_start_offset
        return _SessionPosition(self.partition.leader_epoch, *self._last_known)


@dataclass(eq=False)
class ReplicaFetcher:
    """Fetches from one leader; starts without partitions."""

    leader_id: int
    _broker_id: int
    _broker_epoch: Callable[[], int]
    """Returns the epoch of this broker's registration."""
    _follower_log: FollowerLog
    _settings: FetchSettings

    def __post_init__(self) -> None:
        self._partitions: dict[PartitionKey, _PartitionFetchState] = {}
        self._dirty: dict[PartitionKey, None] = {}
        """Partitions whose part of the next request may have changed; a dict, like those below, to keep a fixed order."""
        self._delayed: dict[PartitionKey, None] = {}
        self._out_of_range: dict[PartitionKey, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._session_partitions: dict[PartitionKey, _SessionPosition] = {}
        """What the leader's session holds."""
        self._session_broker_epoch = self._broker_epoch()
        self._is_request_pending = False
        self._pending_writes = 0
        self.on_ready: Callable[[], None] = no_op
        """Called when `next_request` may return a request again."""

    def __len__(self) -> int:
        return len(self._partitions)

    # ------------------------------------------------------------ partitions
    def add(self, partition: Partition) -> None:
        """Fetch a partition under its present leader epoch."""
        assert partition.topic_id is not None, "a partition in the image has a topic id"
        key = (partition.topic_id, partition.index)
        state = self._partitions.get(key)
        if state is None or state.partition is not partition:
            state = self._partitions[key] = _PartitionFetchState(key, partition)
        state.queried_timestamp = None
        state.delayed_until_ms = 0
        self._open(state)

    def remove(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        assert partition.topic_id is not None, "an added partition has a topic id"
        key = (partition.topic_id, partition.index)
        if self._partitions.pop(key, None) is not None:
            self._dirty[key] = None

    def _open(self, state: _PartitionFetchState) -> None:
        state.is_open = False
        self._follower_log.open(state.partition).then(partial(self._on_open, state))

    def _on_open(self, state: _PartitionFetchState, opened: Completion[bool]) -> None:
        if opened.value:
            state.is_open = True
            state.position()
            self._mark_dirty(state)

    def _mark_dirty(self, state: _PartitionFetchState) -> None:
        if self._partitions.get(state.key) is state:
            self._dirty[state.key] = None
            if not self._is_request_pending and not self._pending_writes:
                self.on_ready()

    # ------------------------------------------------------------ requests
    def next_request(self, mono_ms: int) -> FetchRequest | ListOffsetsRequest | None:
        """The next request; None: nothing to send until `on_ready` or `next_deadline_ms`."""
        if self._is_request_pending or self._pending_writes:
            return None
        for key in [key for key in self._delayed if self._is_delay_over(key, mono_ms)]:
            del self._delayed[key]
            self._dirty[key] = None
        request = self._offsets_request(mono_ms) or self._fetch_request(mono_ms)
        self._is_request_pending = request is not None
        return request

    def _is_delay_over(self, key: PartitionKey, mono_ms: int) -> bool:
        state = self._partitions.get(key)
        if state is not None and state.is_throttled and state.delayed_until_ms <= mono_ms:
            state.delayed_until_ms = mono_ms + self._quota_wait_ms(state, mono_ms)
        return state is None or state.delayed_until_ms <= mono_ms

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first delay ends; None while a request or a write is pending, after which `on_ready` is called."""
        if self._is_request_pending or self._pending_writes:
            return None
        return min(
            (self._partitions[key].delayed_until_ms for key in self._delayed if key in self._partitions), default=None
        )

    def _fetch_request(self, mono_ms: int) -> FetchRequest | None:
        broker_epoch = self._broker_epoch()
        if broker_epoch != self._session_broker_epoch:  # rule 8
            self._session_broker_epoch = broker_epoch
            self._forget_session()
        changed, forgotten = self._changes(mono_ms)
        if not self._session_partitions:
            if self._session_epoch and forgotten:
                self._forget_session()
            return None
        is_full = self._session_epoch == 0
        settings = self._settings
        return FetchRequest(
            replica_state=produce_fetch.ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch),
            max_wait_ms=self._max_wait_ms(mono_ms),
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=self._topics(self._session_partitions if is_full else changed),
            forgotten_topics_data=[] if is_full else _forgotten(forgotten),
        )

    def _max_wait_ms(self, mono_ms: int) -> int:
        """How long the leader may wait for new records (rule 7)."""
        due_ms, longest_ms = self.next_deadline_ms, self._settings.wait_max_ms
        return longest_ms if due_ms is None else min(longest_ms, max(due_ms - mono_ms, 0))

    def _changes(self, mono_ms: int) -> tuple[dict[PartitionKey, _SessionPosition], list[PartitionKey]]:
        """Update `_session_partitions`; returns changed and removed partitions."""
        changed: dict[PartitionKey, _SessionPosition] = {}
        forgotten: list[PartitionKey] = []
        session = self._session_partitions
        for key in self._dirty:
            state = self._partitions.get(key)
            if state is None or not state.is_ready or state.delayed_until_ms > mono_ms:
                if session.pop(key, None) is not None:
                    forgotten.append(key)
                continue
            position = state.position()
            if session.get(key) != position:
                session[key] = changed[key] = position
        self._dirty.clear()
        return changed, forgotten

    def _topics(
        self, positions: dict[PartitionKey, _SessionPosition]
    ) -> list[produce_fetch.FetchTopic[produce_fetch.FetchPartition]]:
        topics: dict[bytes, list[produce_fetch.FetchPartition]] = {}
        for (topic_id, index), position in positions.items():
            topics.setdefault(topic_id, []).append(
                produce_fetch.FetchPartition(
                    partition=index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=self._settings.max_bytes,
                )
            )
        return [
            produce_fetch.FetchTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ]

    # ------------------------------------------------------------ responses
    def on_response(self, response: Message | None, mono_ms: int, wall_ms: int) -> None:
        """Process the response to the last request; None: the request failed."""
        self._is_request_pending = False
        if isinstance(response, FetchResponse) and response.error_code == ErrorCode.NONE:
            self._process_response(response, mono_ms, wall_ms)
        elif isinstance(response, ListOffsetsResponse):
            self._process_offsets(response, mono_ms)
        else:
            self._on_request_failed(response, mono_ms)
        if not self._pending_writes:
            self.on_ready()

    def _on_request_failed(self, response: Message | None, mono_ms: int) -> None:
        self._forget_session()
        if isinstance(response, FetchResponse) and response.error_code in _LOST_SESSION:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = 0
            return
        for state in self._partitions.values():
            self._delay(state, mono_ms + self._settings.backoff_ms)

    def _forget_session(self) -> None:
        """Start a new session; its first request closes the old one at the leader."""
        self._session_epoch = 0
        self._session_partitions.clear()
        self._dirty.update(dict.fromkeys(self._partitions))

    def _process_response(self, response: FetchResponse, mono_ms: int, wall_ms: int) -> None:
        self._session_id = response.session_id
        self._session_epoch = self._session_epoch % 0x7FFF_FFFF + 1 if self._session_id else 0
        self._pending_writes += 1  # the next request waits for all partitions of this response
        self._follower_log.gather()
        try:
            for topic in response.responses:
                for data in topic.partitions:
                    state = self._partitions.get((topic.topic_id, data.partition_index))
                    if state is not None and self._is_current(state):
                        self._process_partition(state, data, mono_ms, wall_ms)
                    elif state is not None:
                        self._dirty[state.key] = None  # the session's position is out of date
        finally:
            self._follower_log.write_gathered()
        self._pending_writes -= 1

    def _is_current(self, state: _PartitionFetchState) -> bool:
        """Whether the response is for the partition's present leader epoch and log end offset."""
        sent = self._session_partitions.get(state.key)
        partition = state.partition
        return (
            sent is not None
            and state.is_ready
            and not partition.is_leader
            and not partition.is_offline
            and sent.leader_epoch == partition.leader_epoch
            and sent.offset == state.position().offset
        )

    def _process_partition(
        self, state: _PartitionFetchState, data: produce_fetch.PartitionData, mono_ms: int, wall_ms: int
    ) -> None:
        code, diverging = data.error_code, data.diverging_epoch
        partition = state.partition
        if code == ErrorCode.NONE and diverging is not None and diverging.epoch >= 0:
            truncation = self._follower_log.truncate_to_epoch(partition, diverging.epoch, diverging.end_offset)
            self._await_write(truncation, state, mono_ms)
        elif code == ErrorCode.NONE:
            leader_offsets = LeaderOffsets(data.high_watermark, data.log_start_offset)
            records = data.records or b""
            if len(records):
                self._follower_log.quota.record(partition.topic, partition.index, len(records), mono_ms)
            append = self._follower_log.append(partition, records, leader_offsets, wall_ms)
            self._await_write(append, state, mono_ms, leader_offsets.high_watermark)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._query_offset(state, EARLIEST)
        else:
            if code not in _STALE_METADATA:
                _log.warning("%s cannot be fetched: %s", partition.log.name, ErrorCode(code).name)
            self._back_off(state, code, mono_ms)

    def _await_write(
        self, write: Completion[bool], state: _PartitionFetchState, mono_ms: int, high_watermark: int = 0
    ) -> None:
        """Fetch further after a write.

        A replica at the leader's `high_watermark` is in sync, so the quota does not delay it.
        """
        self._pending_writes += 1
        state.is_writing = True

        def on_written(write: Completion[bool]) -> None:
            self._pending_writes -= 1
            state.is_writing = False
            can_continue = write.value
            delay_ms = self._throttle_ms(state, high_watermark, mono_ms) if can_continue else 0
            if delay_ms:
                self._delay(state, mono_ms + delay_ms, is_throttled=True)
            elif can_continue:
                self._mark_dirty(state)
            else:
                self._delay(state, mono_ms + self._settings.backoff_ms)
            if not self._pending_writes and not self._is_request_pending:
                self.on_ready()

        write.then(on_written)

    def _throttle_ms(self, state: _PartitionFetchState, high_watermark: int, mono_ms: int) -> int:
        """How long the quota leaves a replica out (rule 6)."""
        partition = state.partition
        if partition.is_offline or state.position().offset >= high_watermark:
            return 0
        return self._quota_wait_ms(state, mono_ms)

    def _quota_wait_ms(self, state: _PartitionFetchState, mono_ms: int) -> int:
        return self._follower_log.quota.wait_ms(state.partition.topic, state.partition.index, mono_ms)

    def _delay(self, state: _PartitionFetchState, delayed_until_ms: int, *, is_throttled: bool = False) -> None:
        """Leave a partition out until a time (rules 3 and 6)."""
        if self._partitions.get(state.key) is state:
            state.delayed_until_ms = delayed_until_ms
            state.is_throttled = is_throttled
            self._delayed[state.key] = None
            self._dirty[state.key] = None

    def _back_off(self, state: _PartitionFetchState, code: int, mono_ms: int) -> None:
        """Leave a partition out for a while after an error (rule 3)."""
        self._delay(state, mono_ms + (_METADATA_BACKOFF_MS if code in _STALE_METADATA else self._settings.backoff_ms))

    # ------------------------------------------------------------ out of range
    def _query_offset(self, state: _PartitionFetchState, timestamp: int) -> None:
        state.queried_timestamp = timestamp
        self._out_of_range[state.key] = None
        self._dirty[state.key] = None

    def _offsets_request(self, mono_ms: int) -> ListOffsetsRequest | None:
        """Query log start or log end offsets of the leader (rule 5)."""
        topics: dict[str, list[produce_fetch.ListOffsetsPartition]] = {}
        for key in list(self._out_of_range):
            state = self._partitions.get(key)
            if state is None or state.queried_timestamp is None:
                self._out_of_range.pop(key, None)
            elif state.is_idle and state.delayed_until_ms <= mono_ms:
                partition = state.partition
                request_part = produce_fetch.ListOffsetsPartition(
                    partition_index=partition.index,
                    current_leader_epoch=partition.leader_epoch,
                    timestamp=state.queried_timestamp,
                )
                topics.setdefault(partition.topic, []).append(request_part)
        if not topics:
            return None
        return ListOffsetsRequest(
            replica_id=self._broker_id,
            topics=[common.Topic(name=name, partitions=partitions) for name, partitions in topics.items()],
        )

    def _process_offsets(self, response: ListOffsetsResponse, mono_ms: int) -> None:
        waiting = [state for key in self._out_of_range if (state := self._partitions.get(key)) is not None]
        by_name = {(state.partition.topic, state.partition.index): state for state in waiting}
        self._pending_writes += 1
        for topic in response.topics:
            for found in topic.partitions:
                state = by_name.get((topic.name, found.partition_index))
                if state is None or not state.is_idle or state.queried_timestamp is None:
                    continue
                timestamp, state.queried_timestamp = state.queried_timestamp, None
                if found.error_code != ErrorCode.NONE:
                    self._back_off(state, found.error_code, mono_ms)
                else:
                    self._apply_leader_offset(state, timestamp, found.offset, mono_ms)
        self._pending_writes -= 1

    def _apply_leader_offset(self, state: _PartitionFetchState, timestamp: int, offset: int, mono_ms: int) -> None:
        local_end = state.position().offset
        if timestamp == EARLIEST:
            if local_end < offset:
                truncation = self._follower_log.truncate_fully_and_start_at(state.partition, offset)
                self._await_write(truncation, state, mono_ms)
            else:
                self._query_offset(state, LATEST)
        elif offset < local_end:
            self._await_write(self._follower_log.truncate_to(state.partition, offset), state, mono_ms)
        else:
            self._delay(state, mono_ms + _METADATA_BACKOFF_MS)  # the leader's log end was moving: query again


def _forgotten(keys: list[PartitionKey]) -> list[produce_fetch.FetchTopic[int]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [produce_fetch.FetchTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics.items()]

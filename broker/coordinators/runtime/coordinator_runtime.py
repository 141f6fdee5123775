"""Runs coordinators: one state machine per partition of an internal topic that this broker leads.

FORMAT   a record of an internal topic: key = i16 record type, then the key message (never flexible);
         value = i16 version, then the message in that version; a null value is a tombstone
RULES    1. A shard becomes active after it has read its partition up to the log end offset at election. Until then requests get
            COORDINATOR_LOAD_IN_PROGRESS. Loading runs in slices, so the loop also serves other requests.
         2. Records are applied after the append; responses are sent after the commit. A response without records
            waits for the records before it, so a response never contains state that can still be lost.
         3. A failed append does not change durable state. `on_complete` gets the error and undoes volatile changes.
         4. The leader epoch is the coordinator epoch. A shard of an older epoch is closed and its waiting requests fail.
         5. Everything runs on one thread; clock and timers are passed in.
         6. Records of a producer's transaction are applied as pending until its marker is appended.
NOT HERE The decisions (`group_coordinator.py` and below), leadership (`replication/`), sending responses (`handlers/`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from struct import Struct
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.runtime.loader import Loadable, Loader, ReadableLog
from protocol.codec import encode
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.records import BATCH_OVERHEAD, NO_PRODUCER_ID, BatchBuilder
from replication.metadata.image import MetadataDelta, MetadataImage
from replication.state_machine import Decision
from replication.timer_queue import Clock, Timer, TimerQueue
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup

_log = logging.getLogger("barnabas.coordinators")

RECORD_OVERHEAD: Final = 32
"""Upper bound of a record's size without its key and value, in bytes."""

_I16 = Struct(">h")
Reply = TypeVar("Reply")


class StoredRecord(NamedTuple):
    """One record of an internal topic. The class of the key message gives the record type; `version` is the value's.

    `encoded` holds ready bytes of key and value; then `key` and `value` can be any objects that `apply` understands.
    """

    key: Any
    value: Any
    version: int = 0
    encoded: tuple[bytes, bytes | None] | None = None


class CoordinatorDecision(Decision[Reply]):
    """A decision whose records have keys.

    `on_complete` is called once: with NONE when the records are committed, else with the error. It changes volatile
    state, such as waiting members. `producer` is the producer id and epoch of the transaction that the records belong to.
    """

    __slots__ = ("on_complete", "producer")

    records: Sequence[StoredRecord]  # type: ignore[assignment]  # keyed, unlike those of the metadata log

    def __init__(
        self,
        records: Sequence[StoredRecord],
        reply: Reply,
        *,
        is_atomic: bool = True,
        on_complete: Callable[[ErrorCode], None] | None = None,
        producer: tuple[int, int] | None = None,
    ) -> None:
        self.records = records
        self.reply = reply
        self.is_atomic = is_atomic
        self.on_complete = on_complete
        self.producer = producer


Event = Callable[[], "CoordinatorDecision[None] | None"]


class ShardContext(Clock, Protocol):
    """What a coordinator gets from the shard that runs it."""

    epoch: int
    """The coordinator epoch."""

    def execute(self, decision: CoordinatorDecision[Reply]) -> Commit:
        """Append and apply the records of a decision."""

    def schedule(self, delay_ms: int, event: Event) -> Timer:
        """Run `event` after a delay and execute its decision."""


class CoordinatorShard(Loadable, Protocol):
    """The state machine of one partition, as the runtime sees it (Kafka: CoordinatorShard)."""

    def apply(self, record: StoredRecord, producer_id: int) -> None:
        """Replay a committed or appended record; `producer_id` is -1 outside of a transaction."""

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply a transaction marker: the pending records of the producer become valid or are dropped."""

    def unload(self) -> None:
        """Fail waiting requests and cancel timers: another broker is the coordinator now."""

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> CoordinatorDecision[None] | None:
        """Topics were deleted, given as name -> id."""


M = TypeVar("M", bound=CoordinatorShard)


class ShardLog(ReadableLog, Protocol):
    """The log of one partition of an internal topic."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that the log accepts (max.message.bytes)."""

    def append(self, batch: bytearray, done: Callable[[ErrorCode], None]) -> None:
        """Append a batch; `done` is called when it is committed or has failed, before the return if the append is rejected."""

    def await_disk(self, lookup: DiskLookup, then: Callable[[], None]) -> None:
        """Call `then` when the lookup has finished or failed."""


class Commit:
    """The commit of a decision's records, in one or several batches.

    `error` is None while the commit is pending. After a timeout it has an error, though the records may still be committed.
    """

    __slots__ = ("deadline", "error", "is_pending", "parts", "waiters")

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.error: ErrorCode | None = None
        self.is_pending = parts > 0
        """Whether the log has not yet reported all batches."""
        self.waiters: list[Callable[[ErrorCode], None]] = []
        self.deadline: Timer | None = None

    def then(self, waiter: Callable[[ErrorCode], None]) -> None:
        """Call `waiter` with the result, at once if it is known."""
        if self.error is None:
            self.waiters.append(waiter)
        else:
            waiter(self.error)

    def on_batch_done(self, error: ErrorCode) -> None:
        """The log's result for one batch."""
        self.parts -= 1
        if error is not ErrorCode.NONE or not self.parts:
            self.is_pending = False
            self.complete(error)

    def complete(self, error: ErrorCode) -> None:
        """Set the result and call the waiters, once."""
        if self.error is not None:
            return
        self.error = error
        if self.deadline is not None:
            self.deadline.cancel()
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter(error)


COMMITTED: Final = Commit(0)
COMMITTED.error = ErrorCode.NONE


class ShardState(Enum):
    """State of a shard; the value is the error for requests."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = ErrorCode.NONE
    CLOSED = ErrorCode.NOT_COORDINATOR


class Shard(Generic[M]):
    """Runs the coordinator of one partition (Kafka: CoordinatorContext)."""

    def __init__(self, runtime: CoordinatorRuntime[M], partition: int, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state = ShardState.LOADING
        self._runtime = runtime
        self._timers = runtime.timers
        self.mono_ms = runtime.clock.mono_ms
        self.wall_ms = runtime.clock.wall_ms
        self._log = runtime.open_log(partition)
        self._last: Commit = COMMITTED
        self._deleted_while_loading: dict[str, bytes] = {}
        self._started_mono_ms = self.mono_ms()
        self.coordinator: M = runtime.make_coordinator(self)
        self._loader = Loader(self._log, self.coordinator)
        self._steps = self._loader.steps()

    def __repr__(self) -> str:
        return f"Shard({self._runtime.topic}-{self.partition}, epoch {self.epoch}, {self.state.name})"

    # ---- serving

    def schedule(self, delay_ms: int, event: Event) -> Timer:
        """Run `event` after a delay, if the shard is still active then."""
        return self._timers.schedule(self.mono_ms() + delay_ms, lambda: self._run_event(event))

    def _run_event(self, event: Event) -> None:
        if self.state is ShardState.ACTIVE:
            decision = event()
            if decision is not None:
                self.execute(decision)

    def execute(self, decision: CoordinatorDecision[Reply]) -> Commit:
        """Append and apply the records of a decision; the reply may be sent when the commit has completed."""
        to_write = decision.records
        if not to_write:
            return self.last_commit()
        producer_id = NO_PRODUCER_ID if decision.producer is None else decision.producer[0]
        limit = self._log.max_batch_bytes
        parts = _batches(to_write, self.wall_ms(), limit, decision)
        commit = Commit(len(parts))
        apply = self.coordinator.apply
        for batch, applied in parts:
            if not self._append(batch, commit):
                break
            for record in applied:
                apply(record, producer_id)
        return self._track(commit, decision.on_complete)

    def last_commit(self) -> Commit:
        """The commit that covers all state of the coordinator; a response that shows this state waits for it."""
        last = self._last
        return last if last.is_pending else COMMITTED

    def end_transaction(self, marker: bytearray, producer_id: int, *, is_commit: bool) -> Commit:
        """Append and apply a transaction marker."""
        commit = Commit(1)
        if self._append(marker, commit):
            self.coordinator.end_transaction(producer_id, is_commit=is_commit)
        return self._track(commit, None)

    def _append(self, batch: bytearray, commit: Commit) -> bool:
        """Append a batch; returns whether the log accepted it."""
        if len(batch) > self._log.max_batch_bytes:
            commit.on_batch_done(ErrorCode.MESSAGE_TOO_LARGE)
        else:
            self._log.append(batch, commit.on_batch_done)
        return commit.error is None or commit.error is ErrorCode.NONE

    def _track(self, commit: Commit, on_complete: Callable[[ErrorCode], None] | None) -> Commit:
        """Track a commit after its last batch was passed to the log."""
        if commit.error is None:
            self._last = commit
            if on_complete is not None:
                commit.waiters.append(on_complete)
            commit.deadline = self._timers.schedule(
                self.mono_ms() + self._runtime.commit_timeout_ms, lambda: commit.complete(ErrorCode.REQUEST_TIMED_OUT)
            )
        elif on_complete is not None:
            on_complete(commit.error)
        return commit

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> None:
        """Pass deleted topics to the coordinator, after loading if it is not active yet."""
        if self.state is ShardState.LOADING:
            self._deleted_while_loading.update(deleted)
        elif self.state is ShardState.ACTIVE:
            decision = self.coordinator.on_topics_deleted(deleted)
            if decision is not None:
                self.execute(decision)

    # ---- loading

    def load_next(self) -> None:
        """Load the next slice of the partition; an empty partition becomes active at once."""
        if self.state is not ShardState.LOADING:
            return
        try:
            step = next(self._steps, self)
        except (KafkaError, MalformedRequest, StorageError) as error:
            _log.error("%s-%d cannot be loaded and is not coordinated: %s", self._runtime.topic, self.partition, error)
            self.close()
            return
        if step is self:
            self._serve()
        elif isinstance(step, DiskLookup):
            self._log.await_disk(step, self.load_next)
        else:
            self._timers.schedule(self.mono_ms() + 1, self.load_next)

    def _serve(self) -> None:
        self.state = ShardState.ACTIVE
        count = self._loader.records
        if count:
            took_ms = self.mono_ms() - self._started_mono_ms
            _log.info("loaded %s-%d: %d records in %d ms", self._runtime.topic, self.partition, count, took_ms)
        if self._deleted_while_loading:
            self.on_topics_deleted(self._deleted_while_loading)

    def close(self) -> None:
        """Stop serving: another broker leads the partition, or this broker stops."""
        if self.state is ShardState.CLOSED:
            return
        was_active = self.state is ShardState.ACTIVE
        self.state = ShardState.CLOSED
        self._last.complete(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if was_active:
            self.coordinator.unload()


class CoordinatorRuntime(Generic[M]):
    """All shards of one internal topic on this broker."""

    def __init__(
        self,
        topic: str,
        make_coordinator: Callable[[ShardContext], M],
        open_log: Callable[[int], ShardLog],
        timers: TimerQueue,
        clock: Clock,
    ) -> None:
        self.topic = topic
        self.make_coordinator = make_coordinator
        self.open_log = open_log
        self.timers = timers
        self.clock = clock
        self.commit_timeout_ms = 5000
        self.partition_count = 0
        """Partitions of the topic; 0 while it does not exist."""
        self.shards: dict[int, Shard[M]] = {}

    def find(self, key: str) -> Shard[M] | ErrorCode:
        """The active shard for a key, else the error for the request."""
        count = self.partition_count
        shard = self.shards.get(abs_hash(key) % count) if count else None
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        state = shard.state
        return shard if state is ShardState.ACTIVE else state.value

    @property
    def is_loading(self) -> bool:
        """Whether a shard is still loading."""
        return any(shard.state is ShardState.LOADING for shard in self.shards.values())

    @property
    def active_shards(self) -> list[Shard[M]]:
        """The active shards, by partition."""
        return [shard for _, shard in sorted(self.shards.items()) if shard.state is ShardState.ACTIVE]

    def on_election(self, partition: int, epoch: int) -> None:
        """Become coordinator of the partition with this leader epoch."""
        shard = self.shards.get(partition)
        if shard is not None:
            if shard.epoch >= epoch:
                return
            self.on_resignation(partition)
        try:
            shard = Shard(self, partition, epoch)
            shard.load_next()
        except (KafkaError, StorageError) as error:
            _log.error("%s-%d cannot be coordinated: %s", self.topic, partition, error)
            return
        self.shards[partition] = shard

    def on_resignation(self, partition: int) -> None:
        """Stop coordinating the partition: another broker leads it."""
        shard = self.shards.pop(partition, None)
        if shard is not None:
            shard.close()

    def on_metadata_update(self, changes: MetadataDelta, image: MetadataImage, broker_id: int) -> None:
        """Follow the leaders of the topic's partitions and pass on deleted topics.

        Call it after the partitions that this broker leads are open.
        """
        for topic_id, removed in changes.removed_topics.items():
            if removed.name == self.topic and topic_id not in image.topics_by_id:
                self.close()
        topic = image.topics_by_name.get(self.topic)
        self.partition_count = 0 if topic is None else len(topic.partitions)
        if topic is not None:
            for partition in changes.partitions.get(topic.topic_id, ()):
                state = topic.partitions[partition]
                if state.leader == broker_id:
                    self.on_election(partition, state.leader_epoch)
                else:
                    self.on_resignation(partition)
        if changes.removed_topics:
            deleted = {removed.name: topic_id for topic_id, removed in changes.removed_topics.items()}
            for shard in list(self.shards.values()):
                shard.on_topics_deleted(deleted)

    def close(self) -> None:
        """Close all shards."""
        for partition in list(self.shards):
            self.on_resignation(partition)


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """Translate an append error to the error of a coordinator's response, as Kafka does."""
    return _FROM_LOG.get(error, error)


_FROM_LOG: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def encode_record(record: StoredRecord) -> tuple[bytes, bytes | None]:
    """Key and value as bytes."""
    key, value, version, ready = record
    if ready is not None:
        return ready
    encoded = _I16.pack(type(key).API_KEY) + encode(key, 0)
    return encoded, None if value is None else _I16.pack(version) + encode(value, version)


def version_of(value: bytes, highest: int) -> int:
    """The version at the start of a value."""
    if len(value) < 2:
        raise MalformedRequest("a stored value has no version")
    (version,) = _I16.unpack_from(value)
    if not 0 <= version <= highest:
        raise MalformedRequest(f"a stored value has version {version}; the highest known is {highest}")
    return int(version)


def _batches(
    to_write: Sequence[StoredRecord], wall_ms: int, limit: int, decision: CoordinatorDecision[Any]
) -> list[tuple[bytearray, Sequence[StoredRecord]]]:
    """The batches of some records, each with its records; one batch if they are atomic or fit into one."""
    encoded = list(map(encode_record, to_write))
    if decision.is_atomic:
        return [(_batch(encoded, wall_ms, decision), to_write)]
    cuts = [*_batch_starts(encoded, limit), len(encoded)]
    return [(_batch(encoded[first:end], wall_ms, decision), to_write[first:end]) for first, end in pairwise(cuts)]


def _batch_starts(encoded: Sequence[tuple[bytes, bytes | None]], limit: int) -> list[int]:
    """The indexes of the records that start a batch; a batch of several records is at most `limit` bytes."""
    firsts, size = [0], BATCH_OVERHEAD
    for index, (key, value) in enumerate(encoded):
        record_size = len(key) + len(value or b"") + RECORD_OVERHEAD
        if index > firsts[-1] and size + record_size > limit:
            firsts.append(index)
            size = BATCH_OVERHEAD
        size += record_size
    return firsts


def _batch(
    encoded: Sequence[tuple[bytes, bytes | None]], wall_ms: int, decision: CoordinatorDecision[Any]
) -> bytearray:
    if decision.producer is None:
        builder = BatchBuilder()
    else:
        producer_id, epoch = decision.producer
        builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, transactional=True)
    builder.extend(wall_ms, encoded)
    return builder.build()

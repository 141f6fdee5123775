"""Runs coordinators: one state machine for each partition of an internal topic that this broker leads.

FORMAT   a record of an internal topic: key = i16 record type, then the key message (never flexible);
         value = i16 version, then the message in that version; a null value is a tombstone
RULES    1. A shard serves when it has read its partition from the start to where the log ended at the election;
            until then COORDINATOR_LOAD_IN_PROGRESS. It loads in slices, so that other requests go on.
         2. Records are applied when the log has taken them, answers go out when they are committed: an answer never
            tells what could still be lost. An answer without records waits for those before it.
         3. A refusal by the log changes no durable state; `settle` is told, for what was changed beside it.
         4. The leader epoch is the coordinator's epoch: a shard of an older one is gone with all that waits in it.
         5. Everything happens on one thread; time and deadlines are handed in.
         6. Records that are part of a producer's transaction are applied as pending, until its marker is appended.
NOT HERE What is decided (`group_coordinator.py` and below), who leads (`replication/`), how an answer travels (`handlers/`).
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
from replication.metadata.image import Changes, MetadataImage
from replication.state_machine import Decision
from replication.timer_queue import Deadline, Deadlines
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock

_log = logging.getLogger("barnabas.coordinators")

RECORD_OVERHEAD: Final = 32
"""More than a record's own fields take beside key and value."""

_I16 = Struct(">h")
Reply = TypeVar("Reply")


class StoredRecord(NamedTuple):
    """One record of an internal topic: two messages, of which the key's class says its type, `version` is the value's.

    Or `encoded` is key and value as they stand in the topic, and what these are is between who made them and who applies them.
    """

    key: Any
    value: Any
    version: int = 0
    encoded: tuple[bytes, bytes | None] | None = None


class CoordinatorDecision(Decision[Reply]):
    """A decision whose records have keys.

    `settle` is called once, with NONE when the records are committed or with the error that kept them from it; it
    is for what is volatile: members that wait, a state that follows from the commit. `producer` is the id and epoch of
    the producer whose transaction the records are part of, if they are.
    """

    __slots__ = ("producer", "settle")

    records: Sequence[StoredRecord]  # type: ignore[assignment]  # keyed, unlike those of the metadata log

    def __init__(
        self,
        records: Sequence[StoredRecord],
        reply: Reply,
        *,
        is_atomic: bool = True,
        settle: Callable[[ErrorCode], None] | None = None,
        producer: tuple[int, int] | None = None,
    ) -> None:
        self.records = records
        self.reply = reply
        self.is_atomic = is_atomic
        self.settle = settle
        self.producer = producer


Event = Callable[[], "CoordinatorDecision[None] | None"]


class Clock(Protocol):
    """The time of day and of deadlines."""

    def mono_ms(self) -> int:
        """Monotonic milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""


class Host(Clock, Protocol):
    """What a machine may ask of the shard that runs it."""

    epoch: int
    """The coordinator's epoch."""

    def execute(self, decision: CoordinatorDecision[Reply]) -> Commit:
        """Append and apply what was decided."""

    def after(self, delay_ms: int, event: Event) -> Deadline:
        """Have the machine decide something later."""


class Machine(Loadable, Protocol):
    """What the runtime asks of a coordinator's state machine."""

    def apply(self, record: StoredRecord, producer_id: int) -> None:
        """Change durable state; `producer_id` is -1 outside of a transaction."""

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """A producer's transaction ended: what it left pending counts now, or never."""

    def unload(self) -> None:
        """Another broker is the coordinator now: answer those who wait, forget deadlines."""

    def topics_deleted(self, deleted: Mapping[str, bytes]) -> CoordinatorDecision[None] | None:
        """Topics are no more, given as name -> id."""


M = TypeVar("M", bound=Machine)


class ShardLog(ReadableLog, Protocol):
    """One partition's log as a shard sees it."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that it takes."""

    def append(self, batch: bytearray, done: Callable[[ErrorCode], None]) -> None:
        """Append; `done` is called when the batch is committed, or cannot be; at once when it was refused."""

    def await_disk(self, blocked: WouldBlock[Any], then: Callable[[], None]) -> None:
        """Call `then` when what would have blocked is done, or has failed."""


class Commit:
    """The way of a decision's records into the log.

    `error` is None while that is open. A commit that took too long has an error though it may still succeed.
    """

    __slots__ = ("deadline", "error", "is_open", "parts", "waiters")

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.error: ErrorCode | None = None
        self.is_open = parts > 0
        """Whether the log has still to report."""
        self.waiters: list[Callable[[ErrorCode], None]] = []
        self.deadline: Deadline | None = None

    def then(self, waiter: Callable[[ErrorCode], None]) -> None:
        """Have `waiter` told how it ended, now or later."""
        if self.error is None:
            self.waiters.append(waiter)
        else:
            waiter(self.error)

    def part_done(self, error: ErrorCode) -> None:
        """The log's report on one batch."""
        self.parts -= 1
        if error is not ErrorCode.NONE or not self.parts:
            self.is_open = False
            self.finish(error)

    def finish(self, error: ErrorCode) -> None:
        """Tell everyone who waits, once."""
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
    """Whether a shard serves."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = ErrorCode.NONE
    GONE = ErrorCode.NOT_COORDINATOR


class Shard(Generic[M]):
    """One partition's coordinator; also the Host of its machine."""

    def __init__(self, runtime: CoordinatorRuntime[M], partition: int, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state = ShardState.LOADING
        self._runtime = runtime
        self._deadlines = runtime.deadlines
        self.mono_ms = runtime.clock.mono_ms
        self.wall_ms = runtime.clock.wall_ms
        self._log = runtime.open_log(partition)
        self._last: Commit = COMMITTED
        self._deleted_meanwhile: dict[str, bytes] = {}
        self._started_mono_ms = self.mono_ms()
        self.machine: M = runtime.make_machine(self)
        self._loader = Loader(self._log, self.machine)
        self._steps = self._loader.steps()

    def __repr__(self) -> str:
        return f"Shard({self._runtime.topic}-{self.partition}, epoch {self.epoch}, {self.state.name})"

    # ---- serving

    def after(self, delay_ms: int, event: Event) -> Deadline:
        """Have the machine decide something later, if the shard still serves then."""
        return self._deadlines.schedule(self.mono_ms() + delay_ms, lambda: self._happen(event))

    def _happen(self, event: Event) -> None:
        if self.state is ShardState.ACTIVE:
            decision = event()
            if decision is not None:
                self.execute(decision)

    def execute(self, decision: CoordinatorDecision[Reply]) -> Commit:
        """Append and apply what was decided; the commit says when, or whether, the reply may go out."""
        to_write = decision.records
        if not to_write:
            return self.known()
        producer_id = NO_PRODUCER_ID if decision.producer is None else decision.producer[0]
        limit = self._log.max_batch_bytes
        parts = _batches(to_write, self.wall_ms(), limit, decision)
        commit = Commit(len(parts))
        apply = self.machine.apply
        for batch, applied in parts:
            if not self._append(batch, commit):
                break
            for record in applied:
                apply(record, producer_id)
        return self._follow(commit, decision.settle)

    def known(self) -> Commit:
        """The commit of all that the machine knows now: an answer that tells of it waits for that."""
        last = self._last
        return last if last.is_open else COMMITTED

    def end_transaction(self, marker: bytearray, producer_id: int, *, is_commit: bool) -> Commit:
        """Append a transaction's marker and apply it; the commit says when it counts."""
        commit = Commit(1)
        if self._append(marker, commit):
            self.machine.end_transaction(producer_id, is_commit=is_commit)
        return self._follow(commit, None)

    def _append(self, batch: bytearray, commit: Commit) -> bool:
        """Hand a batch to the log; whether it was taken."""
        if len(batch) > self._log.max_batch_bytes:
            commit.part_done(ErrorCode.MESSAGE_TOO_LARGE)
        else:
            self._log.append(batch, commit.part_done)
        return commit.error is None or commit.error is ErrorCode.NONE

    def _follow(self, commit: Commit, settle: Callable[[ErrorCode], None] | None) -> Commit:
        """Everything was handed to the log: see how it ends."""
        if commit.error is None:
            self._last = commit
            if settle is not None:
                commit.waiters.append(settle)
            commit.deadline = self._deadlines.schedule(
                self.mono_ms() + self._runtime.commit_timeout_ms,
                lambda: commit.finish(ErrorCode.REQUEST_TIMED_OUT),
            )
        elif settle is not None:
            settle(commit.error)
        return commit

    def topics_deleted(self, deleted: Mapping[str, bytes]) -> None:
        """Let the machine forget what belongs to topics that are no more."""
        if self.state is ShardState.LOADING:
            self._deleted_meanwhile.update(deleted)
        elif self.state is ShardState.ACTIVE:
            decision = self.machine.topics_deleted(deleted)
            if decision is not None:
                self.execute(decision)

    # ---- loading

    def start(self) -> None:
        """Read the partition back, slice by slice; an empty one serves at once."""
        if self.state is not ShardState.LOADING:
            return
        try:
            step = next(self._steps, self)
        except (KafkaError, MalformedRequest, StorageError) as error:
            _log.error("%s-%d cannot be loaded: %s", self._runtime.topic, self.partition, error)
            self.leave()
            return
        if step is self:
            self._serve()
        elif isinstance(step, WouldBlock):
            self._log.await_disk(step, self.start)
        else:
            self._deadlines.schedule(self.mono_ms() + 1, self.start)

    def _serve(self) -> None:
        self.state = ShardState.ACTIVE
        count = self._loader.records
        if count:
            took_ms = self.mono_ms() - self._started_mono_ms
            _log.info("loaded %s-%d: %d records in %d ms", self._runtime.topic, self.partition, count, took_ms)
        if self._deleted_meanwhile:
            self.topics_deleted(self._deleted_meanwhile)

    def leave(self) -> None:
        """Serve no more: somebody else does, or the broker stops."""
        if self.state is ShardState.GONE:
            return
        was_active = self.state is ShardState.ACTIVE
        self.state = ShardState.GONE
        self._last.finish(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if was_active:
            self.machine.unload()


class CoordinatorRuntime(Generic[M]):
    """All shards of one internal topic on this broker."""

    def __init__(
        self,
        topic: str,
        make_machine: Callable[[Host], M],
        open_log: Callable[[int], ShardLog],
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        self.topic = topic
        self.make_machine = make_machine
        self.open_log = open_log
        self.deadlines = deadlines
        self.clock = clock
        self.commit_timeout_ms = 5000
        self.partition_count = 0
        """Partitions of the topic; 0 while it does not exist."""
        self.shards: dict[int, Shard[M]] = {}

    def find(self, key: str) -> Shard[M] | ErrorCode:
        """The shard that serves a key, or why there is none."""
        count = self.partition_count
        shard = self.shards.get(abs_hash(key) % count) if count else None
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        state = shard.state
        return shard if state is ShardState.ACTIVE else state.value

    @property
    def is_loading(self) -> bool:
        """Whether some shard does not serve yet."""
        return any(shard.state is ShardState.LOADING for shard in self.shards.values())

    @property
    def serving(self) -> list[Shard[M]]:
        """The shards that serve, by partition."""
        return [shard for _, shard in sorted(self.shards.items()) if shard.state is ShardState.ACTIVE]

    def elected(self, partition: int, epoch: int) -> None:
        """The partition is led here now."""
        shard = self.shards.get(partition)
        if shard is not None:
            if shard.epoch >= epoch:
                return
            self.resigned(partition)
        try:
            shard = Shard(self, partition, epoch)
            shard.start()
        except (KafkaError, StorageError) as error:
            _log.error("%s-%d cannot be coordinated: %s", self.topic, partition, error)
            return
        self.shards[partition] = shard

    def resigned(self, partition: int) -> None:
        """The partition is not led here any more."""
        shard = self.shards.pop(partition, None)
        if shard is not None:
            shard.leave()

    def image_changed(self, changes: Changes, image: MetadataImage, broker_id: int) -> None:
        """Follow the leaders of the topic, and tell the machines which topics are gone.

        To be called when the partitions that this broker leads are ready.
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
                    self.elected(partition, state.leader_epoch)
                else:
                    self.resigned(partition)
        if changes.removed_topics:
            deleted = {removed.name: topic_id for topic_id, removed in changes.removed_topics.items()}
            for shard in list(self.shards.values()):
                shard.topics_deleted(deleted)

    def close(self) -> None:
        """Resign from everything."""
        for partition in list(self.shards):
            self.resigned(partition)


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """What a client is told when the log did not take or commit a record."""
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
    """Key and value as they stand in the topic."""
    key, value, version, ready = record
    if ready is not None:
        return ready
    encoded = _I16.pack(type(key).API_KEY) + encode(key, 0)
    return encoded, None if value is None else _I16.pack(version) + encode(value, version)


def _batches(
    to_write: Sequence[StoredRecord], wall_ms: int, limit: int, decision: CoordinatorDecision[Any]
) -> list[tuple[bytearray, Sequence[StoredRecord]]]:
    """The batches that hold some records, each with its records; one if they belong together or fit into one."""
    encoded = list(map(encode_record, to_write))
    if decision.is_atomic:
        return [(_batch(encoded, wall_ms, decision), to_write)]
    cuts = [*_first_of_each(encoded, limit), len(encoded)]
    return [(_batch(encoded[first:end], wall_ms, decision), to_write[first:end]) for first, end in pairwise(cuts)]


def _first_of_each(encoded: Sequence[tuple[bytes, bytes | None]], limit: int) -> list[int]:
    """With which records a new batch begins, so that none is larger than the limit for having several."""
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

"""Runs coordinators: one state machine per partition of an internal topic that this broker leads.

RULES    1. A shard becomes active after it has read its partition up to the log end offset at election. Until then requests get
            COORDINATOR_LOAD_IN_PROGRESS. Loading runs in slices, so the loop also serves other requests.
         2. Records are applied after the append; the reply of a decision is sent after the commit. A reply without records
            waits for the records before it, so a response never contains state that can still be lost.
         3. A failed append does not change durable state. `on_commit` gets the error and undoes volatile changes.
         4. The leader epoch is the coordinator epoch. A shard stays active in the next epoch of the same leader, as at the end
            of a reassignment. If another broker may have been the leader, it is closed and its waiting requests fail.
         5. Everything runs on one thread; clock and timers are passed in.
         6. Records of a producer's transaction are applied as pending until its marker is appended.
NOT HERE Records and their batches (`stored_records.py`), decisions (`group_coordinator.py` and below), leadership
         (`replication/`), sending responses (`handlers/`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.runtime.loader import Loadable, Loader, ReadableLog
from broker.coordinators.runtime.runtime_times import RuntimeTimes
from broker.coordinators.runtime.stored_records import EncodedRecords, StoredRecord, batches_of
from protocol.batch_builder import batch_of
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.records import NO_PRODUCER_ID
from replication.completion import Completion, SharedCompletion, completed, failed, gather
from replication.metadata.image import MetadataDelta, MetadataImage
from replication.state_machine import Decision
from replication.timer_queue import Clock, Timer, TimerQueue
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup

_log = logging.getLogger("barnabas.coordinators")

_NONE: Final = ErrorCode.NONE
T = TypeVar("T")
Reply = TypeVar("Reply")


Replies = Sequence[tuple[Completion[Any], Any]]
"""Requests that waited, with their responses."""


class CoordinatorDecision(Decision[Reply | Completion[Reply]], Generic[Reply]):
    """A decision of a coordinator, with keyed records and replies to several requests.

    `reply` is the response to the request. If the request has to wait, it is a completion that the `replies` of a later
    decision complete. `replies` wait for the records of this decision only, and get the error if these are not committed.
    `on_commit` is called once while the shard is active: with NONE when the records are committed, else with the error. It
    changes volatile state and returns the decision that follows (Kafka: appendFuture). `producer` is the producer id and
    epoch of the transaction that the records belong to.
    """

    __slots__ = ("on_commit", "producer", "replies")

    records: Sequence[StoredRecord]  # type: ignore[assignment]  # keyed, unlike those of the metadata log

    def __init__(
        self,
        records: Sequence[StoredRecord],
        reply: Reply | Completion[Reply],
        replies: Replies = (),
        *,
        is_atomic: bool = True,
        on_commit: OnCommit | None = None,
        producer: tuple[int, int] | None = None,
    ) -> None:
        self.records = records
        self.reply = reply
        self.replies = replies
        self.is_atomic = is_atomic
        self.on_commit = on_commit
        self.producer = producer

    def extended(
        self, reply: T | Completion[T], records: Sequence[StoredRecord] = (), replies: Replies = ()
    ) -> CoordinatorDecision[T]:
        """The same decision with another reply, and with records and replies before its own."""
        records, replies = [*records, *self.records], [*replies, *self.replies]
        return CoordinatorDecision(records, reply, replies, is_atomic=self.is_atomic, on_commit=self.on_commit)


Event = Callable[[], "CoordinatorDecision[Any] | None"]
OnCommit = Callable[[ErrorCode], "CoordinatorDecision[None] | None"]


class ShardContext(Clock, Protocol):
    """What a coordinator gets from the shard that runs it."""

    epoch: int
    """The coordinator epoch."""

    def schedule(self, delay_ms: int, event: Event) -> Timer:
        """Run `event` after a delay, or at the end of loading, and execute its decision, if the shard is active then."""

    def run_after(
        self, completion: Completion[T], event: Callable[[Completion[T]], CoordinatorDecision[Reply] | None]
    ) -> Completion[Reply]:
        """Run `event` when a completion has its result, and execute the decision; returns the reply.

        `event` may raise KafkaError: the error of the reply.
        """


class CoordinatorShard(Loadable, Protocol):
    """The state machine of one partition, as the runtime sees it (Kafka: CoordinatorShard)."""

    def apply(self, record: StoredRecord, producer_id: int) -> None:
        """Replay a committed or appended record; `producer_id` is -1 outside of a transaction."""

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply a transaction marker: the pending records of the producer become valid or are dropped."""

    def unload(self) -> Replies:
        """Cancel timers: another broker is the coordinator now. Returns the errors for requests that wait."""

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> CoordinatorDecision[None] | None:
        """Topics were deleted, given as name -> id."""


M = TypeVar("M", bound=CoordinatorShard)


class ShardLog(ReadableLog, Protocol):
    """The log of one partition of an internal topic."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that the log accepts (max.message.bytes)."""

    def append(self, batch: bytearray) -> Completion[Any]:
        """Append a batch. It has its result when it is committed; a rejected append has its KafkaError at the return."""

    def await_disk(self, lookup: DiskLookup, then: Callable[[], None]) -> None:
        """Call `then` when the lookup has finished or failed."""


Commit = Completion[Any]
"""The commit of some records; its error is a KafkaError."""

_COMMITTED: Final[Commit] = completed(None)


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
        self.pending_commit = _COMMITTED
        """The commit that covers all state of the coordinator; it has failed if its append is late."""
        self._events_while_loading: list[Event] = []
        self._started_mono_ms = self.mono_ms()
        self.coordinator: M = runtime.make_coordinator(self)
        self._loader = Loader(self._log, self.coordinator)
        self._steps = self._loader.steps()

    def __repr__(self) -> str:
        return f"Shard({self._runtime.topic}-{self.partition}, epoch {self.epoch}, {self.state.name})"

    # ---- serving

    def schedule(self, delay_ms: int, event: Event) -> Timer:
        """Run `event` after a delay, or at the end of loading, if the shard is active then."""
        return self._timers.schedule(self.mono_ms() + delay_ms, lambda: self._run_event(event))

    def run_after(
        self, completion: Completion[T], event: Callable[[Completion[T]], CoordinatorDecision[Reply] | None]
    ) -> Completion[Reply]:
        """Run `event` when a completion has its result, and execute the decision; the reply fails if the shard is closed."""
        reply: Completion[Reply] = Completion()

        def run(done: Completion[T]) -> None:
            if self.state is not ShardState.ACTIVE:
                reply.fail(KafkaError(self.state.value))
                return
            try:
                decision = event(done)
            except KafkaError as error:
                reply.fail(error)
            else:
                if decision is not None:
                    self.execute(decision).then(partial(_complete, ((reply, decision.reply),)))

        completion.then(run)
        return reply

    def _run_event(self, event: Event) -> None:
        if self.state is ShardState.LOADING:
            self._events_while_loading.append(event)
        elif self.state is ShardState.ACTIVE:
            decision = event()
            if decision is not None:
                self.execute(decision)

    def execute(self, decision: CoordinatorDecision[Any]) -> Commit:
        """Append and apply the records of a decision; returns the commit that its reply waits for (rule 2)."""
        records, replies, on_commit = decision.records, decision.replies, decision.on_commit
        commit = self._write(decision) if records else self.pending_commit
        if replies:
            (commit if records else _COMMITTED).then(partial(_complete, replies))
        if on_commit is not None:
            self.run_after(commit, lambda done: on_commit(error_code(done)))
        return commit

    def end_transaction(self, marker: bytearray, producer_id: int, *, is_commit: bool) -> Commit:
        """Append and apply a transaction marker."""
        appended = self._append(marker)
        if appended.error is None:
            self.coordinator.end_transaction(producer_id, is_commit=is_commit)
        return self._commit(appended)

    def _write(self, decision: CoordinatorDecision[Any]) -> Commit:
        """Append and apply the records; a partition commits its batches in order, so the last one decides."""
        producer_id = NO_PRODUCER_ID if decision.producer is None else decision.producer[0]
        apply = self.coordinator.apply
        appended = _COMMITTED
        for batch, applied in batches_of(
            decision.records,
            self.wall_ms(),
            self._log.max_batch_bytes,
            decision.producer,
            is_atomic=decision.is_atomic,
        ):
            appended = self._append(batch)
            if appended.error is not None:
                break
            for record in applied:
                apply(record, producer_id)
        return self._commit(appended)

    def write_encoded(self, records: EncodedRecords) -> Commit:
        """Append and apply records that are encoded already."""
        appended = self._append(batch_of(records.body, records.size, self.wall_ms()))
        if appended.error is None:
            records.apply()
        return self._commit(appended)

    def _append(self, batch: bytearray) -> Commit:
        if len(batch) > self._log.max_batch_bytes:
            return failed(KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
        return self._log.append(batch)

    def _commit(self, appended: Commit) -> Commit:
        """The commit of an append, with a deadline: after it, the records may still be committed."""
        if appended.is_done:
            return appended
        commit: Commit = SharedCompletion()
        self.pending_commit = commit
        now_ms = self.mono_ms()
        appended.then(partial(self._on_appended, commit, now_ms))
        deadline_mono_ms = now_ms + self._runtime.commit_timeout_ms
        commit.expire_at(self._timers, deadline_mono_ms, lambda: commit.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT)))
        return commit

    def _on_appended(self, commit: Commit, began_ms: int, appended: Commit) -> None:
        self._runtime.times.record_commit(self.mono_ms() - began_ms)
        if self.pending_commit is commit:
            self.pending_commit = _COMMITTED
        _complete(((commit, None),), appended)

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> None:
        """Pass deleted topics to the coordinator, after loading if it is not active yet."""
        self._run_event(lambda: self.coordinator.on_topics_deleted(deleted))

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
        count, took_ms = self._loader.records, self.mono_ms() - self._started_mono_ms
        self._runtime.times.record_load(took_ms)
        if count:
            _log.info("loaded %s-%d: %d records in %d ms", self._runtime.topic, self.partition, count, took_ms)
        for event in self._events_while_loading:
            self._run_event(event)
        self._events_while_loading.clear()

    def close(self) -> None:
        """Stop serving: another broker leads the partition, or this broker stops."""
        if self.state is ShardState.CLOSED:
            return
        was_active = self.state is ShardState.ACTIVE
        self.state = ShardState.CLOSED
        self.pending_commit.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if was_active:
            _complete(self.coordinator.unload(), _COMMITTED)


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
        self.times = RuntimeTimes()
        self.partition_count = 0
        """Partitions of the topic; 0 while it does not exist."""
        self.shards: dict[int, Shard[M]] = {}

    # ---- requests

    def write(
        self,
        key: str,
        decide: Callable[[M], CoordinatorDecision[Reply]],
        error_response: Callable[[ErrorCode], Reply],
    ) -> Completion[Reply]:
        """Let the coordinator of a key decide, and return its reply (Kafka: scheduleWriteOperation).

        The reply is `error_response(error)` if the coordinator is not active here, or if the records are not committed.
        """
        shard = self.find(key)
        if shard is None:
            return completed(error_response(self._error_of(key)))
        decision = decide(shard.coordinator)
        commit, reply = shard.execute(decision), decision.reply
        if isinstance(reply, Completion):
            return _with_error_response(reply, error_response)
        return reply_after(commit, reply, error_response)

    def write_verified(
        self,
        key: str,
        verify: Callable[[int], Completion[None]],
        decide: Callable[[M], CoordinatorDecision[Reply]],
        error_response: Callable[[ErrorCode], Reply],
    ) -> Completion[Reply]:
        """Like `write`, after `verify` has succeeded for the key's partition: its error is a KafkaError.

        Kafka: scheduleTransactionalWriteOperation.
        """
        shard = self.find(key)
        if shard is None:
            return completed(error_response(self._error_of(key)))
        written = verify(shard.partition).compose(lambda _: self.write(key, decide, error_response))
        return _with_error_response(written, error_response)

    def read(
        self, key: str, query: Callable[[M], Reply], error_response: Callable[[ErrorCode], Reply]
    ) -> Completion[Reply]:
        """The result of a query, when the state that it read is committed (Kafka: scheduleReadOperation)."""
        shard = self.find(key)
        if shard is None:
            return completed(error_response(self._error_of(key)))
        reply = query(shard.coordinator)
        if shard.pending_commit is _COMMITTED:
            return completed(reply)
        return reply_after(shard.pending_commit, reply, error_response)

    def read_all(
        self,
        query: Callable[[M], list[T]],
        response: Callable[[list[T]], Reply],
        error_response: Callable[[ErrorCode], Reply],
    ) -> Completion[Reply]:
        """The response with the items of all active coordinators (Kafka: scheduleReadAllOperation)."""
        active = [shard for _, shard in sorted(self.shards.items()) if shard.state is ShardState.ACTIVE]
        items = [item for shard in active for item in query(shard.coordinator)]
        committed = gather([shard.pending_commit for shard in active], lambda _: response(items))
        return _with_error_response(committed, error_response)

    def end_transaction(self, partition: int, marker: bytearray, producer_id: int, *, is_commit: bool) -> Commit:
        """Append and apply a marker; NOT_LEADER_OR_FOLLOWER if the partition has no active coordinator here."""
        shard = self.shards.get(partition)
        if shard is None or shard.state is not ShardState.ACTIVE:
            return failed(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return shard.end_transaction(marker, producer_id, is_commit=is_commit)

    def find(self, key: str) -> Shard[M] | None:
        """The active shard of a key."""
        shard = self.shards.get(abs_hash(key) % (self.partition_count or 1))
        return shard if shard is not None and shard.state is ShardState.ACTIVE else None

    def _error_of(self, key: str) -> ErrorCode:
        """The error of requests for a key without an active shard."""
        shard = self.shards.get(self.partition_for(key))
        return ErrorCode.NOT_COORDINATOR if shard is None else shard.state.value

    def partition_for(self, key: str) -> int:
        """The partition of a key; 0 while the topic does not exist."""
        return abs_hash(key) % (self.partition_count or 1)

    # ---- leadership

    @property
    def is_loading(self) -> bool:
        """Whether a shard is still loading."""
        return any(shard.state is ShardState.LOADING for shard in self.shards.values())

    def on_election(self, partition: int, epoch: int) -> None:
        """Become coordinator of the partition with this leader epoch."""
        shard = self.shards.get(partition)
        if shard is not None:
            if shard.epoch >= epoch:
                return
            if shard.epoch + 1 == epoch and shard.state is not ShardState.CLOSED:
                shard.epoch = epoch
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


def _complete(replies: Replies, commit: Commit) -> None:
    """Complete requests, with the error if the records were not committed."""
    for request, response in replies:
        if commit.error is None:
            request.complete(response)
        else:
            request.fail(commit.error)


def reply_after(commit: Commit, reply: Reply, error_response: Callable[[ErrorCode], Reply]) -> Completion[Reply]:
    """A reply that waits for a commit, or the response for the commit's error."""
    if commit.is_done and commit.error is None:
        return completed(reply)
    later: Completion[Reply] = Completion()

    def on_commit(_: Commit) -> None:
        later.complete(reply if commit.error is None else error_response(coordinator_error(error_code(commit))))

    commit.then(on_commit)
    return later


def _with_error_response(reply: Completion[Reply], error_response: Callable[[ErrorCode], Reply]) -> Completion[Reply]:
    """The reply, or the response for its error."""

    def respond(done: Completion[Reply]) -> Reply:
        if isinstance(done.error, KafkaError):
            return error_response(coordinator_error(done.error.code))
        return done.result()

    return reply if reply.is_done and reply.error is None else reply.handle(respond)


def error_code(done: Completion[Any]) -> ErrorCode:
    """The code of a commit's error; NONE without an error."""
    return done.error.code if isinstance(done.error, KafkaError) else _NONE


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

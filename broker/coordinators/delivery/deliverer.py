"""Delivers the due records of one schedule partition that this broker leads, each exactly once for committed readers.

RULES    1. A transaction appends due records to the target and commits the progress (`progress.py`). What is delivered follows
            from the schedule partition and the committed progress alone.
         2. After an error the outcome of the transaction is unknown: the deliverer initializes its transactional id again,
            which decides it and fences earlier leaders, and reads the progress. If that is neither the old nor the new one,
            another leader was active, and everything is read again.
         3. A record without value cancels the pending records with its key that have lower offsets. Cancelled records stay
            pending until they are due, and are dropped then.
         4. Nothing is delivered before all records below the first read offset are in the queue: at first those up to the last
            stable offset.
         5. A record that the target refuses for ever, alone in its transaction, is skipped and logged.
         6. After a few hundred records the other work of the event loop runs.
NOT HERE When it runs (`delivery_manager.py`), requests (`transaction_client.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, islice, takewhile
from typing import Final, NamedTuple, TypeVar

from broker.coordinators.delivery.due_queue import DueQueue
from broker.coordinators.delivery.progress import MAX_STEPS, Progress
from broker.coordinators.delivery.record_loader import RecordLoader
from broker.coordinators.delivery.routine import Steps
from broker.coordinators.delivery.stable_records import Chunk, open_led_log, read_chunk
from broker.coordinators.delivery.target_batches import MAX_TOTAL_BYTES, TargetBatches, stored_record
from broker.coordinators.delivery.transaction_client import SchedulePartition, TransactionClient
from broker.coordinators.transactions.remote_verification import SendToBroker
from broker.process.histograms import Histogram
from protocol.errors import ErrorCode, KafkaError
from protocol.records import Record
from replication.completion import Completion
from replication.metadata.image import TopicImage
from replication.partition.follower_progress import NO_EPOCH
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock
from storage.config.config_def import MAX_LONG
from storage.io.disk_lookup import DiskLookup
from storage.log.delivery_time import AT_ONCE, InvalidSchedule, due_ms

T = TypeVar("T")

_log = logging.getLogger("barnabas.delivery")

MAX_RECORDS: Final = 4_000
"""The most records of a transaction: larger ones are not cheaper per record, and their first record waits for the last one."""
MAX_QUEUE_BYTES: Final = 64 * 1024 * 1024
"""About 7 million pending records; those due later are read again before they are due."""
_SCAN_AHEAD_MS: Final = 60_000
_CHUNK_BYTES: Final = 512 * 1024
"""A read may need a thread; its batches are found in some milliseconds, even if each has one record."""
_RECORDS_PER_SLICE: Final = 400
"""A few milliseconds."""
_LOAD_AHEAD_MS: Final = 2_000
_MAX_FORGOTTEN: Final = 10_000
_RETRY_MS: Final = 200
_MAX_RETRY_MS: Final = 5_000
"""After an interruption that lasts: each attempt initializes the transactional id and reads records again."""
_REPORTED_FAILURE: Final = 5
"""After a second: a start, a new leader or a refused record interrupt deliveries for less, and are no reason for a warning."""
_REFUSALS: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors that a record gets again. INVALID_TIMESTAMP is none: a clock is wrong, which gives each delivery its timestamp."""


class Dependencies(NamedTuple):
    """What the deliverers of a broker share."""

    broker_id: int
    replicas: ReplicaManager
    clock: Clock
    send: SendToBroker
    sleep: Callable[[int], Completion[None]]
    """Completes after some milliseconds."""
    pause: Callable[[], Completion[None]]
    """Completes in the next iteration of the event loop."""
    max_queue_bytes: int = MAX_QUEUE_BYTES


class Deliverer:
    """The deliverer of one partition; `run` are its steps."""

    def __init__(self, partition: SchedulePartition, target: str, dependencies: Dependencies) -> None:
        self.partition = partition
        self.target = target
        self._dependencies = dependencies
        self._client = TransactionClient(dependencies.broker_id, partition, dependencies.send, dependencies.sleep)
        self._queue = DueQueue(dependencies.max_queue_bytes)
        self._cancels: dict[bytes, int] = {}  # the offset of the last cancellation of a key
        self._progress: Progress | None = None  # None: unknown
        self._attempted: Progress | None = None
        self._in_flight: list[tuple[int, int]] = []
        self._outcomes: Counter[str] = Counter()  # of the attempted transaction
        self._refused: set[int] = set()
        self._read_offset = 0  # all stable records before are in the queue, or the scan will add them
        self._scan: tuple[int, int, int] | None = None  # next offset, end offset, lowest due time
        self._loader = RecordLoader(self._chunk, dependencies.pause)
        self._loaded_until_ms = 0
        self._limit = MAX_RECORDS
        self._has_narrowed = False  # the search for a record that was refused
        self._transactions = 0
        self._last_error: ErrorCode | None = None
        self._failures = 0  # with the last error
        self._idle: Completion[None] | None = None
        self.counts: Counter[str] = Counter(delivered=0, cancelled=0, refused=0)
        self.lateness = Histogram()

    # ------------------------------------------------------------ from the manager
    @property
    def pending(self) -> int:
        """Records that are not done."""
        return len(self._queue) + len(self._in_flight)

    def overdue_ms(self, wall_ms: int) -> int:
        """How late the first pending record is; 0 if none is due."""
        first = self._in_flight[0][0] if self._in_flight else self._queue.next_due_ms()
        return max(0, wall_ms - first) if self.pending and first != AT_ONCE else 0

    def wake_if_ready(self, wall_ms: int) -> None:
        """Continues if something is due or can be read."""
        if self._idle is not None and self._has_work(wall_ms):
            idle, self._idle = self._idle, None
            idle.complete(None)

    def release_delivered(self) -> None:
        """Lets retention delete the records that are done, and forgets cancellations of no pending record."""
        log = self._local().log
        if self._progress is None or self._scan is not None:
            return
        first = min([self._queue.first_offset(), self._read_offset, *[offset for _, offset in self._in_flight]])
        log.keep_from = first
        if not self._in_flight:
            self._refused = {offset for offset in self._refused if offset >= first}
            forgotten = takewhile(lambda one: one[1] <= first, self._cancels.items())
            for key in [key for key, _ in islice(forgotten, _MAX_FORGOTTEN)]:
                del self._cancels[key]

    def _local(self) -> Partition:
        return self._dependencies.replicas.find(self.partition.topic, self.partition.partition)

    def _has_work(self, wall_ms: int) -> bool:
        return self._queue.next_due_ms() <= wall_ms or self._can_read(wall_ms)

    def _can_read(self, wall_ms: int) -> bool:
        if self._scan is not None or self._must_scan_ahead(wall_ms) or self._must_load(wall_ms):
            return True
        opened = self._local().log.opened
        may_read = self._may_read(wall_ms)
        return may_read and opened is not None and opened.reader.last_stable_offset > self._read_offset

    def _may_read(self, wall_ms: int) -> bool:
        """False while many steps of progress wait for the late records that are in the queue."""
        assert self._progress is not None, "it is read"
        return len(self._progress.steps) < MAX_STEPS or self._queue.next_due_ms() > wall_ms

    def _must_load(self, wall_ms: int) -> bool:
        """Whether records are due soon that the loader has not seen."""
        is_old = self._loaded_until_ms < wall_ms + _LOAD_AHEAD_MS // 2 and not self._loader.is_reading
        return is_old and self._queue.next_due_ms() <= wall_ms + _LOAD_AHEAD_MS

    def _must_scan_ahead(self, wall_ms: int) -> bool:
        queue = self._queue
        ahead_ms = 0 if queue.was_scan_in_vain else _SCAN_AHEAD_MS
        return queue.horizon_ms != MAX_LONG and (wall_ms + ahead_ms >= queue.horizon_ms or queue.is_half_empty)

    # ------------------------------------------------------------ steps
    def run(self) -> Steps[None]:
        """Delivers until it is stopped."""
        try:
            while True:
                try:
                    yield from self._start()
                    while True:
                        yield from self._advance()
                except KafkaError as error:
                    if self._has_narrowed:  # the next transaction is another one
                        self._has_narrowed = False
                    else:
                        self._report(error)
                        yield self._dependencies.sleep(self._retry_ms)
        finally:
            self._loader.stop()

    def abandon(self) -> Steps[None]:
        """After `run` was stopped: aborts its transaction, which would hold back committed readers until its timeout.

        After an error the next deliverer of the partition decides it, or the timeout.
        """
        with suppress(KafkaError):
            yield from self._client.abort()

    def _start(self) -> Steps[None]:
        """Decides the last transaction, and reads everything again if it is not this deliverer's (rule 2)."""
        yield from self._client.initialize()
        progress = yield from self._read_progress()
        if self._progress is None or progress not in (self._progress, self._attempted):
            self._loader.stop()
            self._loader, self._loaded_until_ms = RecordLoader(self._chunk, self._dependencies.pause), 0
            chunk = yield from self._chunk(0)
            self._cancels, self._in_flight = {}, []
            self._queue = DueQueue(self._dependencies.max_queue_bytes, chunk.offset)
            self._read_offset = chunk.stable_end
            self._scan = (chunk.offset, chunk.stable_end, AT_ONCE)
        elif progress == self._attempted:
            self._on_committed()
        else:
            self._requeue(self._in_flight)
        self._in_flight, self._attempted, self._progress = [], None, progress

    def _read_progress(self) -> Steps[Progress]:
        """The committed progress, without what it says about records that the log has lost since (`progress.py`, rule 4)."""
        progress, leader_epoch = yield from self._client.progress()
        if leader_epoch == NO_EPOCH:
            return progress
        _, end_offset = yield self._dependencies.replicas.lookup(
            self.partition.topic,
            self.partition.partition,
            lambda partition: partition.end_offset_for_epoch(leader_epoch, NO_EPOCH),
        )
        return progress if end_offset < 0 else progress.limited_to(end_offset)

    def _advance(self) -> Steps[None]:
        """Reads and delivers something, or waits."""
        wall_ms = self._dependencies.clock.wall_ms()
        if self._scan is None and self._must_scan_ahead(wall_ms):
            self._scan = (self._queue.first_offset(), self._read_offset, self._queue.begin_scan())
        if self._scan is not None:
            yield from self._continue_scan(*self._scan)
        if self._may_read(wall_ms):
            chunk = yield from self._chunk(self._read_offset)
            reached = yield from self._add_chunk(chunk, MAX_LONG, AT_ONCE)
            self._read_offset = max(self._read_offset, reached)
        yield from self._in_steps(self._queue.prepare(wall_ms + _LOAD_AHEAD_MS))
        if self._must_load(wall_ms):
            self._loaded_until_ms = wall_ms + _LOAD_AHEAD_MS
            self._load(self._loaded_until_ms)
        has_more = yield from self._deliver()
        if has_more or self._can_read(self._dependencies.clock.wall_ms()):
            yield self._dependencies.pause()
        else:  # what becomes due until the next tick is one transaction
            self._last_error = None
            self._idle = Completion()
            yield self._idle

    @property
    def _retry_ms(self) -> int:
        """How long to wait after the last failure: the longer, the longer the interruption lasts."""
        doublings = min(max(0, self._failures - _REPORTED_FAILURE), _MAX_RETRY_MS.bit_length())
        return min(_RETRY_MS << doublings, _MAX_RETRY_MS)

    def _report(self, error: KafkaError) -> None:
        if error.code is not self._last_error:
            self._last_error, self._failures = error.code, 0
        self._failures += 1
        if self._failures == _REPORTED_FAILURE:
            _log.warning("the delivery of %s to %s is interrupted: %s", self.partition.name, self.target, error)

    # ------------------------------------------------------------ reading
    def _chunk(self, offset: int) -> Steps[Chunk]:
        topic, index = self.partition.topic, self.partition.partition
        chunk: Chunk = yield self._dependencies.replicas.lookup(
            topic, index, lambda partition: read_chunk(partition, offset, _CHUNK_BYTES)
        )
        return chunk

    def _continue_scan(self, offset: int, end_offset: int, lowest_due_ms: int) -> Steps[None]:
        chunk = yield from self._chunk(offset)
        reached = yield from self._add_chunk(chunk, end_offset, lowest_due_ms)
        if reached >= min(end_offset, chunk.stable_end):
            self._scan = None
            self._queue.end_scan()
        else:
            self._scan = (reached, end_offset, lowest_due_ms)

    def _add_chunk(self, chunk: Chunk, end_offset: int, lowest_due_ms: int) -> Steps[int]:
        """Adds the pending records of a chunk before an offset, and due at that time or later, to the queue.

        Returns where the next chunk begins: before a batch that is corrupt, whose error that chunk raises.
        """
        every = chain.from_iterable(chunk.records(position, header) for position, header in chunk.batches)
        reached = chunk.offset
        try:
            for number, record in enumerate(every, 1):
                if record is not None:
                    if record.offset >= end_offset:
                        break
                    self._add(record, lowest_due_ms)
                    reached = record.offset + 1
                if number % _RECORDS_PER_SLICE == 0:
                    yield from self._in_steps(self._queue.shrink())
                    yield self._dependencies.pause()
        except KafkaError:
            if reached == chunk.offset:
                raise
            return reached
        yield from self._in_steps(self._queue.shrink())
        return chunk.next_offset

    def _in_steps(self, steps: Iterable[None]) -> Steps[None]:
        """Lets the other work of the event loop run between the steps."""
        for _ in steps:
            yield self._dependencies.pause()

    def _add(self, record: Record, lowest_due_ms: int) -> None:
        offset, key = record.offset, record.key
        if record.value is None:
            if key is not None and self._cancels.get(key, -1) < offset:
                self._cancels.pop(key, None)  # the dictionary is nearly in the order of the offsets
                self._cancels[key] = offset
            return
        try:
            due = due_ms(record.timestamp_ms, record.headers)
        except InvalidSchedule:
            due = AT_ONCE
        assert self._progress is not None, "it is read"
        if due >= lowest_due_ms and not self._progress.is_done(due, offset):
            self._queue.add(due, offset)

    def _requeue(self, entries: Iterable[tuple[int, int]]) -> None:
        for due, offset in entries:
            self._queue.add(due, offset)

    def _load(self, until_ms: int) -> Completion[None]:
        """Reads the records that are due by then; completes after a pass."""
        return self._loader.load(self._queue.upcoming(until_ms, self._loader.limit))

    # ------------------------------------------------------------ delivering
    def _deliver(self) -> Steps[bool]:
        """One transaction with due records; returns whether more were due."""
        wall_ms = self._dependencies.clock.wall_ms()
        until_ms = min(wall_ms, self._queue.complete_until_ms - 1)
        entries = self._queue.take(until_ms, self._limit, self._loader.records)
        if not entries:
            is_due = self._queue.next_due_ms() <= until_ms
            if is_due:
                yield self._load(until_ms)
            return is_due
        self._in_flight, self._outcomes = entries, Counter()
        records = {offset: self._loader.take(offset) for _, offset in entries}
        target, batches = self._open_batches()
        yield from self._fill(batches, records, wall_ms)
        yield from self._in_steps(self._queue.prepare(until_ms))
        is_last = self._queue.next_due_ms() > until_ms
        assert self._progress is not None, "it is read"
        last = (until_ms, MAX_LONG) if is_last else entries[-1]
        self._attempted = self._progress.advanced(self._read_offset, *last)
        built = yield from self._build(batches)
        try:
            yield from self._client.commit(self._attempted, self._local().leader_epoch, target, built)
        except KafkaError as error:
            self._on_refusal(error, [offset for _, offset in entries if records[offset] is not None], batches.count)
            raise
        self._on_committed()
        return not is_last

    def _fill(self, batches: TargetBatches, records: dict[int, bytes | None], wall_ms: int) -> Steps[None]:
        """Adds the records in flight up to the first one that must wait for the next transaction."""
        entries = self._in_flight
        for number, (_, offset) in enumerate(entries):
            outcome = self._add_to(batches, records[offset], offset, wall_ms)
            if outcome is None:
                self._requeue(entries[number:])
                self._loader.put_back({offset: records[offset] for _, offset in entries[number:]})
                self._limit = number
                del entries[number:]
                return
            self._outcomes[outcome] += 1
            if number % _RECORDS_PER_SLICE == 0:
                yield self._dependencies.pause()

    def _open_batches(self) -> tuple[TopicImage, TargetBatches]:
        replicas = self._dependencies.replicas
        target = replicas.image.topics_by_name.get(self.target)
        if target is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the target topic {self.target} does not exist")
        config = replicas.config_of(self.target)
        max_bytes = min(config.max_message_bytes, config.segment_bytes, MAX_TOTAL_BYTES)
        self._transactions += 1
        keyless = self.partition.partition + self._transactions
        origin, producer = self.partition.name, self._client.producer
        return target, TargetBatches(origin, len(target.partitions), keyless, producer, max_bytes)

    def _build(self, batches: TargetBatches) -> Steps[dict[int, bytearray]]:
        """The batches; a reader thread compresses large records, which may need a second."""
        if not batches.is_compressed:
            return batches.build()

        def attempt(partition: Partition) -> dict[int, bytearray] | DiskLookup:
            opened = open_led_log(partition)
            if isinstance(opened, DiskLookup):
                return opened
            return opened.engine.lookup(batches, lambda _: batches.build())

        topic, index = self.partition.topic, self.partition.partition
        built: dict[int, bytearray] = yield self._dependencies.replicas.lookup(topic, index, attempt)
        return built

    def _add_to(self, batches: TargetBatches, encoded: bytes | None, offset: int, wall_ms: int) -> str | None:
        """What happens to a record; None if it must wait."""
        if encoded is None:
            return "deleted"
        record = stored_record(encoded)
        if record.key is not None and self._cancels.get(record.key, -1) > offset:
            return "cancelled"
        if offset in self._refused:
            return "refused"
        return "delivered" if batches.add(record, offset, wall_ms) else None

    def _on_committed(self) -> None:
        assert self._attempted is not None, "a transaction was attempted"
        wall_ms = self._dependencies.clock.wall_ms()
        self.counts.update(self._outcomes)
        for due, _ in self._in_flight:
            if due != AT_ONCE:
                self.lateness.record(max(0, wall_ms - due) * 1_000_000)
        self._progress, self._attempted, self._in_flight = self._attempted, None, []
        self._limit = min(MAX_RECORDS, self._limit * 2)
        self._last_error = None

    def _on_refusal(self, error: KafkaError, offsets: list[int], count: int) -> None:
        """Finds the record that the target refuses, with fewer and fewer records in a transaction (rule 5)."""
        if error.code not in _REFUSALS:
            return
        if count > 1:
            self._limit, self._has_narrowed = max(1, min(count, self._limit) // 4), True
            return
        skipped = [offset for offset in offsets if offset not in self._refused]
        if len(skipped) == 1:
            _log.error(
                "%s refuses the record at %s, offset %d, which is skipped: %s",
                self.target, self.partition.name, skipped[0], error.code.name,
            )  # fmt: skip
            self._refused.add(skipped[0])
        self._limit, self._has_narrowed = 1, len(skipped) > 0

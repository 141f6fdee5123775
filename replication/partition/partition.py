"""One replica of a partition: leader epoch, ISR, high watermark, and the producers that wait for acknowledgement.

RULES    1. Log start offset <= last stable offset <= high watermark <= log end offset. A leader's high watermark never
            decreases.
         2. The high watermark is the lowest end offset of the in-sync replicas, including those that a pending ISR change
            adds. It does not advance while fewer than min.insync.replicas are in sync (KIP-966). The smaller of
            min.insync.replicas and the number of replicas applies.
         3. An offset counts when it is as durable as the topic requires. With flush.messages=N, the durable end offset
            stops at the N-th unflushed record until a flush has covered it.
         4. acks=1 waits for the leader's durable end offset, acks=all for the high watermark. Waiting producers are answered
            in offset order, each once. Loss of leadership or of the log answers all of them with an error.
         5. `state_key` changes with the high watermark, last stable offset, log start offset, leadership and existence;
            `end_key` changes with the log end offset, of partitions with followers.
         6. An unused log is not opened. The leader state that depends on the log is initialised at the first use.
         7. A follower may join the ISR when it has reached the high watermark and the start of this leader epoch. It leaves
            when it has not reached the log end within replica.lag.time.max.ms. The controller decides both.
NOT HERE Bytes (`storage/log/log.py`), writes (`appender.py`), flushes (`flushes.py`), following (`replica_fetcher.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.records import NO_TIMESTAMP
from replication.completion import Completion
from replication.metadata.image import PartitionState
from replication.partition.append_history import AppendHistory
from replication.partition.follower_progress import NO_EPOCH, NO_OFFSET, DivergingEpoch, FetchPosition, FollowerProgress
from replication.partition.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    NOTHING_FOUND,
    TimestampAndOffset,
)
from replication.partition.topic_counts import TopicCounts
from replication.purgatory import Key
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.io.disk_lookup import DiskLookup
from storage.log.append_pipeline import AppendInfo, PreparedAppend
from storage.log.log import Log
from storage.log.log_reader import Isolation, ReadInfo
from storage.log.log_validator import AppendOrigin
from storage.log.open_log import OpenLog

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1

CONSUMER: Final = -1
DEBUGGING_CONSUMER: Final = -2
"""Replica ids of readers that are no brokers."""

AT_HIGH_WATERMARK: Final = -1
"""DeleteRecords: delete all committed records."""


def state_key(topic: str, index: int) -> tuple[str, int]:
    """The purgatory key for high watermark, last stable offset, log start offset, leadership and existence."""
    return topic, index


def end_key(topic: str, index: int) -> tuple[str, int, str]:
    """The purgatory key for the log end offset."""
    return topic, index, "end"


class Reader(NamedTuple):
    """The reader of a partition: a follower (its broker id), CONSUMER or DEBUGGING_CONSUMER."""

    replica_id: int
    isolation: Isolation
    leader_only: bool = True
    broker_epoch: int = -1

    @property
    def is_follower(self) -> bool:
        """Whether the reader is another broker."""
        return self.replica_id >= 0


class Append(Completion[AppendInfo]):
    """An append to a partition. It has its result when `acks` is satisfied; errors are KafkaErrors."""

    __slots__ = ("acks", "info", "origin", "partition", "prepared", "records", "wall_ms")

    partition: Partition
    prepared: PreparedAppend
    """Once it is prepared and is not a duplicate."""
    info: AppendInfo
    """The offsets of the records, once they are in the log."""

    def __init__(self, records: bytearray | memoryview, acks: int, wall_ms: int, origin: AppendOrigin) -> None:
        Completion.__init__(self)  # super() takes longer than the call
        self.records = records
        self.acks = acks
        self.wall_ms = wall_ms
        self.origin = origin

    def time_out(self) -> None:
        """Fail with REQUEST_TIMED_OUT; the records may still be committed."""
        self.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))


class Partition:
    """State and decisions of one replica; it reads no clock and performs no I/O of its own."""

    __slots__ = (
        "_durable_end_offset", "_is_leader_log_open", "_isr_ack_waiters", "_leader_ack_waiters", "_request_sync",
        "_wake", "broker_id", "counts", "end_key", "epoch_start_offset", "followers", "history", "index", "is_leader",
        "is_offline", "is_syncing", "isr", "key", "leader_epoch", "leader_high_watermark", "leader_id", "log", "min_isr",
        "partition_epoch", "pending_isr", "replicas", "replication_factor", "topic", "topic_id", "writes_in_flight",
    )  # fmt: skip

    def __init__(
        self, log: Log, broker_id: int, wake: Callable[[Key], None], request_sync: Callable[[Partition], None]
    ) -> None:
        """Create a replica without a role.

        `wake` is called with a purgatory key after a change (rule 5), `request_sync` when the log must be flushed (rule 3).
        """
        self.log = log
        self.broker_id = broker_id
        self.topic = log.topic
        self.index = log.partition
        self.topic_id = log.files.topic_id
        self.key = state_key(log.topic, log.partition)
        self.end_key = end_key(log.topic, log.partition)
        self.is_leader = False
        self.is_offline = False
        self.leader_id = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.replication_factor = 0
        """How many replicas there are without those that a reassignment adds."""
        self.isr: tuple[int, ...] = ()
        self.min_isr = 1
        """How many replicas must be in sync before acks=all is acknowledged; at most the number of replicas."""
        self.pending_isr: tuple[int, ...] | None = None
        """The ISR requested from the controller and not answered yet."""
        self.followers: dict[int, FollowerProgress] = {}
        self.epoch_start_offset = 0
        self.history: AppendHistory | None = None
        """Which offsets were appended when; None if no replica selector needs it."""
        self.counts = TopicCounts()
        """Of its topic; the replica manager shares one among all partitions."""
        self.leader_high_watermark = -1
        """Of a follower: the leader's, of its last response; -1 before the first."""
        self.writes_in_flight = 0
        self.is_syncing = False
        self._is_leader_log_open = False
        self._durable_end_offset = 0
        self._wake = wake
        self._request_sync = request_sync
        self._leader_ack_waiters: list[Append] = []  # an empty deque has 0.7 KiB, for each partition
        self._isr_ack_waiters: list[Append] = []

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        return f"Partition({self.topic}-{self.index}, {role} in epoch {self.leader_epoch}, HW {self.high_watermark})"

    @property
    def high_watermark(self) -> int:
        """The log's high watermark (rule 2); opening the log limits it to the log end, after a loss of power."""
        return self.log.offsets.high_watermark

    @property
    def waiting_acks(self) -> int:
        """Appends that wait for acknowledgement."""
        return len(self._leader_ack_waiters) + len(self._isr_ack_waiters)

    # ------------------------------------------------------------ roles
    def make_leader(self, state: PartitionState, mono_ms: int) -> None:
        """Become leader, or take over a new ISR as leader."""
        is_new_epoch = state.leader_epoch > self.leader_epoch or not self.is_leader
        self._apply_state(state)
        others = [replica for replica in state.replicas if replica != self.broker_id]
        if is_new_epoch:
            self.is_leader = True
            self.log.assign_epoch(state.leader_epoch)
            self.followers = {replica: FollowerProgress(mono_ms if replica in state.isr else 0) for replica in others}
            self._is_leader_log_open = False
            if self.log.is_open:
                self.open_leader_log()
            self._wake(self.key)
        else:
            known = self.followers
            self.followers = {replica: known.get(replica) or FollowerProgress(0) for replica in others}
            for follower in self.followers.values():
                follower.is_joining = False  # a follower that left the ISR may be gone; its next fetch sets this again
            if self._is_leader_log_open:
                self.update_durable_end_offset()

    def open_leader_log(self) -> DiskLookup | None:
        """Initialise the leader state that depends on the log (rule 6); returns the lookup that opens the log before."""
        opened = self.log.opened
        if opened is None:
            return self.log.open_lookup()
        if not self._is_leader_log_open:
            self._is_leader_log_open = True
            self.epoch_start_offset = opened.engine.end_offset
            self._durable_end_offset = self.high_watermark
            self.update_durable_end_offset()
        return None

    def make_follower(self, state: PartitionState) -> None:
        """Become follower of another replica, also while the partition has no leader."""
        is_new_role = self.is_leader or state.leader_epoch != self.leader_epoch
        self._apply_state(state)
        self.is_leader = False
        self.followers = {}
        if is_new_role:
            self._fail_waiting_acks(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def commit_as_follower(self, prepared: PreparedAppend, wall_ms: int) -> None:
        """Commit batches of the leader that are written.

        Raises:
            KafkaError: the append was cancelled.
        """
        self.commit(prepared, wall_ms)
        if self.is_leader and self._is_leader_log_open:  # elected while the batches were being written
            self.update_durable_end_offset()

    def update_follower_high_watermark(self, offset: int) -> None:
        """Take over the leader's high watermark, at most up to the local log end offset."""
        offset = min(offset, self.log.log_end_offset)
        if offset > self.high_watermark:
            self.log.high_watermark = offset
            self._wake(self.key)

    def on_truncated_as_follower(self) -> None:
        """Wake readers after a truncation, which may be below the high watermark."""
        self._wake(self.key)
        self._wake(self.end_key)

    def go_offline(self) -> None:
        """Stop serving after a failure of the log directory."""
        if not self.is_offline:
            self.is_offline = True
            self.is_leader = False
            self._fail_waiting_acks(ErrorCode.KAFKA_STORAGE_ERROR)

    def switch_log(self, log: Log) -> None:
        """Use another log that holds the same records; it is closed."""
        log.high_watermark = self.log.high_watermark
        self.log = log
        if self.is_leader:
            log.assign_epoch(self.leader_epoch)

    def remove(self) -> None:
        """Answer waiting producers and readers: this broker has no replica of the partition any more."""
        self.is_leader = False
        self._fail_waiting_acks(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _apply_state(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        if state.partition_epoch != self.partition_epoch:
            self.pending_isr = None  # the controller has accepted it, or will reject it
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.replication_factor = len(state.replicas) - len(state.adding)
        self.isr = state.isr
        self.min_isr = min(self.log.config.min_insync_replicas, len(state.replicas))

    def _fail_waiting_acks(self, error: ErrorCode) -> None:
        for waiting in (self._leader_ack_waiters, self._isr_ack_waiters):
            while waiting:
                waiting.pop(0).fail(KafkaError(error))
        self._wake(self.key)
        self._wake(self.end_key)

    # ------------------------------------------------------------ appending
    def prepare(
        self, records: bytearray | memoryview, acks: int, wall_ms: int, origin: AppendOrigin
    ) -> PreparedAppend | DiskLookup:
        """Validate records and assign their offsets: the first step of an append.

        Raises:
            KafkaError: the leader rejects these records.
        """
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == ACKS_ALL and len(self.isr) < self.min_isr and origin.is_client:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)  # coordinators check this before their appends wait
        if not self._is_leader_log_open:
            lookup = self.open_leader_log()
            if lookup is not None:
                return lookup
        opened = self.log.opened
        if opened is None:
            return self.log.open_lookup()
        return opened.appends.prepare(records, self.leader_epoch, wall_ms, origin)

    def commit(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        """Make written records visible; `update_durable_end_offset` follows."""
        info = prepared.commit(wall_ms)
        if self.history is not None:
            self.history.on_append(info.base_offset, prepared.size)
        if self.followers:  # only their sessions watch this key
            self._wake(self.end_key)
        return info

    def update_config(self, config: LogConfig) -> None:
        """Use another config; the durable end offset and the high watermark may advance."""
        self.log.update_config(config)
        self.min_isr = min(config.min_insync_replicas, len(self.replicas))
        if self._is_leader_log_open:
            self.update_durable_end_offset()

    @property
    def needs_sync(self) -> bool:
        """Whether flush.messages unflushed records hold back the durable end offset (rule 3)."""
        opened, limit = self.log.opened, self.log.config.flush_messages
        return limit != MAX_LONG and opened is not None and opened.flush.unflushed_messages >= limit

    def update_durable_end_offset(self, end: int = NO_OFFSET) -> None:
        """Advance the durable end offset (to the log's `end`, if known) and the high watermark; answer waiting producers."""
        opened = self.log.opened
        if opened is None:  # unchanged since it was closed
            self.move_high_watermark()
            return
        limit, needs_sync = self.log.config.flush_messages, False
        end = opened.engine.end_offset if end == NO_OFFSET else end
        if limit != MAX_LONG:
            flushed = opened.engine.flushed_end_offset
            needs_sync = end - flushed >= limit
            end = flushed if needs_sync else end
        has_advanced = end > self._durable_end_offset
        if has_advanced:
            self._durable_end_offset = end
            if self._leader_ack_waiters:
                self._complete_acks(self._leader_ack_waiters, end)
        if has_advanced or not needs_sync:  # after an append that needs a sync, that moves it
            self.move_high_watermark()
        if needs_sync:
            self._request_sync(self)

    def move_high_watermark(self) -> None:
        """Advance the high watermark as far as the in-sync replicas allow (rule 2)."""
        if not self._is_leader_log_open or not self.is_leader or len(self.isr) < self.min_isr:
            return
        offset = self._durable_end_offset
        if self.followers:
            counted = self.isr if self.pending_isr is None else (*self.isr, *self.pending_isr)
            for replica, follower in self.followers.items():
                if follower.end_offset < offset and (replica in counted or follower.is_joining):
                    offset = follower.end_offset
        offsets = self.log.offsets
        if offset <= offsets.high_watermark:
            return
        offsets.high_watermark = offset
        waiting = self._isr_ack_waiters
        if waiting:
            self._complete_acks(waiting, offset)
        self._wake(self.key)

    def await_acks(self, append: Append) -> None:
        """Complete an append, whose records are in the log, when its acks are satisfied."""
        if append.acks == ACKS_ALL:
            waiting, end = self._isr_ack_waiters, self.log.offsets.high_watermark
        else:
            waiting, end = self._leader_ack_waiters, self._durable_end_offset
        last_offset = append.info.last_offset
        if last_offset < end or append.acks == ACKS_NONE:
            self._acknowledge(append)
        elif waiting and waiting[-1].info.last_offset > last_offset:  # a duplicate of records before those of others
            position = next(index for index, other in enumerate(waiting) if other.info.last_offset > last_offset)
            waiting.insert(position, append)
        else:
            waiting.append(append)

    def _complete_acks(self, waiting: list[Append], end: int) -> None:
        while waiting and waiting[0].info.last_offset < end:
            self._acknowledge(waiting.pop(0))

    def _acknowledge(self, append: Append) -> None:
        if append.acks == ACKS_ALL and len(self.isr) < self.min_isr:
            append.fail(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        else:
            append.complete(append.info)

    # ------------------------------------------------------------ reading
    def _open_log(self, current_leader_epoch: int, *, leader_only: bool) -> OpenLog | DiskLookup:
        """The log, if the reader's leader epoch is the partition's.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER.
        """
        if current_leader_epoch != self.leader_epoch and current_leader_epoch >= 0:
            if current_leader_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            if leader_only:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif not self._is_leader_log_open:
            lookup = self.open_leader_log()
            if lookup is not None:
                return lookup
        return self.log.opened or self.log.open_lookup()

    def read(
        self, position: FetchPosition, max_bytes: int, reader: Reader, *, min_one_batch: bool
    ) -> ReadInfo | DiskLookup:
        """Batches from a position up to the reader's isolation limit.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER.
            DivergingEpoch: the reader must truncate first.
        """
        opened = self._open_log(position.leader_epoch, leader_only=reader.leader_only)
        if isinstance(opened, DiskLookup):
            return opened
        if position.last_fetched_epoch >= 0:
            self._check_divergence(opened, position)
        return opened.reader.read(position.offset, max_bytes, reader.isolation, min_one_batch=min_one_batch)

    def _check_divergence(self, opened: OpenLog, position: FetchPosition) -> None:
        epoch, end_offset = opened.end_offset_for_epoch(position.last_fetched_epoch)
        if epoch == NO_EPOCH or end_offset == NO_OFFSET or position.offset < self.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < position.last_fetched_epoch or end_offset < position.offset:
            offsets = self.high_watermark, opened.reader.last_stable_offset, self.log.log_start_offset
            raise DivergingEpoch(epoch, end_offset, offsets)

    def find_offset(
        self,
        timestamp: int,
        isolation: Isolation,
        current_leader_epoch: int,
        *,
        leader_only: bool,
    ) -> TimestampAndOffset | DiskLookup:
        """The offset for a timestamp or special timestamp (ListOffsets).

        Raises:
            KafkaError: OFFSET_NOT_AVAILABLE for consumers while a new leader's high watermark is below its epoch's start, or
                as for `read`.
        """
        opened = self._open_log(current_leader_epoch, leader_only=leader_only)
        if isinstance(opened, DiskLookup):
            return opened
        is_lagging = self.is_leader and isolation != Isolation.LOG_END and self.epoch_start_offset > self.high_watermark
        end = self._last_fetchable_offset(opened, isolation)
        if timestamp == LATEST:
            if is_lagging:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
            return TimestampAndOffset(NO_TIMESTAMP, end, self.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = self.log.log_start_offset
            return TimestampAndOffset(NO_TIMESTAMP, start, opened.epochs.epoch_at(start))
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return NOTHING_FOUND
        reader = opened.reader
        found = (
            reader.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else reader.offset_for_timestamp(timestamp)
        )
        if isinstance(found, DiskLookup):
            return found
        if found is not None and (record := TimestampAndOffset(*found)).offset < end:
            return record
        if is_lagging:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return NOTHING_FOUND

    def _last_fetchable_offset(self, opened: OpenLog, isolation: Isolation) -> int:
        if isolation == Isolation.HIGH_WATERMARK:
            return self.high_watermark
        if isolation == Isolation.LAST_STABLE:
            return opened.reader.last_stable_offset
        return opened.engine.end_offset

    def timestamp_at(self, offset: int) -> int | DiskLookup:
        """The timestamp of the first record from `offset` on that this replica has; -1 if it has none."""
        opened = self.log.opened or self.log.open_lookup()
        if isinstance(opened, DiskLookup):
            return opened
        offset = max(offset, self.log.log_start_offset)
        return NO_TIMESTAMP if offset >= opened.engine.end_offset else opened.reader.timestamp_at(offset)

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int) -> tuple[int, int] | DiskLookup:
        """The largest epoch up to `epoch` and its end offset in this log; -1, -1 if unknown.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER.
        """
        opened = self._open_log(current_leader_epoch, leader_only=True)
        return opened if isinstance(opened, DiskLookup) else opened.end_offset_for_epoch(epoch)

    # ------------------------------------------------------------ deleting
    def delete_records(self, offset: int, wall_ms: int) -> int | DiskLookup:
        """Advance the log start offset to `offset`, or to the high watermark (-1); returns the resulting offset.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; POLICY_VIOLATION for compacted topics; OFFSET_OUT_OF_RANGE.
        """
        opened = self._open_log(NO_EPOCH, leader_only=True)
        if isinstance(opened, DiskLookup):
            return opened
        if self.log.config.cleanup_policy == {"compact"}:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Records of partition {self.log.name} can not be deleted due to the configured policy",
            )
        if offset == AT_HIGH_WATERMARK:
            offset = self.high_watermark
        if offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        opened.trim(offset, wall_ms)
        self._wake(self.key)
        return offset

    def low_watermark(self, is_alive: Callable[[int], bool]) -> int:
        """The lowest log start offset of this replica, whose log may be closed, and of the replicas on alive brokers."""
        starts = [follower.log_start_offset for replica, follower in self.followers.items() if is_alive(replica)]
        return min([self.log.offsets.log_start_offset, *starts])

    # ------------------------------------------------------------ followers
    def update_follower(
        self, reader: Reader, position: FetchPosition, leader_end: int, mono_ms: int, max_lag_ms: int, *, may_join: bool
    ) -> None:
        """Record a follower's fetch from `position`; the log ended at `leader_end` when it was served.

        `may_join`: whether the follower is not in the ISR and may join it (`isr_tracker.py`).

        Raises:
            KafkaError: the broker has no replica, or the fetch is from an older registration of it.
        """
        follower = self.followers.get(reader.replica_id)
        if follower is None:
            # A follower with the right leader epoch has newer metadata than this leader: it shall retry soon.
            knows_epoch = position.leader_epoch != NO_EPOCH
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if reader.broker_epoch < follower.broker_epoch and reader.broker_epoch != -1:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower.broker_epoch = max(follower.broker_epoch, reader.broker_epoch)
        follower.update(position, leader_end, mono_ms)
        follower.is_joining = may_join and follower.is_caught_up(leader_end, mono_ms, max_lag_ms)
        if position.log_start_offset != follower.log_start_offset:
            follower.log_start_offset = position.log_start_offset
            self._wake(self.key)
        self.move_high_watermark()

    def stop_joining(self, replica_id: int) -> None:
        """The high watermark does not wait for this follower any more, unless it is in the ISR."""
        follower = self.followers[replica_id]
        if follower.is_joining:
            follower.is_joining = False
            self.move_high_watermark()

    def expanded_isr(self, replica_id: int) -> tuple[int, ...] | None:
        """The ISR with this follower added if it has caught up (rule 7); None: no change."""
        follower = self.followers.get(replica_id)
        if not self.is_leader or self.pending_isr is not None or follower is None or replica_id in self.isr:
            return None
        if follower.end_offset < max(self.high_watermark, self.epoch_start_offset):
            return None
        return (*self.isr, replica_id)

    def shrunk_isr(self, mono_ms: int, max_lag_ms: int) -> tuple[int, ...] | DiskLookup | None:
        """The ISR without followers that fell behind (rule 7); None: no change."""
        if not self.is_leader or not self.followers:
            return None
        if not self._is_leader_log_open and all(
            follower.is_within_lag(mono_ms, max_lag_ms) for follower in self.followers.values()
        ):
            return None
        lookup = self.open_leader_log()
        if lookup is not None:
            return lookup
        end = self.log.log_end_offset
        out_of_sync = {
            replica
            for replica, follower in self.followers.items()
            if not follower.is_caught_up(end, mono_ms, max_lag_ms)
        }
        for replica in out_of_sync:
            self.followers[replica].is_joining = False
        self.move_high_watermark()
        if self.pending_isr is not None or out_of_sync.isdisjoint(self.isr):
            return None
        return tuple(replica for replica in self.isr if replica not in out_of_sync)

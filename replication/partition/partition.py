"""One partition as its leader, or one of its followers, sees it: epochs, ISR, high watermark, who waits for them.

RULES    1. Log start <= last stable offset <= high watermark <= log end. On a leader the high watermark never
            goes back.
         2. The high watermark is the least end offset of the in-sync replicas, of those about to be asked for
            included, and stands still while fewer than min.insync.replicas are in sync (KIP-966). The
            smaller of min.insync.replicas and the number of replicas counts.
         3. An end offset counts when it is durable as the topic wants it (design D12b): with flush.messages=N the
            leader's own end stands still from the N-th unsynced record on until a sync has reached it.
         4. acks=1 waits for the leader's own end, acks=all for the high watermark. Waiters are settled in
            the order of their offsets, each once; losing leadership or the log settles all with an error.
         5. Movement is told by key: `state_key` when high watermark, last stable offset, log start, leadership or
            existence moved, `end_key` when the log's end did.
         6. A log that nobody uses is not opened: what leading needs of it is settled at the first use.
         7. A follower joins the ISR when it has reached the high watermark and this epoch's start, and leaves it when
            it has not been at the log's end for the allowed lag; both are only wishes until the controller says so.
NOT HERE Bytes (`storage/log/log.py`), doing writes and syncs (`replica_manager.py`), fetching from a leader (`replica_fetcher.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from replication.metadata.image import PartitionState
from replication.partition.append_history import AppendHistory
from replication.partition.follower_progress import NO_OFFSET, Follower
from replication.purgatory import Key
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.log.log import AppendInfo, Isolation, Log, PreparedAppend, ReadInfo
from storage.log.log_validator import Origin

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1

NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

AT_HIGH_WATERMARK: Final = -1
"""DeleteRecords: all that is committed."""

# ListOffsets: what may stand for a time
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

Settle = Callable[[ErrorCode], None]


def state_key(topic: str, index: int) -> tuple[str, int]:
    """What moves with a partition's high watermark, last stable offset, log start, leadership and existence."""
    return topic, index


def end_key(topic: str, index: int) -> tuple[str, int, str]:
    """What moves with a partition's log end."""
    return topic, index, "end"


class FetchPosition:
    """From where a reader reads on, and what it believes of the leader."""

    __slots__ = ("last_fetched_epoch", "leader_epoch", "offset")
    log_start_offset: int = NO_OFFSET
    """Where a follower's own log begins; only `FetchedPartition` is told."""
    asked_mono_ms: int = 0
    """When it was asked for before; only `FetchedPartition` knows."""

    def __init__(self, offset: int, leader_epoch: int = NO_EPOCH, last_fetched_epoch: int = NO_EPOCH) -> None:
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch


class Reader(NamedTuple):
    """Who reads: a consumer (-1), a follower by its broker id, a debugging consumer (-2)."""

    replica_id: int
    isolation: Isolation
    leader_only: bool = True
    broker_epoch: int = -1

    @property
    def is_follower(self) -> bool:
        """Whether it is another broker that replicates from here."""
        return self.replica_id >= 0


class FoundOffset(NamedTuple):
    """An answer to ListOffsets; all -1 when nothing was found."""

    timestamp: int
    offset: int
    leader_epoch: int


NOTHING_FOUND: Final = FoundOffset(NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)


class Diverged(Exception):
    """The reader's log is another one from somewhere on: the last epoch in common, and where it ended here."""

    def __init__(self, epoch: int, end_offset: int) -> None:
        super().__init__(epoch, end_offset)
        self.epoch = epoch
        self.end_offset = end_offset


class Partition:
    """State and decisions of one replica; everything it needs of the world is handed in."""

    __slots__ = (
        "_awaiting_all", "_awaiting_own", "_is_settled", "_own_end", "_wake", "_want_sync", "broker_id", "end_key",
        "epoch_start_offset", "followers", "high_watermark", "history", "index", "is_leader", "is_offline", "is_syncing", "isr",
        "key", "leader_epoch", "leader_id", "log", "min_isr", "partition_epoch", "replicas", "topic", "topic_id",
        "wanted_isr", "writes_in_flight",
    )  # fmt: skip

    def __init__(
        self, log: Log, broker_id: int, wake: Callable[[Key], None], want_sync: Callable[[Partition], None]
    ) -> None:
        """A replica in no role yet; `wake` tells of movement, `want_sync` that a sync should be begun (rule 3)."""
        self.log = log
        self.broker_id = broker_id
        self.topic = log.topic
        self.index = log.partition
        self.topic_id = log.topic_id
        self.key = state_key(log.topic, log.partition)
        self.end_key = end_key(log.topic, log.partition)
        self.is_leader = False
        self.is_offline = False
        self.leader_id = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.min_isr = 1
        """How many replicas must be in sync before acks=all is acknowledged; no more than there are."""
        self.wanted_isr: tuple[int, ...] | None = None
        """What the controller was asked for and has not answered yet."""
        self.followers: dict[int, Follower] = {}
        self.epoch_start_offset = 0
        self.high_watermark = log.high_watermark
        self.history: AppendHistory | None = None
        """What was appended when, where somebody wants to know."""
        self.writes_in_flight = 0
        self.is_syncing = False
        self._is_settled = False
        self._own_end = 0
        self._wake = wake
        self._want_sync = want_sync
        self._awaiting_own: deque[tuple[int, Settle]] = deque()
        self._awaiting_all: deque[tuple[int, Settle]] = deque()

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        return f"Partition({self.topic}-{self.index}, {role} in epoch {self.leader_epoch}, HW {self.high_watermark})"

    # ------------------------------------------------------------ roles
    def lead(self, state: PartitionState, mono_ms: int) -> None:
        """Lead, or go on leading with another ISR."""
        is_new_epoch = state.leader_epoch > self.leader_epoch or not self.is_leader
        self._take(state)
        others = [replica for replica in state.replicas if replica != self.broker_id]
        if is_new_epoch:
            self.is_leader = True
            self.log.assign_epoch(state.leader_epoch)
            self.followers = {replica: Follower(mono_ms if replica in state.isr else 0) for replica in others}
            self._is_settled = False
            if self.log.is_open:
                self.settle()
            self._wake(self.key)
        else:
            known = self.followers
            self.followers = {replica: known.get(replica) or Follower(0) for replica in others}
            for follower in self.followers.values():
                follower.is_joining = False  # who left the ISR may be gone for good: its next fetch will tell
            if self._is_settled:
                self.own_end_moved()

    def settle(self, *, may_block: bool = True) -> None:
        """Learn from the log where this leader begins (rule 6); harmless when that is known.

        Raises:
            WouldBlock: the log is not open; not with `may_block`.
        """
        if self._is_settled:
            return
        self.log.open(may_block=may_block)
        self._is_settled = True
        self.epoch_start_offset = self.log.log_end_offset
        self.high_watermark = self._own_end = self.log.high_watermark
        self.own_end_moved()

    def follow(self, state: PartitionState) -> None:
        """Follow another replica, or nobody while there is no leader."""
        is_news = self.is_leader or state.leader_epoch != self.leader_epoch
        self._take(state)
        self.is_leader = False
        self.followers = {}
        if is_news:
            self._give_up(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def opened_as_follower(self) -> None:
        """The log is open: with the power, it may have lost what was taken for committed."""
        self.high_watermark = min(self.high_watermark, self.log.high_watermark)

    def commit_as_follower(self, prepared: PreparedAppend, wall_ms: int) -> None:
        """The leader's batches are written.

        Raises:
            KafkaError: the append was given up.
        """
        info = self.log.commit(prepared, wall_ms)
        if self.history is not None:
            self.history.appended(info.base_offset, prepared.size)
        self._wake(self.end_key)
        if self.is_leader and self._is_settled:  # it was elected while they were being written
            self.own_end_moved()

    def learn_high_watermark(self, offset: int) -> None:
        """The leader says what is committed: as far as this log goes it is so here."""
        offset = min(offset, self.log.log_end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.log.high_watermark = offset
            self._wake(self.key)

    def cut_as_follower(self) -> None:
        """The log was cut, perhaps below what was taken for committed."""
        self.high_watermark = self.log.high_watermark
        self._wake(self.key)
        self._wake(self.end_key)

    def go_offline(self) -> None:
        """The log directory failed: nothing here can be trusted any more."""
        if not self.is_offline:
            self.is_offline = True
            self.is_leader = False
            self._give_up(ErrorCode.KAFKA_STORAGE_ERROR)

    def lie_in(self, log: Log) -> None:
        """The same records lie in another log from now on, which is closed."""
        log.high_watermark = self.log.high_watermark
        self.log = log
        if self.is_leader:
            log.assign_epoch(self.leader_epoch)

    def vanish(self) -> None:
        """The partition is no longer of this broker."""
        self.is_leader = False
        self._give_up(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _take(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        if state.partition_epoch != self.partition_epoch:
            self.wanted_isr = None  # it was granted, or cannot be any more
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr = state.isr
        self.min_isr = min(self.log.config.min_insync_replicas, len(state.replicas))

    def _give_up(self, error: ErrorCode) -> None:
        for waiting in (self._awaiting_own, self._awaiting_all):
            while waiting:
                waiting.popleft()[1](error)
        self._wake(self.key)
        self._wake(self.end_key)

    # ------------------------------------------------------------ appending
    def prepare(
        self, records: bytearray | memoryview, acks: int, wall_ms: int, origin: Origin, *, may_block: bool = True
    ) -> PreparedAppend:
        """The first step of an append.

        Raises:
            KafkaError: the leader does not take these records.
            WouldBlock: not with `may_block`.
        """
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == ACKS_ALL and len(self.isr) < self.min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if not self._is_settled:
            self.settle(may_block=may_block)
        return self.log.prepare(
            records, leader_epoch=self.leader_epoch, wall_ms=wall_ms, origin=origin, may_block=may_block
        )

    def commit(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        """The last step of an append whose bytes are written."""
        info = self.log.commit(prepared, wall_ms)
        if self.history is not None:
            self.history.appended(info.base_offset, prepared.size)
        self._wake(self.end_key)
        self.own_end_moved()
        return info

    def update_config(self, config: LogConfig) -> None:
        """Obey other settings; what flush.messages and min.insync.replicas allow may be more now."""
        self.log.update_config(config)
        self.min_isr = min(config.min_insync_replicas, len(self.replicas))
        if self._is_settled:
            self.own_end_moved()

    @property
    def needs_sync(self) -> bool:
        """Whether so much is unsynced that the own end stands still (rule 3)."""
        log = self.log
        wanted = log.config.flush_messages
        return wanted != MAX_LONG and log.unflushed_messages >= wanted

    def own_end_moved(self) -> None:
        """Records were appended or synced: move what follows from it, and settle whom that satisfies."""
        log = self.log
        if not log.is_open:  # then nothing has happened to it since it was closed
            self.move_high_watermark()
            return
        needs_sync = self.needs_sync
        end = log.flushed_end_offset if needs_sync else log.log_end_offset
        if end > self._own_end:
            self._own_end = end
            waiting = self._awaiting_own
            if waiting:
                self._acknowledge(waiting, end)
        self.move_high_watermark()
        if needs_sync:
            self._want_sync(self)

    def move_high_watermark(self) -> None:
        """Move the high watermark to where the in-sync replicas allow (rule 2)."""
        if not self._is_settled or not self.is_leader or len(self.isr) < self.min_isr:
            return
        offset = self._own_end
        if self.followers:
            counted = self.isr if self.wanted_isr is None else (*self.isr, *self.wanted_isr)
            for replica, follower in self.followers.items():
                if follower.end_offset < offset and (replica in counted or follower.is_joining):
                    offset = follower.end_offset
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        self.log.high_watermark = offset
        waiting = self._awaiting_all
        if waiting:
            self._acknowledge(waiting, offset)
        self._wake(self.key)

    def acknowledged(self, acks: int, end_offset: int) -> ErrorCode | None:
        """What to tell a producer whose records end before `end_offset`; None: it has to wait."""
        if acks == ACKS_ALL:
            if self.high_watermark < end_offset:
                return None
            if len(self.isr) < self.min_isr:
                return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        elif self._own_end < end_offset and acks != ACKS_NONE:
            return None
        return ErrorCode.NONE

    def await_acknowledgement(self, acks: int, end_offset: int, settle: Settle) -> None:
        """Call `settle` when records that end before `end_offset` are as safe as `acks` wants."""
        waiting = self._awaiting_all if acks == ACKS_ALL else self._awaiting_own
        if waiting and waiting[-1][0] > end_offset:  # a duplicate of something already behind others
            at = next(place for place, waiter in enumerate(waiting) if waiter[0] > end_offset)
            waiting.insert(at, (end_offset, settle))
        else:
            waiting.append((end_offset, settle))

    def _acknowledge(self, waiting: deque[tuple[int, Settle]], end: int) -> None:
        error = ErrorCode.NONE
        if waiting is self._awaiting_all and len(self.isr) < self.min_isr:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        while waiting and waiting[0][0] <= end:
            waiting.popleft()[1](error)

    # ------------------------------------------------------------ reading
    def _admit(self, believed_epoch: int, *, leader_only: bool, may_block: bool) -> None:
        """Refuse a reader with another idea of who leads (seeds.md F6); be ready for any other.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER.
        """
        if believed_epoch not in (NO_EPOCH, self.leader_epoch):
            if believed_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            if leader_only:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif not self._is_settled:
            self.settle(may_block=may_block)

    def read(
        self,
        position: FetchPosition,
        max_bytes: int,
        reader: Reader,
        *,
        min_one_batch: bool,
        may_block: bool = True,
    ) -> ReadInfo:
        """Batches from a position on, up to what the reader may see (seeds.md F2).

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER;
                Diverged: the reader must truncate first; WouldBlock: not with `may_block`.
        """
        self._admit(position.leader_epoch, leader_only=reader.leader_only, may_block=may_block)
        if position.last_fetched_epoch >= 0:
            self.log.open(may_block=may_block)
            self._check_divergence(position)
        return self.log.read(
            position.offset, max_bytes, reader.isolation, min_one_batch=min_one_batch, may_block=may_block
        )

    def _check_divergence(self, position: FetchPosition) -> None:
        epoch, end_offset = self.log.end_offset_for_epoch(position.last_fetched_epoch)
        if epoch == NO_EPOCH or end_offset == NO_OFFSET or position.offset < self.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < position.last_fetched_epoch or end_offset < position.offset:
            raise Diverged(epoch, end_offset)

    def find_offset(
        self, timestamp: int, isolation: Isolation, believed_epoch: int, *, leader_only: bool, may_block: bool = True
    ) -> FoundOffset:
        """Answer ListOffsets for one partition.

        Raises:
            KafkaError: OFFSET_NOT_AVAILABLE while a new leader's high watermark lags behind, or a refusal
                as of any reader.
            WouldBlock: not with `may_block`.
        """
        self._admit(believed_epoch, leader_only=leader_only, may_block=may_block)
        log = self.log
        log.open(may_block=may_block)
        is_lagging = self.is_leader and self.epoch_start_offset > self.high_watermark
        end = self._visible_end(isolation)
        if timestamp == LATEST:
            if is_lagging:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
            return FoundOffset(NO_TIMESTAMP, end, self.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return FoundOffset(NO_TIMESTAMP, log.log_start_offset, log.epoch_of(log.log_start_offset))
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return NOTHING_FOUND
        if timestamp == MAX_TIMESTAMP:
            found = log.offset_of_max_timestamp(may_block=may_block)
        else:
            found = log.offset_for_timestamp(timestamp, may_block=may_block)
        if found is not None and found[1] < end:
            return FoundOffset(*found)
        if is_lagging:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return NOTHING_FOUND

    def _visible_end(self, isolation: Isolation) -> int:
        if isolation == Isolation.HIGH_WATERMARK:
            return self.high_watermark
        if isolation == Isolation.LAST_STABLE:
            return self.log.last_stable_offset
        return self.log.log_end_offset

    def end_offset_for_epoch(self, epoch: int, believed_epoch: int, *, may_block: bool = True) -> tuple[int, int]:
        """The largest epoch up to `epoch` and where it ended here; -1, -1 when unknown.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER.
            WouldBlock: not with `may_block`.
        """
        self._admit(believed_epoch, leader_only=True, may_block=may_block)
        self.log.open(may_block=may_block)
        return self.log.end_offset_for_epoch(epoch)

    # ------------------------------------------------------------ deleting
    def delete_records(self, offset: int, wall_ms: int, *, may_block: bool = True) -> int:
        """Let the log begin at `offset`, or at the high watermark (-1); the offset that is meant.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; POLICY_VIOLATION where records are kept by key; OFFSET_OUT_OF_RANGE.
            WouldBlock: not with `may_block`.
        """
        self._admit(NO_EPOCH, leader_only=True, may_block=may_block)
        self.log.open(may_block=may_block)
        if self.log.config.cleanup_policy == {"compact"}:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Records of partition {self.log.name} can not be deleted due to the configured policy",
            )
        if offset == AT_HIGH_WATERMARK:
            offset = self.high_watermark
        if offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log.trim(offset, wall_ms)
        self._wake(self.key)
        return offset

    def low_watermark(self, lives: Callable[[int], bool]) -> int:
        """All before it is deleted here and on every other replica that lives."""
        starts = [follower.log_start_offset for replica, follower in self.followers.items() if lives(replica)]
        return min([self.log.log_start_offset, *starts])

    # ------------------------------------------------------------ followers
    def update_follower(
        self, reader: Reader, position: FetchPosition, leader_end: int, mono_ms: int, max_lag_ms: int, *, may_join: bool
    ) -> None:
        """A follower's fetch from `position` was served while our log ended at `leader_end` (seeds.md F5).

        A follower that is fenced, or about to leave, cannot be in the ISR (`may_join`).

        Raises:
            KafkaError: this broker is no replica, or an older registration of one.
        """
        follower = self.followers.get(reader.replica_id)
        if follower is None:
            # With the right leader epoch the follower knows more than we do: it shall ask again soon.
            knows_epoch = position.leader_epoch != NO_EPOCH
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if reader.broker_epoch < follower.broker_epoch and reader.broker_epoch != -1:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower.broker_epoch = max(follower.broker_epoch, reader.broker_epoch)
        follower.fetched(position, leader_end, mono_ms)
        is_close = may_join and follower.is_caught_up(leader_end, mono_ms, max_lag_ms)
        follower.is_joining = is_close and reader.replica_id not in self.isr
        if position.log_start_offset != follower.log_start_offset:
            follower.log_start_offset = position.log_start_offset
            self._wake(self.key)
        self.move_high_watermark()

    def isr_with(self, replica_id: int) -> tuple[int, ...] | None:
        """The ISR that a follower's progress calls for (rule 7); None: no change."""
        follower = self.followers.get(replica_id)
        if not self.is_leader or self.wanted_isr is not None or follower is None or replica_id in self.isr:
            return None
        if follower.end_offset < max(self.high_watermark, self.epoch_start_offset):
            return None
        return (*self.isr, replica_id)

    def isr_without_laggards(self, mono_ms: int, max_lag_ms: int, *, may_block: bool = True) -> tuple[int, ...] | None:
        """The ISR without followers that fell behind (rule 7); None: no change. Asked from time to time.

        Raises:
            WouldBlock: not with `may_block`.
        """
        if not self.is_leader or not self.followers:
            return None
        if not self._is_settled:
            if all(follower.is_within(mono_ms, max_lag_ms) for follower in self.followers.values()):
                return None
            self.settle(may_block=may_block)
        end = self.log.open(may_block=may_block).end_offset
        lost = {
            replica
            for replica, follower in self.followers.items()
            if not follower.is_caught_up(end, mono_ms, max_lag_ms)
        }
        for replica in lost:
            self.followers[replica].is_joining = False
        self.move_high_watermark()
        if self.wanted_isr is not None or lost.isdisjoint(self.isr):
            return None
        return tuple(replica for replica in self.isr if replica not in lost)

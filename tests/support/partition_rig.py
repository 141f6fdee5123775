"""A partition over a log without bytes."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from protocol.errors import ErrorCode, KafkaError
from replication.metadata.image import PartitionState
from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import ACKS_ALL, Append, Partition, Reader
from replication.purgatory import Key
from storage.config.config_def import MAX_LONG
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.log.log import Log
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin

SELF = 1
LAG_MS = 30_000
CONSUMER = Reader(-1, Isolation.HIGH_WATERMARK)


def code_of(append: Append) -> ErrorCode:
    return append.error.code if isinstance(append.error, KafkaError) else ErrorCode.NONE


class NumbersLog:
    """A log without bytes, and all parts of it when it is open: records are counts."""

    def __init__(
        self, end: int = 0, flush_messages: int = MAX_LONG, min_insync_replicas: int = 1, *, is_open: bool = True
    ) -> None:
        self.topic, self.partition, self.directory = "t", 0, "d"
        self.files = SimpleNamespace(topic_id=bytes(16))
        self.offsets = self.engine = self.epochs = self.appends = self.reader = self.flush = self
        self.opened = self if is_open else None
        self.log_start_offset = 0
        self.end_offset = end
        self.flushed_end_offset = end
        self.high_watermark = 0
        self.config = SimpleNamespace(flush_messages=flush_messages, min_insync_replicas=min_insync_replicas)
        self.epoch_starts: list[tuple[int, int]] = []
        self.open_transaction: int | None = None
        self.by_time: tuple[int, int, int] | None = None

    @property
    def is_open(self) -> bool:
        return self.opened is not None

    def open_lookup(self) -> DiskLookup:
        return DiskLookup(lambda: self, partial(setattr, self, "opened"))

    @property
    def log_end_offset(self) -> int:
        return self.end_offset

    @property
    def unflushed_messages(self) -> int:
        return self.end_offset - self.flushed_end_offset

    @property
    def last_stable_offset(self) -> int:
        first = self.open_transaction
        return self.high_watermark if first is None else min(self.high_watermark, first)

    def assign_epoch(self, epoch: int) -> None:
        if not self.epoch_starts or self.epoch_starts[-1][0] < epoch:
            self.epoch_starts.append((epoch, self.end_offset))

    def epoch_at(self, offset: int) -> int:
        return max((epoch for epoch, start in self.epoch_starts if start <= offset), default=-1)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if epoch == self.epoch_starts[-1][0]:
            return epoch, self.end_offset
        known = [other for other, _ in self.epoch_starts if other <= epoch]
        later = [start for other, start in self.epoch_starts if other > epoch]
        return (known[-1] if known else epoch, later[0]) if later else (-1, -1)

    def prepare(self, records: int, leader_epoch: int, wall_ms: int, origin: AppendOrigin) -> SimpleNamespace:
        return SimpleNamespace(commit=lambda wall_ms: self._commit(records))

    def _commit(self, count: int) -> SimpleNamespace:
        self.end_offset += count
        return SimpleNamespace(base_offset=self.end_offset - count, last_offset=self.end_offset - 1)

    def read(self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_batch: bool) -> SimpleNamespace:
        return SimpleNamespace(offset=offset, isolation=isolation)

    def offset_for_timestamp(self, target_ms: int) -> tuple[int, int, int] | None:
        return self.by_time

    def offset_of_max_timestamp(self) -> tuple[int, int, int] | None:
        return self.by_time


def state(
    leader: int = SELF, epoch: int = 0, replicas: tuple[int, ...] = (1,), isr: tuple[int, ...] | None = None
) -> PartitionState:
    return PartitionState(replicas, replicas if isr is None else isr, leader, epoch, 0)


class Rig:
    """A leader, and its callbacks."""

    def __init__(
        self,
        replicas: tuple[int, ...] = (1,),
        isr: tuple[int, ...] | None = None,
        epoch: int = 0,
        appended: int = 0,
        **log: Any,
    ) -> None:
        self.log = NumbersLog(**log)
        self.woken: list[Key] = []
        self.requested_flushes = 0
        self.partition = Partition(cast("Log", self.log), SELF, self.woken.append, self.request_flush)
        self.partition.make_leader(state(epoch=epoch, replicas=replicas, isr=isr), 0)
        self.woken.clear()
        self.acks: list[tuple[Any, ErrorCode]] = []
        if appended:
            self.append(appended)

    def append(self, count: int = 1, acks: int = ACKS_ALL) -> None:
        """Append records; `acks` collects (base offset, error code)."""
        partition = self.partition
        info = partition.commit(
            wait_for_disk(partition.prepare, cast("bytearray", count), acks, 0, AppendOrigin.CLIENT), 0
        )
        partition.update_durable_end_offset()
        self.await_acks(info, acks, info.base_offset)

    def await_acks(self, info: Any, acks: int, name: Any) -> None:
        """Wait for the acks of records; `acks` collects (name, error code)."""
        append = Append(bytearray(), acks, 0, AppendOrigin.CLIENT)
        append.then(lambda _: self.acks.append((name, code_of(append))))
        append.info = info
        self.partition.await_acks(append)

    def request_flush(self, _: Partition) -> None:
        self.requested_flushes += 1

    def flush(self) -> None:
        """Make all appended records durable."""
        self.log.flushed_end_offset = self.log.end_offset
        self.partition.update_durable_end_offset()

    def read(
        self, offset: int = 0, leader_epoch: int = -1, last_fetched_epoch: int = -1, reader: Reader = CONSUMER
    ) -> Any:
        position = FetchPosition(offset, leader_epoch, last_fetched_epoch)
        return self.partition.read(position, 100, reader, min_one_batch=True)

    def fetch(self, replica: int, offset: int, mono_ms: int = 0, epoch: int = 0, broker_epoch: int = -1) -> None:
        """A follower fetches from `offset`."""
        position = FetchPosition(offset, epoch)
        reader = Reader(replica, Isolation.LOG_END, broker_epoch=broker_epoch)
        self.partition.update_follower(reader, position, self.log.log_end_offset, mono_ms, LAG_MS, may_join=True)

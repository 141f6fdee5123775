"""The model of a partition: the batches that were written, and which of them must survive.

RULES    1. `batches` are committed, in order, also those below the log start offset. `in_flight` were prepared: a crash may
            keep them.
         2. Batches before `flushed` are durable. A power loss may remove later ones, from the end.
NOT HERE The comparison with a log (invariants.py), the operations (operations.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.control_records import ControlType
from storage.config.log_config import LogConfig
from storage.log.append_pipeline import PreparedAppend
from storage.log.log import Log
from tests.support.logs import ProducerInfo, aborted, first_open_offsets


class Record(NamedTuple):
    """One record."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Batch(NamedTuple):
    """One batch of the log."""

    base_offset: int
    next_offset: int
    data: bytes
    timestamp_ms: int
    """The maximum timestamp of its records."""
    epoch: int
    records: tuple[Record, ...]
    producer: ProducerInfo | None = None
    ends: ControlType | None = None

    @property
    def last_sequence(self) -> int:
        """The last sequence number of a producer's batch."""
        assert self.producer is not None
        return self.producer.sequence + len(self.records) - 1


class CompactionRun(NamedTuple):
    """A compaction that started."""

    end_offset: int
    wall_ms: int
    log_end_offset: int
    """The log end offset at the start: every replica has the log up to here, with the transaction markers."""


@dataclass
class Partition:
    """One partition of the model."""

    topic: str
    index: int
    topic_id: bytes
    config: LogConfig
    log: Log | None = None
    """None if its directory is offline."""
    directories: set[str] = field(default_factory=set)
    """The log directories in which it may be."""
    is_recovered: bool = True
    """Whether the log was checked after the last crash; otherwise it must reach at least `min_end_offset`."""
    min_end_offset: int = 0
    was_closed_cleanly: bool = False
    """Whether the log was closed cleanly and has not been checked since."""
    max_flushed: int = 0
    """The maximum flushed offset during a close."""
    truncating_to: int | None = None
    """The offset of a truncation in progress."""
    batches: list[Batch] = field(default_factory=list)
    in_flight: list[tuple[PreparedAppend | None, Batch]] = field(default_factory=list)
    initial_offset: int = 0
    """The first offset of the log: 0, or the offset of the last full truncation."""
    restarting_at: int | None = None
    """The offset of a full truncation in progress."""
    start: int = 0
    highest_start: int = 0
    """The highest log start offset so far."""
    max_start: int = 0
    """The maximum log start offset of an operation in progress."""
    durable_start: int = 0
    flushed: int = 0
    epoch: int = 0
    has_lost_records: bool = False
    """Whether a power loss removed records."""
    compactions: list[CompactionRun] = field(default_factory=list)
    syncing_to: int | None = None
    """The flushed offset after the sync in progress."""
    producers_expired_before: int = 0
    """Producers with no batch after this offset may be forgotten: their batches were deleted."""

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.index

    @property
    def end(self) -> int:
        """The offset after the last committed batch."""
        return self.batches[-1].next_offset if self.batches else self.initial_offset

    @property
    def next_offset(self) -> int:
        return self.in_flight[-1][1].next_offset if self.in_flight else self.end

    @property
    def has_gaps(self) -> bool:
        """Whether a compaction may have removed records."""
        return bool(self.compactions)

    def all_batches(self) -> list[Batch]:
        """The committed and in-flight batches."""
        return [*self.batches, *(batch for _, batch in self.in_flight)]

    def batches_of_producer(self, producer_id: int) -> list[Batch]:
        """The data batches of a producer."""
        return [
            b for b in self.all_batches() if b.producer and b.producer.producer_id == producer_id and b.ends is None
        ]

    def producer_ids(self) -> set[int]:
        return {batch.producer.producer_id for batch in self.batches if batch.producer is not None}

    def open_transactions(self, start: int = 0) -> dict[int, int]:
        """The first offset of each producer's open transaction, derived from the batches from `start` on."""
        return first_open_offsets(batch for batch in self.all_batches() if batch.base_offset >= start)

    def aborted(self) -> list[tuple[int, int, int]]:
        """Producer, first offset and marker offset of each aborted transaction."""
        return aborted(self.batches)

    def truncate_to(self, end_offset: int) -> None:
        """Keep the whole batches before an offset."""
        while self.batches and self.batches[-1].next_offset > end_offset:
            self.batches.pop()

    def start_at(self, offset: int) -> None:
        self.start, self.max_start = offset, 0
        self.highest_start = max(offset, self.highest_start)

    def restart_at(self, offset: int) -> None:
        """Remove all batches and continue at an offset."""
        self.batches.clear()
        self.compactions.clear()
        self.initial_offset = self.start = self.durable_start = self.flushed = self.producers_expired_before = (
            self.highest_start
        ) = offset
        self.restarting_at = self.truncating_to = None

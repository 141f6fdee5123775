"""What a partition must hold: a list of the batches that were written, and how much of it nobody may lose.

RULES    1. `batches` are committed, in order, also those before the log's start; `under_way` were prepared, so a crash may
            find them.
         2. All before `flushed` is durable for good. What comes behind may go with a loss of power, from the end on.
NOT HERE Comparing a log with it (checks.py), what is done to both (history.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.records import ControlType
from storage.config.log_config import LogConfig
from storage.log.log import Log, PreparedAppend
from tests.support.logs import Idempotent, aborted, undecided


class Written(NamedTuple):
    """One record."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Batch(NamedTuple):
    """One batch as it lies in the log."""

    base_offset: int
    next_offset: int
    data: bytes
    timestamp_ms: int
    """The greatest of its records."""
    epoch: int
    records: tuple[Written, ...]
    producer: Idempotent | None = None
    ends: ControlType | None = None

    @property
    def last_sequence(self) -> int:
        """Of a producer's batch."""
        assert self.producer is not None
        return self.producer.sequence + len(self.records) - 1


class Cleaning(NamedTuple):
    """A compaction that began: what it may have taken, and when."""

    end_offset: int
    wall_ms: int
    log_end_offset: int
    """Of the log, then: every replica has all of that, decisions of transactions included."""


@dataclass
class Partition:
    """One partition of the model."""

    topic: str
    index: int
    topic_id: bytes
    config: LogConfig
    log: Log | None = None
    """None where its directory is offline."""
    places: set[str] = field(default_factory=set)
    """The log directories that it may lie in."""
    is_settled: bool = True
    """Whether it is known what the last end of a process has left; else `floor` is left at least."""
    floor: int = 0
    is_all_durable: bool = False
    """Whether it was closed cleanly before it was settled."""
    may_be_flushed: int = 0
    """As far as that: a close was under way."""
    cut_at: int | None = None
    """While that is under way."""
    batches: list[Batch] = field(default_factory=list)
    under_way: list[tuple[PreparedAppend | None, Batch]] = field(default_factory=list)
    begin: int = 0
    """Where the log was begun: 0, or where it was begun anew."""
    begins_anew_at: int | None = None
    """While that is under way."""
    start: int = 0
    highest_start: int = 0
    """Of all times."""
    may_start: int = 0
    """There at most, while it is being moved."""
    durable_start: int = 0
    flushed: int = 0
    epoch: int = 0
    has_lost: bool = False
    """Whether a loss of power has taken something off the end."""
    cleanings: list[Cleaning] = field(default_factory=list)
    syncing_to: int | None = None
    """What will be durable when the sync under way is done."""
    forgotten: int = 0
    """Before this offset the log may have forgotten producers: what they wrote was deleted."""

    @property
    def key(self) -> tuple[str, int]:
        """Topic and index."""
        return self.topic, self.index

    @property
    def end(self) -> int:
        """Behind the last committed batch."""
        return self.batches[-1].next_offset if self.batches else self.begin

    @property
    def next_offset(self) -> int:
        """What the next append gets."""
        return self.under_way[-1][1].next_offset if self.under_way else self.end

    @property
    def has_gaps(self) -> bool:
        """Whether a compaction may have taken something."""
        return bool(self.cleanings)

    def known(self) -> list[Batch]:
        """Committed or under way."""
        return [*self.batches, *(batch for _, batch in self.under_way)]

    def of_producer(self, producer_id: int) -> list[Batch]:
        """A producer's batches of records."""
        return [b for b in self.known() if b.producer and b.producer.producer_id == producer_id and b.ends is None]

    def producer_ids(self) -> set[int]:
        """Everybody who has written here."""
        return {batch.producer.producer_id for batch in self.batches if batch.producer is not None}

    def open_transactions(self, start: int = 0) -> dict[int, int]:
        """First offset of each producer's open transaction, as far as batches from `start` on tell."""
        return undecided(batch for batch in self.known() if batch.base_offset >= start)

    def aborted(self) -> list[tuple[int, int, int]]:
        """Producer, first offset and marker's offset of each aborted transaction."""
        return aborted(self.batches)

    def cut(self, end_offset: int) -> None:
        """Keep the whole batches before an offset."""
        while self.batches and self.batches[-1].next_offset > end_offset:
            self.batches.pop()

    def start_at(self, offset: int) -> None:
        """The log begins there now."""
        self.start, self.may_start = offset, 0
        self.highest_start = max(offset, self.highest_start)

    def begin_at(self, offset: int) -> None:
        """Keep nothing, and go on there."""
        self.batches.clear()
        self.cleanings.clear()
        self.begin = self.start = self.durable_start = self.flushed = self.forgotten = self.highest_start = offset
        self.begins_anew_at = self.cut_at = None

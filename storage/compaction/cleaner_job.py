"""The input and output of one compaction: plain values that can be sent to another process.

RULES    1. A job describes the log at one moment: closed segments and decided transactions, which do not change.
            If they do (a truncation, or deletion of the oldest segments), the result is discarded.
NOT HERE Creating a job (cleanable.py), running it (cleaner.py).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import KafkaError
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction, SegmentInfo
from storage.io.disk import StorageError


class LastRecord(NamedTuple):
    """The last record of an active producer."""

    offset: int
    """-1 if only a marker is known."""
    epoch: int


class CleanerResources(NamedTuple):
    """The limits of one compaction."""

    memory_bytes: int = 134_217_728
    """Size of the key map: log.cleaner.dedupe.buffer.size, divided by the threads."""
    load_factor: float = 0.9
    buffer_bytes: int = 262_144
    """Read buffer; a larger batch is read alone."""


class CleanerJob(NamedTuple):
    """One compaction."""

    path: str
    """The partition's directory."""
    name: str
    segments: tuple[SegmentInfo, ...]
    """All segments below the first uncleanable one."""
    first_dirty_offset: int
    end_offset: int
    """Of the last segment."""
    aborted: tuple[AbortedTransaction, ...]
    last_records: dict[int, LastRecord]
    """By producer id."""
    recovery_point: int
    """On disk: a recovery reads no segment that ends at or below it."""
    wall_ms: int
    config: LogConfig
    resources: CleanerResources = CleanerResources()


class BytesProcessed(NamedTuple):
    """Bytes read or written, for throttling."""

    size: int


class Replacement(NamedTuple):
    """A new segment is durable under the `.cleaned` names of a segment to be replaced."""

    replaced: tuple[SegmentInfo, ...]
    """The first one has its base offset."""
    size: int
    has_aborted: bool


class CleaningResult(NamedTuple):
    """The compaction is complete."""

    next_dirty_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_written: int
    utilization: float
    """Of the key map."""


class CleaningFailed(NamedTuple):
    """The compaction failed."""

    is_damage: bool
    """Whether it would fail again because of an invalid batch."""
    text: str
    path: str = ""
    errno: int | None = None
    """Of a disk error; None: neither log nor disk caused the failure."""


Step = BytesProcessed | Replacement | CleaningResult


def failure_of(error: KafkaError | StorageError) -> CleaningFailed:
    """The plain value of an exception."""
    if isinstance(error, StorageError):
        return CleaningFailed(is_damage=False, text=str(error), path=error.path, errno=error.errno)
    return CleaningFailed(is_damage=True, text=error.message or error.code.name)

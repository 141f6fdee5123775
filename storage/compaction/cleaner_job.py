"""What one compaction of one partition has to know, and what it reports: plain values, for this process or another.

RULES    1. A job describes the log at one moment. What it names never changes: closed segments, decided transactions.
            When it does after all (the log is cut, its oldest segments are deleted), what was made is thrown away.
NOT HERE Making a job of a log (cleanable.py), doing it (cleaner.py).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import KafkaError
from storage.engine import AbortedTransaction, SegmentInfo
from storage.io.disk import StorageError


class LastRecord(NamedTuple):
    """The end of what an active producer has written."""

    offset: int
    """Of its last record; -1 where only a marker is known of it."""
    epoch: int


class Resources(NamedTuple):
    """What one compaction may take."""

    memory_bytes: int = 134_217_728
    """For the map of keys: log.cleaner.dedupe.buffer.size, divided by the threads."""
    load_factor: float = 0.9
    buffer_bytes: int = 262_144
    """Read at a time; a larger batch is read alone."""


class Job(NamedTuple):
    """One compaction."""

    path: str
    """The partition's directory."""
    name: str
    segments: tuple[SegmentInfo, ...]
    """All before the first that may not be cleaned."""
    first_dirty_offset: int
    end_offset: int
    """Behind the last segment."""
    aborted: tuple[AbortedTransaction, ...]
    last_records: dict[int, LastRecord]
    """By producer id."""
    wall_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    resources: Resources = Resources()


class Progress(NamedTuple):
    """So many bytes were read or written: for whoever throttles."""

    size: int


class Replacement(NamedTuple):
    """A new segment lies ready, durable, under the names of one that is being cleaned."""

    replaced: tuple[SegmentInfo, ...]
    """The first has its base offset."""
    size: int
    has_aborted: bool


class Cleaned(NamedTuple):
    """All is done."""

    next_dirty_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_written: int
    utilization: float
    """Of the map of keys."""


class Failed(NamedTuple):
    """It has come to nothing."""

    is_damage: bool
    """Whether it would come to nothing again: something in the log cannot be compacted."""
    text: str
    path: str = ""
    errno: int | None = None
    """Of the disk, where that was the reason; None: neither log nor disk is to blame."""


Step = Progress | Replacement | Cleaned


def failed(error: KafkaError | StorageError) -> Failed:
    """An exception of a cleaning as a plain value."""
    if isinstance(error, StorageError):
        return Failed(is_damage=False, text=str(error), path=error.path, errno=error.errno)
    return Failed(is_damage=True, text=error.message or error.code.name)

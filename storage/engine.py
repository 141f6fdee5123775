"""The interface of a storage engine for one partition; `Log` does not depend on the layout on disk.

RULES    1. An engine stores whole batches in offset order and never reads a record. Its input is validated; the bytes
            already contain offsets and leader epochs.
         2. An append is reserve, write, publish. Several reservations may be outstanding; they are
            published in the order of their creation. A batch is not readable before it is published.
         3. `write` and the result of `collect_sync` may run in another thread: they only access files. All other methods
            run on one thread, and `truncate`, `reset`, `roll`, `close` and `delete` only while no reservation is
            outstanding.
         4. End offsets and `max_offset` are exclusive.
         5. A region keeps its file open: deleted data can still be sent.
         6. Every method may raise StorageError; published data stays readable then. A failed `reserve` has no effect. After any
            other failure the log directory goes offline. A method that returns a DiskLookup does not wait for the disk
            (disk_lookup.py).
         7. A new engine object has opened no file. `open` is called first, then `recover` if `open` requires it; an engine
            without files on disk starts empty at offset 0.
NOT HERE High watermark, leader epochs, producers, a log start offset inside a segment (storage/log); an engine that stores some
         of them itself (stored_state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from protocol.file_region import Region
from protocol.primitives import Buffer
from protocol.records import BatchHeader
from storage.config.log_config import LogConfig
from storage.io.deferred_file_ops import Submit
from storage.io.disk import File
from storage.io.disk_lookup import DiskLookup
from storage.io.flush_task import FlushTask

T = TypeVar("T")


class BatchInfo(NamedTuple):
    """The fields of a batch that an engine needs."""

    position: int
    """Position of its first byte in the appended buffer."""
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int


def batch_info(position: int, header: BatchHeader) -> BatchInfo:
    """The fields of a batch at this position."""
    return BatchInfo(
        position, header.size, header.base_offset, header.last_offset, header.max_timestamp, header.leader_epoch
    )


class LocatedBatches(NamedTuple):
    """The location of the bytes of a read."""

    regions: tuple[Region, ...]
    """In offset order; empty if there is nothing to send."""
    size: int
    """The sum of the region lengths."""
    end_offset: int
    """At or above the end of the regions, and at most `max_offset`; close to the end if there are aborted transactions."""


class SegmentInfo(NamedTuple):
    """A part of the log that is deleted as a unit."""

    base_offset: int
    end_offset: int
    """The next segment's base offset, or the log end offset."""
    size: int


class AbortedTransaction(NamedTuple):
    """A transaction with an abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's offset."""
    last_stable_offset: int
    """Of the log at the time of the marker."""

    def contains(self, header: BatchHeader) -> bool:
        """Whether a transactional batch belongs to this transaction."""
        return header.producer_id == self.producer_id and self.first_offset <= header.base_offset <= self.last_offset


class Reservation:
    """The reserved range of one append; engines extend it."""

    __slots__ = ("batches", "rolled", "takes_snapshot")

    batches: Sequence[BatchInfo]
    rolled: bool
    """Whether this append starts a segment."""
    takes_snapshot: bool
    """Whether Log writes a producer snapshot of the state before this append: at each start of a segment, at least."""


class SyncWork(NamedTuple):
    """Open files to sync in a thread; afterwards all before `end_offset` is durable."""

    end_offset: int
    files: Sequence[File]
    is_complete: bool = True
    """Whether no further sync is needed."""


EngineSummary = list[Any]
"""JSON values, whose meaning only the engine knows."""

OnBatch = Callable[[Buffer, int, BatchHeader], None]
"""Called for a recovered batch with a buffer that contains it, its position there, and its header."""


class SharedLog(Protocol):
    """What the engines of one log directory share, if their batches are in one log: one write and one sync for all."""

    def write_together(self, writes: Sequence[tuple[Reservation, Buffer]]) -> None:
        """Write appends of several engines as their `write` does, with as few system calls as possible; any thread."""

    def write_size(self, size: int) -> int:
        """The bytes that the disk gets by a write of this size, for `IoExecutor.write`; with a file that it must create."""

    def flush_task(self) -> FlushTask:
        """The task that makes all that was written durable, for all engines together: what their `collect_sync` names."""

    def begin_round(self) -> FlushTask:
        """The same task, of one of many rounds: the log may prepare for the next ones. On the thread of the appends."""

    def end_round(self, task: FlushTask) -> None:
        """A task of `begin_round` has succeeded; `Engine.mark_shared_flushed` follows for the engines in the round."""


class PublishedBatches(Protocol):
    """The published batches of one partition."""

    @property
    def start_offset(self) -> int:
        """The base offset of the oldest segment."""

    @property
    def end_offset(self) -> int:
        """The offset after the last published one."""

    def segments(self, limit: int | None = None) -> list[SegmentInfo]:
        """The segments from the oldest to the active one, at most `limit`; there is always one. Opens no file."""


class EngineView(PublishedBatches, Protocol):
    """The published batches at one moment, for blocking reads in any thread while the engine changes."""

    def read_batches(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from the one that `locate` finds: at least one, and no further one beyond `max_bytes`.

        Empty at the log end. The bytes are copied into memory, for internal readers.
        """

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        """The base offset of the first batch from `offset` on whose max timestamp is at least `target_ms`.

        The batch that contains `offset` counts.
        """

    def max_timestamp(self) -> tuple[int, int] | None:
        """The greatest timestamp in the log and the last offset of the first batch with it; None for an empty log."""

    def segment_max_timestamp(self, base_offset: int) -> int:
        """The greatest timestamp in a segment; without timestamps, its modification time."""

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in the range, in the order of their markers."""


class Engine(PublishedBatches, Protocol):
    """The batches of one partition on disk."""

    # ---- open and close ----------------------------------------------------------------------------------

    def open(self, recovery_point: int | None, names: Sequence[str] | None = None) -> int | None:
        """List the files in `names`, or in the directory, and return the start offset of `recover`, or None if not needed.

        `recovery_point`: all before it is durable and valid; None after a clean close, when everything is. Inconsistent files
        require a recovery even then. It starts at a segment at or before the recovery point, or at a later offset before which
        all is valid; before it, only `read_batches` of a view works, below that offset, and `segments` does not know the end of
        the last ones. Afterwards the flushed end is the log end after a clean close, else the recovery point or the lower log
        end.
        """

    def summary(self) -> EngineSummary | None:
        """What `reopen` needs; called after `close`. None if the next open must look at the files."""

    def stamp(self, summary: EngineSummary) -> str:
        """Differs after every change of the directory's names, and of the files that `reopen` does not read."""

    def reopen(self, summary: EngineSummary) -> None:
        """Open the log as it was closed, instead of `open`; the caller has compared the stamps. Opens the file for appends."""

    def bytes_to_recover(self, start_offset: int) -> int:
        """The bytes that `recover` will read; called before it. Opens no file."""

    def recover(self, start_offset: int, on_batch: OnBatch) -> None:
        """Check every batch from `start_offset` (the result of `open`): size, CRC, ascending offsets.

        The log is truncated at the first invalid batch, and at a gap that a loss has caused instead of compaction
        (`compacted_end`). The indexes of the range are rebuilt, including aborted transactions: `on_batch` is called for each
        valid batch in order, after it is published, and may call `add_aborted`.
        """

    def close(self, *, sync: bool = False) -> None:
        """Write pending index entries and close the files. The object must not be used again.

        With `sync` everything is durable, so the next `open` may assume a clean close.
        """

    def delete(self) -> None:
        """Close for good, without waiting for appends; the log manager removes the data and the partition's directory."""

    def register_files(self) -> None:
        """Allow the file handle cache to close unused files between two calls; the next use opens them again."""

    def unregister_files(self) -> None:
        """Remove all files from the file handle cache, and discard pending lookups."""

    def update_config(self, config: LogConfig) -> None:
        """Apply new settings from the next append on."""

    shared_log: SharedLog | None
    """The log that has the batches of several engines; None if this engine has files of its own."""

    compacted_end: int
    """Compaction may have left gaps between segments below this offset; set before `open`."""

    submit: Submit
    """Runs file operations that follow from appends, `trim` and the closing of files: at once unless replaced."""

    # ---- append ------------------------------------------------------------------------------------------

    def prepare_append(self) -> DiskLookup | None:
        """The lookup that opens closed files before an append; None if it is not needed."""

    def reserve(self, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> Reservation:
        """Reserve `size` bytes after all reservations; starts a new segment if it is due.

        `size` is at most `segment_bytes`; the first base offset is at or above the log end.
        """

    def write(self, reservation: Reservation, buffer: Buffer) -> None:
        """Write the bytes; any thread."""

    def publish(self, reservation: Reservation) -> None:
        """Make the batches readable: advance the log end and index them."""

    # ---- read --------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """The size of the published batches."""

    @property
    def segment_count(self) -> int:
        """The number of segments."""

    @property
    def flushed_end_offset(self) -> int:
        """All before this offset is durable, by `mark_flushed` or because the opening of a shared log has synced it."""

    @property
    def recovery_point(self) -> int:
        """The start of a recovery after a crash now: at or below the flushed end."""

    def locate(
        self, offset: int, max_bytes: int, max_offset: int, *, min_one_batch: bool
    ) -> LocatedBatches | DiskLookup:
        """The location of the batches from `offset` on.

        The first batch is the first whose last offset is at or above `offset`. Only batches wholly below `max_offset` are
        returned, at most `max_bytes`: the last one may be truncated as in Kafka, the first one never. If the first one alone is
        larger, it is returned with `min_one_batch`, else nothing. `start_offset` <= `offset` <= `max_offset` <= `end_offset`.
        """

    def view(self) -> EngineView:
        """The published batches at this moment."""

    def lookup(self, key: Hashable, find: Callable[[EngineView], T]) -> T | DiskLookup:
        """The result of `find` on a view, in another thread; `key` identifies the lookup.

        `truncate`, `reset`, `replace`, `trim` and `unregister_files` discard the results of earlier lookups; they run again.

        Raises:
            KafkaError: the data read is invalid.
        """

    def timestamp_bound(self, base_offset: int, enough_ms: int) -> int | DiskLookup:
        """The greatest timestamp in a segment with batches, or one below it that is at least `enough_ms`; waits for no disk.

        Without timestamps, the segment's modification time. A segment that got batches during the lookup has `enough_ms`.
        """

    # ---- aborted transactions ----------------------------------------------------------------------------

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Index a transaction whose abort marker was just published."""

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction] | DiskLookup:
        """The aborted transactions with records in the range, in the order of their markers."""

    # ---- truncation and deletion -------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        """Start a new segment at the log end; False if the active one is empty."""

    def truncate(self, offset: int) -> None:
        """Delete every batch that reaches to `offset` or above, with its index entries.

        The log end is then `offset`, or the base offset of the batch that contained it; the flushed end is lowered to it.
        `start_offset` <= `offset` <= `end_offset`. Any thread, while nothing else uses the engine; durable when it returns.
        `end_truncation` follows. Until then a view reads below the new log end.
        """

    def reset(self, offset: int) -> None:
        """Delete everything; the log continues empty at `offset`. As `truncate`, a failed one may be repeated."""

    def end_truncation(self) -> None:
        """After `truncate` or `reset`: change what the engines of a shared log have in common. Not in another thread."""

    def trim(self, offset: int, submit_first: Submit | None = None) -> list[str]:
        """Delete the segments wholly below `offset`, or the oldest of them, but never the active one.

        `submit_first` runs operations before those submitted earlier; segments with pending operations then stay. Returns
        the paths of renamed files, which the caller deletes after `file_delete_delay_ms`; the list is complete when the
        submitted operations have run.
        """

    # ---- durability --------------------------------------------------------------------------------------

    def collect_sync(self, limit: int | None = None) -> SyncWork:
        """The files to sync so that all published batches are durable; run it once, in any thread.

        `limit`: only this number of segments, oldest first; the end offset is then theirs.
        """

    def mark_flushed(self, end_offset: int) -> None:
        """Record that the sync with this end offset has succeeded."""

    def mark_shared_flushed(self, end_offset: int) -> None:
        """All before this offset is durable by a round of the shared log; a truncation meanwhile has lowered it."""


class Compactable:
    """An engine whose segments can be replaced by compacted ones (compaction/)."""

    __slots__ = ()

    def replace(self, bases: Sequence[int], size: int, *, has_aborted: bool) -> list[str]:
        """Replace neighbouring closed segments by a compacted one of `size` bytes; returns paths of renamed files, as `trim`.

        The new segment's durable files have the first one's names with the suffix `.cleaned`.
        """
        raise NotImplementedError


EngineFactory = Callable[[str, LogConfig], Engine]
"""Creates the engine of a partition's directory; opens no file."""

"""What a storage engine must do for one partition, so that `Log` need not know how batches lie on disk.

RULES    1. An engine stores whole batches in the order of their offsets and never looks at a record. What it is
            given has been checked; offsets and leader epochs stand in the bytes already.
         2. An append is reserve, write, then publish or abandon. Several reservations may be outstanding; they are
            published in the order in which they were made. Nobody can read a batch before it is published.
         3. `write`, and what `collect_sync` returns, may run in another thread: they touch files and nothing else.
            All other methods run on one thread, and `truncate`, `reset`, `roll`, `close` and `delete` only while no
            reservation is outstanding.
         4. `end` is exclusive everywhere: end offsets, `max_offset`.
         5. A region keeps its file open. Data that are deleted meanwhile can still be sent.
         6. Every method may raise StorageError; then what was published before is still there and can be read.
            A failed `reserve` has reserved nothing. After any other failure the log directory goes offline.
            With `may_block=False` a look raises WouldBlock (would_block.py) where it would wait for the disk.
         7. A new engine object has opened no file. `open` comes first, and `recover` if it says so; an engine that is
            new on disk starts empty at offset 0.
NOT HERE High watermark, leader epochs, producers, log start offset below the granularity of a segment (log.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from protocol.records import BatchHeader, FileRegion
from storage.config.log_config import LogConfig
from storage.io.deferred_file_ops import Later
from storage.io.disk import File

Buffer = bytes | bytearray | memoryview


class BatchInfo(NamedTuple):
    """One batch of an append, as far as an engine has to know it."""

    position: int
    """Of its first byte in the buffer that is appended."""
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int


class OffsetPosition(NamedTuple):
    """Where a batch lies: Kafka's "offset metadata", by which distances in bytes are told."""

    segment_base_offset: int
    position: int


class Located(NamedTuple):
    """Where the bytes that answer a read lie."""

    regions: tuple[FileRegion, ...]
    """In the order of offsets; empty when there is nothing to send."""
    size: int
    """The sum of their lengths."""
    end_offset: int
    """Behind the last offset in the regions, or further, never beyond the `max_offset` asked for: where there are
    aborted transactions, a little further at most."""
    position: OffsetPosition | None
    """Of the first batch; None where nothing was found, or an engine has no such thing."""


class SegmentInfo(NamedTuple):
    """A part of the log that is deleted as one."""

    base_offset: int
    end_offset: int
    """The next segment's base offset, or the end of the log."""
    size: int


class AbortedTransaction(NamedTuple):
    """A transaction that ended with an abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    last_stable_offset: int
    """Of the log, when the marker was written."""


class Reservation:
    """A place for one append; engines add what they need in a subclass."""

    __slots__ = ("batches", "rolled", "size")

    def __init__(self, size: int, batches: Sequence[BatchInfo], *, rolled: bool) -> None:
        self.size = size
        self.batches = batches
        self.rolled = rolled
        """Whether this append is the first of a new segment, before which Log takes a producer snapshot."""


class SyncWork(NamedTuple):
    """Open files for a thread to sync; when it has, all before `end_offset` survives a loss of power."""

    end_offset: int
    files: Sequence[File]
    is_complete: bool = True
    """Whether nothing is left for a further one."""

    def run(self) -> None:
        """Sync them, one after the other."""
        for file in self.files:
            file.sync()


Visit = Callable[[Buffer, int, BatchHeader], None]
"""Called for a recovered batch with a buffer that holds all of it, its position there, and its header."""


class Engine(Protocol):
    """Batches of one partition on disk."""

    # ---- life --------------------------------------------------------------------------------------------

    def open(self, recovery_point: int | None, names: Sequence[str] | None = None) -> int | None:
        """Get to know what is on disk.

        Args:
            recovery_point: all before it is known to be durable and whole; None after a clean close, when
                everything is.
            names: what lies in the partition's directory, where somebody has just looked.

        Returns:
            The offset from which `recover` has to run (at or before the recovery point, where a segment starts),
            or None when there is nothing to recover. Also after a clean close the files may turn out not to fit.
            Until `recover` has run, only what lies before the returned offset can be read, and only by
            `read_batches`; `segments` tells where segments begin, but not how the last ones end. Afterwards the
            flushed end is the end after a clean close, else the recovery point, or the end where that is less.
        """
        ...

    def bytes_to_recover(self, start_offset: int) -> int:
        """How much `recover` will read from there on; asked before it. Opens no file."""
        ...

    def recover(self, start_offset: int, visit: Visit) -> None:
        """Check every batch from `start_offset` (what `open` returned) on: sizes, CRC, ascending offsets.

        The log is cut at the first one that is not whole, and all behind it is dropped; it is cut likewise where
        something is missing that was lost, and not only compacted away (`compacted_end`). Indexes of that
        range are built anew, the aborted transactions among them: `visit` is called for each valid batch, in order,
        when the batch counts as published, and may call `add_aborted`.
        """
        ...

    def close(self, *, sync: bool = False) -> None:
        """Write out what is only in memory and let files go. The object may not be used again.

        With `sync` a loss of power takes nothing of that, so the next `open` may be told of a clean close.
        """
        ...

    def delete(self) -> None:
        """Close, and give up all data of this partition; removing the partition's directory is the caller's."""
        ...

    def enter_service(self) -> None:
        """From now on files that are not in use may be closed between two calls; the next use opens them again."""
        ...

    def leave_service(self) -> None:
        """No longer, and nobody else knows of this object any more."""
        ...

    def update_config(self, config: LogConfig) -> None:
        """Obey these settings from the next append on."""
        ...

    compacted_end: int
    """Before it a compaction may have left gaps between segments; set before `open`."""

    later: Later
    """Makes the changes of files that follow from appends, from `trim`, and that come before a file is closed: at once,
    unless it is set."""

    # ---- append ------------------------------------------------------------------------------------------

    def be_ready_to_append(self) -> None:
        """Raise WouldBlock where an append would first have to open files that were closed (`enter_service`)."""
        ...

    def reserve(self, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> Reservation:
        """Find the place for `size` bytes, behind all that is reserved; begin a new segment when it is time.

        `size` is never more than `segment_bytes`; the base offset of the first batch is at or behind the end.
        """
        ...

    def write(self, reservation: Reservation, buffer: Buffer) -> None:
        """Put the bytes at their place; may run in another thread."""
        ...

    def publish(self, reservation: Reservation) -> None:
        """Let the batches be read: move the end, index them."""
        ...

    def abandon(self, reservation: Reservation) -> None:
        """Give up this reservation and all made after it; whatever was written for them is gone or unreachable."""
        ...

    # ---- read --------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """Base offset of the oldest segment."""
        ...

    @property
    def end_offset(self) -> int:
        """Behind the last published offset."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of the published batches."""
        ...

    @property
    def flushed_end_offset(self) -> int:
        """All before it is durable, as `mark_flushed` was told."""
        ...

    @property
    def recovery_point(self) -> int:
        """Where `recover` has to begin after a crash at this moment: never behind the flushed end, perhaps before it."""
        ...

    def locate(
        self, offset: int, max_bytes: int, max_offset: int, *, min_one_batch: bool, may_block: bool = True
    ) -> Located:
        """Where the batches from `offset` on lie.

        The first is the first batch whose last offset is at or behind `offset`; only batches wholly before
        `max_offset` are returned, and at most `max_bytes` of them: the last may be cut off there, as Kafka's is,
        the first never. When the first alone is larger, the answer is that batch with `min_one_batch`, else
        nothing. `start_offset` <= `offset` <= `max_offset` <= `end_offset`.
        """
        ...

    def read_batches(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches, from the one that `locate` would find: at least one, and no further one beyond `max_bytes`.

        Empty at the end of the log. For internal readers: the bytes are copied into memory.
        """
        ...

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        """Base offset of the first batch at or behind `offset` whose max timestamp is `target_ms` or later.

        "At or behind" as in `locate`: the batch that holds `offset` counts.
        """
        ...

    def max_timestamp(self) -> tuple[int, int] | None:
        """The greatest timestamp in the log and the last offset of the first batch that has it; None when empty."""
        ...

    def copy(self) -> Engine:
        """What a thread may look things up in while this one goes on; nothing is to be changed by it."""
        ...

    def learn(self, copy: Engine) -> None:
        """Take over the files that a copy has opened meanwhile."""
        ...

    def segments(self, most: int | None = None) -> list[SegmentInfo]:
        """The segments from the oldest to the active one, at most so many; there is always one. Opens no file."""
        ...

    def segment_max_timestamp(self, base_offset: int) -> int:
        """The greatest timestamp in one segment; where no batch has one, when it was last written."""
        ...

    # ---- aborted transactions ----------------------------------------------------------------------------

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Remember a transaction whose abort marker was published last."""
        ...

    def aborted(self, start_offset: int, end_offset: int, *, may_block: bool = True) -> list[AbortedTransaction]:
        """The aborted transactions with records in the range, in the order of their markers."""
        ...

    # ---- cutting -----------------------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        """Begin a new segment at the end of the log; False when the active one is empty already."""
        ...

    def truncate(self, offset: int) -> None:
        """Drop every batch that reaches to `offset` or behind it, and what is remembered of them.

        The end is then `offset`, or the base offset of the batch that held it; the flushed end is not behind it.
        `start_offset` <= `offset` <= `end_offset`.
        """
        ...

    def reset(self, offset: int) -> None:
        """Drop everything and begin anew, empty, at `offset`."""
        ...

    def trim(self, offset: int, ahead: Later | None = None) -> list[str]:
        """Drop the segments that lie wholly before `offset`, but never the active one.

        Args:
            offset: where the log is to begin.
            ahead: makes the changes before others that were handed in earlier: then no segment goes that these are about.

        Returns:
            Paths that are out of use, under another name already, for the caller to unlink after
            `file_delete_delay_ms`; with a `later` of the caller's own the list is complete when it has made the changes.
        """
        ...

    # ---- durability --------------------------------------------------------------------------------------

    def collect_sync(self, most: int | None = None) -> SyncWork:
        """What has to be synced so that all published batches are durable; to be run once, in any thread.

        `most`: of so many segments, the oldest first; the work's end is theirs then.
        """
        ...

    def mark_flushed(self, end_offset: int) -> None:
        """The sync work with this end offset has succeeded."""
        ...


@runtime_checkable
class Compactable(Protocol):
    """An engine whose segments can be written anew from outside (compaction/)."""

    def replace(self, bases: Sequence[int], size: int, *, has_aborted: bool) -> list[str]:
        """Put a compacted segment in the place of neighbouring ones, none of them the active one.

        Args:
            bases: base offsets of those that are replaced.
            size: of the new one, whose durable files lie ready under the first one's names and `.cleaned`.
            has_aborted: whether it has a transaction index.

        Returns:
            Paths that are out of use, as `trim` does.
        """
        ...


EngineFactory = Callable[[str, LogConfig], Engine]
"""Makes the engine of the partition whose directory is given; opens nothing."""

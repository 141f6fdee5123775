"""Kafka's storage engine: a partition is a directory of segments; appends go to the last one.

RULES    1. A read is answered from one segment, as in Kafka: the one that contains the offset, or the next one with a
            batch at or above it.
         2. Opening a partition lists its directory and gets the log sizes; files are opened when needed. Interrupted
            operations (`.deleted`, `.cleaned`, `.swap`, indexes without log) are completed as in Kafka. The last segment is
            loaded at the first use, and again after a truncation.
         3. `trim` deletes segments oldest first, everything else newest first, so that a crash leaves no hole: what one call
            trims is renamed before what a later one does, which on a full disk runs in another thread. A truncation by
            `truncate`, `reset` or `recover` is durable before it returns: a loss of power must not bring the data back after
            newer appends.
         4. A lookup that needs the disk runs on a view (segments_view.py) in another thread. Its result is kept for the
            retry, and the segments adopt the files that it has opened. Deletion, replacement and loading of segments discard
            the results.
NOT HERE The list of segments (log_segments.py), when a new one starts (roll_limits.py), checking batches after a crash
         (recovery.py), the files of a sync (durability.py), one segment (active_segment.py, sealed_segment.py); validation
         (log_validator.py); when to flush or delete (log_maintenance.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar

from protocol.file_region import FileRegion
from protocol.primitives import Buffer
from protocol.records import NO_TIMESTAMP, BatchHeader
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import (
    AbortedTransaction,
    BatchInfo,
    Compactable,
    EngineSummary,
    LocatedBatches,
    OnBatch,
    Reservation,
    SegmentInfo,
    SharedLog,
    SyncWork,
)
from storage.io.deferred_file_ops import FileOp, OrderedSteps, Submit, run_now
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import DiskLookup, NotResident, PendingLookups
from storage.io.file_handle_cache import FileHandleCache
from storage.io.flush_task import SEGMENTS_AT_A_TIME
from storage.segments.active_segment import ActiveSegment, ActiveSummary
from storage.segments.directory_recovery import LOG, OFFSET_INDEX, TIME_INDEX, delete_replaced, recover_directory
from storage.segments.durability import UNKNOWN, Durability
from storage.segments.log_segments import LogSegments, segment_infos, slot_of
from storage.segments.recovery import Recovery
from storage.segments.roll_limits import RollLimits
from storage.segments.sealed_segment import LogSegment, SealedSegment
from storage.segments.segment_files import BatchPosition
from storage.segments.segment_swap import swap_segments
from storage.segments.segments_view import SegmentsView, find_aborted

_SUMMARY_SEGMENTS: Final = 64  # a larger log is opened from its files

T = TypeVar("T")
_new_tuple = tuple.__new__

_transactions = attrgetter("transactions")


class SegmentReservation(Reservation):
    """A reserved range of one segment's log."""

    __slots__ = ("position", "segment")

    def __init__(self, batches: Sequence[BatchInfo], segment: ActiveSegment, position: int, rolled: bool) -> None:  # noqa: FBT001
        self.batches = batches
        self.rolled = self.takes_snapshot = rolled
        self.segment = segment
        self.position = position


class SegmentEngine(Compactable):
    """The segments of one partition; after `open` there is at least one. `Engine` describes the methods."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        jitter: Callable[[int], int] = lambda _: 0,
        open_files: FileHandleCache | None = None,
        new_lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`open_files`: the cache that closes unused files; None: files stay open. `new_lock`: creates a mutex."""
        self._disk = disk
        self._directory = directory
        self._jitter = jitter
        self._segments = LogSegments(open_files)
        self._outstanding: list[SegmentReservation] = []  # an empty deque has 0.7 KiB
        self._end_offset = UNKNOWN  # until the active segment is loaded
        self._durability = Durability(disk)  # unknown after a clean close: all of the log
        self._lookups = PendingLookups()
        self._durable_end = 0  # no loss is possible below it
        self._new_lock = new_lock
        self._trims: OrderedSteps | None = None  # the renames of `trim`, since the first one
        self._trimmed: list[LogSegment] = []  # segments that are not renamed yet
        self.submit: Submit = run_now
        self.compacted_end = 0
        self.shared_log: SharedLog | None = None
        self.update_config(config)

    # ---- open and close ----------------------------------------------------------------------------------

    def open(self, recovery_point: int | None, names: Sequence[str] | None = None) -> int | None:
        disk, directory, interval = self._disk, self._directory, self._config.index_interval_bytes
        whole_end = None if recovery_point is None else max(recovery_point, self.compacted_end)
        listing = recover_directory(disk, directory, names, whole_end)
        self._durable_end = MAX_LONG if recovery_point is None else recovery_point
        segments = self._segments
        segments.with_aborted.update(listing.with_aborted)
        starts = []
        for base_offset in listing.bases:
            size = disk.size(f"{directory}/{base_offset:020d}{LOG}")
            segments.add(SealedSegment(disk, directory, base_offset, size, interval))
            if size and base_offset in listing.without_index:
                starts.append(base_offset)
        if not segments.items:
            self._create(0, UNKNOWN, run_now)
            recovery_point = None
        if recovery_point is not None:
            self._durability.mark_names_changed()  # a killed process may not have synced them
            self._durability.flushed_end = recovery_point
            starts.append(segments.containing(recovery_point).base_offset)
        aborted = [segment for segment in segments.items if segment.base_offset in segments.with_aborted]
        starts += [segment.base_offset for segment in aborted if segment.has_damaged_transactions()]
        if starts:
            self._end_offset = min(starts)
            return self._end_offset
        if not segments.items[-1].size:
            self._end_offset = self._durability.flushed_end = self._active.base_offset
        return None

    def summary(self) -> EngineSummary | None:
        segments = self._segments.items
        active = segments[-1]
        if not isinstance(active, ActiveSegment) or self._segments.with_aborted or len(segments) > _SUMMARY_SEGMENTS:
            return None
        return [[number for segment in segments for number in (segment.base_offset, segment.size)], active.summary()]

    def stamp(self, summary: EngineSummary) -> str:
        directory, stamp = self._directory, self._disk.stamp
        active = f"{directory}/{summary[0][-2]:020d}"
        paths = (directory, active + LOG, active + OFFSET_INDEX, active + TIME_INDEX)
        return ",".join([str(stamp(path)) for path in paths])

    def reopen(self, summary: EngineSummary) -> None:
        disk, directory, interval = self._disk, self._directory, self._config.index_interval_bytes
        numbers, active_summary = summary
        for slot in range(0, len(numbers) - 2, 2):
            self._segments.add(SealedSegment(disk, directory, numbers[slot], numbers[slot + 1], interval))
        active = ActiveSegment(disk, directory, numbers[-2], interval, summary=ActiveSummary(*active_summary))
        self._segments.add(active)
        active.file  # noqa: B018  (opened now, so that no append has to)
        self._end_offset = self._durability.flushed_end = active.end_offset
        self._durable_end = MAX_LONG

    def bytes_to_recover(self, start_offset: int) -> int:
        return sum([segment.size for segment in self._segments.starting_at(start_offset)])

    def recover(self, start_offset: int, on_batch: OnBatch) -> None:
        durability, durable_end = self._durability, self._durable_end

        def publish(buffer: Buffer, position: int, header: BatchHeader) -> None:
            self._end_offset = header.next_offset
            on_batch(buffer, position, header)

        recovery = Recovery(
            self._disk, self._directory, self._config, self._segments,
            durable_end=durable_end, compacted_end=self.compacted_end,
        )  # fmt: skip
        self._end_offset = end_offset = recovery.run(start_offset, publish)
        durability.finished.update(dict.fromkeys(recovery.rebuilt))
        if end_offset <= durable_end and self._active.size:
            self._active.sync()  # the next recovery may start at a recovery point that is already checkpointed
        if not 0 <= durability.flushed_end <= end_offset:
            durability.flushed_end = end_offset

    def close(self, *, sync: bool = False) -> None:
        """Write the indexes and close the files; unpublished bytes are truncated."""
        segments = self._segments.items
        active = segments[-1]
        if isinstance(active, ActiveSegment):  # else it was not used
            active.finish()
            if active.file.size() > active.size:
                active.file.truncate(active.size)
            if sync:
                active.sync()
                self._disk.sync_dir(self._directory)
        for segment in segments:
            if isinstance(segment, ActiveSegment):
                segment.write_indexes()
            segment.close_files()

    def delete(self) -> None:
        self._lookups.cancel()
        self._durability.forget_trimmed()
        for segment in self._segments.items:
            segment.retire()

    def update_config(self, config: LogConfig) -> None:
        self._config = config
        for segment in self._segments.items[-1:]:
            segment.interval = config.index_interval_bytes
        self._limits = RollLimits(config, self._jitter)

    def register_files(self) -> None:
        self._segments.register_files(self.close_if_written)

    def unregister_files(self) -> None:
        self._segments.unregister_files()
        self._lookups.cancel()

    def close_if_written(self, segment: LogSegment) -> bool:
        """Close a segment's files if nothing is pending; returns whether they are closed."""
        return self._segments.close_if_written(segment, self.submit)

    # ---- append ------------------------------------------------------------------------------------------

    def prepare_append(self) -> DiskLookup | None:
        active = self._segments.items[-1]
        if not isinstance(active, ActiveSegment):
            active = self._load()
        if active.open_file is not None or not active.is_created:
            return None
        lookup = self.lookup("append", SegmentsView.open_active)
        return lookup if isinstance(lookup, DiskLookup) else None

    def reserve(self, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> SegmentReservation:
        segment = self._segments.items[-1]
        if not isinstance(segment, ActiveSegment):
            segment = self._load()
        rolled = self._limits.must_roll(segment, size, batches, wall_ms)
        if rolled:
            segment = self._roll(batches[0].base_offset, wall_ms)
        reservation = SegmentReservation(batches, segment, segment.reserve(batches, size), rolled)
        self._outstanding.append(reservation)
        return reservation

    def write(self, reservation: Reservation, buffer: Buffer) -> None:
        assert isinstance(reservation, SegmentReservation)
        reservation.segment.write(buffer, reservation.position)

    def publish(self, reservation: Reservation) -> None:
        first = self._outstanding.pop(0)
        assert first is reservation
        segment = first.segment
        self._end_offset = first.batches[-1].last_offset + 1
        segment.publish(first.batches, self.submit)
        if segment is not self._segments.items[-1] and not segment.has_pending_appends:
            self._finish(segment)

    # ---- read --------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._segments.items[0].base_offset

    @property
    def end_offset(self) -> int:
        if self._end_offset == UNKNOWN:
            self._load()
        return self._end_offset

    @property
    def size_bytes(self) -> int:
        return sum([segment.size for segment in self._segments.items])

    @property
    def segment_count(self) -> int:
        return len(self._segments.items)

    @property
    def flushed_end_offset(self) -> int:
        flushed_end = self._durability.flushed_end
        return flushed_end if flushed_end != UNKNOWN else self.end_offset

    @property
    def recovery_point(self) -> int:
        flushed_end = self.flushed_end_offset
        point = self._durability.recovery_point() if flushed_end else 0
        # Not the active segment's end: if the next segment starts there, this one's indexes would not be checked.
        return point - 1 if point == self._end_offset and self._segments.items[-1].size else point

    def locate(
        self, offset: int, max_bytes: int, max_offset: int, *, min_one_batch: bool
    ) -> LocatedBatches | DiskLookup:
        if offset >= max_offset:
            return LocatedBatches((), 0, max_offset)
        segments = self._segments.items
        found = self._find(segments, offset)
        if found is None:
            return LocatedBatches((), 0, max_offset)
        slot, batch = found
        if isinstance(batch, DiskLookup):
            return batch
        position, size = batch
        segment = segments[slot]
        limit = segment.size
        region_end = max_offset
        if slot + 1 < len(segments) and segments[slot + 1].base_offset <= max_offset:
            region_end = segments[slot + 1].base_offset
        elif max_offset < self.end_offset:
            following = self._find_in(segment, max_offset)
            if isinstance(following, DiskLookup):
                return following
            if following is not None:
                limit, _ = following
        length = limit - position
        if length > max_bytes:
            length = max_bytes if size <= max_bytes else size if min_one_batch else 0
            if self._segments.with_aborted:
                # Otherwise the end is not needed, or needs the disk; a higher end is correct too.
                with suppress(NotResident):
                    bound = segment.offset_at_or_after(position + length)
                    region_end = region_end if bound is None else min(bound, region_end)
        if length <= 0:
            return LocatedBatches((), 0, offset)
        return _new_tuple(LocatedBatches, ((FileRegion(segment.file, position, length),), length, region_end))

    def segments(self, limit: int | None = None) -> list[SegmentInfo]:
        return segment_infos(self._segments.items, self.end_offset, limit)

    def view(self) -> SegmentsView:
        return SegmentsView(self._segments.items, self.end_offset, self._segments.with_aborted)

    def lookup(self, key: Hashable, find: Callable[[SegmentsView], T], *, is_cached: bool = False) -> T | DiskLookup:
        def begin() -> tuple[Callable[[], T], Callable[[], None]]:
            view = self.view()
            return partial(find, view), partial(self._segments.adopt_files, view.opened)

        return self._lookups.get(key, begin, is_cached=is_cached)

    def timestamp_bound(self, base_offset: int, enough_ms: int) -> int | DiskLookup:
        del enough_ms
        segment = self._segments.containing(base_offset)
        known = segment.max_timestamp[0] if isinstance(segment, ActiveSegment) else segment.known_max_timestamp
        if known != NO_TIMESTAMP:
            return known
        return self.lookup(("greatest timestamp", base_offset), lambda view: view.segment_max_timestamp(base_offset))

    # ---- aborted transactions ----------------------------------------------------------------------------

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        segment = self._segments.containing(transaction.last_offset)
        assert isinstance(segment, ActiveSegment), "the marker was just published"
        segment.transactions.append(transaction, self.submit)
        self._segments.with_aborted.add(segment.base_offset)

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction] | DiskLookup:
        segments = self._segments
        if not segments.with_aborted:
            return []
        searched = [
            segment for segment in segments.starting_at(start_offset) if segment.base_offset in segments.with_aborted
        ]
        try:
            return find_aborted(map(_transactions, searched), start_offset, end_offset)
        except NotResident:
            return self.lookup(
                ("aborted", start_offset, end_offset), lambda view: view.aborted(start_offset, end_offset)
            )

    # ---- truncation and deletion -------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        end_offset = self.end_offset
        if not self._active.size:
            return False
        self._roll(end_offset, wall_ms)
        return True

    def truncate(self, offset: int) -> None:
        if offset >= self.end_offset:
            return
        self._lookups.cancel()
        delete_replaced(self._disk, self._directory)
        while self._segments.items[-1].base_offset > offset:
            self._drop_last().unlink()
        self._disk.sync_dir(self._directory)
        active = self._active
        active.truncate(offset)
        self._durability.finished.pop(active.base_offset, None)
        self._set_end(active.end_offset)

    def reset(self, offset: int) -> None:
        self._lookups.cancel()
        delete_replaced(self._disk, self._directory)
        old, self._segments.items = self._segments.items, []
        # The new segment is created first, so that a crash leaves a log that ends at or above `offset`.
        for segment in old:
            self._discard(segment)
        try:
            self._create(offset, UNKNOWN, run_now).file.sync()
        except StorageError:
            self._segments.items = old  # the caller may repeat it
            raise
        for segment in reversed(old):
            if segment.base_offset != offset:
                segment.unlink()
        self._disk.sync_dir(self._directory)
        self._set_end(offset)

    def end_truncation(self) -> None: ...

    def replace(self, bases: Sequence[int], size: int, *, has_aborted: bool) -> list[str]:
        segments, finished = self._segments, self._durability.finished
        slot = segments.slot_of(bases[0])
        old = segments.items[slot : slot + len(bases)]
        assert [segment.base_offset for segment in old] == list(bases), "neighbours are compacted"
        assert slot + len(bases) < len(segments.items), "the active segment is not compacted"
        deleted_paths: list[str] = []
        has_unsynced = any(segment.base_offset in finished for segment in old)
        new, op = swap_segments(self._disk, old, size, self._config.index_interval_bytes, deleted_paths)
        for segment in old:
            segments.with_aborted.discard(segment.base_offset)
            finished.pop(segment.base_offset, None)
        self._lookups.cancel()
        segments.replace(slot, new, len(old))
        if has_aborted:
            segments.with_aborted.add(new.base_offset)
        self.submit(op)
        self.submit(self._durability.mark_names_changed)
        if has_unsynced:  # a loss of power may bring the old ones back before the names are synced
            finished[new.base_offset] = None
        return deleted_paths

    def trim(self, offset: int, submit_first: Submit | None = None) -> list[str]:
        deleted_paths: list[str] = []
        steps: list[FileOp] = []
        segments, trimmed = self._segments.items, self._trimmed
        if submit_first is not None and not all(segment.is_written for segment in trimmed):
            return deleted_paths  # they are renamed before others (rule 3)
        for _ in range(SEGMENTS_AT_A_TIME):
            if len(segments) == 1 or segments[1].base_offset > offset:
                break
            segment = segments[0]
            if segment.has_pending_appends or (submit_first is not None and not segment.is_written):
                break
            before = self._durability.before_trim(segment, segments[1].base_offset, keep_open=submit_first is None)
            if before is None:
                break
            steps += before
            steps += [partial(segment.mark_deleted, deleted_paths), partial(trimmed.remove, segment)]
            trimmed.append(segment)
            del segments[0]
            self._discard(segment)
        if steps:
            self._lookups.cancel()
            if isinstance(segments[0], ActiveSegment) and not segments[0].is_created:
                steps.insert(0, segments[0].create_log)  # without any segment the next start would begin at offset 0
            if self._trims is None:
                self._trims = OrderedSteps(self._new_lock())
            (submit_first or self.submit)(self._trims.operation(steps))
        return deleted_paths

    # ---- durability --------------------------------------------------------------------------------------

    def collect_sync(self, limit: int | None = None) -> SyncWork:
        end_offset, flushed_end = self.end_offset, self.flushed_end_offset
        segments = self._segments.items
        first = slot_of(segments, flushed_end)
        end_slot = len(segments) if limit is None else first + limit
        unflushed = segments[first:end_slot] if flushed_end < end_offset else []
        next_offset = segments[end_slot].base_offset if unflushed and end_slot < len(segments) else end_offset
        is_complete = next_offset >= end_offset  # the next segment may be of a pending append
        work = self._durability.collect(self._directory, min(next_offset, end_offset), segments, unflushed, limit)
        return work if is_complete else work._replace(is_complete=False)

    def mark_flushed(self, end_offset: int) -> None:
        self._durability.mark_flushed(end_offset)

    def mark_shared_flushed(self, end_offset: int) -> None:
        raise NotImplementedError

    # ---- private -----------------------------------------------------------------------------------------

    @property
    def _active(self) -> ActiveSegment:
        segment = self._segments.items[-1]
        return segment if isinstance(segment, ActiveSegment) else self._load()

    def _find(self, segments: list[LogSegment], offset: int) -> tuple[int, tuple[int, int] | DiskLookup] | None:
        """The slot of the segment with the first batch that reaches to `offset`, and the batch's position and size."""
        slot = len(segments) - 1
        if offset < segments[slot].base_offset:
            slot = slot_of(segments, offset)
        while (found := self._find_in(segments[slot], offset)) is None:
            slot += 1
            if slot == len(segments):
                return None
        return slot, found

    def _find_in(self, segment: LogSegment, offset: int) -> BatchPosition | DiskLookup:
        """The first batch of a segment that reaches to `offset`; None if there is none."""
        try:
            return segment.find(offset)
        except NotResident:
            base_offset = segment.base_offset
            key = "batch", base_offset, offset
            if not segment.is_open:
                self._lookups.discard(key)  # a lookup opens the files
            return self.lookup(key, lambda view: view.find_in_segment(base_offset, offset), is_cached=True)

    def _load(self) -> ActiveSegment:
        """Load the last segment, for appends."""
        self._lookups.cancel()
        segments = self._segments
        sealed = segments.items[-1]
        interval = self._config.index_interval_bytes
        active = ActiveSegment(self._disk, self._directory, sealed.base_offset, interval)
        active.load(sealed.size)
        segments.replace(len(segments.items) - 1, active)
        self._end_offset = active.end_offset
        if self._durability.flushed_end == UNKNOWN:
            self._durability.flushed_end = active.end_offset
        return active

    def _create(self, base_offset: int, wall_ms: int, submit: Submit) -> ActiveSegment:
        segment = ActiveSegment(self._disk, self._directory, base_offset, self._config.index_interval_bytes)
        segment.create(wall_ms, submit)
        if self._config.preallocate:
            submit(partial(_preallocate, self._disk, segment.path(LOG), self._config.segment_bytes))
        submit(self._durability.mark_names_changed)
        self._segments.add(segment)
        self._limits = RollLimits(self._config, self._jitter)
        return segment

    def _roll(self, base_offset: int, wall_ms: int) -> ActiveSegment:
        self._segments.seal_written(self.submit)
        previous = self._active
        if not previous.has_pending_appends:
            self._finish(previous)
        return self._create(base_offset, wall_ms, self.submit)

    def _finish(self, segment: ActiveSegment) -> None:
        segment.finish(self.submit)
        if self._config.preallocate:
            self.submit(partial(_release_preallocated, self._disk, segment.path(LOG), segment.size))
        self._durability.finished[segment.base_offset] = None

    def _drop_last(self) -> LogSegment:
        segment = self._segments.items.pop()
        self._discard(segment)
        return segment

    def _discard(self, segment: LogSegment) -> None:
        self._durability.finished.pop(segment.base_offset, None)
        self._segments.discard(segment)

    def _set_end(self, end_offset: int) -> None:
        self._end_offset = end_offset
        self._durability.truncate(end_offset)


def _preallocate(disk: Disk, path: str, size: int) -> None:
    """Allocate disk space for a new segment; the file size does not change, so unwritten bytes are never read."""
    if disk.exists(path):  # else it is deleted
        disk.open(path, write=True).allocate(size)


def _release_preallocated(disk: Disk, path: str, size: int) -> None:
    """Release the disk space after a finished segment's bytes."""
    if disk.exists(path):
        disk.open(path, write=True).truncate(size)

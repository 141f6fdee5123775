"""Kafka's storage engine: a partition is a directory of segments, the last of which is appended to.

RULES    1. A segment is rolled before the append for which it has no place (rolling.py).
         2. A read is answered from one segment, as Kafka's: the one that holds the offset, or the next that has
            anything at or behind it.
         3. Opening a partition lists its directory and asks the sizes of the logs; nothing is opened or read before
            it is needed. What was cut off or half done when the broker stopped (`.deleted`, `.cleaned`, `.swap`,
            indexes without log) is put in order as Kafka does.
         4. Segments are deleted oldest first by `trim`, youngest first by everything else, so that what is left
            after a crash has no hole. What `truncate`, `reset` or `recover` take off the end is gone durably before they
            return: else a loss of power could bring it back behind what was appended in its place.
         5. A segment that begins behind the end of the one before may mean a loss, and then the log is cut there. It does
            not before the recovery point (all was durable) and before `compacted_end`; nor where the topic is compacted
            and the segment before lacks offsets inside, behind that point: what was just appended lacks none.
            Our own compactions leave no such gap, at least a header ends every segment (compaction/cleaner.py).
            A segment that begins before that end was to go, or had just been made, when the power failed: it goes.
         6. In service, files that are not in use at the moment may be closed between any two calls (storage/io/file_handle_cache.py).
            Of what is not appended to any more everything is forgotten with them.
NOT HERE What a sync covers (durability.py); one segment's files (segment.py); what may be appended (validation.py);
         when to flush or delete (log.py).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from operator import itemgetter

from protocol.records import BatchHeader, FileRegion
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import (
    AbortedTransaction,
    BatchInfo,
    Buffer,
    Engine,
    Located,
    OffsetPosition,
    Reservation,
    SegmentInfo,
    SyncWork,
    Visit,
)
from storage.io.deferred_file_ops import Change, Later, at_once, in_order
from storage.io.disk import Disk
from storage.io.file_handle_cache import OpenFiles
from storage.segments.directory_recovery import LOG, settle
from storage.segments.durability import UNKNOWN, Durability
from storage.segments.indexes import NO_TIMESTAMP
from storage.segments.lookups import Opened, whole_batches
from storage.segments.preallocation import give_back, set_aside
from storage.segments.reservations import SegmentReservation
from storage.segments.rolling import drawn_roll_ms, must_roll
from storage.segments.segment import Segment
from storage.segments.segment_swap import replaced
from storage.segments.segment_views import Copies
from storage.segments.service import Service

_log = logging.getLogger("barnabas.storage")


def no_jitter(limit_ms: int) -> int:  # noqa: ARG001
    """Let every segment live equally long."""
    return 0


class SegmentEngine:
    """The segments of one partition; there is always one, except in an object that was not opened."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        jitter: Callable[[int], int] = no_jitter,
        open_files: OpenFiles | None = None,
    ) -> None:
        """`open_files`: who closes what is not in use; None: nobody."""
        self._disk = disk
        self._directory = directory
        self._jitter = jitter
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._with_aborted: set[int] = set()
        self._outstanding: deque[SegmentReservation] = deque()
        self._end_offset = UNKNOWN  # until the active segment is loaded
        self._durability = Durability(disk)  # its end is not known either after a clean close: all of the log
        self._service = Service(open_files)
        self._durable_end = 0  # before it nothing can have been lost
        self.later: Later = at_once
        self.compacted_end = 0
        self.update_config(config)

    # ---- life --------------------------------------------------------------------------------------------

    def open(self, recovery_point: int | None, names: Sequence[str] | None = None) -> int | None:
        """Get to know the segments; the offset from which they have to be recovered, if any."""
        disk, directory, interval = self._disk, self._directory, self._config.index_interval_bytes
        layout = settle(disk, directory, names)
        self._durable_end = MAX_LONG if recovery_point is None else recovery_point
        self._with_aborted.update(layout.with_aborted)
        starts = []
        for base_offset in layout.bases:
            size = disk.size(f"{directory}/{base_offset:020d}{LOG}")
            self._add(Segment(disk, directory, base_offset, size, interval))
            if size and base_offset in layout.without_index:
                starts.append(base_offset)
        if not self._segments:
            self._create(0, UNKNOWN, at_once)
            recovery_point = None
        if recovery_point is not None:
            self._durability.new_names()  # a process that was killed has not synced them, perhaps
            self._durability.flushed_end = recovery_point
            starts.append(self._bases[self._slot(recovery_point)])
        aborted = self._with_aborted
        starts += [s.base_offset for s in self._segments if s.base_offset in aborted and s.has_damaged_transactions()]
        if starts:
            self._end_offset = min(starts)
            return self._end_offset
        if not self._active.size:
            self._end_offset = self._durability.flushed_end = self._active.base_offset
            self._active.load()
        return None

    def bytes_to_recover(self, start_offset: int) -> int:
        """How much `recover` would have to read."""
        return sum([segment.size for segment in self._segments[self._slot(start_offset) :]])

    def recover(self, start_offset: int, visit: Visit) -> None:
        """Check all from the segment that holds `start_offset` on; cut at the first damage."""
        for _ in self.recovery(start_offset, visit):
            pass

    def recovery(self, start_offset: int, visit: Visit) -> Iterator[int]:
        """Do the same in slices of about a MiB; yields the offset reached."""
        lacks_offsets = False
        durable_end = self._durable_end or -1

        def publish(buffer: Buffer, position: int, header: BatchHeader) -> None:
            nonlocal lacks_offsets
            if (header[0] > self._end_offset > durable_end) or (
                header[0] > durable_end and header.record_count <= header.last_offset_delta
            ):
                lacks_offsets = True
            self._end_offset = header.next_offset
            visit(buffer, position, header)

        slot = self._slot(start_offset)
        ahead = self._segments[slot:]
        del self._segments[slot:], self._bases[slot:]
        while ahead:
            segment = ahead.pop(0)
            self._add(segment)
            if segment.base_offset in self._with_aborted:
                self._with_aborted.discard(segment.base_offset)
                segment.drop_transactions()
            self._end_offset = segment.base_offset
            lacks_offsets = False
            size = segment.size
            for _ in segment.recover(publish):
                yield self._end_offset
            while ahead and ahead[0].base_offset < self._end_offset and not ahead[0].size:
                ahead.pop(0).unlink()
            if segment.size < size or (ahead and self._is_hole(ahead[0], lacks_offsets=lacks_offsets)):
                if ahead:
                    _log.warning("Dropping %d segments of %s behind a loss", len(ahead), self._directory)
                while ahead:
                    ahead.pop().unlink()
                self._disk.sync_dir(self._directory)
            elif ahead:
                self._durability.finished(segment)
                segment.release(forget=True)
        if self._end_offset <= self._durable_end and self._active.size:
            self._active.sync()  # the next may begin at a recovery point that is written down already
        if not 0 <= self._durability.flushed_end <= self._end_offset:
            self._durability.flushed_end = self._end_offset

    def close(self, *, sync: bool = False) -> None:
        """Write out the indexes and let go; what lies behind the published end is cut off."""
        active = self._active
        if active.is_loaded:
            active.finish()
            if active.file.size() > active.size:
                active.file.truncate(active.size)
            if sync:
                active.sync()
                self._disk.sync_dir(self._directory)
        for segment in self._segments:
            segment.release(forget=True)

    def delete(self) -> None:
        """Let go and write nothing more."""
        for segment in self._segments:
            segment.drop()

    def update_config(self, config: LogConfig) -> None:
        """Obey these settings from the next append on."""
        self._config = config
        for segment in self._segments[-1:]:
            segment.interval = config.index_interval_bytes
        self._roll_ms = drawn_roll_ms(self._config, self._jitter)

    def enter_service(self) -> None:
        """Let files be closed when they are not in use (rule 6)."""
        self._service.begin([segment for segment in self._segments if segment.is_open], self.put_away)

    def leave_service(self) -> None:
        """Keep to oneself from now on."""
        self._service.end(self._segments)

    def put_away(self, segment: Segment) -> bool:
        """Close a segment's files, where that need not wait; what is still to be written to the active one opens it."""
        is_active = segment is self._active
        if is_active or segment.size == segment.reserved:
            segment.put_away(self.later, forget=not is_active)
        return not segment.is_open

    # ---- append ------------------------------------------------------------------------------------------

    def be_ready_to_append(self) -> None:
        """Raise WouldBlock where the active segment's files have to be opened first."""
        self._active.be_ready_to_append()

    def reserve(self, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> SegmentReservation:
        """Set bytes aside at the end of the active segment, or at the start of a new one."""
        segment = self._active
        if not segment.is_loaded:
            self._load()
        rolled = must_roll(segment, size, batches, wall_ms, self._config, self._roll_ms)
        if rolled:
            segment = self._roll(batches[0].base_offset, wall_ms)
        reservation = SegmentReservation(size, batches, segment, segment.claim(batches, size), rolled=rolled)
        self._outstanding.append(reservation)
        return reservation

    def write(self, reservation: Reservation, buffer: Buffer) -> None:
        """Put the bytes at their place; may run in another thread."""
        assert isinstance(reservation, SegmentReservation)
        if not reservation.is_abandoned:
            reservation.segment.write(buffer, reservation.position)

    def publish(self, reservation: Reservation) -> None:
        """Let the batches be read and index them."""
        first = self._outstanding.popleft()
        assert first is reservation
        segment = first.segment
        self._end_offset = first.batches[-1][3] + 1
        segment.publish(first.batches, self.later)
        if segment is not self._active and segment.size == segment.reserved:
            self._finish(segment)

    def abandon(self, reservation: Reservation) -> None:
        """Give up this reservation and all behind it, with the segments that they began."""
        assert isinstance(reservation, SegmentReservation)
        while not reservation.is_abandoned:
            last = self._outstanding.pop()
            last.is_abandoned = True
            last.segment.reserved = last.position
            if last.rolled:
                self._drop_last().unlink()
        active = self._active
        if active.file.size() > active.reserved:
            active.file.truncate(active.reserved)

    # ---- read --------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """Base offset of the oldest segment."""
        return self._bases[0]

    @property
    def end_offset(self) -> int:
        """Behind the last published offset."""
        if self._end_offset == UNKNOWN:
            self._load()
        return self._end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of the published batches."""
        return sum([segment.size for segment in self._segments])

    @property
    def flushed_end_offset(self) -> int:
        """All before it is durable."""
        flushed_end = self._durability.flushed_end
        return flushed_end if flushed_end != UNKNOWN else self.end_offset

    @property
    def recovery_point(self) -> int:
        """Where a recovery would have to begin after a crash."""
        flushed_end = self.flushed_end_offset
        point = self._durability.recovery_point() if flushed_end else 0
        # Not the active segment's end: the next one may begin there, and nobody would look at the indexes of this one.
        return point - 1 if point == self._end_offset and self._active.size else point

    def locate(
        self, offset: int, max_bytes: int, max_offset: int, *, min_one_batch: bool, may_block: bool = True
    ) -> Located:
        """Where the batches from `offset` on lie: in one segment, one region."""
        end_offset = self.end_offset
        if offset >= max_offset:
            return Located((), 0, max_offset, self._end_position() if offset == end_offset else None)
        found = self._find(offset, may_block=may_block)
        if found is None:
            return Located((), 0, max_offset, self._end_position())
        slot, (position, size) = found
        segment = self._segments[slot]
        limit = segment.size
        region_end = max_offset
        if slot + 1 < len(self._bases) and self._bases[slot + 1] <= max_offset:
            region_end = self._bases[slot + 1]
        elif max_offset < end_offset:
            behind = segment.find(max_offset, may_block=may_block)
            if behind is not None:
                limit = behind[0]
        length = limit - position
        if length > max_bytes:
            length = max_bytes if size <= max_bytes else size if min_one_batch else 0
            # Else nobody asks where the region ends, or it shall not cost a wait: further is right too.
            if self._with_aborted and (may_block or segment.is_index_at_hand):
                bound = segment.offset_index.offset_at_or_after(position + length)
                if bound is not None and bound < region_end:
                    region_end = bound
        where = OffsetPosition(segment.base_offset, position)
        if length <= 0:
            return Located((), 0, offset, where)
        return Located((FileRegion(segment.file, position, length),), length, region_end, where)

    def read_batches(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from the one that `locate` would find, in memory."""
        found = self._find(offset) if offset < self.end_offset else None
        if found is None:
            return b""
        slot, (position, size) = found
        segment = self._segments[slot]
        if segment.base_offset >= self._end_offset:
            return b""  # not recovered yet
        data = segment.file.pread(min(max(max_bytes, size), segment.size - position), position)
        return whole_batches(data)

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        """Base offset of the first batch, at or behind `offset`, with a record as late as `target_ms`."""
        if offset >= self.end_offset:
            return None
        for segment in self._segments[self._slot(offset) :]:
            if segment.max_timestamp[0] >= target_ms:
                found = segment.find_timestamp(target_ms, offset)
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        """The greatest timestamp in the log and the last offset of the first batch that has it."""
        if not self.size_bytes:
            return None
        self.end_offset  # noqa: B018  (the active segment's index may be behind until it is loaded)
        return max([segment.max_timestamp for segment in self._segments if segment.size], key=itemgetter(0))

    def copy(self) -> SegmentEngine:
        """Copies of all segments, for looking only (segment_views.py)."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Become a copy: share nothing with the original that either changes."""
        self._segments = Copies(self._segments)
        self._bases = self._bases[:]
        self._with_aborted = self._with_aborted.copy()

    def learn(self, copy: Engine) -> None:
        """Take over the files that a copy has opened meanwhile, of the segments that are still there."""
        assert isinstance(copy, SegmentEngine)
        for base_offset, opened in copy.opened():
            segment = self._segments[self._slot(base_offset)]
            if segment.base_offset == base_offset:
                segment.learn(opened)

    def opened(self) -> Iterator[tuple[int, Opened]]:
        """What this copy has open, with the segments' base offsets."""
        assert isinstance(self._segments, Copies)
        return ((base_offset, segment.opened()) for base_offset, segment in self._segments.made.items())

    def segments(self, most: int | None = None) -> list[SegmentInfo]:
        """The segments from the oldest to the active one, or the first of them."""
        some = self._segments[:most]
        ends = [*self._bases[1 : len(some) + 1], self.end_offset]
        return [SegmentInfo(s.base_offset, end, s.size) for s, end in zip(some, ends, strict=False)]

    def segment_max_timestamp(self, base_offset: int) -> int:
        """The greatest timestamp in one segment; where no batch has one, when it was last written."""
        self.end_offset  # noqa: B018  (as above)
        segment = self._segments[self._slot(base_offset)]
        timestamp = segment.max_timestamp[0]
        return timestamp if timestamp != NO_TIMESTAMP else self._disk.modified_ms(segment.path(LOG))

    # ---- aborted transactions ----------------------------------------------------------------------------

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Remember a transaction in the segment of its marker."""
        segment = self._segments[self._slot(transaction.last_offset)]
        segment.transactions.append(transaction, self.later)
        self._with_aborted.add(segment.base_offset)

    def aborted(self, start_offset: int, end_offset: int, *, may_block: bool = True) -> list[AbortedTransaction]:
        """The aborted transactions with records in the range, in the order of their markers."""
        found: list[AbortedTransaction] = []
        if self._with_aborted:
            for segment in self._segments[self._slot(start_offset) :]:
                if segment.base_offset in self._with_aborted:
                    if not may_block:
                        segment.have_transactions()
                    more, is_complete = segment.transactions.overlapping(start_offset, end_offset)
                    found += more
                    if is_complete:
                        break
        return found

    # ---- cutting -----------------------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        """Begin a new segment at the end of the log, unless the active one is empty already."""
        end_offset = self.end_offset
        if not self._active.size:
            return False
        self._roll(end_offset, wall_ms)
        return True

    def truncate(self, offset: int) -> None:
        """Drop every batch that reaches to `offset` or behind it."""
        if offset >= self.end_offset:
            return
        while self._bases[-1] > offset:
            self._drop_last().unlink()
        self._disk.sync_dir(self._directory)
        active = self._active
        active.truncate(offset)
        self._durability.unfinished(active)
        self._set_end(active.end_offset)

    def reset(self, offset: int) -> None:
        """Drop everything and begin anew, empty, at `offset`."""
        old = self._segments
        self._segments, self._bases = [], []
        self._with_aborted.clear()
        # The new one comes first, so that a crash leaves a log that ends at or behind `offset`.
        for segment in old:
            segment.drop()
            self._durability.unfinished(segment)
        self._create(offset, UNKNOWN, at_once).file.sync()
        for segment in reversed(old):
            if segment.base_offset != offset:
                segment.unlink()
        self._disk.sync_dir(self._directory)
        self._set_end(offset)

    def replace(self, bases: Sequence[int], size: int, *, has_aborted: bool) -> list[str]:
        """Put a compacted segment, whose files lie ready, in the place of neighbouring ones."""
        slot = self._bases.index(bases[0])
        old = self._segments[slot : slot + len(bases)]
        assert [segment.base_offset for segment in old] == list(bases), "neighbours are compacted"
        assert slot + len(bases) < len(self._segments), "the active segment is not compacted"
        doomed: list[str] = []
        has_unsynced = any(self._durability.is_unsynced(segment) for segment in old)
        new, change = replaced(self._disk, old, size, self._config.index_interval_bytes, doomed)
        for segment in old:
            self._forget(segment)
        self._segments[slot : slot + len(old)] = [new]
        self._bases[slot : slot + len(old)] = [new.base_offset]
        new.service = self._service
        if has_aborted:
            self._with_aborted.add(new.base_offset)
        self.later(change)
        self.later(self._durability.new_names)
        if has_unsynced:  # a loss of power may bring them back before the names are synced
            self._durability.finished(new)
        return doomed

    def trim(self, offset: int, ahead: Later | None = None) -> list[str]:
        """Rename the segments wholly before `offset` for deletion; never the active one."""
        doomed: list[str] = []
        steps: list[Change] = []
        while len(self._bases) > 1 and self._bases[1] <= offset:
            segment = self._segments[0]
            if segment.size != segment.reserved or (ahead is not None and not segment.is_written):
                break
            steps += self._durability.leaving(segment, self._bases[1], is_kept=ahead is None)
            steps.append(partial(segment.doom, doomed))
            del self._segments[0], self._bases[0]
            self._forget(segment)
        if steps:
            (ahead or self.later)(in_order(steps))
        return doomed

    # ---- durability --------------------------------------------------------------------------------------

    def collect_sync(self, most: int | None = None) -> SyncWork:
        """What has to be synced so that all published batches are durable, or those of the oldest segments."""
        end_offset, flushed_end = self.end_offset, self.flushed_end_offset
        first = self._slot(flushed_end)
        behind = len(self._bases) if most is None else first + most
        unflushed = self._segments[first:behind] if flushed_end < end_offset else []
        if not unflushed or behind >= len(self._bases) or self._bases[behind] >= end_offset:  # of an append under way
            return self._durability.collect(self._directory, end_offset, unflushed, most)
        return self._durability.collect(self._directory, self._bases[behind], unflushed, most)._replace(
            is_complete=False
        )

    def mark_flushed(self, end_offset: int) -> None:
        """The sync work with this end offset has succeeded."""
        self._durability.done(end_offset)

    # ---- inside ------------------------------------------------------------------------------------------

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    def _slot(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    def _find(self, offset: int, *, may_block: bool = True) -> tuple[int, tuple[int, int]] | None:
        """Slot of the segment, position and size of the first batch that reaches to `offset`."""
        segments = self._segments
        slot = len(segments) - 1
        if offset < self._bases[slot]:
            slot = self._slot(offset)
        for number in range(slot, len(segments)):
            found = segments[number].find(offset, may_block=may_block)
            if found is not None:
                return number, found
        return None

    def _is_hole(self, following: Segment, *, lacks_offsets: bool) -> bool:
        """Whether the end of the segment before was lost, so that the log has to end there (rule 5)."""
        begins_at = following.base_offset
        if begins_at <= self._end_offset:
            return begins_at < self._end_offset
        is_whole = begins_at <= max(self._durable_end, self.compacted_end)
        return not is_whole and not (self._config.is_compacted and lacks_offsets)

    def _end_position(self) -> OffsetPosition:
        segment = self._segments[self._slot(self._end_offset)]
        return OffsetPosition(segment.base_offset, segment.size)

    def _load(self) -> None:
        active = self._active
        active.load()
        self._end_offset = active.end_offset
        if self._durability.flushed_end == UNKNOWN:
            self._durability.flushed_end = active.end_offset

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        segment.service = self._service

    def _create(self, base_offset: int, wall_ms: int, later: Later) -> Segment:
        segment = Segment(self._disk, self._directory, base_offset, 0, self._config.index_interval_bytes)
        segment.create(wall_ms, later)
        if self._config.preallocate:
            later(set_aside(self._disk, segment.path(LOG), self._config.segment_bytes))
        later(self._durability.new_names)
        self._add(segment)
        self._roll_ms = drawn_roll_ms(self._config, self._jitter)
        return segment

    def _roll(self, base_offset: int, wall_ms: int) -> Segment:
        previous = self._active
        if previous.size == previous.reserved:
            self._finish(previous)
        return self._create(base_offset, wall_ms, self.later)

    def _finish(self, segment: Segment) -> None:
        segment.finish(self.later)
        if self._config.preallocate:
            self.later(give_back(self._disk, segment.path(LOG), segment.size))
        self._durability.finished(segment)

    def _drop_last(self) -> Segment:
        self._bases.pop()
        segment = self._segments.pop()
        self._forget(segment)
        return segment

    def _forget(self, segment: Segment) -> None:
        self._with_aborted.discard(segment.base_offset)
        self._durability.unfinished(segment)
        segment.drop()

    def _set_end(self, end_offset: int) -> None:
        self._end_offset = end_offset
        self._durability.cut(end_offset)

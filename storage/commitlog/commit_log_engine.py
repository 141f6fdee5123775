"""The engine of one partition in a commit log.

RULES    1. The writes of a partition are in the order of its offsets (slot_append.py).
         2. Everything that is readable is in `Slot`; reservations are not.
         3. A truncation by `truncate` or `reset` is durable before it returns: a loss of power must not bring the data back.
         4. A read that needs the disk is repeated on a copy of the slot in another thread; its result is kept for the retry.
         5. All batches that an opened log has are durable (recovery.py). What a kill may have lost beside them, producers and
            aborted transactions, is after the newest producer snapshot, so a recovery begins there. For that, snapshots are
            taken within segments too.
NOT HERE Frames and files (commit_log.py), reads (slot_reader.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.records import NO_TIMESTAMP, BatchHeader, crc_is_valid, parse_header
from storage.commitlog.commit_log import CommitLog
from storage.commitlog.frames import ABORTED_PAYLOAD, LONG, FrameKind
from storage.commitlog.log_file import LogFile
from storage.commitlog.slot_append import AppendedState, SlotAppend
from storage.commitlog.slot_reader import SlotReader, frozen_reader
from storage.commitlog.slots import UNBOUND, LatestTimestamp, Slot, SlotId
from storage.config.log_config import LogConfig
from storage.engine import (
    AbortedTransaction,
    BatchInfo,
    EngineSummary,
    LocatedBatches,
    OnBatch,
    Reservation,
    SegmentInfo,
    SharedLog,
    SyncWork,
)
from storage.io.deferred_file_ops import Submit, no_op, run_now
from storage.io.disk_lookup import DiskLookup, NotResident, PendingLookups, read_resident
from storage.stored_state import StoresState

T = TypeVar("T")

_RECOVERED_BYTES: Final = 1 << 20  # per read
_SNAPSHOT_RECORDS: Final = 16
"""An append takes a producer snapshot if this many records follow the last one, which is in an earlier file."""
_MAX_RECORDS: Final = 1 << 16
"""The same if it is in the same file."""


@dataclass(slots=True)
class _PendingFlush:
    """A sync in progress."""

    end_offset: int
    valid_end: int  # lowered by a truncation
    position: int  # in the log


class CommitLogEngine(StoresState):
    """The batches of one partition; `Engine` describes the methods."""

    __slots__ = (
        "_config", "_created_ms", "_log", "_lookups", "_outstanding", "_pending", "_slot", "_slot_id",
        "_snapshot_end", "_snapshot_file", "_topic", "_unwritten", "compacted_end", "end_offset", "flushed_end_offset",
        "shared_log", "submit",
    )  # fmt: skip

    def __init__(self, log: CommitLog, slot_id: SlotId, topic: str, config: LogConfig) -> None:
        """`topic`: of a partition without a directory; else empty."""
        self._log = log
        self.shared_log: SharedLog | None = log
        self._topic = topic
        self._slot_id = slot_id
        self._config = config
        self._slot = Slot(slot_id, topic)
        self._outstanding: list[SlotAppend] = []  # an empty deque has 0.7 KiB
        self._unwritten: list[SlotAppend] = []
        self._created_ms = -1  # wall time of the first reservation in the last segment
        self._snapshot_end = 0  # the offset of the newest producer snapshot, or of one that a reservation takes
        self._snapshot_file: int | None = None  # the start of the file with it; None if it is of an earlier process
        self.end_offset = 0
        """That of the slot; during a recovery the end of what was recovered."""
        self.flushed_end_offset = 0
        self._pending: tuple[_PendingFlush, ...] = ()  # no list: it is empty nearly always
        self._lookups = PendingLookups()
        self.submit: Submit = run_now
        self.compacted_end = 0

    # ---- open and close ----------------------------------------------------------------------------------

    def open(self, recovery_point: int | None, names: Sequence[str] | None = None) -> int | None:
        del names
        self._log.open()
        slot = self._slot = self._log.slot(self._slot_id, self._topic)
        self.end_offset = slot.end_offset
        self.flushed_end_offset = slot.end_offset
        if recovery_point is not None and slot.slices:  # not all batches are in sealed files, which are durable
            self.flushed_end_offset = min(recovery_point, slot.end_offset)
        self._snapshot_end = max([slot.start_offset, *self.snapshots()])
        return None if recovery_point is None or slot.number == UNBOUND else self._snapshot_end

    def summary(self) -> EngineSummary | None:
        return None

    def stamp(self, summary: EngineSummary) -> str:
        del summary  # of the log when it was empty, and in segments
        return ""

    def reopen(self, summary: EngineSummary) -> None:
        raise NotImplementedError

    def bytes_to_recover(self, start_offset: int) -> int:
        found = 0
        for base_offset, end_offset, size in self._slot.segment_infos():
            if base_offset >= start_offset:
                found += size
            elif end_offset > start_offset:
                found += size * (end_offset - start_offset) // (end_offset - base_offset)
        return found

    def recover(self, start_offset: int, on_batch: OnBatch) -> None:
        view, at, end_offset = self.view(), start_offset, self._slot.end_offset
        self.end_offset = at
        while at < end_offset:
            try:
                batches = view.read_batches(at, _RECOVERED_BYTES)
            except KafkaError:  # the frame is damaged
                break
            position, length = 0, len(batches)
            while position < length and (header := _valid_header(batches, position, at)) is not None:
                at = self.end_offset = header.next_offset
                on_batch(batches, position, header)
                position += header.size
            if position < length:
                break
            if not length:
                at = end_offset  # the log ends with a gap
        if at < end_offset:
            self.truncate(at)
            self.end_truncation()
        self.end_offset = self._slot.end_offset
        self.flushed_end_offset = min(self.flushed_end_offset, self._slot.end_offset)

    def close(self, *, sync: bool = False) -> None:
        if sync:
            self._log.sync()

    def delete(self) -> None:
        self._lookups.cancel()
        for file in self._drop_outstanding():
            self._log.complete_append(file)

    def register_files(self) -> None: ...

    def unregister_files(self) -> None:
        self._lookups.cancel()

    def update_config(self, config: LogConfig) -> None:
        self._config = config

    # ---- append ------------------------------------------------------------------------------------------

    def prepare_append(self) -> None: ...

    def reserve(self, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> SlotAppend:
        outstanding = self._outstanding
        if outstanding:
            last = outstanding[-1]
            previous_end, used, first = last.batches[-1].last_offset + 1, last.used, last.first_timestamp
        else:
            slot = self._slot
            segment = slot.segments[-1]
            previous_end, used, first = slot.end_offset, segment.size, segment.first_timestamp
        rolled = used > 0 and self._must_roll(used + size, first, batches, wall_ms)
        if rolled or not used:
            used, first, self._created_ms = 0, batches[0].max_timestamp, wall_ms
        records = previous_end - self._snapshot_end
        takes_snapshot = rolled or (
            records >= _SNAPSHOT_RECORDS and (self._snapshot_file != self._slot.last_file or records >= _MAX_RECORDS)
        )
        if takes_snapshot:
            self._snapshot_end = previous_end
        append = SlotAppend(
            self._slot, self._unwritten, batches, previous_end,
            rolled=rolled, takes_snapshot=takes_snapshot, used=used + size, first=first,
        )  # fmt: skip
        outstanding.append(append)
        self._unwritten.append(append)
        return append

    def _must_roll(self, size: int, first_timestamp: int, batches: Sequence[BatchInfo], wall_ms: int) -> bool:
        config = self._config
        if self._created_ms < 0:
            self._created_ms = wall_ms
        if first_timestamp == NO_TIMESTAMP:
            waited_ms = wall_ms - self._created_ms
        elif len(batches) == 1:
            waited_ms = batches[0].max_timestamp - first_timestamp
        else:
            waited_ms = max([batch.max_timestamp for batch in batches]) - first_timestamp
        return size > config.segment_bytes or waited_ms > config.segment_ms

    def write(self, reservation: Reservation, buffer: Buffer) -> None:
        assert isinstance(reservation, SlotAppend)
        self._log.write(reservation, buffer)

    def publish(self, reservation: Reservation) -> None:
        self._log.apply_changes()  # those of the frames before this one, at least
        first = self._outstanding.pop(0)
        assert first is reservation
        file = first.file
        assert file is not None, "it was written"
        slot = self._slot
        slot.append(file, first.position, first.batches, rolled=first.rolled)
        self.end_offset = slot.end_offset
        if first.state is not None:
            self._publish_state(first, file, first.state)
        self._log.complete_append(file)

    def write_with(self, append: Reservation, snapshot: bytes | None, aborted: Sequence[AbortedTransaction]) -> None:
        assert isinstance(append, SlotAppend)
        append.state = AppendedState(snapshot, aborted)

    def _publish_state(self, append: SlotAppend, file: LogFile, state: AppendedState) -> None:
        if state.snapshot is not None:
            self._slot.add_snapshot(append.batches[0].base_offset, state.snapshot)
            self._snapshot_file = file.start
        for transaction in state.aborted:
            self._slot.add_aborted(file, transaction)

    def _drop_outstanding(self) -> list[LogFile]:
        """Drop the reservations; returns the file of each that was written."""
        written: list[LogFile] = []
        with self._log.lock:  # no write of these is under way
            for append in self._outstanding:
                append.is_dropped = True
                if append.file is not None:
                    written.append(append.file)
                    append.file.removed += sum([batch.size for batch in append.batches])
            self._outstanding.clear()
            self._unwritten.clear()
        return written

    # ---- read --------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._slot.start_offset

    @property
    def size_bytes(self) -> int:
        return self._slot.size

    @property
    def recovery_point(self) -> int:
        return self.flushed_end_offset

    def segments(self, limit: int | None = None) -> list[SegmentInfo]:
        return self._slot.segment_infos(limit)

    @property
    def segment_count(self) -> int:
        return len(self._slot.segment_infos(None))

    def locate(
        self, offset: int, max_bytes: int, max_offset: int, *, min_one_batch: bool
    ) -> LocatedBatches | DiskLookup:
        reader = SlotReader(self._slot, self._log.files, read_resident)
        try:
            return reader.locate(offset, max_bytes, max_offset, min_one_batch=min_one_batch)
        except NotResident:
            pass

        def find(view: SlotReader) -> LocatedBatches:
            return view.locate(offset, max_bytes, max_offset, min_one_batch=min_one_batch)

        # A result serves a higher bound too: that of a busy partition has moved when its read is repeated.
        key = "locate", offset, max_bytes, min_one_batch
        found = self.lookup(key, find)
        if not isinstance(found, DiskLookup) and found.end_offset > max_offset:  # of a read with a higher bound
            self._lookups.discard(key)
            found = self.lookup(key, find)
        return found

    def view(self) -> SlotReader:
        return frozen_reader(self._slot, self._log.files)

    def lookup(self, key: Hashable, find: Callable[[SlotReader], T]) -> T | DiskLookup:
        def begin() -> tuple[Callable[[], T], Callable[[], None]]:
            view = self.view()
            return lambda: find(view), no_op

        return self._lookups.get(key, begin, is_cached=False)

    def timestamp_bound(self, base_offset: int, enough_ms: int) -> int | DiskLookup:
        slot = self._slot
        number, segment = next(
            numbered for numbered in enumerate(slot.segments) if numbered[1].base_offset == base_offset
        )
        latest = segment.latest
        end_offset = slot.segment_infos(number + 1)[-1].end_offset
        if latest is None or latest.end_offset != end_offset:
            known = max(segment.first_timestamp, NO_TIMESTAMP if latest is None else latest.timestamp_ms)
            if known != NO_TIMESTAMP and known >= enough_ms:
                return known
            found = self.lookup(("greatest timestamp", base_offset), lambda view: _latest_timestamp(view, number))
            if isinstance(found, DiskLookup):
                return found
            segment.latest = latest = found
        return latest.timestamp_ms if latest.end_offset == end_offset else max(latest.timestamp_ms, enough_ms)

    # ---- aborted transactions ----------------------------------------------------------------------------

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        if transaction not in reversed(self._slot.aborted):  # it was written with its marker, or recovery has found it
            file = self._log.write_frame(self._slot, FrameKind.ABORTED, ABORTED_PAYLOAD.pack(*transaction))
            self._slot.add_aborted(file, transaction)

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return SlotReader(self._slot, (), read_resident).aborted(start_offset, end_offset)

    # ---- state of the partition --------------------------------------------------------------------------

    def leader_epochs(self) -> list[tuple[int, int]]:
        return list(self._slot.epochs)

    def snapshots(self) -> dict[int, bytes]:
        return dict(self._slot.snapshots)

    def store_snapshot(self, offset: int, data: bytes) -> None:
        slot = self._slot
        if (offset, data) not in slot.snapshots:
            self._write_change(FrameKind.SNAPSHOT, LONG.pack(offset) + data, self.submit)
            slot.add_snapshot(offset, data)
            self._snapshot_end, self._snapshot_file = max(self._snapshot_end, offset), slot.last_file

    def forget_snapshots(self, offsets: Iterable[int]) -> None:
        forgotten = set(offsets)
        self._slot.snapshots = tuple([known for known in self._slot.snapshots if known[0] not in forgotten])

    # ---- truncation and deletion -------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        slot = self._slot
        if not slot.segments[-1].size:
            return False
        self._write_change(FrameKind.ROLL, LONG.pack(slot.end_offset), self.submit)
        slot.roll(slot.end_offset)
        self._created_ms = wall_ms
        return True

    def truncate(self, offset: int) -> None:
        slot = self._slot
        if offset < slot.end_offset:
            self._lookups.cancel()
            cut = self.view().planned_cut(offset)
            self._log.truncate(slot, cut)
            self._sync_truncation(cut.end_offset)

    def reset(self, offset: int) -> None:
        self._lookups.cancel()
        self._log.reset(self._slot, offset)
        self._sync_truncation(offset)

    def _sync_truncation(self, end_offset: int) -> None:
        self._log.sync()
        self.end_offset = end_offset
        self._limit_flushed()

    def end_truncation(self) -> None:
        self._log.apply_changes()

    def trim(self, offset: int, submit_first: Submit | None = None) -> list[str]:
        slot = self._slot
        bases = [segment.base_offset for segment in slot.segments[1:] if segment.base_offset <= offset]
        if bases:
            self._lookups.cancel()
            self._write_change(FrameKind.START, LONG.pack(bases[-1]), submit_first or self.submit)
            slot.trim(bases[-1])
        return []

    def _write_change(self, kind: FrameKind, payload: bytes, submit: Submit) -> None:
        """Write a frame: at once if the caller may wait, and is perhaps in another thread, else as a file operation."""
        log, slot = self._log, self._slot
        if submit is run_now:
            self._enter(log.write_frame(slot, kind, payload))
        else:
            log.owe(slot, kind, payload, self._enter)
            submit(log.write_owed)
            log.apply_changes()  # it is written already if the disk is fast

    def _enter(self, file: LogFile) -> None:
        self._slot.enter(file, in_order=not self._outstanding)

    # ---- durability --------------------------------------------------------------------------------------

    def collect_sync(self, limit: int | None = None) -> SyncWork:
        del limit
        end_offset = self._slot.end_offset
        position, files = self._log.unsynced()
        self._pending = (*self._pending, _PendingFlush(end_offset, end_offset, position))
        return SyncWork(end_offset, files)

    def mark_flushed(self, end_offset: int) -> None:
        for number, flush in enumerate(self._pending):
            if flush.end_offset == end_offset:
                self._pending = self._pending[number + 1 :]
                self.flushed_end_offset = max(self.flushed_end_offset, flush.valid_end)
                self._log.mark_durable(flush.position)
                break

    def mark_shared_flushed(self, end_offset: int) -> None:
        self.flushed_end_offset = max(self.flushed_end_offset, end_offset)

    def _limit_flushed(self) -> None:
        """After a truncation nothing above the end offset counts as flushed."""
        end_offset = self.end_offset
        self._snapshot_end = min(self._snapshot_end, end_offset)
        self.flushed_end_offset = min(self.flushed_end_offset, end_offset)
        for flush in self._pending:
            flush.valid_end = min(flush.valid_end, end_offset)


def _latest_timestamp(view: SlotReader, number: int) -> LatestTimestamp:
    """The greatest timestamp of a segment; `number`: from the oldest one on."""
    segment = view.segments(number + 1)[-1]
    return LatestTimestamp(view.segment_max_timestamp(segment.base_offset), segment.end_offset)


def _valid_header(batches: Buffer, position: int, offset: int) -> BatchHeader | None:
    """The header of the batch that reaches to this offset or above; None if it is invalid."""
    try:
        header = parse_header(batches, position)
    except KafkaError:
        return None
    is_whole = header.last_offset >= offset and len(batches) - position >= header.size
    return header if is_whole and crc_is_valid(batches, position, header) else None

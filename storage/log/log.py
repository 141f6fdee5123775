"""The log of one partition: appends, reads, leader epochs, truncation, retention (Kafka: UnifiedLog).

RULES    1. Log start offset <= high watermark <= log end offset. The last stable offset is at most the high watermark,
            and no record of an open transaction is below it.
         2. The caller guarantees that no append is in progress during truncate, trim, roll and close. A truncation blocks
            on the disk and requires that no file operation is pending (deferred_file_ops.py).
         3. A method that returns a DiskLookup does not wait for the disk (disk_lookup.py); every other one may.
NOT HERE Open, close, flush (openable_log.py), the steps of an append (append_pipeline.py), the layout on disk (engine.py),
         leadership and the high watermark's progress (replication/partition/partition.py), when to flush or delete
         (log_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

from protocol.errors import ErrorCode, KafkaError
from protocol.records import FileRegion
from storage.engine import AbortedTransaction, Buffer, Compactable, Engine, SegmentInfo
from storage.io.disk_lookup import DiskLookup
from storage.log.append_pipeline import AppendInfo, PreparedAppend
from storage.log.async_lookup import AsyncLookups
from storage.log.leader_epoch_cache import UNDEFINED
from storage.log.log_validator import AppendOrigin, validate_replicated
from storage.log.openable_log import Checkpoint, OpenableLog
from storage.log.producer_state import ProducerState
from storage.log.read_result import HIGH_WATERMARK, LAST_STABLE, LOG_END, Isolation, ReadInfo, out_of_range
from storage.log.recovery import restore_producers
from storage.log.retention import MAX_SEGMENTS_PER_PASS, expired_end_offset, next_expiry_ms
from storage.log.timestamp_lookup import first_record, latest_record

_new_tuple = tuple.__new__
T = TypeVar("T")


class Log(OpenableLog):
    """The log of one partition, ready for use."""

    __slots__ = ()

    # ---- offsets -----------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first readable offset."""
        if self._engine is None:
            self.open()
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next committed record."""
        engine = self._engine
        return (engine if engine is not None else self.open()).end_offset

    @property
    def last_stable_offset(self) -> int:
        """All transactions below this offset are decided."""
        if self._engine is None:
            self.open()
        return self._last_stable()

    @property
    def size_bytes(self) -> int:
        """Size of all published batches."""
        return self.open().size_bytes

    @property
    def producers(self) -> ProducerState:
        """The state of idempotent and transactional producers; read-only for callers."""
        self.open()
        return self._producers

    def _last_stable(self) -> int:
        unstable = self._producers.first_unstable_offset
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self._log_start_offset)

    # ---- append ------------------------------------------------------------------------------------------

    def prepare(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> PreparedAppend | DiskLookup:
        """Validate a leader's records and assign their offsets in place: `records` must be writable (append_pipeline.py).

        Raises:
            KafkaError: the records are rejected and the log is unchanged; RejectedRecords names the invalid records.
        """
        engine = self._engine
        lookup = self._open_lookup() if engine is None else engine.prepare_append()
        if lookup is not None:
            return lookup
        return self._append_pipeline.prepare(records, leader_epoch, wall_ms, origin, self._log_start_offset)

    def prepare_as_follower(
        self, records: Buffer, *, wall_ms: int, leader_epoch: int = UNDEFINED
    ) -> PreparedAppend | None:
        """Prepare a leader's batches with the offsets that they carry; None if there is nothing to append.

        A truncated last batch is ignored, and so are batches above `leader_epoch`: this replica does not know that leader yet.

        Raises:
            KafkaError: a batch is corrupt, or does not continue this log.
        """
        engine = self.open()
        batches = validate_replicated(records, leader_epoch=leader_epoch)
        if not batches:
            return None
        next_offset = self._append_pipeline.next_offset
        is_empty = self._log_start_offset == engine.end_offset == next_offset
        if is_empty and batches[0][1].base_offset < next_offset <= batches[-1][1].last_offset:
            self._reset_to(batches[0][1].base_offset)  # the log start offset is inside the leader's batch
        return self._append_pipeline.prepare_as_follower(records, batches, wall_ms)

    def write(self, prepared: PreparedAppend) -> None:
        """Write the bytes; any thread. Raises StorageError."""
        self._append_pipeline.write(prepared)

    def commit(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        """Make the records readable.

        Raises:
            KafkaError: the append was aborted with an earlier one, or because the log directory went offline.
        """
        if prepared.duplicate is not None:
            return prepared.duplicate
        info = self._append_pipeline.commit(prepared, self._log_start_offset)
        if self._unflushed_since_ms < 0:
            self._unflushed_since_ms = wall_ms
        return info

    def abort(self, prepared: PreparedAppend) -> None:
        """Abort this append and all later ones."""
        if not self.is_offline:
            self._append_pipeline.abort(prepared)

    # ---- read --------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation,
        *,
        min_one_batch: bool = True,
    ) -> ReadInfo | DiskLookup:
        """The location of the batches from `offset` on, up to the bound of the isolation level; empty at or above the bound.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE below the log start or above the log end.
        """
        engine = self._engine
        if engine is None:
            return self._open_lookup()
        start_offset, end_offset, high_watermark = self._log_start_offset, engine.end_offset, self._high_watermark
        if not start_offset <= offset <= end_offset:
            raise out_of_range(self.name, offset, start_offset, end_offset)
        stable = self._last_stable()
        bound = end_offset if isolation == LOG_END else high_watermark if isolation == HIGH_WATERMARK else stable
        aborted: list[AbortedTransaction] | None = [] if isolation == LAST_STABLE else None
        regions: tuple[FileRegion, ...] = ()
        size = 0
        if offset < bound and (max_bytes > 0 or min_one_batch):
            located = engine.locate(offset, max_bytes, bound, min_one_batch=min_one_batch)
            if isinstance(located, DiskLookup):
                return located
            regions, size, found_end, _ = located
            if aborted is not None and size:
                found = engine.aborted(offset, found_end)
                if isinstance(found, DiskLookup):
                    return found
                aborted = found
        return _new_tuple(ReadInfo, (regions, size, high_watermark, stable, start_offset, end_offset, aborted))

    def read_records(self, offset: int, max_bytes: int) -> Buffer | DiskLookup:
        """Whole batches in memory, at least one, starting with the batch that contains `offset`; empty at the log end.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE.
        """
        engine = self._engine
        if engine is not None and not self._log_start_offset <= offset <= engine.end_offset:
            raise out_of_range(self.name, offset, self._log_start_offset, engine.end_offset)
        return self.lookup(("records", offset), lambda copy: copy.read_batches(offset, max_bytes))

    def offset_for_timestamp(self, target_ms: int) -> tuple[int, int, int] | DiskLookup | None:
        """(timestamp, offset, leader epoch) of the first record at or after `target_ms`; None if there is none."""
        start = self._log_start_offset
        return self.lookup(("time", target_ms), lambda copy: first_record(copy, target_ms, start))

    def offset_of_max_timestamp(self) -> tuple[int, int, int] | DiskLookup | None:
        """(timestamp, offset, leader epoch) of the first record with the greatest timestamp; None for an empty log."""
        return self.lookup("latest", latest_record)

    def lookup(self, key: Hashable, find: Callable[[Engine], T]) -> T | DiskLookup:
        """The result of `find` on a copy of the engine, in another thread (async_lookup.py); `key` identifies the lookup."""
        engine = self._engine
        if engine is None:
            return self._open_lookup()
        if self._async_lookups is None:
            self._async_lookups = AsyncLookups(engine)
        return self._async_lookups.get(key, find)

    # ---- leader epochs -----------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch in this log; -1 if there is none."""
        self.open()
        return self._epochs.latest

    def assign_epoch(self, epoch: int) -> None:
        """Start a leader epoch at the log end, after the pending appends; opens no file."""
        if self._engine is None:
            self._epoch_to_assign = epoch
        else:
            self._epochs.assign(epoch, self._append_pipeline.next_offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of an offset; -1 if unknown."""
        self.open()
        return self._epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and its end offset; (-1, -1) if unknown (OffsetForLeaderEpoch)."""
        engine = self.open()
        return self._epochs.end_offset_for(epoch, engine.end_offset)

    # ---- truncation and retention ------------------------------------------------------------------------

    def truncate(self, offset: int) -> bool:
        """Delete all records from `offset` on; False if there are none. `LogManager.truncate` lowers the checkpoints before."""
        engine = self.open()
        assert not self._append_pipeline.has_pending, "no append is pending during a truncation"
        assert not self._pending_file_ops, "no file operation is pending during a truncation"
        if offset >= engine.end_offset:
            self._epochs.truncate(engine.end_offset)  # removes an epoch without records
            return False
        if offset < engine.start_offset:
            self.truncate_fully(offset)
            return True
        self._cancel_lookups()
        self.truncation_count += 1
        self._snapshots.delete_after(offset)  # before the engine syncs the directory
        engine.truncate(offset)
        self._append_pipeline.next_offset = end_offset = engine.end_offset
        self._lower_offsets(end_offset)
        self._epochs.truncate(end_offset)
        self._snapshots.delete_after(end_offset)
        restore_producers(engine, self._producers, self._snapshots, end_offset, is_clean=False)
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self.high_watermark = self._high_watermark
        return True

    def truncate_fully(self, offset: int) -> None:
        """Delete all records; the log continues at `offset`."""
        self.open()
        assert not self._append_pipeline.has_pending, "no append is pending during a truncation"
        assert not self._pending_file_ops, "no file operation is pending during a truncation"
        self._sync_directory_entry()
        self._reset_to(offset)
        self._log_start_offset = offset
        self.high_watermark = offset

    def trim(self, log_start_offset: int, wall_ms: int) -> None:
        """Raise the log start offset and delete the segments below it after `file.delete.delay.ms`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE above the high watermark.
        """
        engine = self.open()
        if log_start_offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {log_start_offset} of partition {self.name} since it is "
                f"larger than the high watermark {self._high_watermark}",
            )
        if log_start_offset > self._log_start_offset:
            self._log_start_offset = log_start_offset
            self._epochs.trim(log_start_offset)
        oldest = engine.start_offset
        submit_first = partial(self.submit_file_op, submit=self.disk_space.submit) if self.disk_space.is_full else None
        deleted_files = engine.trim(self._log_start_offset, submit_first)
        self._snapshots.delete_before(engine.start_offset, submit_first)
        if engine.start_offset > oldest:
            self.deleted_files.append((wall_ms + self.config.file_delete_delay_ms, deleted_files))

    def retain(self, wall_ms: int) -> bool:
        """Delete the oldest segments by age, size and log start offset; True if a further pass may delete more.

        The active segment is rolled and deleted when all of it has expired. Segments at or above the high watermark stay.
        Pending appends prevent deletion, except on a full disk, where they wait for it; no segment is rolled then.
        """
        engine = self.open()
        self._retention_due_ms = 0
        if self._append_pipeline.has_pending and not self.disk_space.is_full:
            return False
        bases = [segment.base_offset for segment in engine.segments(MAX_SEGMENTS_PER_PASS + 1)]
        end_offset = expired_end_offset(engine, self.config, self._log_start_offset, self._high_watermark, wall_ms)
        if self.disk_space.is_full:
            end_offset = min(end_offset, engine.segments()[-1].base_offset)
        if end_offset > engine.start_offset:
            if end_offset == engine.end_offset:
                self.roll(wall_ms)
            self.trim(max(end_offset, self._log_start_offset), wall_ms)
        self._retention_due_ms = next_expiry_ms(engine, self.config)
        return bases[MAX_SEGMENTS_PER_PASS:] == [engine.start_offset]

    def is_retention_due(self, wall_ms: int) -> bool:
        """Whether `retain` has work; a log that is not open stays closed until its oldest segment can expire."""
        return self._engine is not None or ("delete" in self.config.cleanup_policy and wall_ms > self._retention_due_ms)

    def replace(self, segments: Sequence[SegmentInfo], size: int, wall_ms: int, *, has_aborted: bool) -> bool:
        """Replace segments by a compacted one (engine.py); False if the sources no longer exist."""
        engine = self.open()
        if not isinstance(engine, Compactable) or not set(segments) <= set(engine.segments()[:-1]):
            return False
        bases = [segment.base_offset for segment in segments]
        self._cancel_lookups()
        deleted_files = engine.replace(bases, size, has_aborted=has_aborted)
        self._snapshots.delete(bases[1:])
        self.deleted_files.append((wall_ms + self.config.file_delete_delay_ms, deleted_files))
        return True

    def roll(self, wall_ms: int) -> bool:
        """Start a new segment; False if the active one is empty."""
        engine = self.open()
        assert not self._append_pipeline.has_pending, "no append is pending during a roll"
        if not engine.roll(wall_ms):
            return False
        self._snapshots.write(engine.end_offset, self._producers.snapshot())
        self._append_pipeline.has_rolled = True
        return True

    def _lower_offsets(self, end_offset: int) -> None:
        """Lower the offsets that are kept outside the engine to the new log end."""
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self.decided_end_offset = min(self.decided_end_offset, end_offset)
        self._decided_end_after_flush = {
            end: min(settled, end_offset) for end, settled in self._decided_end_after_flush.items()
        }

    def _reset_to(self, offset: int) -> None:
        self._cancel_lookups()
        self.truncation_count += 1
        self._lower_offsets(offset)
        engine = self.open()
        self._snapshots.delete_all()  # before the engine syncs the directory
        engine.reset(offset)
        self._append_pipeline.next_offset = offset
        self._epochs.truncate(0)
        self._producers.clear()


__all__ = ["AppendInfo", "AppendOrigin", "Checkpoint", "Isolation", "Log", "PreparedAppend", "ReadInfo"]

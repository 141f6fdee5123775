"""One partition's log: offsets, leader epochs, producers, what may be read, where it begins and ends.

RULES    1. Log start <= high watermark <= log end; the last stable offset is not above the high watermark, and
            nothing of an undecided transaction lies below it.
         2. Cutting (truncate, trim, roll, close) happens while no append is under way; the caller sees to that. Truncating
            waits for the disk, and happens while no change of files is waiting (deferred_file_ops.py).
         3. Who may not wait for the disk says `may_block=False` and may be told WouldBlock (would_block.py).
NOT HERE Opening and closing it, making it durable (openable_log.py), the steps of an append (append_pipeline.py), how batches
         lie on disk (engine.py), who leads and when the high watermark moves (replication/partition/partition.py), when to flush
         or delete (log_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from protocol.errors import ErrorCode, KafkaError
from protocol.records import FileRegion
from storage.engine import AbortedTransaction, Buffer, Compactable, Engine, SegmentInfo
from storage.io.disk import StorageError
from storage.log.append_pipeline import AppendInfo, PreparedAppend
from storage.log.async_lookup import Elsewhere
from storage.log.leader_epoch_cache import UNDEFINED
from storage.log.log_validator import Origin, validate_replicated
from storage.log.openable_log import Checkpoint, OpenableLog
from storage.log.producer_state import ProducerState
from storage.log.read_result import HIGH_WATERMARK, LAST_STABLE, LOG_END, Isolation, ReadInfo, out_of_range
from storage.log.recovery import restore_producers
from storage.log.retention import AT_A_TIME, expired_end, next_expiry_ms
from storage.log.timestamp_lookup import first_record, latest_record

_new_tuple = tuple.__new__
T = TypeVar("T")


class Log(OpenableLog):
    """The log of one partition."""

    __slots__ = ()

    # ---- where it stands ---------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        if self._engine is None:
            self.open()
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next committed record gets."""
        engine = self._engine
        return (engine if engine is not None else self.open()).end_offset

    @property
    def last_stable_offset(self) -> int:
        """Up to here every transaction is decided."""
        if self._engine is None:
            self.open()
        return self._last_stable()

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self.open().size_bytes

    @property
    def producers(self) -> ProducerState:
        """What is known of idempotent and transactional producers; to be looked at only."""
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
        origin: Origin = Origin.CLIENT,
        may_block: bool = True,
    ) -> PreparedAppend:
        """Check a leader's records and give them their offsets, in place: `records` must be writable (append_pipeline.py).

        Raises:
            KafkaError: the records are refused, and nothing has happened; RejectedRecords may name single ones.
            WouldBlock: not with `may_block`.
        """
        engine = self._engine
        if engine is None:
            engine = self.open(may_block=may_block)
        if not may_block:
            engine.be_ready_to_append()
        return self._appends.prepare(records, leader_epoch, wall_ms, origin, self._log_start_offset)

    def prepare_as_follower(
        self, records: Buffer, *, wall_ms: int, leader_epoch: int = UNDEFINED
    ) -> PreparedAppend | None:
        """Take a leader's batches over as they are; None when there is nothing that may be appended.

        Args:
            records: as fetched; a batch that is cut off at the end is left out.
            wall_ms: the time.
            leader_epoch: batches of a later epoch are left out: they come from a leader not heard of yet.

        Raises:
            KafkaError: broken batches, or such as do not continue this log.
        """
        engine = self.open()
        batches = validate_replicated(records, leader_epoch=leader_epoch)
        if not batches:
            return None
        next_offset = self._appends.next_offset
        is_empty = self._log_start_offset == engine.end_offset == next_offset
        if is_empty and batches[0][1].base_offset < next_offset <= batches[-1][1].last_offset:
            self._begin_at(batches[0][1].base_offset)  # our start lies inside the leader's batch
        return self._appends.prepare_as_follower(records, batches, wall_ms)

    def write(self, prepared: PreparedAppend) -> None:
        """Write the bytes; may run in another thread, and may raise StorageError."""
        self._appends.write(prepared)

    def commit(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        """Let the records be read.

        Raises:
            KafkaError: the append was aborted together with an earlier one, or by its directory going offline.
        """
        if prepared.duplicate is not None:
            return prepared.duplicate
        info = self._appends.commit(prepared, self._log_start_offset)
        if self._unflushed_since_ms < 0:
            self._unflushed_since_ms = wall_ms
        return info

    def abort(self, prepared: PreparedAppend) -> None:
        """Undo what was prepared: this append and all later ones."""
        if not self.is_offline:
            self._appends.abort(prepared)

    def append(
        self, records: bytearray | memoryview, *, leader_epoch: int, wall_ms: int, origin: Origin = Origin.CLIENT
    ) -> AppendInfo:
        """All steps at once, for those who may wait for the disk."""
        return self._finish(self.prepare(records, leader_epoch=leader_epoch, wall_ms=wall_ms, origin=origin), wall_ms)

    def append_as_follower(self, records: Buffer, *, wall_ms: int, leader_epoch: int = UNDEFINED) -> AppendInfo | None:
        """All steps at once; None when there was nothing to append."""
        prepared = self.prepare_as_follower(records, wall_ms=wall_ms, leader_epoch=leader_epoch)
        return None if prepared is None else self._finish(prepared, wall_ms)

    def _finish(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        try:
            self.write(prepared)
        except StorageError:
            self.abort(prepared)
            raise
        return self.commit(prepared, wall_ms)

    # ---- read --------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation,
        *,
        min_one_batch: bool = True,
        may_block: bool = True,
    ) -> ReadInfo:
        """Where the batches from `offset` on lie, up to what the isolation allows; empty at or behind that.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE before the log's start or behind its end.
            WouldBlock: where they lie is not known without the disk; not with `may_block`.
        """
        engine = self._engine
        if engine is None:
            engine = self.open(may_block=may_block)
        start_offset, end_offset, high_watermark = self._log_start_offset, engine.end_offset, self._high_watermark
        if not start_offset <= offset <= end_offset:
            raise out_of_range(self.name, offset, start_offset, end_offset)
        stable = self._last_stable()
        bound = end_offset if isolation == LOG_END else high_watermark if isolation == HIGH_WATERMARK else stable
        aborted: list[AbortedTransaction] | None = [] if isolation == LAST_STABLE else None
        regions: tuple[FileRegion, ...] = ()
        size = 0
        if offset < bound and (max_bytes > 0 or min_one_batch):
            regions, size, found_end, _ = engine.locate(
                offset, max_bytes, bound, min_one_batch=min_one_batch, may_block=may_block
            )
            if aborted is not None and size:
                aborted = engine.aborted(offset, found_end, may_block=may_block)
        return _new_tuple(ReadInfo, (regions, size, high_watermark, stable, start_offset, end_offset, aborted))

    def read_records(self, offset: int, max_bytes: int, *, may_block: bool = True) -> Buffer:
        """Whole batches in memory, at least one, from the one that holds `offset`; empty at the log's end.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE.
            WouldBlock: not with `may_block`.
        """
        engine = self.open(may_block=may_block)
        if not self._log_start_offset <= offset <= engine.end_offset:
            raise out_of_range(self.name, offset, self._log_start_offset, engine.end_offset)
        if may_block:
            return engine.read_batches(offset, max_bytes)
        return self._ask(("records", offset), lambda copy: copy.read_batches(offset, max_bytes))

    def offset_for_timestamp(self, target_ms: int, *, may_block: bool = True) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record that is not before a time; None when there is none.

        Raises:
            WouldBlock: not with `may_block`.
        """
        engine = self.open(may_block=may_block)
        start_offset = self._log_start_offset
        if may_block:
            return first_record(engine, target_ms, start_offset)
        return self._ask(("time", target_ms), lambda copy: first_record(copy, target_ms, start_offset))

    def offset_of_max_timestamp(self, *, may_block: bool = True) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the greatest timestamp; None when empty.

        Raises:
            WouldBlock: not with `may_block`.
        """
        engine = self.open(may_block=may_block)
        return latest_record(engine) if may_block else self._ask(("latest", 0), latest_record)

    def look(self, question: str, look: Callable[[Engine], T], *, may_block: bool = True) -> T:
        """What somebody sees in the engine, or in a copy of it.

        Raises:
            WouldBlock: not with `may_block`.
        """
        engine = self.open(may_block=may_block)
        return look(engine) if may_block else self._ask((question, 0), look)

    def _ask(self, question: tuple[str, int], look: Callable[[Engine], T]) -> T:
        if self._elsewhere is None:
            self._elsewhere = Elsewhere(self.open())
        return self._elsewhere.ask(question, look)

    # ---- leader epochs -----------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch in this log; -1 when there is none."""
        self.open()
        return self._epochs.latest

    def assign_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """A leader's epoch begins: at `start_offset`, or at the end, for which the log need not be opened.

        Appends that are under way belong to the epoch before.
        """
        if start_offset is None and self._engine is None:
            self._epoch_to_assign = epoch
            return
        self.open()
        end_offset = self._appends.next_offset
        self._epochs.assign(epoch, end_offset if start_offset is None else max(start_offset, end_offset))

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset belongs to; -1 when unknown."""
        self.open()
        return self._epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and where it ended; (-1, -1) when that is unknown."""
        engine = self.open()
        return self._epochs.end_offset_for(epoch, engine.end_offset)

    # ---- cutting -----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> bool:
        """Drop all from `offset` on; whoever does this writes the recovery points soon (`LogManager.truncate`)."""
        engine = self.open()
        assert not self._appends.are_under_way, "no append is under way during a truncation"
        assert not self._pending, "changes of files are made before a truncation"
        if offset >= engine.end_offset:
            self._epochs.truncate(engine.end_offset)  # an epoch that began, and then had no records
            return False
        if offset < engine.start_offset:
            self.truncate_fully(offset)
            return True
        self._is_cut()
        self.cuts += 1
        self._snapshots.truncate(offset)  # before the engine makes it durable
        engine.truncate(offset)
        self._appends.next_offset = end_offset = engine.end_offset
        self._forget_behind(end_offset)
        self._epochs.truncate(end_offset)
        self._snapshots.truncate(end_offset)
        restore_producers(engine, self._producers, self._snapshots, end_offset, is_clean=False)
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self.high_watermark = self._high_watermark
        return True

    def truncate_fully(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`."""
        self.open()
        assert not self._appends.are_under_way, "no append is under way during a truncation"
        assert not self._pending, "changes of files are made before a truncation"
        self._be_named_durably()
        self._begin_at(offset)
        self._log_start_offset = offset
        self.high_watermark = offset

    def trim(self, log_start_offset: int, wall_ms: int) -> None:
        """Let the log begin later; what lies wholly before goes, after `file.delete.delay.ms`.

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
        ahead = partial(self.change, later=self.room.later) if self.room.is_full else None
        doomed = engine.trim(self._log_start_offset, ahead)
        self._snapshots.trim(engine.start_offset, ahead)
        if engine.start_offset > oldest:
            self.doomed.append((wall_ms + self.config.file_delete_delay_ms, doomed))

    def retain(self, wall_ms: int) -> bool:
        """Drop the oldest segments that are too old, too many or before the log's start, as the settings say.

        The active segment goes too when all of it has expired. Nothing goes at or above the high watermark, nor
        while appends are under way. Where the disk is full they wait for just this; then nothing new is begun.
        Whether as many went as may go at once, so that there may be more.
        """
        engine = self.open()
        self._retention_due_ms = 0
        if self._appends.are_under_way and not self.room.is_full:
            return False
        bases = [segment.base_offset for segment in engine.segments(AT_A_TIME + 1)]
        end_offset = expired_end(engine, self.config, self._log_start_offset, self._high_watermark, wall_ms)
        if self.room.is_full:
            end_offset = min(end_offset, engine.segments()[-1].base_offset)
        if end_offset > engine.start_offset:
            if end_offset == engine.end_offset:
                self.roll(wall_ms)
            self.trim(max(end_offset, self._log_start_offset), wall_ms)
        self._retention_due_ms = next_expiry_ms(engine, self.config)
        return bases[AT_A_TIME:] == [engine.start_offset]

    def is_retention_due(self, wall_ms: int) -> bool:
        """Whether `retain` has to look; a log that is not open is left alone until its oldest segment may expire."""
        return self._engine is not None or ("delete" in self.config.cleanup_policy and wall_ms > self._retention_due_ms)

    def replace(self, segments: Sequence[SegmentInfo], size: int, wall_ms: int, *, has_aborted: bool) -> bool:
        """Put a compacted segment (engine.py) in the place of its sources; False where these are not there any more."""
        engine = self.open()
        if not isinstance(engine, Compactable) or not set(segments) <= set(engine.segments()[:-1]):
            return False
        bases = [segment.base_offset for segment in segments]
        self._is_cut()
        doomed = engine.replace(bases, size, has_aborted=has_aborted)
        self._snapshots.drop(bases[1:])
        self.doomed.append((wall_ms + self.config.file_delete_delay_ms, doomed))
        return True

    def roll(self, wall_ms: int) -> bool:
        """Begin a new segment; False when the active one is empty."""
        engine = self.open()
        assert not self._appends.are_under_way, "no append is under way during a roll"
        if not engine.roll(wall_ms):
            return False
        self._snapshots.take(engine.end_offset, self._producers.snapshot())
        self._appends.has_rolled = True
        return True

    def _forget_behind(self, end_offset: int) -> None:
        """What is known of offsets that are cut off is not true of those that come."""
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self.settled_end = min(self.settled_end, end_offset)
        self._settling = {end: min(settled, end_offset) for end, settled in self._settling.items()}

    def _begin_at(self, offset: int) -> None:
        self._is_cut()
        self.cuts += 1
        self._forget_behind(offset)
        engine = self.open()
        self._snapshots.clear()  # before the engine makes it durable
        engine.reset(offset)
        self._appends.next_offset = offset
        self._epochs.clear()
        self._producers.clear()


__all__ = [
    "AppendInfo", "Checkpoint", "Isolation", "Log", "Origin", "PreparedAppend", "ReadInfo",
]  # fmt: skip

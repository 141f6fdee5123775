"""The parts of a log that exist while it is open, and the changes that concern several of them.

RULES    1. No append and no file operation is pending during a roll, a truncation or a close. The caller guarantees it.
         2. What is in memory is lowered after the engine, snapshots are deleted before: the engine syncs the directory.
         3. Work that was started before a close may end after it: its append was aborted, its lookup was discarded.
         4. A truncation begins and finishes on the thread of the log, and runs in any thread in between. Meanwhile nothing else
            uses the log: it is closed for others (`Log.truncation`), or they skip it. The offsets that a checkpoint reads are
            lowered at the beginning. After an error the work continues where it has failed. It is durable when it returns.
NOT HERE Opening and closing (log.py), appends, reads, flushes (append_pipeline.py, log_reader.py, log_flush.py), which segments
         expire (retention.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from storage.config.log_config import LogConfig
from storage.engine import Compactable, SegmentInfo
from storage.io.deferred_file_ops import Submit, run_now, sequential
from storage.log.append_pipeline import AppendPipeline, PositionedBatch, PreparedAppend
from storage.log.leader_epoch_cache import UNDEFINED
from storage.log.log_files import LogFiles
from storage.log.log_flush import LogFlush
from storage.log.log_offsets import LogOffsets
from storage.log.log_reader import LogReader
from storage.log.log_validator import validate_replicated
from storage.log.recovery import RecoveredLog, restore_producers


class OpenLog:
    """An open log."""

    __slots__ = (
        "_config", "_files", "_name", "_offsets", "appends", "engine", "epochs", "flush", "producers", "reader",
        "snapshots",
    )  # fmt: skip

    def __init__(self, parts: RecoveredLog, name: str, config: LogConfig, files: LogFiles, offsets: LogOffsets) -> None:
        self._name = name
        self._config = config
        self._files = files
        self._offsets = offsets
        self.engine, self.epochs, self.producers, self.snapshots, *_ = parts
        self.appends = AppendPipeline(name, parts, config, offsets)
        self.reader = LogReader(name, parts.engine, parts.producers, offsets)
        self.flush = LogFlush(parts, self.appends, files, offsets)
        self.set_submit(files.submit_op)
        self.engine.register_files()
        self.update_high_watermark(offsets.high_watermark)

    def update_config(self, config: LogConfig) -> None:
        """Apply new settings from the next append on."""
        self._config = config
        self.engine.update_config(config)
        self.appends.update_config(config)

    def update_high_watermark(self, offset: int) -> None:
        """Set the high watermark, limited to the log's offsets."""
        offsets = self._offsets
        offsets.high_watermark = min(max(offset, offsets.log_start_offset), self.engine.end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and its end offset; (-1, -1) if unknown (OffsetForLeaderEpoch)."""
        return self.epochs.end_offset_for(epoch, self.engine.end_offset)

    def prepare_as_follower(
        self, records: Buffer, *, wall_ms: int, leader_epoch: int = UNDEFINED
    ) -> PreparedAppend | None:
        """Prepare a leader's batches with the offsets that they carry; None if there is nothing to append.

        A truncated last batch is ignored, and so are batches above `leader_epoch`: this replica does not know that leader yet.

        Raises:
            KafkaError: a batch is corrupt, or does not continue this log.
        """
        batches = validate_replicated(records, leader_epoch=leader_epoch)
        if not batches:
            return None
        return self.appends.prepare_as_follower(records, batches, wall_ms)

    def restart_offset(self, batches: Sequence[PositionedBatch]) -> int | None:
        """Where this log must be emptied to (`begin_full_truncation`) before a leader's validated batches can be appended.

        It is empty and the first batch contains its log start offset. None for all other logs and batches.
        """
        offset = self.appends.next_offset
        if not batches or not self._offsets.log_start_offset == self.engine.end_offset == offset:
            return None
        is_inside = batches[0][1].base_offset < offset <= batches[-1][1].last_offset
        return batches[0][1].base_offset if is_inside else None

    # ---- truncation and deletion -------------------------------------------------------------------------

    def truncate(self, offset: int) -> bool:
        """Delete all records from `offset` on; False if there are none. Blocks.

        `LogManager.truncation` lowers the checkpoints before.
        """
        truncation = self.begin_truncation(offset)
        if truncation is None:
            return False
        truncation.run()
        truncation.finish()
        return True

    def truncate_fully(self, offset: int) -> None:
        """Delete all records; the log continues at `offset`. Blocks."""
        truncation = self.begin_full_truncation(offset, offset)
        truncation.run()
        truncation.finish()

    def begin_truncation(self, offset: int) -> Truncation | None:
        """Begin a truncation whose disk work runs in a thread (rule 4); None if there are no records to delete."""
        self.check_idle("a truncation")
        engine = self.engine
        if offset >= engine.end_offset:
            self.epochs.truncate(engine.end_offset)  # removes an epoch without records
            return None
        start_offset = offset if offset < engine.start_offset else None
        return Truncation(self, self._files, self._offsets, offset, start_offset)

    def begin_full_truncation(self, offset: int, log_start_offset: int) -> Truncation:
        """The same for all records; the log continues at `offset`.

        `log_start_offset`: that of the empty log; above `offset` if it is inside the batch that follows.
        """
        self.check_idle("a truncation")
        return Truncation(self, self._files, self._offsets, offset, log_start_offset)

    @property
    def has_deletable_segments(self) -> bool:
        """Whether a segment is below the log start offset."""
        return any(segment.end_offset <= self._offsets.log_start_offset for segment in self.engine.segments(2)[:-1])

    def trim(self, log_start_offset: int, wall_ms: int) -> None:
        """Raise the log start offset and delete the oldest segments below it after `file.delete.delay.ms`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE above the high watermark.
        """
        engine, offsets, files = self.engine, self._offsets, self._files
        if log_start_offset > offsets.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {log_start_offset} of partition {self._name} since it is "
                f"larger than the high watermark {offsets.high_watermark}",
            )
        if log_start_offset > offsets.log_start_offset:
            offsets.log_start_offset = log_start_offset
            self.epochs.trim(log_start_offset)
        oldest = engine.start_offset
        submit_first = files.submit_first()
        deleted_files = engine.trim(offsets.log_start_offset, submit_first)
        self.snapshots.delete_before(engine.start_offset, submit_first)
        if engine.start_offset > oldest:
            files.deleted_files.append((wall_ms + self._config.file_delete_delay_ms, deleted_files))

    def take_over(self, source: OpenLog) -> None:
        """Complete a copy with the same records: leader epochs without records, producers whose batches were deleted."""
        assert self.engine.end_offset == source.engine.end_offset, "the copy is complete"
        self.epochs.replace(source.epochs.entries())
        self.producers.resume(source.producers.summary())

    # ---- segments ----------------------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        """Start a new segment; False if the active one is empty."""
        assert not self.appends.has_pending, "no append is pending during a roll"
        if not self.engine.roll(wall_ms):
            return False
        self.snapshots.write(self.engine.end_offset, self.producers.snapshot())
        self.appends.has_rolled = True
        return True

    def replace(self, segments: Sequence[SegmentInfo], size: int, wall_ms: int, *, has_aborted: bool) -> bool:
        """Replace segments by a compacted one (engine.py); False if the sources no longer exist."""
        engine = self.engine
        if not isinstance(engine, Compactable) or not set(segments) <= set(engine.segments()[:-1]):
            return False
        bases = [segment.base_offset for segment in segments]
        deleted_files = engine.replace(bases, size, has_aborted=has_aborted)
        self.snapshots.delete(bases[1:])
        self._files.deleted_files.append((wall_ms + self._config.file_delete_delay_ms, deleted_files))
        return True

    # ---- close -------------------------------------------------------------------------------------------

    def write_last_snapshot(self, *, sync: bool) -> None:
        """Write the producers at the log end, which a closed log needs."""
        snapshots, end_offset = self.snapshots, self.engine.end_offset
        if end_offset and not snapshots.has(end_offset):
            snapshots.write(end_offset, self.producers.snapshot(), sync=sync, is_last=True)
            if len(snapshots.offsets) > len(self.engine.segments()):
                snapshots.delete_strays({segment.base_offset for segment in self.engine.segments()})

    def set_submit(self, submit: Submit) -> None:
        """How to run the file operations of engine and snapshots."""
        self.engine.submit = self.snapshots.submit = submit

    def check_idle(self, action: str) -> None:
        """Assert rule 1."""
        assert not self.appends.has_pending, f"no append is pending during {action}"
        assert not self._files.has_pending_ops, f"no file operation is pending during {action}"


class Truncation:
    """Deletes all records from an offset on, or all records; the log then continues there (rule 4)."""

    __slots__ = ("_files", "_log_start_offset", "_offset", "_offsets", "_opened", "run")

    def __init__(
        self, opened: OpenLog, files: LogFiles, offsets: LogOffsets, offset: int, log_start_offset: int | None
    ) -> None:
        """Begin it. `log_start_offset`: of a log whose records are all deleted; None if `offset` is within the engine's."""
        self._opened = opened
        self._files = files
        self._offsets = offsets
        self._offset = offset
        self._log_start_offset = log_start_offset
        self.run = sequential([self._cut, self._restore])
        """The work on the disk (rule 4)."""
        opened.engine.unregister_files()
        opened.set_submit(run_now)
        offsets.truncation_count += 1
        self._lower_offsets(offset)

    def _lower_offsets(self, end_offset: int) -> None:
        offsets = self._offsets
        offsets.first_dirty_offset = min(offsets.first_dirty_offset, end_offset)
        offsets.log_start_offset = min(offsets.log_start_offset, end_offset)
        offsets.high_watermark = min(offsets.high_watermark, end_offset)

    def _cut(self) -> None:
        opened, offset = self._opened, self._offset
        if self._log_start_offset is not None:
            self._files.sync_entry()
            opened.snapshots.delete_after(-1)
            opened.engine.reset(offset)
        else:
            opened.snapshots.delete_after(offset)
            opened.engine.truncate(offset)

    def _restore(self) -> None:
        opened = self._opened
        engine, producers, snapshots = opened.engine, opened.producers, opened.snapshots
        end_offset = opened.appends.next_offset = engine.end_offset
        if self._log_start_offset is not None:
            opened.epochs.truncate(0)
            producers.clear()
        else:
            opened.epochs.truncate(end_offset)
            snapshots.delete_after(end_offset)
            restore_producers(engine, producers, snapshots, end_offset, is_clean=False)

    def finish(self) -> None:
        """The log is usable again; `run` has returned."""
        opened, offsets = self._opened, self._offsets
        engine = opened.engine
        engine.end_truncation()
        opened.flush.truncate(engine.end_offset)
        self._lower_offsets(engine.end_offset)
        if self._log_start_offset is not None:
            offsets.log_start_offset = offsets.high_watermark = self._log_start_offset
        else:
            opened.update_high_watermark(offsets.high_watermark)
        opened.set_submit(self._files.submit_op)
        engine.register_files()

"""The log of one partition (Kafka: UnifiedLog).

RULES    1. Log start offset <= high watermark <= log end offset.
         2. A log is opened, and recovered if necessary, at its first use. Names, settings and checkpointed offsets are
            available before. `opening` returns the lookup that opens the log, once for all callers.
         3. A method that returns a DiskLookup does not wait for the disk (disk_lookup.py). Every other one opens a closed log
            and may block.
         4. The caller guarantees that no append is in progress during truncate, trim, roll and close. A truncation requires
            that no file operation is pending (deferred_file_ops.py).
         5. After a StorageError the log directory goes offline (`go_offline`); every later use raises
            KAFKA_STORAGE_ERROR.
NOT HERE The parts: directory and file operations (log_files.py), recovery (recovery.py), the state of an open log
         (open_log.py), appends (append_pipeline.py), reads (log_reader.py), flushes (log_flush.py), retention (retention.py).
         The layout on disk (engine.py), leadership and the high watermark's progress (replication/partition/partition.py),
         when to flush or delete (log_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

from protocol.errors import ErrorCode, KafkaError
from storage.config.log_config import LogConfig
from storage.engine import Buffer, Engine, EngineFactory, EngineView, SegmentInfo
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import DiskLookup
from storage.io.flush_task import FlushTask
from storage.log.append_pipeline import AppendInfo, PreparedAppend
from storage.log.leader_epoch_cache import UNDEFINED, LeaderEpochCache
from storage.log.log_files import LogFiles
from storage.log.log_offsets import Checkpoint, LogOffsets
from storage.log.log_validator import AppendOrigin, validate_replicated
from storage.log.open_log import OpenLog
from storage.log.producer_state import ProducerState
from storage.log.read_result import Isolation, ReadInfo
from storage.log.recovery import RecoveredLog, open_log
from storage.log.retention import Retention

T = TypeVar("T")


class Log:
    """The log of one partition."""

    __slots__ = (
        "_closed_end_offset", "_closed_epochs", "_disk", "_engine_factory", "_epoch_to_assign", "_is_clean",
        "_is_new", "_offsets", "_open", "_open_error", "_opening", "_recovery_point", "_retention", "config",
        "directory", "files", "first_dirty_offset", "is_being_cleaned", "is_uncleanable", "name", "nothing_to_clean",
        "partition", "topic", "truncation_count",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        engine_factory: EngineFactory,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        checkpoint: Checkpoint = Checkpoint(),  # noqa: B008  # immutable
        is_clean: bool = True,
        topic_id: bytes | None = None,
        is_new: bool = False,
    ) -> None:
        """Create the object; opens no file.

        `is_clean`: whether the log was closed cleanly; `topic_id`: None reads it from the metadata file; `is_new`: whether the
        partition's directory was created just now, so that its entry is not durable and may be missing after a kill.
        """
        self._disk = disk
        self._engine_factory = engine_factory
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.config = config
        is_entry_durable = not is_new and (is_clean or checkpoint.recovery_point > 0)
        self.files = LogFiles(disk, directory, f"{directory}/{self.name}", topic_id, is_entry_durable=is_entry_durable)
        self._is_clean = is_clean
        self._is_new = is_new
        self._recovery_point, log_start_offset, high_watermark, self.first_dirty_offset = checkpoint
        self._offsets = LogOffsets(log_start_offset, high_watermark)
        self._retention = Retention(self.name, self.files, self._offsets)
        self.truncation_count = 0
        """Number of truncations; a full truncation counts."""
        self.is_being_cleaned = self.is_uncleanable = False
        self.nothing_to_clean = False
        """Whether there was nothing to compact when the log was closed."""
        self._epoch_to_assign = UNDEFINED
        self._closed_end_offset = -1
        self._closed_epochs: LeaderEpochCache | None = None  # of a close without sync
        self._opening: DiskLookup | None = None  # runs in a thread
        self._open_error: KafkaError | None = None  # the error of that thread
        self._open: OpenLog | None = None  # None while the log is closed

    def __repr__(self) -> str:
        return f"Log({self.path!r}, {'open' if self.is_open else 'not open'})"

    # ---- state -------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The partition's directory."""
        return self.files.path

    @property
    def is_open(self) -> bool:
        """Whether the log is open (rule 2)."""
        return self._open is not None

    @property
    def is_offline(self) -> bool:
        """Whether the log was deleted or its directory failed."""
        return self.files.is_offline

    @property
    def is_unused(self) -> bool:
        """Whether the log was created just now and never used: it is empty."""
        return self._open is None and self._closed_end_offset < 0 and self._is_new and not self.is_offline

    @property
    def needs_recovery(self) -> bool:
        """Whether opening the log scans it from the recovery point on."""
        return not self._is_clean

    @property
    def is_busy(self) -> bool:
        """Whether the log is unavailable, or file operations are pending."""
        return self.is_unavailable or self.files.has_pending_ops

    @property
    def is_unavailable(self) -> bool:
        """Whether the log is offline, being opened or being compacted."""
        return self.is_offline or self._opening is not None or self.is_being_cleaned

    @property
    def is_closed_unsynced(self) -> bool:
        """Whether the log was closed without a sync, so that its last writes may not be durable."""
        return self._open is None and self._closed_end_offset >= 0

    def update_config(self, config: LogConfig) -> None:
        """Apply new settings from the next append on."""
        self.config = config
        self.nothing_to_clean = False
        self._retention.on_config_changed()
        if self._open is not None:
            self._open.engine.update_config(config)
            self._open.append_pipeline.update_config(config)

    # ---- open --------------------------------------------------------------------------------------------

    def open(self) -> Engine:
        """Open the log, and recover it if necessary; blocks. A no-op when open. Callers only read from the engine.

        Raises:
            KafkaError: the log directory is offline, or the files are invalid.
        """
        return self._require_open().engine

    def opening(self) -> DiskLookup | None:
        """The lookup that opens the log, and recovers it if necessary; None if the log is open.

        Raises:
            KafkaError: the log directory is offline, or the files are invalid.
        """
        return self._open_lookup() if self._open is None else None

    def bytes_to_recover(self) -> int:
        """The number of bytes that opening the log checks; opens no file."""
        if self._is_clean:
            return 0
        engine = _new_engine(self._engine_factory, self.path, self.config, self.first_dirty_offset)
        start_offset = engine.open(self._recovery_point)
        return 0 if start_offset is None else engine.bytes_to_recover(start_offset)

    def _require_open(self) -> OpenLog:
        opened = self._open
        if opened is None:
            assert self._opening is None, f"a thread is opening {self.name}"
            self._check_openable()
            opened = self._set_open(self._open_work()())
        return opened

    def _check_openable(self) -> None:
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.name} is offline")
        refusal, self._open_error = self._open_error, None
        if refusal is not None:
            raise refusal

    def _open_lookup(self) -> DiskLookup:
        self._check_openable()
        if self._opening is None:
            self._opening = DiskLookup(self._open_work(), partial(self._on_opened, self.config))
        return self._opening

    def _open_work(self) -> Callable[[], RecoveredLog]:
        """Self-contained work that opens the files; it may be repeated after a StorageError."""
        return partial(
            open_log,
            self._disk,
            self.path,
            self.name,
            partial(_new_engine, self._engine_factory, self.path, self.config, self.first_dirty_offset),
            recovery_point=None if self._is_clean else self._recovery_point,
            log_start_offset=self._offsets.log_start_offset,
        )

    def _on_opened(self, config: LogConfig, parts: RecoveredLog | KafkaError) -> None:
        self._opening = None
        if isinstance(parts, KafkaError):
            self._open_error = parts
        elif not self.is_offline:
            engine = self._set_open(parts).engine
            if self.config is not config:
                engine.update_config(self.config)

    def _set_open(self, parts: RecoveredLog) -> OpenLog:
        self._offsets.log_start_offset = parts.log_start_offset
        self._open = opened = OpenLog(parts, self.name, self.config, self.files, self._offsets)
        self._is_clean = True
        if parts.deleted_files:
            self.files.deleted_files.append((0, parts.deleted_files))
        self.nothing_to_clean = False
        self.high_watermark = self._offsets.high_watermark
        if self._epoch_to_assign != UNDEFINED:
            opened.epochs.assign(self._epoch_to_assign, opened.engine.end_offset)
            self._epoch_to_assign = UNDEFINED
        return opened

    # ---- close -------------------------------------------------------------------------------------------

    def close(self, *, sync: bool = True) -> None:
        """Close so that the next open needs no recovery.

        With `sync` that includes a loss of power. Without it the caller syncs the whole file system, calls `confirm_flushed`
        and syncs it again.
        """
        opened = self._open
        if opened is None:
            return
        opened.check_idle("a close")
        opened.run_file_ops()
        engine, snapshots = opened.engine, opened.snapshots
        self._closed_end_offset = end_offset = engine.end_offset
        if end_offset and not snapshots.has(end_offset):
            snapshots.write(end_offset, opened.producers.snapshot(), sync=sync)
        if sync:
            opened.flush.flush_all()
            opened.epochs.write()
        else:
            opened.epochs.write_temporary()
        self._recovery_point = end_offset if sync else engine.recovery_point
        engine.close(sync=sync)
        self._closed_epochs = None if sync else opened.epochs
        self._detach(opened)

    def confirm_flushed(self) -> None:
        """Commit a close without sync: its writes are durable, and the temporary epoch file is renamed into place."""
        if self._closed_epochs is not None:
            self._closed_epochs.commit_temporary()
            self._recovery_point = self._closed_end_offset

    def release(self) -> bool:
        """Close an idle log without a sync; it is opened at its next use.

        Returns False if records are unflushed, operations are pending, the disk is full or the log is offline.
        """
        opened, files = self._open, self.files
        if opened is not None:
            if opened.append_pipeline.has_pending or files.has_pending_ops or self.unflushed_messages:
                return False
            if self.recovery_point < opened.engine.segments()[-1].base_offset:
                return False
            epochs = opened.epochs.take_write()
            if epochs is not None:
                files.submit_op(epochs)
            if files.has_pending_ops:
                return False
            try:
                self.close(sync=False)
            except StorageError as error:
                if not error.is_full:
                    raise
                self._closed_end_offset = -1
                opened.defer_file_ops()
                return False
        return not self.is_offline

    def go_offline(self) -> None:
        """Refuse every use and write nothing more."""
        self.files.is_offline = True
        self._opening = None  # breaks a reference cycle with the opened files
        if self._open is not None:
            self._open.append_pipeline.abort_all()
            self._detach(self._open)

    def delete(self) -> None:
        """Drop the data and refuse every use; the caller removes the directory."""
        opened = self._open
        self.go_offline()
        if opened is not None:
            opened.engine.delete()

    def _detach(self, opened: OpenLog) -> None:
        opened.detach()
        self._open = None

    # ---- offsets -----------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first readable offset."""
        if self._open is None:
            self._require_open()
        return self._offsets.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next committed record."""
        opened = self._open
        return (opened if opened is not None else self._require_open()).engine.end_offset

    @property
    def last_stable_offset(self) -> int:
        """All transactions below this offset are decided."""
        return self._require_open().reader.last_stable_offset

    @property
    def high_watermark(self) -> int:
        """The high watermark; the setter limits it to the log's offsets. Opens no file."""
        return self._offsets.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        opened, offsets = self._open, self._offsets
        if opened is not None:
            offset = min(max(offset, offsets.log_start_offset), opened.engine.end_offset)
            opened.producers.on_high_watermark_updated(offset)
        offsets.high_watermark = offset

    @property
    def flushed_end_offset(self) -> int:
        """All records before this offset are durable. Opens no file."""
        opened = self._open
        return opened.engine.flushed_end_offset if opened is not None else self._recovery_point

    @property
    def recovery_point(self) -> int:
        """A recovery after a crash checks all records from this offset on. Opens no file."""
        opened = self._open
        return opened.engine.recovery_point if opened is not None else self._recovery_point

    @property
    def decided_end_offset(self) -> int:
        """Records below this offset are durable, and so are the markers of their transactions."""
        return self._require_open().flush.decided_end_offset

    @property
    def checkpoint(self) -> Checkpoint:
        """The offsets to checkpoint; opens no file."""
        offsets = self._offsets
        return Checkpoint(
            self.recovery_point, offsets.log_start_offset, offsets.high_watermark, self.first_dirty_offset
        )

    @property
    def size_bytes(self) -> int:
        """Size of all published batches."""
        return self.open().size_bytes

    @property
    def producers(self) -> ProducerState:
        """The state of idempotent and transactional producers; read-only for callers."""
        return self._require_open().producers

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
        opened = self._open
        if opened is None:
            return self._open_lookup()
        lookup = opened.engine.prepare_append()
        if lookup is not None:
            return lookup
        return opened.append_pipeline.prepare(records, leader_epoch, wall_ms, origin, self._offsets.log_start_offset)

    def prepare_as_follower(
        self, records: Buffer, *, wall_ms: int, leader_epoch: int = UNDEFINED
    ) -> PreparedAppend | None:
        """Prepare a leader's batches with the offsets that they carry; None if there is nothing to append.

        A truncated last batch is ignored, and so are batches above `leader_epoch`: this replica does not know that leader yet.

        Raises:
            KafkaError: a batch is corrupt, or does not continue this log.
        """
        opened = self._require_open()
        batches = validate_replicated(records, leader_epoch=leader_epoch)
        if not batches:
            return None
        next_offset = opened.append_pipeline.next_offset
        is_empty = self._offsets.log_start_offset == opened.engine.end_offset == next_offset
        if is_empty and batches[0][1].base_offset < next_offset <= batches[-1][1].last_offset:
            self._reset_to(batches[0][1].base_offset)  # the log start offset is inside the leader's batch
        return opened.append_pipeline.prepare_as_follower(records, batches, wall_ms)

    def commit(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        """Make the records readable.

        Raises:
            KafkaError: the append was aborted with an earlier one, or because the log directory went offline.
        """
        if prepared.duplicate is not None:
            return prepared.duplicate
        opened = self._require_open()
        info = opened.append_pipeline.commit(prepared, self._offsets.log_start_offset)
        if opened.flush.unflushed_since_ms < 0:
            opened.flush.unflushed_since_ms = wall_ms
        return info

    def abort(self, prepared: PreparedAppend) -> None:
        """Abort this append and all later ones."""
        if self._open is not None:
            self._open.append_pipeline.abort(prepared)

    # ---- read --------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_batch: bool = True
    ) -> ReadInfo | DiskLookup:
        """The location of the batches from `offset` on, up to the bound of the isolation level; empty at or above the bound.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE below the log start or above the log end.
        """
        opened = self._open
        if opened is None:
            return self._open_lookup()
        return opened.reader.read(offset, max_bytes, isolation, min_one_batch=min_one_batch)

    def read_records(self, offset: int, max_bytes: int) -> Buffer | DiskLookup:
        """Whole batches in memory, at least one, starting with the batch that contains `offset`; empty at the log end.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE.
        """
        opened = self._open
        return opened.reader.read_records(offset, max_bytes) if opened is not None else self._open_lookup()

    def offset_for_timestamp(self, target_ms: int) -> tuple[int, int, int] | DiskLookup | None:
        """(timestamp, offset, leader epoch) of the first record at or after `target_ms`; None if there is none."""
        opened = self._open
        return opened.reader.offset_for_timestamp(target_ms) if opened is not None else self._open_lookup()

    def offset_of_max_timestamp(self) -> tuple[int, int, int] | DiskLookup | None:
        """(timestamp, offset, leader epoch) of the first record with the greatest timestamp; None for an empty log."""
        opened = self._open
        return opened.reader.offset_of_max_timestamp() if opened is not None else self._open_lookup()

    def lookup(self, key: Hashable, find: Callable[[EngineView], T]) -> T | DiskLookup:
        """The result of `find` on a view of the engine, in another thread; `key` identifies the lookup."""
        opened = self._open
        return opened.engine.lookup(key, find) if opened is not None else self._open_lookup()

    # ---- leader epochs -----------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch in this log; -1 if there is none."""
        return self._require_open().epochs.latest

    def assign_epoch(self, epoch: int) -> None:
        """Start a leader epoch at the log end, after the pending appends; opens no file."""
        if self._open is None:
            self._epoch_to_assign = epoch
        else:
            self._open.epochs.assign(epoch, self._open.append_pipeline.next_offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of an offset; -1 if unknown."""
        return self._require_open().epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and its end offset; (-1, -1) if unknown (OffsetForLeaderEpoch)."""
        opened = self._require_open()
        return opened.epochs.end_offset_for(epoch, opened.engine.end_offset)

    # ---- flush -------------------------------------------------------------------------------------------

    @property
    def unflushed_messages(self) -> int:
        """The number of offsets above the flushed end. Opens no file."""
        return self._open.flush.unflushed_messages if self._open is not None else 0

    def is_flush_due(self, wall_ms: int) -> bool:
        """Whether `flush.ms` or `flush.messages` is reached, or a full segment is unflushed."""
        return self._open is not None and self._open.flush.is_due(self.config, wall_ms)

    def sync_work(self, limit: int | None = None) -> FlushTask:
        """The task that flushes the log up to its current end; call `flushed` with the task's end offset after it succeeded.

        `limit`: flush at most this number of segments, oldest first; the task may then be incomplete.
        """
        return self._require_open().flush.begin(limit)

    def flushed(self, end_offset: int) -> None:
        """Record that all before `end_offset` is durable: a flush task with this end offset has succeeded."""
        if self._open is not None:
            self._open.flush.flushed(end_offset)
        else:
            self.files.mark_entry_durable()

    # ---- truncation and retention ------------------------------------------------------------------------

    def truncate(self, offset: int) -> bool:
        """Delete all records from `offset` on; False if there are none. `LogManager.truncate` lowers the checkpoints before."""
        opened, offsets = self._require_open(), self._offsets
        opened.check_idle("a truncation")
        if offset >= opened.engine.end_offset:
            opened.epochs.truncate(opened.engine.end_offset)  # removes an epoch without records
            return False
        if offset < opened.engine.start_offset:
            self.truncate_fully(offset)
            return True
        self.truncation_count += 1
        end_offset = opened.truncate(offset)
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        offsets.log_start_offset = min(offsets.log_start_offset, end_offset)
        self.high_watermark = offsets.high_watermark
        return True

    def truncate_fully(self, offset: int) -> None:
        """Delete all records; the log continues at `offset`."""
        self._require_open().check_idle("a truncation")
        self.files.sync_entry()
        self._reset_to(offset)
        self._offsets.log_start_offset = offset
        self.high_watermark = offset

    def _reset_to(self, offset: int) -> None:
        self.truncation_count += 1
        self.first_dirty_offset = min(self.first_dirty_offset, offset)
        self._require_open().reset(offset)

    def trim(self, log_start_offset: int, wall_ms: int) -> None:
        """Raise the log start offset and delete the segments below it after `file.delete.delay.ms`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE above the high watermark.
        """
        self._retention.trim(self._require_open(), self.config, log_start_offset, wall_ms)

    def retain(self, wall_ms: int) -> bool:
        """Delete the oldest segments by age, size and log start offset; True if a further pass may delete more.

        The active segment is rolled and deleted when all of it has expired. Segments at or above the high watermark stay.
        Pending appends prevent deletion, except on a full disk, where they wait for it; no segment is rolled then.
        """
        return self._retention.retain(self._require_open(), self.config, wall_ms)

    def is_retention_due(self, wall_ms: int) -> bool:
        """Whether `retain` has work; a log that is not open stays closed until its oldest segment can expire."""
        return self._open is not None or self._retention.is_due(self.config, wall_ms)

    def replace(self, segments: Sequence[SegmentInfo], size: int, wall_ms: int, *, has_aborted: bool) -> bool:
        """Replace segments by a compacted one (engine.py); False if the sources no longer exist."""
        deleted_files = self._require_open().replace(segments, size, has_aborted=has_aborted)
        if deleted_files is None:
            return False
        self.files.deleted_files.append((wall_ms + self.config.file_delete_delay_ms, deleted_files))
        return True

    def roll(self, wall_ms: int) -> bool:
        """Start a new segment; False if the active one is empty."""
        return self._require_open().roll(wall_ms)


def _new_engine(factory: EngineFactory, path: str, config: LogConfig, compacted_end: int) -> Engine:
    engine = factory(path, config)
    engine.compacted_end = compacted_end
    return engine


__all__ = ["AppendInfo", "AppendOrigin", "Checkpoint", "Isolation", "Log", "PreparedAppend", "ReadInfo"]

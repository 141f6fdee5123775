"""The log of one partition (Kafka: UnifiedLog): what is known without opening it, and opening and closing it.

RULES    1. Log start offset <= high watermark <= log end offset.
         2. A log is opened, and recovered if necessary, at its first use. Names, settings and checkpointed offsets are
            available before. The open log (`opened`, None while it is closed) has all other methods, in parts.
         3. A caller that must not wait for the disk uses `opened or open_lookup()`: an open log, or the DiskLookup that opens
            it, once for all callers (disk_lookup.py). `open` blocks; so do offsets of a closed log, unless they say otherwise.
         4. The caller guarantees that no append is in progress during a truncation, trim, roll and close. A truncation requires
            that no file operation is pending (deferred_file_ops.py) and no flush is running. While a thread truncates the log
            it is closed; its lookup is the one that opens it again.
         5. After a StorageError the log directory goes offline (`go_offline`); every later use raises
            KAFKA_STORAGE_ERROR.
NOT HERE The open log and its parts (open_log.py), directory and file operations (log_files.py), recovery (recovery.py),
         the layout on disk (engine.py), leadership and the high watermark's progress (replication/partition/partition.py),
         when to flush or delete (log_maintenance.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.errors import ErrorCode, KafkaError
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.engine import Engine, EngineFactory
from storage.io.deferred_file_ops import FileOp, run_now, sequential
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.leader_epoch_cache import UNDEFINED, LeaderEpochCache
from storage.log.log_files import LogFiles
from storage.log.log_flush import flush_recovered
from storage.log.log_offsets import Checkpoint, LogOffsets
from storage.log.log_summary import LogSummary, open_with_summary, stamped, summarize
from storage.log.open_log import OpenLog, Truncation
from storage.log.recovery import RecoveredLog


class Log:
    """The log of one partition."""

    __slots__ = (
        "_closed_end_offset", "_closed_epochs", "_disk", "_engine_factory", "_epoch_to_assign", "_is_clean",
        "_is_new", "_open_error", "_opening", "_summary", "config", "directory", "files", "is_being_cleaned",
        "is_being_replaced", "is_uncleanable", "keep_from", "name", "nothing_to_clean", "offsets", "opened", "partition",
        "retention_due_ms", "topic",
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
        has_directory: bool = True,
        summary: LogSummary | None = None,
    ) -> None:
        """Create the object; opens no file.

        `is_clean`: whether the log was closed cleanly; `summary`: of that close; `topic_id`: None reads it from the metadata
        file; `is_new`: whether the partition's directory was created just now, so that its entry is not durable and may be
        missing after a kill; `has_directory`: whether it has one (log_files.py).
        """
        self._disk = disk
        self._engine_factory = engine_factory
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.config = config
        is_entry_durable = not is_new and checkpoint.recovery_point > 0
        path = f"{directory}/{self.name}"
        self.files = LogFiles(
            disk, directory, path, topic_id, is_entry_durable=is_entry_durable, has_directory=has_directory
        )
        self._is_clean = is_clean
        self._is_new = is_new
        self.offsets = LogOffsets(checkpoint)
        self.retention_due_ms = 0
        """Wall time before which retention need not open the log."""
        self.keep_from = 0
        """Of a schedule topic: retention keeps the records from this offset on, which may not be delivered yet."""
        self.is_being_cleaned = self.is_uncleanable = False
        self.is_being_replaced = False
        """Whether a future replica is about to replace it: no compaction begins."""
        self.nothing_to_clean = False
        """Whether there was nothing to compact when the log was closed."""
        self._epoch_to_assign = UNDEFINED
        self._summary = summary  # of the last close
        self._closed_end_offset = -1
        self._closed_epochs: LeaderEpochCache | None = None  # of a close without sync
        self._opening: DiskLookup | None = None  # runs in a thread
        self._open_error: KafkaError | None = None  # the error of that thread
        self.opened: OpenLog | None = None
        """The open log; None while it is closed (rule 3)."""

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
        return self.opened is not None

    @property
    def is_offline(self) -> bool:
        """Whether the log was deleted or its directory failed."""
        return self.files.is_offline

    @property
    def is_unused(self) -> bool:
        """Whether the log was created just now and never used: it is empty."""
        return self.opened is None and self._closed_end_offset < 0 and self._is_new and not self.is_offline

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
        return self.opened is None and self._closed_end_offset >= 0

    def update_config(self, config: LogConfig) -> None:
        """Apply new settings from the next append on."""
        self.config = config
        self.nothing_to_clean = False
        self.retention_due_ms = 0
        if self.opened is not None:
            self.opened.update_config(config)

    # ---- open --------------------------------------------------------------------------------------------

    def open(self) -> OpenLog:
        """The open log; opens it, and recovers it if necessary, before. That blocks.

        Raises:
            KafkaError: the log directory is offline, or the files are invalid.
        """
        opened = self.opened
        if opened is None:
            assert self._opening is None, f"a thread is opening {self.name}"
            self._check_openable()
            opened = self._set_open(self._open_work()())
        return opened

    def open_lookup(self) -> DiskLookup:
        """The lookup that opens a closed log, and recovers it if necessary.

        Raises:
            KafkaError: the log directory is offline, or the files are invalid.
        """
        self._check_openable()
        if self._opening is None:
            self._opening = DiskLookup(self._open_work(), partial(self._on_opened, self.config))
        return self._opening

    def truncation(
        self, offset: int, lower_checkpoints: FileOp, log_start_offset: int | None = None
    ) -> DiskLookup | None:
        """Begin to truncate an open log; it is closed for others until the lookup has run and finished.

        `lower_checkpoints` runs before; `log_start_offset`: delete all records (`OpenLog.begin_full_truncation`). None if there
        are no records to delete.
        """
        opened = self.opened
        assert opened is not None
        assert not opened.flush.is_running, "a flush may end during a truncation"
        recovery_point = self.recovery_point_within(offset)
        if log_start_offset is None:
            truncation = opened.begin_truncation(offset)
        else:
            truncation = opened.begin_full_truncation(offset, log_start_offset)
        if truncation is None:
            return None
        self.opened = None
        self.offsets.recovery_point = recovery_point
        work = sequential([lower_checkpoints, truncation.run])
        self._opening = DiskLookup(work, partial(self._on_truncated, opened, truncation, self.config))
        return self._opening

    def _on_truncated(
        self, opened: OpenLog, truncation: Truncation, config: LogConfig, error: KafkaError | None
    ) -> None:
        self._opening = None
        if error is not None:  # a batch before the end is invalid: the next use recovers the log
            self._is_clean, self._open_error = False, error
        elif not self.is_offline:
            truncation.finish()
            self._publish(opened)
            if self.config is not config:
                opened.update_config(self.config)

    def cancel_opening(self, lookup: DiskLookup) -> None:
        """If this is the lookup of `open_lookup`, forget it: it has failed and nothing waits for it."""
        if self._opening is lookup:
            self._opening = None

    def bytes_to_recover(self) -> int:
        """The number of bytes that opening the log checks; opens no file."""
        if self._is_clean:
            return 0
        engine = self._new_engine()()
        start_offset = engine.open(self.offsets.recovery_point)
        return 0 if start_offset is None else engine.bytes_to_recover(start_offset)

    def _check_openable(self) -> None:
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.name} is offline")
        refusal, self._open_error = self._open_error, None
        if refusal is not None:
            raise refusal

    def _open_work(self) -> Callable[[], RecoveredLog]:
        """Self-contained work that opens the files; it may be repeated after a StorageError."""
        work = partial(
            open_with_summary,
            self._disk,
            self.path,
            self.name,
            self._new_engine(),
            self._summary,
            recovery_point=None if self._is_clean else self.offsets.recovery_point,
            log_start_offset=self.offsets.log_start_offset,
        )
        is_flushed = not self._is_clean and self.config.flush_messages != MAX_LONG
        return partial(_recover_durably, work, self.files) if is_flushed else work

    def _new_engine(self) -> Callable[[], Engine]:
        return partial(_new_engine, self._engine_factory, self.path, self.config, self.offsets.first_dirty_offset)

    def _on_opened(self, config: LogConfig, parts: RecoveredLog | KafkaError) -> None:
        self._opening = None
        if isinstance(parts, KafkaError):
            self._open_error = parts
        elif not self.is_offline:
            opened = self._set_open(parts)
            if self.config is not config:
                opened.update_config(self.config)

    def _set_open(self, parts: RecoveredLog) -> OpenLog:
        self.offsets.log_start_offset = parts.log_start_offset
        opened = OpenLog(parts, self.name, self.config, self.files, self.offsets)
        self._is_clean = True
        self._summary = None
        if parts.deleted_files:
            self.files.deleted_files.append((0, parts.deleted_files))
        self._publish(opened)
        return opened

    def _publish(self, opened: OpenLog) -> None:
        self.opened = opened
        self.nothing_to_clean = False
        if self._epoch_to_assign != UNDEFINED:
            opened.epochs.assign(self._epoch_to_assign, opened.engine.end_offset)
            self._epoch_to_assign = UNDEFINED

    # ---- close -------------------------------------------------------------------------------------------

    def close(self, *, sync: bool = True) -> None:
        """Close so that the next open needs no recovery.

        With `sync` that includes a loss of power. Without it the caller syncs the whole file system, calls `confirm_flushed`
        and syncs it again.
        """
        opened = self.opened
        if opened is None:
            return
        opened.check_idle("a close")
        opened.set_submit(run_now)
        engine = opened.engine
        self._closed_end_offset = end_offset = engine.end_offset
        opened.write_last_snapshot(sync=sync)
        if sync:
            opened.flush.flush_all()
            opened.epochs.write()
        else:
            opened.epochs.write_temporary()
        self.offsets.recovery_point = end_offset if sync else engine.recovery_point
        engine.close(sync=sync)
        self._closed_epochs = None if sync else opened.epochs
        self._epoch_to_assign = opened.epochs.latest  # if it has no records yet, the next open removes it
        if not self.files.deleted_files:
            self._summary = summarize(engine, opened.epochs, opened.producers, opened.snapshots)
        self._detach()

    def confirm_flushed(self) -> None:
        """Commit a close without sync: its writes are durable, and the temporary epoch file is renamed into place."""
        if self._closed_epochs is not None:
            self._closed_epochs.commit_temporary()
            self.offsets.recovery_point = self._closed_end_offset

    def stamped_summary(self) -> LogSummary | None:
        """The summary of a closed log for the next start, if it has one; everything is durable."""
        if self._summary is not None and not self.is_open:
            self._summary = stamped(self._summary, self._new_engine())
        return self._summary

    def discard_summary(self) -> None:
        """Open the log from its files next time."""
        self._summary = None

    def release(self) -> bool:
        """Close an idle log without a sync; it is opened at its next use.

        Returns False if records are unflushed, operations are pending, the disk is full or the log is offline.
        """
        opened, files = self.opened, self.files
        if opened is not None:
            if opened.appends.has_pending or files.has_pending_ops or opened.flush.unflushed_messages:
                return False
            if self.recovery_point < opened.engine.segments()[-1].base_offset:
                return False
            epochs = opened.epochs.take_write()
            if epochs is not None:
                files.submit_op(epochs)
            try:
                opened.write_last_snapshot(sync=False)
                if files.has_pending_ops:
                    return False
                self.close(sync=False)
            except StorageError as error:
                if not error.is_full:
                    raise
                self._closed_end_offset = -1
                opened.set_submit(files.submit_op)
                return False
        return not self.is_offline

    def go_offline(self) -> None:
        """Refuse every use and write nothing more."""
        self.files.is_offline = True
        self._opening = None  # breaks a reference cycle with the opened files
        if self.opened is not None:
            self.opened.appends.abort_all()
            self._detach()

    def delete(self) -> None:
        """Drop the data and refuse every use; the caller removes the directory."""
        opened = self.opened
        self.go_offline()
        if opened is not None:
            opened.engine.delete()

    def _detach(self) -> None:
        if self.opened is not None:
            self.opened.engine.unregister_files()
            self.opened = None

    # ---- offsets -----------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first readable offset."""
        if self.opened is None:
            self.open()
        return self.offsets.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next committed record."""
        return self.open().engine.end_offset

    @property
    def high_watermark(self) -> int:
        """The high watermark; the setter limits it to the offsets of an open log. Opens no file."""
        return self.offsets.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        if self.opened is not None:
            self.opened.update_high_watermark(offset)
        else:
            self.offsets.high_watermark = offset

    @property
    def flushed_end_offset(self) -> int:
        """All records before this offset are durable. Opens no file."""
        opened = self.opened
        return opened.engine.flushed_end_offset if opened is not None else self.offsets.recovery_point

    @property
    def recovery_point(self) -> int:
        """A recovery after a crash checks all records from this offset on. Opens no file."""
        opened = self.opened
        return opened.engine.recovery_point if opened is not None else self.offsets.recovery_point

    def recovery_point_within(self, end_offset: int) -> int:
        """The recovery point of an open log after a truncation to this offset."""
        bases = [info.base_offset for info in self.open().engine.segments() if info.base_offset <= end_offset]
        return min(self.recovery_point, bases[-1] if bases else 0)

    @property
    def checkpoint(self) -> Checkpoint:
        """The offsets to checkpoint; opens no file."""
        offsets = self.offsets
        return Checkpoint(
            self.recovery_point, offsets.log_start_offset, offsets.high_watermark, offsets.first_dirty_offset
        )

    def assign_epoch(self, epoch: int) -> None:
        """Start a leader epoch at the log end, after the pending appends; opens no file."""
        if self.opened is None:
            self._epoch_to_assign = epoch
        else:
            self.opened.epochs.assign(epoch, self.opened.appends.next_offset)


def _recover_durably(recover: Callable[[], RecoveredLog], files: LogFiles) -> RecoveredLog:
    """Recover a log with `flush.messages` (log_flush.py rule 3)."""
    parts = recover()
    flush_recovered(parts, files)
    return parts


def _new_engine(factory: EngineFactory, path: str, config: LogConfig, compacted_end: int) -> Engine:
    engine = factory(path, config)
    engine.compacted_end = compacted_end
    return engine

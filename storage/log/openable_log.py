"""Open, flush and close of one partition's log.

RULES    1. A log is opened, and recovered if necessary, at its first use. Names, settings and checkpointed offsets are
            available before.
         2. `opening` returns the lookup that opens the log, once for all callers (disk_lookup.py); `open` waits for it.
         3. Deferred file operations are counted until they have run (deferred_file_ops.py).
         4. Only `flushed` advances the recovery point: all records before it, and their leader epochs, are durable.
         5. After a StorageError the log directory goes offline (`go_offline`); every later use raises
            KAFKA_STORAGE_ERROR.
NOT HERE Operations on an open log (log.py), recovery (recovery.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from storage.config.log_config import LogConfig
from storage.engine import Engine, EngineFactory
from storage.io.checkpoint_file import PARTITION_METADATA, CorruptCheckpoint, read_topic_id, write_topic_id
from storage.io.deferred_file_ops import UNMONITORED, FileOp, Submit, run_now
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import DiskLookup
from storage.io.flush_task import SEGMENTS_AT_A_TIME, FlushTask
from storage.io.path_guard import UNGUARDED
from storage.log.append_pipeline import AppendPipeline
from storage.log.async_lookup import AsyncLookups
from storage.log.leader_epoch_cache import UNDEFINED, LeaderEpochCache
from storage.log.producer_snapshots import ProducerSnapshots
from storage.log.producer_state import ProducerState
from storage.log.recovery import OpenedLog, open_log

NEVER_CLEANED: Final = -1

_log = logging.getLogger("barnabas.storage")


class Checkpoint(NamedTuple):
    """The checkpointed offsets of a log, known before it is opened."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    first_dirty_offset: int = NEVER_CLEANED
    """The start of the next compaction."""


class OpenableLog:
    """A log's files, names and settings; `Log` adds the operations."""

    __slots__ = (
        "_append_pipeline", "_async_lookups", "_closed_end_offset", "_decided_end_after_flush", "_disk", "_engine",
        "_engine_factory", "_epoch_to_assign", "_epochs", "_high_watermark", "_is_clean", "_is_entry_durable",
        "_is_new", "_log_start_offset", "_open_error", "_opening", "_pending_file_ops", "_producers",
        "_recovery_point", "_retention_due_ms", "_snapshots", "_topic_id", "_unflushed_since_ms", "config",
        "decided_end_offset", "deleted_files", "directory", "disk_space", "first_dirty_offset", "is_being_cleaned",
        "is_offline", "is_uncleanable", "name", "nothing_to_clean", "partition", "path", "path_guard", "submit",
        "topic", "truncation_count",
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
        self.path = f"{directory}/{self.name}"
        self.config = config
        self.is_offline = False
        self.submit: Submit = run_now
        """Runs a deferrable file operation: at once unless replaced (deferred_file_ops.py)."""
        self.disk_space = UNMONITORED  # of the log directory
        self.path_guard = UNGUARDED
        """Registers the users of the log's paths in other threads."""
        self._pending_file_ops: set[object] = set()  # one for each operation that was submitted and has not run
        self.deleted_files: list[tuple[int, list[str]]] = []
        """(time of deletion in wall milliseconds, paths) of files that are no longer used."""
        self._topic_id = topic_id
        self._is_clean = is_clean
        self._is_new = is_new
        self._is_entry_durable = not is_new and (is_clean or checkpoint.recovery_point > 0)
        self._recovery_point, self._log_start_offset, self._high_watermark, self.first_dirty_offset = checkpoint
        self.truncation_count = 0
        """Number of truncations; a full truncation counts."""
        self.decided_end_offset = 0
        """Records below this offset are durable, and so are the markers of their transactions."""
        # By end offset of a pending flush: `decided_end_offset` after it.
        self._decided_end_after_flush: dict[int, int] = {}
        self.is_being_cleaned = self.is_uncleanable = False
        self.nothing_to_clean = False
        """Whether there was nothing to compact when the log was closed."""
        self._epoch_to_assign = UNDEFINED
        self._unflushed_since_ms = self._closed_end_offset = -1
        self._retention_due_ms = 0
        self._opening: DiskLookup | None = None  # runs in a thread
        self._open_error: KafkaError | None = None  # the error of that thread
        self._async_lookups: AsyncLookups | None = None  # lookups in other threads
        # The parts of an open log; `_engine` is None while the log is closed.
        self._engine: Engine | None = None
        self._append_pipeline: AppendPipeline
        self._epochs: LeaderEpochCache
        self._producers: ProducerState
        self._snapshots: ProducerSnapshots

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {'open' if self._engine is not None else 'not open'})"

    # ---- open and close ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the log is open (rule 1)."""
        return self._engine is not None

    @property
    def is_unused(self) -> bool:
        """Whether the log was created just now and never used: it is empty."""
        is_closed = self._engine is None and self._closed_end_offset < 0
        return is_closed and self._is_new and not self.is_offline

    @property
    def needs_recovery(self) -> bool:
        """Whether opening the log scans it from the recovery point on."""
        return not self._is_clean

    @property
    def cached_topic_id(self) -> bytes | None:
        """The topic id if it was read before; opens no file."""
        return self._topic_id

    @property
    def topic_id(self) -> bytes | None:
        """The topic id; None if the partition's metadata file is missing or incomplete."""
        if self._topic_id is None:
            try:
                self._topic_id = read_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}")
            except CorruptCheckpoint as error:
                _log.warning("%s Treating the log as that of the topic with its name", error)
        return self._topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Write the topic id to the partition's metadata file."""
        write_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}", topic_id)
        self._topic_id = topic_id

    def bytes_to_recover(self) -> int:
        """The number of bytes that opening the log checks; opens no file."""
        if self._is_clean:
            return 0
        engine = _new_engine(self._engine_factory, self.path, self.config, self.first_dirty_offset)
        start_offset = engine.open(self._recovery_point)
        return 0 if start_offset is None else engine.bytes_to_recover(start_offset)

    def open(self) -> Engine:
        """Open the log, and recover it if necessary; blocks. A no-op when open. Callers only read from the engine.

        Raises:
            KafkaError: the log directory is offline, or the files are invalid.
        """
        engine = self._engine
        if engine is None:
            assert self._opening is None, f"a thread is opening {self.name}"
            self._check_openable()
            engine = self._set_parts(self._open_work()())
        return engine

    def opening(self) -> DiskLookup | None:
        """The lookup that opens the log, and recovers it if necessary; None if the log is open.

        Raises:
            KafkaError: the log directory is offline, or the files are invalid.
        """
        return self._open_lookup() if self._engine is None else None

    def _check_openable(self) -> None:
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.name} is offline")
        refusal, self._open_error = self._open_error, None
        if refusal is not None:
            raise refusal

    def _open_lookup(self) -> DiskLookup:
        self._check_openable()
        if self._opening is None:
            self._opening = DiskLookup(self._open_work(), partial(self._opened, self.config))
        return self._opening

    def _open_work(self) -> Callable[[], OpenedLog]:
        """Self-contained work that opens the files; it may be repeated after a StorageError."""
        return partial(
            open_log,
            self._disk,
            self.path,
            self.name,
            partial(_new_engine, self._engine_factory, self.path, self.config, self.first_dirty_offset),
            recovery_point=None if self._is_clean else self._recovery_point,
            log_start_offset=self._log_start_offset,
        )

    def _opened(self, config: LogConfig, parts: OpenedLog | KafkaError) -> None:
        self._opening = None
        if isinstance(parts, KafkaError):
            self._open_error = parts
        elif not self.is_offline:
            engine = self._set_parts(parts)
            if self.config is not config:
                engine.update_config(self.config)

    def _set_parts(self, parts: OpenedLog) -> Engine:
        engine, self._epochs, self._producers, self._snapshots, self._log_start_offset, deleted_files = parts
        self._append_pipeline = AppendPipeline(self.name, parts, self.config)
        self.decided_end_offset = self._first_undecided(engine) if engine.flushed_end_offset == engine.end_offset else 0
        self._decided_end_after_flush = {}
        self._engine = engine
        engine.submit = self._snapshots.submit = self.submit_file_op
        self._is_clean = True
        if deleted_files:
            self.deleted_files.append((0, deleted_files))
        engine.register_files()
        self.nothing_to_clean = False
        self.high_watermark = self._high_watermark
        if self._epoch_to_assign != UNDEFINED:
            self._epochs.assign(self._epoch_to_assign, engine.end_offset)
            self._epoch_to_assign = UNDEFINED
        return engine

    def _first_undecided(self, engine: Engine) -> int:
        undecided = self._producers.first_undecided_offset
        return engine.end_offset if undecided is None else undecided

    @property
    def is_busy(self) -> bool:
        """Whether the log is unavailable, or file operations are pending."""
        return self.is_unavailable or self.has_pending_file_ops

    @property
    def is_unavailable(self) -> bool:
        """Whether the log is offline, being opened or being compacted."""
        return self.is_offline or self._opening is not None or self.is_being_cleaned

    @property
    def has_pending_file_ops(self) -> bool:
        """Whether submitted file operations have not run yet."""
        return bool(self._pending_file_ops)

    def submit_file_op(self, op: FileOp, submit: Submit | None = None) -> None:
        """Run or queue an operation on the log's files (deferred_file_ops.py)."""
        pending = object()
        self._pending_file_ops.add(pending)
        (submit or self.submit)(partial(self._run_file_op, op, pending))

    def run_guarded(self, work: FileOp) -> None:
        """Run work that addresses the log's files by path, in any thread; does nothing for an offline or deleted log."""
        self.path_guard.run(self, work)

    def _run_file_op(self, op: FileOp, pending: object) -> None:
        try:
            self.run_guarded(op)
        except StorageError as error:
            if not self.is_offline:  # else the directory has failed, or the log was deleted
                if not error.is_full:  # else the operation is retried
                    self._pending_file_ops.discard(pending)
                raise
        self._pending_file_ops.discard(pending)

    def close(self, *, sync: bool = True) -> None:
        """Close so that the next open needs no recovery.

        With `sync` that includes a loss of power. Without it the caller syncs the whole file system, calls `confirm_flushed`
        and syncs it again.
        """
        engine = self._engine
        if engine is None:
            return
        assert not self._append_pipeline.has_pending, "no append is pending during a close"
        assert not self._pending_file_ops, "no file operation is pending during a close"
        engine.submit = self._snapshots.submit = run_now
        self._closed_end_offset = end_offset = engine.end_offset
        if end_offset and not self._snapshots.has(end_offset):
            self._snapshots.write(end_offset, self._producers.snapshot(), sync=sync)
        if sync:
            self._sync_all()
            self._epochs.write()
        else:
            self._epochs.write_temporary()
        self._recovery_point = end_offset if sync else engine.recovery_point
        engine.close(sync=sync)
        self._detach_engine()

    def _sync_all(self) -> None:
        """Flush the log, a few segments at a time."""
        is_complete = False
        while not is_complete:
            work = self.sync_work(SEGMENTS_AT_A_TIME)
            work()
            self.flushed(work.end_offset)
            is_complete = work.is_complete

    @property
    def is_closed_unsynced(self) -> bool:
        """Whether the log was closed without a sync, so that its last writes may not be durable."""
        return self._engine is None and self._closed_end_offset >= 0

    def confirm_flushed(self) -> None:
        """Commit a close without sync: its writes are durable, and the temporary epoch file is renamed into place."""
        if self._closed_end_offset >= 0:
            self._epochs.commit_temporary()
            self._recovery_point = self._closed_end_offset

    def release(self) -> bool:
        """Close an idle log without a sync; it is opened at its next use.

        Returns False if records are unflushed, operations are pending, the disk is full or the log is offline.
        """
        if self._engine is not None:
            if self._append_pipeline.has_pending or self._pending_file_ops or self.unflushed_messages:
                return False
            if self.recovery_point < self._engine.segments()[-1].base_offset:
                return False
            epochs = self._epochs.take_write()
            if epochs is not None:
                self.submit_file_op(epochs)
            if self._pending_file_ops:
                return False
            try:
                self.close(sync=False)
            except StorageError as error:
                if not error.is_full:
                    raise
                self._closed_end_offset = -1
                self._engine.submit = self._snapshots.submit = self.submit_file_op
                return False
        return not self.is_offline

    def go_offline(self) -> None:
        """Refuse every use and write nothing more."""
        self.is_offline = True
        self._opening = None  # breaks a reference cycle with the opened files
        if self._engine is not None:
            self._append_pipeline.abort_all()
            self._detach_engine()

    def _detach_engine(self) -> None:
        if self._engine is not None:
            self._engine.submit = self._snapshots.submit = run_now  # breaks a reference cycle
            self._engine.unregister_files()
            self._engine = None
        self._cancel_lookups()
        self._async_lookups = None

    def _cancel_lookups(self) -> None:
        if self._async_lookups is not None:
            self._async_lookups.cancel()

    def delete(self) -> None:
        """Drop the data and refuse every use; the caller removes the directory."""
        engine = self._engine
        self.go_offline()
        if engine is not None:
            engine.delete()

    def update_config(self, config: LogConfig) -> None:
        """Apply new settings from the next append on."""
        self.config = config
        self.nothing_to_clean = False
        self._retention_due_ms = 0
        if self._engine is not None:
            self._engine.update_config(config)
            self._append_pipeline.update_config(config)

    # ---- offsets that need no open log -------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The high watermark; the setter limits it to the log's offsets."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        engine = self._engine
        if engine is not None:
            offset = min(max(offset, self._log_start_offset), engine.end_offset)
            self._producers.on_high_watermark_updated(offset)
        self._high_watermark = offset

    @property
    def flushed_end_offset(self) -> int:
        """All records before this offset are durable."""
        engine = self._engine
        return engine.flushed_end_offset if engine is not None else self._recovery_point

    @property
    def recovery_point(self) -> int:
        """A recovery after a crash checks all records from this offset on."""
        engine = self._engine
        return engine.recovery_point if engine is not None else self._recovery_point

    @property
    def checkpoint(self) -> Checkpoint:
        """The offsets to checkpoint; opens no file."""
        return Checkpoint(self.recovery_point, self._log_start_offset, self._high_watermark, self.first_dirty_offset)

    # ---- flush -------------------------------------------------------------------------------------------

    @property
    def unflushed_messages(self) -> int:
        """The number of offsets above the flushed end."""
        engine = self._engine
        return engine.end_offset - engine.flushed_end_offset if engine is not None else 0

    def is_flush_due(self, wall_ms: int) -> bool:
        """Whether `flush.ms` or `flush.messages` is reached, or a full segment is unflushed."""
        if self._engine is None or self._unflushed_since_ms < 0:
            return False
        config = self.config
        return (
            self._append_pipeline.has_rolled
            or wall_ms - self._unflushed_since_ms >= config.flush_ms
            or self.unflushed_messages >= config.flush_messages
        )

    def sync_work(self, limit: int | None = None) -> FlushTask:
        """The task that flushes the log up to its current end; call `flushed` with the task's end offset after it succeeded.

        `limit`: flush at most this number of segments, oldest first; the task may then be incomplete.
        """
        engine = self.open()
        snapshots, epochs = self._snapshots.collect_sync(limit), self._epochs.take_replacement()
        end_offset, files, is_complete = engine.collect_sync(limit)
        is_complete = is_complete and self._snapshots.all_synced
        if end_offset == engine.end_offset:  # else a marker for an earlier transaction may be above the end
            self._decided_end_after_flush[end_offset] = self._first_undecided(engine)
        if is_complete:  # else a further flush is due
            self._append_pipeline.has_rolled = False
            self._unflushed_since_ms = -1
        work = self._new_flush_task(files, snapshots, epochs)
        work.end_offset, work.is_complete = end_offset, is_complete
        return work

    def _new_flush_task(
        self, files: Sequence[File] = (), snapshots: Sequence[File] = (), epochs: Sequence[tuple[str, bytes]] = ()
    ) -> FlushTask:
        """A task that syncs these files, and the partition's directory entry and metadata until they are durable."""
        directories, written = [self.path] if snapshots or epochs else [], []
        if not self._is_entry_durable:
            directories, written = [self.path, self.directory], [f"{self.path}/{PARTITION_METADATA}"]
        # A failure does not count after the directory failed or the log was deleted.
        is_in_service = lambda: not self.is_offline  # noqa: E731
        return FlushTask(
            self._disk,
            [*files, *snapshots],
            is_in_service,
            replacements=epochs,
            written=written,
            directories=directories,
            run_guarded=self.run_guarded,
        )

    def _sync_directory_entry(self) -> None:
        """Make the partition's directory entry durable."""
        if not self._is_entry_durable:
            self._new_flush_task()()
            self._is_entry_durable = True

    def flushed(self, end_offset: int) -> None:
        """Record that all before `end_offset` is durable: a flush task with this end offset has succeeded."""
        self._is_entry_durable = True
        if self._engine is not None:
            self._engine.mark_flushed(end_offset)
            self.decided_end_offset = max(self.decided_end_offset, self._decided_end_after_flush.pop(end_offset, 0))


def _new_engine(factory: EngineFactory, path: str, config: LogConfig, compacted_end: int) -> Engine:
    engine = factory(path, config)
    engine.compacted_end = compacted_end
    return engine

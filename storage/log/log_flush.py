"""What of an open log is durable, and the tasks that flush the rest.

RULES    1. A flush is due by `flush.ms` or `flush.messages`, and after a segment is full.
         2. Only `complete` advances the recovery point: all records before it, and their leader epochs, are durable.
         3. With `flush.messages`, what a recovery keeps is made durable before the log is used: it counts at once, so that a
            leader has its high watermark.
NOT HERE The files of a segment (segments/durability.py), running a task (flush_task.py), when to flush (log_maintenance.py).
"""

from __future__ import annotations

from storage.config.log_config import LogConfig
from storage.engine import Engine
from storage.io.flush_task import SEGMENTS_AT_A_TIME, FlushTask
from storage.log.append_pipeline import AppendPipeline
from storage.log.leader_epoch_cache import LeaderEpochCache
from storage.log.log_files import LogFiles
from storage.log.log_offsets import LogOffsets
from storage.log.producer_snapshots import ProducerSnapshots
from storage.log.recovery import RecoveredLog

SharedFlush = tuple[int, int]
"""A flush of one log by the sync of a shared log: its end offset and `LogOffsets.truncation_count` when it began."""


class LogFlush:
    """The durability of one open log."""

    __slots__ = (
        "_appends", "_begun", "_begun_shared", "_engine", "_epochs", "_files", "_offsets", "_producers", "_snapshots",
        "decided_end_offset",
    )  # fmt: skip

    def __init__(self, parts: RecoveredLog, appends: AppendPipeline, files: LogFiles, offsets: LogOffsets) -> None:
        self._engine, self._epochs, self._producers, self._snapshots, *_ = parts
        self._appends = appends
        self._files = files
        self._offsets = offsets
        is_durable = self._engine.flushed_end_offset == self._engine.end_offset
        self.decided_end_offset = self._first_undecided() if is_durable else 0
        """Records below this offset are durable, and so are the markers of their transactions.

        Flushes by the sync of a shared log do not raise it: only compaction needs it, and compacted logs share no log.
        """
        # The flushes that have not succeeded yet: end offset, and `decided_end_offset` after it. Nearly all logs have none.
        self._begun: tuple[tuple[int, int], ...] = ()
        self._begun_shared = 0  # the number of those by the sync of a shared log

    def _first_undecided(self) -> int:
        undecided = self._producers.first_undecided_offset
        return self._engine.end_offset if undecided is None else undecided

    @property
    def is_running(self) -> bool:
        """Whether a flush was begun and has not succeeded yet."""
        return self._begun_shared > 0 or bool(self._begun)

    @property
    def unflushed_messages(self) -> int:
        """The number of offsets above the flushed end."""
        return self._engine.end_offset - self._engine.flushed_end_offset

    def is_due(self, config: LogConfig, wall_ms: int) -> bool:
        """Whether `flush.ms` or `flush.messages` is reached, or a full segment is unflushed."""
        since_ms = self._appends.unflushed_since_ms
        return since_ms >= 0 and (
            self._appends.has_rolled
            or wall_ms - since_ms >= config.flush_ms
            or self.unflushed_messages >= config.flush_messages
        )

    def begin_shared(self) -> SharedFlush | None:
        """Begin a flush up to the current end by `SharedLog.begin_round`; None if it would have to sync other files too."""
        if not (self._files.is_entry_durable and self._snapshots.all_synced and self._epochs.is_up_to_date):
            return None
        appends = self._appends
        appends.has_rolled = False
        appends.unflushed_since_ms = -1
        self._begun_shared += 1
        return self._engine.end_offset, self._offsets.truncation_count

    def complete_shared(self, flush: SharedFlush) -> None:
        """A flush of `begin_shared` has succeeded; it does not count if the log was truncated meanwhile."""
        end_offset, truncation_count = flush
        self._begun_shared -= 1
        if truncation_count == self._offsets.truncation_count:
            self._engine.mark_shared_flushed(end_offset)

    def begin(self, limit: int | None = None) -> FlushTask:
        """The task that flushes the log up to its current end; call `complete` with its end offset after it succeeded.

        `limit`: flush at most this number of segments, oldest first; the task may then be incomplete.
        """
        task = _flush_task(self._engine, self._epochs, self._snapshots, self._files, limit)
        decided = 0  # of a limited flush: the marker of an earlier transaction may be above its end
        if task.end_offset == self._engine.end_offset:
            decided = self._first_undecided()
        self._begun = (*self._begun, (task.end_offset, decided))
        if task.is_complete:  # else a further flush is due
            self._appends.has_rolled = False
            self._appends.unflushed_since_ms = -1
        return task

    def complete(self, end_offset: int) -> None:
        """Record that a task with this end offset has succeeded: all records before it are durable."""
        self._files.is_entry_durable = True
        self._engine.mark_flushed(end_offset)
        begun = self._begun
        index = [end for end, _ in begun].index(end_offset)  # the oldest one with this end offset
        self._begun = begun[:index] + begun[index + 1 :]
        self.decided_end_offset = max(self.decided_end_offset, begun[index][1])

    def flush_all(self) -> None:
        """Flush the log now, a few segments at a time; blocks."""
        is_complete = False
        while not is_complete:
            task = self.begin(SEGMENTS_AT_A_TIME)
            task()
            self.complete(task.end_offset)
            is_complete = task.is_complete

    def truncate(self, end_offset: int) -> None:
        """The log ends at `end_offset` now."""
        self.decided_end_offset = min(self.decided_end_offset, end_offset)
        self._begun = tuple([(end, min(decided, end_offset)) for end, decided in self._begun])


def flush_recovered(parts: RecoveredLog, files: LogFiles) -> None:
    """Make all of a log durable that was recovered and is not used yet (rule 3); blocks.

    Raises:
        StorageError: the disk failed or is full.
    """
    engine = parts.engine
    is_complete = engine.flushed_end_offset == engine.end_offset
    while not is_complete:
        task = _flush_task(engine, parts.epochs, parts.snapshots, files, SEGMENTS_AT_A_TIME)
        task()
        files.is_entry_durable = True
        engine.mark_flushed(task.end_offset)
        is_complete = task.is_complete


def _flush_task(
    engine: Engine, epochs: LeaderEpochCache, snapshots: ProducerSnapshots, files: LogFiles, limit: int | None
) -> FlushTask:
    snapshot_files, replacements = snapshots.collect_sync(limit), epochs.take_replacement()
    end_offset, segment_files, is_complete = engine.collect_sync(limit)
    task = files.flush_task(segment_files, snapshot_files, replacements)
    task.end_offset, task.is_complete = end_offset, is_complete and snapshots.all_synced
    return task

"""Flushes of partitions: those of a shared log are one task for all that wait when the round of their directory begins.

RULES    1. All partitions of a log directory share its flush rounds (group commit): a round covers what is committed when it
            begins, the next round covers the rest.
         2. A partition joins the flush of its shared log. If a flush of it must sync other files too when the round begins
            (`LogFlush.begin_shared`), it is flushed alone in the next one.
         3. The first partition submits the task, the others join it: no limit of a round applies to their number.
         4. A partition is durable up to its end when the round began.
NOT HERE When a partition is flushed (partition.py, follower_log.py), rounds (group_commit.py).
"""

from __future__ import annotations

from collections.abc import Callable

from replication.cooperative_tasks import no_op
from replication.io_executor import IoExecutor, IoResult, Run
from replication.partition.partition import Partition
from storage.engine import SharedLog
from storage.io.disk import StorageError
from storage.io.flush_task import SEGMENTS_AT_A_TIME, FlushTask
from storage.log.log_flush import LogFlush, SharedFlush

OnFlushed = Callable[[Partition, StorageError | None], None]


class Flushes:
    """The flushes of one broker's partitions, and those of shared logs that wait for their round."""

    __slots__ = ("_directory_failed", "_executor", "_on_synced", "_waiting")

    def __init__(self, executor: IoExecutor, directory_failed: Callable[[str, StorageError], None]) -> None:
        """`directory_failed` is called with a log directory whose disk failed."""
        self._executor = executor
        self._directory_failed = directory_failed
        self._on_synced: OnFlushed = self._on_flushed  # one bound method for all
        self._waiting: dict[SharedLog, _Round] = {}

    def sync(self, partition: Partition) -> None:
        """Flush a partition's log in the next round of its directory (rule 1).

        A round flushes a limited number of segments: if more are unflushed, another round follows.
        """
        if partition.is_syncing or partition.is_offline:
            return
        partition.is_syncing = True
        self.flush(partition, self._on_synced)

    def _on_flushed(self, partition: Partition, error: StorageError | None) -> None:
        partition.is_syncing = False
        if error is not None:
            self._directory_failed(partition.log.directory, error)
        if not partition.is_offline:
            partition.update_durable_end_offset()  # starts the next sync if enough was appended since

    def flush(self, partition: Partition, on_flushed: OnFlushed) -> None:
        """Flush a log in the next round of its directory, up to its end when that begins; then call `on_flushed`."""
        log = partition.log
        opened = log.opened
        shared_log = None if opened is None else opened.engine.shared_log
        if shared_log is None:
            self._flush_alone(partition, on_flushed)
            return
        waiting = self._waiting.get(shared_log)
        if waiting is not None:
            waiting.partitions.append((partition, on_flushed))
            self._executor.join_sync(log.directory)
            return
        waiting = self._waiting[shared_log] = _Round(shared_log, self._begin)
        waiting.partitions.append((partition, on_flushed))
        self._executor.sync(log.directory, waiting.begin).then(waiting.on_synced)

    def _flush_alone(self, partition: Partition, on_flushed: OnFlushed) -> None:
        log = partition.log
        flush: LogFlush | None = None
        end_offset = 0

        def begin() -> Run:
            nonlocal flush, end_offset
            if log.opened is None:  # deleted, or its directory failed, before the round began
                return no_op
            try:
                task = log.opened.flush.begin(SEGMENTS_AT_A_TIME)
            except StorageError as error:
                self._directory_failed(log.directory, error)
                return no_op
            flush, end_offset = log.opened.flush, task.end_offset
            return task

        def on_synced(synced: IoResult) -> None:
            if synced.value is None and flush is not None and not partition.is_offline:
                flush.complete(end_offset)
            on_flushed(partition, synced.value)

        self._executor.sync(log.directory, begin).then(on_synced)

    def _begin(self, waiting: _Round) -> Run:
        del self._waiting[waiting.shared_log]
        begun = waiting.begun
        for partition, on_flushed in waiting.partitions:
            opened = partition.log.opened
            if opened is not None and (flush := opened.flush.begin_shared()) is not None:
                begun.append((partition, on_flushed, opened.flush, flush))
            else:
                self._flush_alone(partition, on_flushed)
        if not begun:
            return no_op
        waiting.task = waiting.shared_log.begin_round()
        return waiting.task


class _Round:
    """The flush of a shared log in one round; the next one may begin before its result is reported."""

    __slots__ = ("_begin", "begun", "partitions", "shared_log", "task")

    def __init__(self, shared_log: SharedLog, begin: Callable[[_Round], Run]) -> None:
        self.shared_log = shared_log
        self._begin = begin
        self.partitions: list[tuple[Partition, OnFlushed]] = []
        self.begun: list[tuple[Partition, OnFlushed, LogFlush, SharedFlush]] = []
        self.task: FlushTask | None = None

    def begin(self) -> Run:
        return self._begin(self)

    def on_synced(self, synced: IoResult) -> None:
        error = synced.value
        if error is None and self.task is not None:
            self.shared_log.end_round(self.task)
        for partition, on_flushed, log_flush, flush in self.begun:
            if error is None and not partition.is_offline:
                log_flush.complete_shared(flush)
            on_flushed(partition, error)

"""Flushes of partitions: those of a shared log are one task for all that wait when the round of their directory begins.

RULES    1. All partitions of a log directory share its flush rounds (group commit): a round covers what is committed when it
            begins, the next round covers the rest.
         2. A partition joins the flush of its shared log if a flush syncs nothing else (`LogFlush.is_shared`). If that has
            changed when the round begins, it is flushed alone.
         3. The first partition submits the task, the others join it: no limit of a round applies to their number.
         4. A partition is durable up to its end when the round began.
NOT HERE When a partition is flushed (partition.py, follower_log.py), rounds (group_commit.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from replication.cooperative_tasks import no_op
from replication.io_executor import IoExecutor, IoResult, Run
from replication.partition.partition import Partition
from storage.engine import SharedLog
from storage.io.disk import StorageError
from storage.io.flush_task import SEGMENTS_AT_A_TIME
from storage.log.log_flush import LogFlush

OnFlushed = Callable[[Partition, StorageError | None], None]


class Flushes:
    """The flushes of one broker's partitions, and those of shared logs that wait for their round."""

    __slots__ = ("_directory_failed", "_executor", "_waiting")

    def __init__(self, executor: IoExecutor, directory_failed: Callable[[str, StorageError], None]) -> None:
        """`directory_failed` is called with a log directory whose disk failed."""
        self._executor = executor
        self._directory_failed = directory_failed
        self._waiting: dict[SharedLog, _SharedFlush] = {}

    def sync(self, partition: Partition) -> None:
        """Flush a partition's log in the next round of its directory (rule 1).

        A round flushes a limited number of segments: if more are unflushed, another round follows.
        """
        if partition.is_syncing or partition.is_offline:
            return
        partition.is_syncing = True
        self.flush(partition, self._on_flushed)

    def _on_flushed(self, partition: Partition, error: StorageError | None) -> None:
        partition.is_syncing = False
        if error is not None:
            self._directory_failed(partition.log.directory, error)
        if not partition.is_offline:
            partition.update_durable_end_offset()  # starts the next sync if enough was appended since

    def flush(self, partition: Partition, on_flushed: OnFlushed) -> None:
        """Flush a log in the next round of its directory, up to its end when that begins; then call `on_flushed`."""
        log = partition.log
        if log.opened is not None and log.opened.flush.is_shared:
            shared_log = log.opened.engine.shared_log
            assert shared_log is not None
            self._join(shared_log, partition, on_flushed)
        else:
            self._flush_alone(partition, on_flushed)

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

    def _join(self, shared_log: SharedLog, partition: Partition, on_flushed: OnFlushed) -> None:
        waiting, directory = self._waiting.get(shared_log), partition.log.directory
        if waiting is not None:
            waiting.partitions.append((partition, on_flushed))
            self._executor.join_sync(directory)
            return
        flush = self._waiting[shared_log] = _SharedFlush()
        flush.partitions.append((partition, on_flushed))
        self._executor.sync(directory, partial(self._begin, shared_log)).then(flush.on_synced)

    def _begin(self, shared_log: SharedLog) -> Run:
        flush = self._waiting.pop(shared_log)
        for partition, on_flushed in flush.partitions:
            opened = partition.log.opened
            if opened is None or not opened.flush.is_shared:
                self._flush_alone(partition, on_flushed)
            else:
                flush.begun.append((partition, on_flushed, opened.flush, opened.flush.begin_shared()))
        return shared_log.begin_round() if flush.begun else no_op


class _SharedFlush:
    """One flush; the next one may begin before its result is reported."""

    __slots__ = ("begun", "partitions")

    def __init__(self) -> None:
        self.partitions: list[tuple[Partition, OnFlushed]] = []
        self.begun: list[tuple[Partition, OnFlushed, LogFlush, int]] = []

    def on_synced(self, synced: IoResult) -> None:
        for partition, on_flushed, flush, end_offset in self.begun:
            if synced.value is None and not partition.is_offline:
                flush.complete(end_offset)
            on_flushed(partition, synced.value)

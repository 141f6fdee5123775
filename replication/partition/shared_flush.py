"""Flushes of the partitions of a shared log: one task for all that wait when the round of their directory begins.

RULES    1. A partition joins if a flush syncs nothing but the shared log (`LogFlush.is_shared`). If that has changed when
            the round begins, it is flushed alone.
         2. The first partition submits the task, the others join it: no limit of a round applies to their number.
         3. A partition is durable up to its end when the round began.
NOT HERE When a partition is flushed, and what follows (replica_manager.py, follower_log.py), rounds (group_commit.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from replication.cooperative_tasks import no_op
from replication.io_executor import IoExecutor, IoResult, Run
from replication.partition.partition import Partition
from storage.engine import SharedLog
from storage.io.disk import StorageError
from storage.log.log_flush import LogFlush

OnFlushed = Callable[[Partition, StorageError | None], None]


class SharedFlushes:
    """The flushes of shared logs that wait for their round."""

    __slots__ = ("_executor", "_flush_alone", "_waiting")

    def __init__(self, executor: IoExecutor, flush_alone: Callable[[Partition, OnFlushed], None]) -> None:
        """`flush_alone` flushes a partition whose other files have changed meanwhile."""
        self._executor = executor
        self._flush_alone = flush_alone
        self._waiting: dict[SharedLog, _SharedFlush] = {}

    def join(self, shared_log: SharedLog, partition: Partition, on_flushed: OnFlushed) -> None:
        """Flush a partition's log, which is open, in the next round of its directory; then call `on_flushed`."""
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
        return shared_log.flush_task() if flush.begun else no_op


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

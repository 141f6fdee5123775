"""One partition's part in a round of syncs.

RULES    1. What is to be synced is asked for when the round begins: so it covers what was committed until then.
         2. Up to where the log ended at that moment it is durable when the round has succeeded, unless many segments wait:
            then some of them are, and the log is due again. A failure is its log
            directory's, whatever was asked for.
NOT HERE Who wants a sync (`partition.py`), rounds (`broker/io/group_commit.py`), what is synced (`storage/io/flush_task.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from replication.io_executor import Run
from replication.partition.partition import Partition
from storage.io.disk import StorageError
from storage.io.flush_task import SEGMENTS_AT_A_TIME


class PartitionSync:
    """From the wish to the end of the round."""

    __slots__ = ("_end_offset", "_fail", "_partition")

    def __init__(self, partition: Partition, fail: Callable[[str, StorageError], None]) -> None:
        """`fail` takes a log directory offline."""
        self._partition = partition
        self._fail = fail
        self._end_offset = 0

    def begin(self) -> Run:
        """What is to be done, now that the round begins."""
        log = self._partition.log
        if not log.is_open:  # its directory failed, or it was deleted, while it waited
            return _nothing
        try:
            work = log.sync_work(SEGMENTS_AT_A_TIME)
            self._end_offset = work.end_offset
        except StorageError as error:
            self._fail(log.directory, error)
            return _nothing
        return work

    def done(self, error: StorageError | None) -> None:
        """The round is over."""
        partition = self._partition
        partition.is_syncing = False
        if error is not None:
            self._fail(partition.log.directory, error)
        if partition.is_offline:
            return
        partition.log.flushed(self._end_offset)
        partition.own_end_moved()  # which wants another sync if so much was appended meanwhile


def _nothing() -> None:
    """Only its turn is waited for."""

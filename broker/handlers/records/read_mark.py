"""How much more a read of a partition can return than the last one: an upper bound, which costs a tenth of a read.

RULES    1. A read up to the log end has seen all bytes of the log; the next one can return what was appended since, at most.
         2. There is no bound if anything else has changed that a read depends on: leadership, the open log, its start.
NOT HERE Who waits for bytes (`delayed_fetch.py`).
"""

from __future__ import annotations

from replication.partition.partition import Partition
from storage.log.log_reader import Isolation, ReadInfo


class ReadMark:
    """A partition at the time of a read."""

    __slots__ = ("_committed_bytes", "_is_leader", "_leader_epoch", "_opened", "_partition")

    def __init__(self, partition: Partition) -> None:
        opened = partition.log.opened
        assert opened is not None
        self._partition = partition
        self._opened = opened
        self._is_leader = partition.is_leader
        self._leader_epoch = partition.leader_epoch
        self._committed_bytes = opened.appends.committed_bytes

    def growth(self, partition: Partition | None, offset: int) -> int | None:
        """The bytes that a read from `offset` can return more, of what is this partition now; None if only a read can tell."""
        if (
            partition is not self._partition
            or partition.log.opened is not self._opened
            or partition.leader_epoch != self._leader_epoch
            or partition.is_leader != self._is_leader
            or partition.log.offsets.log_start_offset > offset
        ):
            return None
        return self._opened.appends.committed_bytes - self._committed_bytes


def mark_of(partition: Partition, info: ReadInfo, isolation: Isolation) -> ReadMark | None:
    """The mark of a read that has just returned `info`; None if there are bytes that it may not return yet."""
    return ReadMark(partition) if info.limit(isolation) == info.log_end_offset else None

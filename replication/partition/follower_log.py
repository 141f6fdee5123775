"""Changes of a follower's log: append batches of the leader, truncate what the leader does not have.

RULES    1. Appended batches are as durable as the topic requires before the append completes: the next fetch position
            confirms them to the leader. Appends of one response to a shared log are one write.
         2. The high watermark is the leader's, at most up to the local log end offset. The log start offset follows the
            leader's, at most up to the high watermark.
         3. A log is opened for fetching, and truncated, only while no write to it is pending: batches that clients sent to a
            former leader may still be in the queue. Before it is fetched it is as durable as the topic requires (rule 1).
            Truncation also waits for pending file operations.
         4. A truncation is valid for one leader epoch. If the epoch changes first, it is skipped and the new leader is asked.
         5. Every method returns a completion: whether the partition can be fetched further. A StorageError takes the log
            directory offline; the partition cannot be fetched then.
         6. A reader thread truncates, and waits for disk space. Meanwhile the log is closed for other uses, which wait for the
            lookup of the truncation (`Log.truncation`).
NOT HERE When to fetch and from which leader (`replica_fetcher.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from protocol.errors import KafkaError
from replication.completion import Completion
from replication.io_executor import IoExecutor, IoResult, after_pending_io
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.engine import SharedLog
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.append_pipeline import PositionedBatch, PreparedAppend, write_job
from storage.log.log_validator import validate_replicated
from storage.log.open_log import OpenLog

_log = logging.getLogger("barnabas.fetcher")


class LeaderOffsets(NamedTuple):
    """The leader's high watermark and log start offset."""

    high_watermark: int
    log_start_offset: int


class FollowerAppend(Completion[bool]):
    """An append of a leader's batches to a follower's log."""

    __slots__ = ("leader_offsets", "partition", "wall_ms")

    def __init__(self, partition: Partition, leader_offsets: LeaderOffsets, wall_ms: int) -> None:
        super().__init__()
        self.partition = partition
        self.leader_offsets = leader_offsets
        self.wall_ms = wall_ms


class _PendingTruncation(NamedTuple):
    """A truncation that waits until no write is pending."""

    partition: Partition
    begin: Callable[[OpenLog], DiskLookup | None]
    """Begins it in the open log; None if there is nothing to truncate."""
    leader_epoch: int
    result: Completion[bool]


class FollowerLog:
    """Writes to the logs of the partitions that this broker follows."""

    def __init__(self, replicas: ReplicaManager, executor: IoExecutor) -> None:
        self._replicas = replicas
        self._log_manager = replicas.log_manager
        self._executor = executor
        self.quota = replicas.follower_quota
        self._gathered: list[tuple[FollowerAppend, PreparedAppend]] = []
        """Appends to shared logs that are not submitted yet."""
        self._is_gathering = False

    def open(self, partition: Partition) -> Completion[bool]:
        """Completes when the log is open, durable (rule 3) and without pending writes, or when it cannot be opened."""
        opened: Completion[bool] = Completion()
        self._open(partition, opened)
        return opened

    def _open(self, partition: Partition, opened: Completion[bool]) -> None:
        log = partition.log
        if partition.is_offline or log.is_offline:
            opened.complete(False)
        elif partition.writes_in_flight:
            after_pending_io(self._executor, log.directory, lambda: self._open(partition, opened))
        elif log.is_open and partition.needs_sync:
            self._replicas.flushes.flush(partition, partial(self._on_open_flushed, opened))
        elif log.is_open:
            opened.complete(True)
        else:
            try:
                lookup = log.open_lookup()
            except KafkaError as error:
                _log.error("%s cannot be opened and is not replicated: %s", log.name, error.message or error.code.name)
                opened.complete(False)
            else:
                self._replicas.await_disk(partition, lookup, lambda: self._open(partition, opened))

    def _on_open_flushed(self, opened: Completion[bool], partition: Partition, error: StorageError | None) -> None:
        if error is not None:
            self._on_storage_error(partition, error, opened)
        else:
            self._open(partition, opened)

    # ------------------------------------------------------------ appending
    def append(self, partition: Partition, records: Any, leader_offsets: LeaderOffsets, wall_ms: int) -> FollowerAppend:
        """Append batches of the leader and apply its offsets."""
        append = FollowerAppend(partition, leader_offsets, wall_ms)
        self._append(append, records)
        return append

    def _append(self, append: FollowerAppend, records: Any) -> None:
        partition, prepared = append.partition, None
        log, leader_epoch = partition.log, partition.leader_epoch
        try:
            if len(records):
                opened = log.opened or log.open_lookup()
                if isinstance(opened, DiskLookup):  # the batches are fetched again
                    self._replicas.await_disk(partition, opened, lambda: append.complete(not partition.is_offline))
                    return
                batches = validate_replicated(records, leader_epoch=leader_epoch)
                if opened.restart_offset(batches) is not None:
                    self._restart(append, records, batches, leader_epoch)
                    return
                if batches:
                    prepared = opened.appends.prepare_as_follower(records, batches, append.wall_ms)
        except KafkaError as error:
            _log.warning("%s: batches of the leader cannot be appended: %s", log.name, error.message or error.code.name)
            append.complete(False)
        except StorageError as error:
            self._on_storage_error(partition, error, append)
        else:
            if prepared is None:
                self._apply_when_open(append)
            else:
                partition.writes_in_flight += 1
                if self._is_gathering and prepared.shared_log is not None:
                    self._gathered.append((append, prepared))
                else:
                    on_written = partial(self._on_written, append, prepared)
                    self._executor.write(log.directory, *write_job([prepared])).then(on_written)

    def _restart(
        self, append: FollowerAppend, records: Any, batches: Sequence[PositionedBatch], leader_epoch: int
    ) -> None:
        """Append to an empty log whose start is inside the leader's first batch: it is emptied to that batch's start before."""
        partition = append.partition

        def begin(opened: OpenLog) -> DiskLookup | None:
            offset = opened.restart_offset(batches)
            log = partition.log
            return None if offset is None else self._log_manager.full_truncation(log, offset, log.log_start_offset)

        def on_truncated(truncated: Completion[bool]) -> None:
            if truncated.value and partition.leader_epoch == leader_epoch and not partition.is_leader:
                self._append(append, records)
            else:  # the batches are fetched again if there is another leader
                append.complete(truncated.value)

        self._when_idle(partition, begin).then(on_truncated)

    def gather(self) -> None:
        """Appends to shared logs wait for `write_gathered`, in the same turn: those of one response are written together."""
        self._is_gathering = True

    def write_gathered(self) -> None:
        """Write the appends since `gather`: one job for each shared log."""
        self._is_gathering = False
        gathered, self._gathered = self._gathered, []
        jobs: dict[tuple[str, SharedLog | None], list[tuple[FollowerAppend, PreparedAppend]]] = {}
        for append, prepared in gathered:
            key = append.partition.log.directory, prepared.shared_log
            jobs.setdefault(key, []).append((append, prepared))
        for (directory, _), appends in jobs.items():
            written = self._executor.write(directory, *write_job([prepared for _, prepared in appends]))
            written.then(partial(self._on_all_written, appends))

    def _on_all_written(self, appends: list[tuple[FollowerAppend, PreparedAppend]], written: IoResult) -> None:
        for append, prepared in appends:
            self._on_written(append, prepared, written)

    def _on_written(self, append: FollowerAppend, prepared: PreparedAppend, written: IoResult) -> None:
        partition = append.partition
        partition.writes_in_flight -= 1
        if written.value is not None:
            self._on_storage_error(partition, written.value, append)
            return
        try:
            partition.commit_as_follower(prepared, append.wall_ms)
        except (KafkaError, StorageError):
            append.complete(False)  # it was deleted, or its directory failed
            return
        partition.counts.replication_bytes_in += prepared.size
        if partition.needs_sync:
            self._replicas.flushes.flush(partition, partial(self._on_flushed, append))
        else:
            self._apply_leader_offsets(append)

    def _on_flushed(self, append: FollowerAppend, partition: Partition, error: StorageError | None) -> None:
        if error is not None:
            self._on_storage_error(partition, error, append)
        elif partition.needs_sync:  # a round flushes a limited number of segments
            self._replicas.flushes.flush(partition, partial(self._on_flushed, append))
        else:
            self._apply_when_open(append)

    def _apply_when_open(self, append: FollowerAppend) -> None:
        """Apply the leader's offsets without batches, or after a flush.

        The log may be closed: it was just moved and its files are being renamed, or it is truncated for another leader.
        """

        def on_open(opened: Completion[bool]) -> None:
            if opened.value:
                self._apply_leader_offsets(append)
            else:
                append.complete(False)

        if append.partition.log.is_open:
            self._apply_leader_offsets(append)
        else:
            self.open(append.partition).then(on_open)

    def _apply_leader_offsets(self, append: FollowerAppend) -> None:
        """Advance high watermark and log start offset (rule 2)."""
        partition = append.partition
        if partition.is_leader or partition.is_offline or partition.log.is_offline:
            append.complete(False)
            return
        partition.leader_high_watermark = append.leader_offsets.high_watermark
        partition.update_follower_high_watermark(append.leader_offsets.high_watermark)
        log = partition.log
        try:
            start = min(append.leader_offsets.log_start_offset, partition.high_watermark)
            if start > log.log_start_offset:
                log.open().trim(start, append.wall_ms)
        except StorageError as error:
            self._on_storage_error(partition, error, append)
        else:
            append.complete(True)

    # ------------------------------------------------------------ truncating
    def truncate_to_epoch(self, partition: Partition, epoch: int, end_offset: int) -> Completion[bool]:
        """Truncate what the leader does not have; its largest common epoch is `epoch`, which ends at `end_offset`."""

        def begin(opened: OpenLog) -> DiskLookup | None:
            local_epoch, local_end = opened.end_offset_for_epoch(epoch)
            return self._begin(partition, end_offset if local_epoch < 0 else min(local_end, end_offset))

        return self._when_idle(partition, begin)

    def truncate_to(self, partition: Partition, offset: int) -> Completion[bool]:
        """Truncate to the leader's log end offset."""
        return self._when_idle(partition, lambda _: self._begin(partition, offset))

    def truncate_fully_and_start_at(self, partition: Partition, offset: int) -> Completion[bool]:
        """Delete all records; the log starts at the leader's log start offset, which is above the local log end offset."""

        def begin(_: OpenLog) -> DiskLookup:
            log = partition.log
            _log.info("%s is truncated fully and starts at %d, the leader's log start offset", log.name, offset)
            return self._log_manager.full_truncation(log, offset, offset)

        return self._when_idle(partition, begin)

    def _begin(self, partition: Partition, offset: int) -> DiskLookup | None:
        log = partition.log
        if offset < partition.high_watermark:
            _log.warning(
                "%s is truncated to %d, below its high watermark %d", log.name, offset, partition.high_watermark
            )
        _log.info("%s is truncated to %d, where the leader's log diverges", log.name, offset)
        return self._log_manager.truncation(log, offset)

    def _when_idle(self, partition: Partition, begin: Callable[[OpenLog], DiskLookup | None]) -> Completion[bool]:
        """Truncate when no write is pending (rule 3), unless the leader epoch has changed (rule 4)."""
        waiting = _PendingTruncation(partition, begin, partition.leader_epoch, Completion())
        self._attempt(waiting)
        return waiting.result

    def _attempt(self, waiting: _PendingTruncation) -> None:
        partition, result = waiting.partition, waiting.result
        log = partition.log
        opened = log.opened
        if partition.is_offline or log.is_offline:
            result.complete(False)
        elif partition.is_leader or partition.leader_epoch != waiting.leader_epoch:
            result.complete(True)
        elif opened is None:  # it was closed since
            self.open(partition).then(
                lambda is_open: self._attempt(waiting) if is_open.value else result.complete(False)
            )
        elif partition.writes_in_flight or log.files.has_pending_ops or opened.flush.is_running:
            after_pending_io(self._executor, log.directory, lambda: self._attempt(waiting))
        else:
            self._truncate(waiting, opened)

    def _truncate(self, waiting: _PendingTruncation, opened: OpenLog) -> None:
        partition = waiting.partition

        def on_truncated() -> None:
            is_usable = not (partition.is_offline or partition.log.is_offline)
            if is_usable:
                partition.on_truncated_as_follower()
            waiting.result.complete(is_usable)

        lookup = waiting.begin(opened)
        if lookup is None:
            on_truncated()
        else:
            self._replicas.await_disk(partition, lookup, on_truncated)

    def _on_storage_error(self, partition: Partition, error: StorageError, result: Completion[bool]) -> None:
        if not partition.log.is_offline:  # otherwise it was deleted
            self._replicas.directory_failed(partition.log.directory, error)
        result.complete(False)

"""Changes of a follower's log: append batches of the leader, truncate what the leader does not have.

RULES    1. Appended batches are as durable as the topic requires before `done` is called: the next fetch position confirms
            them to the leader.
         2. The high watermark is the leader's, at most up to the local log end offset. The log start offset follows the
            leader's, at most up to the high watermark.
         3. A log is opened for fetching, and truncated, only while no write to it is pending: batches that clients sent to a
            former leader may still be in the queue. Truncation also waits for pending file operations.
         4. A truncation is valid for one leader epoch. If the epoch changes first, it is skipped and the new leader is asked.
         5. A StorageError takes the log directory offline; `done` receives False.
         6. A truncation waits for disk space, like appends do: the checkpoints are written before anything is truncated. A full
            truncation does not wait, because half of the log may be gone already.
NOT HERE When to fetch and from which leader (`replica_fetcher.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.errors import KafkaError
from replication.io_executor import IoExecutor, IoResult, after_pending_io
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Log

_log = logging.getLogger("barnabas.fetcher")

WriteCallback = Callable[[bool], None]
"""Receives whether the partition can be fetched further."""


class LeaderOffsets(NamedTuple):
    """The leader's high watermark and log start offset."""

    high_watermark: int
    log_start_offset: int


class FollowerLog:
    """Writes to the logs of the partitions that this broker follows."""

    def __init__(self, replicas: ReplicaManager, log_manager: LogManager, executor: IoExecutor) -> None:
        self._replicas = replicas
        self._log_manager = log_manager
        self._executor = executor
        self.quota = replicas.follower_quota

    def open(self, partition: Partition, on_open: Callable[[], None]) -> None:
        """Call `on_open` when the log is open and no write is pending; never if it cannot be opened."""
        log = partition.log
        if partition.is_offline or log.is_offline:
            return
        if partition.writes_in_flight:
            after_pending_io(self._executor, log.directory, lambda: self.open(partition, on_open))
            return
        try:
            lookup = None if log.is_open else log.open_lookup()
        except KafkaError as error:
            _log.error("%s cannot be opened and is not replicated: %s", log.name, error.message or error.code.name)
        except StorageError as error:
            self._replicas.directory_failed(log.directory, error)
        else:
            if lookup is not None:
                self._replicas.await_disk(partition, lookup, lambda: self.open(partition, on_open))
                return
            partition.on_opened_as_follower()
            on_open()

    def append(
        self, partition: Partition, records: Any, leader_offsets: LeaderOffsets, wall_ms: int, done: WriteCallback
    ) -> None:
        """Append batches of the leader and apply its offsets."""
        log, epoch = partition.log, partition.leader_epoch
        if not len(records):
            self._apply_leader_offsets(partition, leader_offsets, wall_ms, done)
            return
        try:
            opened = log.opened or log.open_lookup()
            if isinstance(opened, DiskLookup):
                self._replicas.await_disk(partition, opened, lambda: done(not partition.is_offline))  # fetched again
                return
            prepared = opened.prepare_as_follower(records, wall_ms=wall_ms, leader_epoch=epoch)
        except KafkaError as error:
            _log.warning("%s: batches of the leader cannot be appended: %s", log.name, error.message or error.code.name)
            done(False)
            return
        except StorageError as error:
            self._on_storage_error(partition, error, done)
            return
        if prepared is None:
            self._apply_leader_offsets(partition, leader_offsets, wall_ms, done)
            return
        partition.writes_in_flight += 1

        def on_written(written: IoResult) -> None:
            partition.writes_in_flight -= 1
            if written.value is not None:
                self._on_storage_error(partition, written.value, done)
                return
            try:
                partition.commit_as_follower(prepared, wall_ms)
            except (KafkaError, StorageError):
                done(False)  # it was deleted, or its directory failed
                return
            if partition.needs_sync:
                self._flush_then(
                    partition, lambda: self._apply_leader_offsets(partition, leader_offsets, wall_ms, done), done
                )
            else:
                self._apply_leader_offsets(partition, leader_offsets, wall_ms, done)

        self._executor.write(log.directory, prepared.size, prepared.write).then(on_written)

    def _flush_then(self, partition: Partition, then: Callable[[], None], done: WriteCallback) -> None:
        flush, end_offset = partition.log.open().flush, partition.log.log_end_offset

        def on_synced(synced: IoResult) -> None:
            if synced.value is not None:
                self._on_storage_error(partition, synced.value, done)
                return
            flush.complete(end_offset)
            then()

        self._executor.sync(partition.log.directory, flush.begin).then(on_synced)

    def _apply_leader_offsets(
        self, partition: Partition, leader_offsets: LeaderOffsets, wall_ms: int, done: WriteCallback
    ) -> None:
        """Advance high watermark and log start offset (rule 2)."""
        if partition.is_leader or partition.is_offline:
            done(False)
            return
        partition.update_follower_high_watermark(leader_offsets.high_watermark)
        log = partition.log
        try:
            start = min(leader_offsets.log_start_offset, partition.high_watermark)
            if start > log.log_start_offset:
                log.open().trim(start, wall_ms)
        except StorageError as error:
            self._on_storage_error(partition, error, done)
            return
        done(True)

    def truncate_to_epoch(self, partition: Partition, epoch: int, end_offset: int, done: WriteCallback) -> None:
        """Truncate what the leader does not have; its largest common epoch is `epoch`, which ends at `end_offset`."""

        def truncate(log: Log) -> None:
            local_epoch, local_end = log.open().end_offset_for_epoch(epoch)
            offset = end_offset if local_epoch < 0 else min(local_end, end_offset)
            self._truncate_to(partition, offset)

        self._when_idle(partition, partition.leader_epoch, truncate, done)

    def truncate_to(self, partition: Partition, offset: int, done: WriteCallback) -> None:
        """Truncate to the leader's log end offset."""
        self._when_idle(partition, partition.leader_epoch, lambda _: self._truncate_to(partition, offset), done)

    def truncate_fully_and_start_at(self, partition: Partition, offset: int, done: WriteCallback) -> None:
        """Delete all records; the log starts at the leader's log start offset, which is above the local log end offset."""

        def drop(log: Log) -> None:
            _log.info("%s is truncated fully and starts at %d, the leader's log start offset", log.name, offset)
            self._log_manager.truncate_fully(log, offset)

        self._when_idle(partition, partition.leader_epoch, drop, done, may_retry=False)

    def _truncate_to(self, partition: Partition, offset: int) -> None:
        log = partition.log
        if offset < partition.high_watermark:
            _log.warning(
                "%s is truncated to %d, below its high watermark %d", log.name, offset, partition.high_watermark
            )
        _log.info("%s is truncated to %d, where the leader's log diverges", log.name, offset)
        self._log_manager.truncate(log, offset)

    def _when_idle(
        self,
        partition: Partition,
        leader_epoch: int,
        action: Callable[[Log], None],
        done: WriteCallback,
        *,
        may_retry: bool = True,
    ) -> None:
        """Run `action` when no write is pending (rule 3), unless the leader epoch has changed (rule 4)."""
        log = partition.log

        def retry() -> None:
            self._when_idle(partition, leader_epoch, action, done, may_retry=may_retry)

        if partition.is_offline or log.is_offline:
            done(False)
        elif partition.is_leader or partition.leader_epoch != leader_epoch:
            done(True)
        elif partition.writes_in_flight or log.files.has_pending_ops:
            after_pending_io(self._executor, log.directory, retry)
        else:
            try:
                action(log)
            except StorageError as error:
                if error.is_full and may_retry:
                    self._checkpoint_then(partition, retry, done)
                else:
                    self._on_storage_error(partition, error, done)
                return
            partition.on_truncated_as_follower()
            done(True)

    def _checkpoint_then(self, partition: Partition, then: Callable[[], None], done: WriteCallback) -> None:
        """Write the directory's checkpoints, waiting for disk space, then call `then` (rule 6)."""
        directory = partition.log.directory

        def on_written(written: IoResult) -> None:
            if written.value is None:
                then()
            else:
                self._on_storage_error(partition, written.value, done)

        self._executor.write(directory, 0, self._log_manager.rewrite_checkpoints(directory)).then(on_written)

    def _on_storage_error(self, partition: Partition, error: StorageError, done: WriteCallback) -> None:
        if not partition.log.is_offline:  # otherwise it was deleted
            self._replicas.directory_failed(partition.log.directory, error)
        done(False)

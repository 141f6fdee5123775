"""What a follower does to its log: take over what the leader sent, cut what the leader does not have, begin anew.

RULES    1. What is appended is durable as the topic wants it before `done` is called: the next fetch is this replica's word
            that it has it (design D12b).
         2. The high watermark is the leader's, as far as this log goes. A log that begins before the leader's is trimmed, but
            not beyond the high watermark.
         3. A log is cut while nothing is being written to it; the fetcher sees to that, which does one thing at a time.
         4. A disk that fails takes its directory offline, and `done` is told that the partition cannot go on.
NOT HERE When and from whom to fetch (`fetcher.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.errors import KafkaError
from replication.partition import Partition
from replication.replica_manager import ReplicaManager
from replication.work import Worker
from storage.blocking import WouldBlock
from storage.disk import StorageError
from storage.log_manager import LogManager

_log = logging.getLogger("barnabas.following")

Done = Callable[[bool], None]
"""Told whether the partition can go on."""


class LeaderBounds(NamedTuple):
    """What a leader says of its log."""

    high_watermark: int
    log_start_offset: int


class Following:
    """The logs of partitions that are followed here."""

    def __init__(self, replicas: ReplicaManager, log_manager: LogManager, worker: Worker) -> None:
        self._replicas = replicas
        self._log_manager = log_manager
        self._worker = worker

    def open(self, partition: Partition, opened: Callable[[], None]) -> None:
        """Call `opened` when the log is open; never when its directory failed."""
        try:
            partition.log.open(may_block=False)
        except WouldBlock as blocked:
            self._replicas.await_disk(partition, blocked, lambda: self._look_again(partition, opened))
        except StorageError as error:
            self._replicas.directory_failed(partition.log.directory, error)
        else:
            opened()

    def _look_again(self, partition: Partition, opened: Callable[[], None]) -> None:
        if not partition.is_offline and not partition.log.is_offline:
            self.open(partition, opened)

    def append(self, partition: Partition, records: Any, bounds: LeaderBounds, wall_ms: int, done: Done) -> None:
        """Take over batches of the leader, and its bounds."""
        log, epoch = partition.log, partition.leader_epoch
        try:
            prepared = log.prepare_as_follower(records, wall_ms=wall_ms, leader_epoch=epoch) if len(records) else None
        except KafkaError as error:
            _log.warning("%s: what its leader sent cannot be appended: %s", log.name, error.message or error.code.name)
            done(False)
            return
        except StorageError as error:
            self._failed(partition, error, done)
            return
        if prepared is None:
            self._bound(partition, bounds, wall_ms, done)
            return
        partition.writes_in_flight += 1

        def written(error: StorageError | None) -> None:
            partition.writes_in_flight -= 1
            if error is not None:
                self._failed(partition, error, done)
                return
            try:
                partition.commit_as_follower(prepared, wall_ms)
            except (KafkaError, StorageError):
                done(False)  # it was deleted, or its directory failed meanwhile
                return
            if partition.needs_sync:
                self._sync(partition, lambda: self._bound(partition, bounds, wall_ms, done), done)
            else:
                self._bound(partition, bounds, wall_ms, done)

        self._worker.write(log.directory, prepared.size, lambda: log.write(prepared), written)

    def _sync(self, partition: Partition, then: Callable[[], None], done: Done) -> None:
        log = partition.log
        end_offset = log.log_end_offset

        def synced(error: StorageError | None) -> None:
            if error is not None:
                self._failed(partition, error, done)
                return
            log.flushed(end_offset)
            then()

        self._worker.sync(log.directory, log.sync_work, synced)

    def _bound(self, partition: Partition, bounds: LeaderBounds, wall_ms: int, done: Done) -> None:
        """Rule 2."""
        if partition.is_leader or partition.is_offline:
            done(False)
            return
        partition.learn_high_watermark(bounds.high_watermark)
        log = partition.log
        try:
            start = min(bounds.log_start_offset, partition.high_watermark)
            if start > log.log_start_offset:
                log.trim(start, wall_ms)
        except StorageError as error:
            self._failed(partition, error, done)
            return
        done(True)

    def truncate(self, partition: Partition, epoch: int, end_offset: int, done: Done) -> None:
        """Cut what the leader does not have: it knows an epoch up to that offset."""
        log = partition.log
        try:
            own_epoch, own_end = log.end_offset_for_epoch(epoch)
            offset = end_offset if own_epoch < 0 else min(own_end, end_offset)
            if offset < partition.high_watermark:
                _log.warning("%s is cut at %d, below its high watermark %d", log.name, offset, partition.high_watermark)
            _log.info("%s is cut at %d, where its leader's log is another one", log.name, offset)
            self._log_manager.truncate(log, max(offset, log.log_start_offset))
        except StorageError as error:
            self._failed(partition, error, done)
            return
        partition.cut_as_follower()
        done(True)

    def begin_anew(self, partition: Partition, offset: int, done: Done) -> None:
        """Drop everything: the leader's log begins behind this one's end."""
        log = partition.log
        _log.info("%s begins anew at %d, where its leader's log begins", log.name, offset)
        try:
            self._log_manager.truncate_fully(log, offset)
        except StorageError as error:
            self._failed(partition, error, done)
            return
        partition.cut_as_follower()
        done(True)

    def _failed(self, partition: Partition, error: StorageError, done: Done) -> None:
        if not partition.log.is_offline:  # else it was deleted meanwhile
            self._replicas.directory_failed(partition.log.directory, error)
        done(False)

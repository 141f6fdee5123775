"""What a follower does to its log: take over what the leader sent, cut what the leader does not have, begin anew.

RULES    1. What is appended is durable as the topic wants it before `done` is called: the next fetch is this replica's word
            that it has it (design D12b).
         2. The high watermark is the leader's, as far as this log goes. A log that begins before the leader's is trimmed, but
            not beyond the high watermark.
         3. A log is asked where it ends, and is cut, when nothing is being written to it: what clients sent to a leader may
            still be on its way when it follows another. It is cut when none of its files is about to be changed either.
         4. What is to be cut is what the leader of this moment does not have: when another one leads, it is asked anew.
         5. A disk that fails takes its directory offline, and `done` is told that the partition cannot go on.
         6. A cut that finds no room waits for it, as appends do. Its checkpoints are written first, so nothing is cut then.
            A log that begins anew does not wait: half of it may have been dropped.
NOT HERE When and from whom to fetch (`replica_fetcher.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.errors import KafkaError
from replication.io_executor import Worker, behind_all
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import Log

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
        self.throttle = replicas.follower_throttle

    def open(self, partition: Partition, opened: Callable[[], None]) -> None:
        """Call `opened` when the log is open and at rest; never when it cannot be opened."""
        log = partition.log
        if partition.is_offline or log.is_offline:
            return
        if partition.writes_in_flight:
            behind_all(self._worker, log.directory, lambda _: self.open(partition, opened))
            return
        try:
            log.open(may_block=False)
        except WouldBlock as blocked:
            self._replicas.await_disk(partition, blocked, lambda: self.open(partition, opened))
        except KafkaError as refusal:
            _log.error("%s cannot be opened, and so follows nobody: %s", log.name, refusal.message or refusal.code.name)
        except StorageError as error:
            self._replicas.directory_failed(log.directory, error)
        else:
            partition.opened_as_follower()
            opened()

    def append(self, partition: Partition, records: Any, bounds: LeaderBounds, wall_ms: int, done: Done) -> None:
        """Take over batches of the leader, and its bounds."""
        log, epoch = partition.log, partition.leader_epoch
        if not len(records):
            self._bound(partition, bounds, wall_ms, done)
            return
        try:
            log.open(may_block=False)
            prepared = log.prepare_as_follower(records, wall_ms=wall_ms, leader_epoch=epoch)
        except WouldBlock as blocked:
            self._replicas.await_disk(partition, blocked, lambda: done(not partition.is_offline))  # to be sent again
            return
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

        def cut(log: Log) -> None:
            own_epoch, own_end = log.end_offset_for_epoch(epoch)
            offset = end_offset if own_epoch < 0 else min(own_end, end_offset)
            self._cut_at(partition, offset)

        self._at_rest(partition, partition.leader_epoch, cut, done)

    def cut(self, partition: Partition, offset: int, done: Done) -> None:
        """Cut what lies behind the leader's end."""
        self._at_rest(partition, partition.leader_epoch, lambda _: self._cut_at(partition, offset), done)

    def begin_anew(self, partition: Partition, offset: int, done: Done) -> None:
        """Drop everything: the leader's log begins behind this one's end."""

        def drop(log: Log) -> None:
            _log.info("%s begins anew at %d, where its leader's log begins", log.name, offset)
            self._log_manager.truncate_fully(log, offset)

        self._at_rest(partition, partition.leader_epoch, drop, done, may_repeat=False)

    def _cut_at(self, partition: Partition, offset: int) -> None:
        log = partition.log
        if offset < partition.high_watermark:
            _log.warning("%s is cut at %d, below its high watermark %d", log.name, offset, partition.high_watermark)
        _log.info("%s is cut at %d, where its leader's log is another one", log.name, offset)
        self._log_manager.truncate(log, offset)

    def _at_rest(
        self,
        partition: Partition,
        leader_epoch: int,
        act: Callable[[Log], None],
        done: Done,
        *,
        may_repeat: bool = True,
    ) -> None:
        """Take something off a log when it is at rest (rule 3), unless there is another leader then (rule 4)."""
        log = partition.log

        def again() -> None:
            self._at_rest(partition, leader_epoch, act, done, may_repeat=may_repeat)

        if partition.is_offline or log.is_offline:
            done(False)
        elif partition.is_leader or partition.leader_epoch != leader_epoch:
            done(True)
        elif partition.writes_in_flight or log.is_changing:
            behind_all(self._worker, log.directory, lambda _: again())
        else:
            try:
                act(log)
            except StorageError as error:
                if error.is_full and may_repeat:
                    self._with_room(partition, again, done)
                else:
                    self._failed(partition, error, done)
                return
            partition.cut_as_follower()
            done(True)

    def _with_room(self, partition: Partition, then: Callable[[], None], done: Done) -> None:
        """Rule 6: the directory's thread waits for room for the checkpoints, and tells that there is none."""
        directory = partition.log.directory

        def written(error: StorageError | None) -> None:
            if error is None:
                then()
            else:
                self._failed(partition, error, done)

        self._worker.write(directory, 0, self._log_manager.checkpoint_anew(directory), written)

    def _failed(self, partition: Partition, error: StorageError, done: Done) -> None:
        if not partition.log.is_offline:  # else it was deleted meanwhile
            self._replicas.directory_failed(partition.log.directory, error)
        done(False)

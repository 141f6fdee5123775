"""The periodic tasks of a broker: flush, checkpoint, retention, compaction, key index, snapshots, ISR checks.

They are those of Apache Kafka's KafkaScheduler, and a few more.

RULES    1. Every task is a deadline of the timer queue and reschedules itself after it ran.
         2. Long tasks handle one log per iteration of the loop, or run in the background thread. Loops over all logs that do
            little for each handle many of them per iteration.
NOT HERE The tasks themselves (`storage/directories/log_maintenance.py`, `replication/partition/replica_manager.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.network.listener import Listener
from broker.node.commit_log_cleaning import CommitLogCleaning
from broker.node.key_index import KeyIndex
from broker.node.kraft_runtime import RuntimeDependencies
from replication.cooperative_tasks import run_in_slices
from replication.io_executor import IoResult
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.partition.compactor import Compactor
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Timer
from storage.directories.checkpoint_writer import Work
from storage.directories.log_directory import CheckpointSteps
from storage.directories.log_maintenance import (
    begin_checkpoints,
    close_idle_files,
    directory_checks,
    due_deletions,
    expire_producers,
    invalidate_checkpoints,
    logs_to_flush,
    retain,
)
from storage.directories.log_retention import RetentionSteps

_log = logging.getLogger("barnabas.scheduled_tasks")

_MAX_FLUSH_INTERVAL_MS: Final = 5_000
_MIN_INTERVAL_MS: Final = 100
_CLOSE_IDLE_MS: Final = 60_000
_INDEX_CHECK_MS: Final = 1_000
_SNAPSHOT_CHECK_MS: Final = 1_000
_RETAIN_METADATA_MS: Final = 60_000
_ENDED: Final = object()
_CHECKPOINTS: Final = (
    "replica.high.watermark.checkpoint.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
)
"""All checkpoints are written together, at the shortest of these intervals."""


@dataclass(eq=False)
class ScheduledTasks:
    """The periodic tasks of one broker."""

    _dependencies: RuntimeDependencies
    _config: BrokerConfig
    _replicas: ReplicaManager
    _publisher: MetadataPublisher
    _snapshots: MetadataSnapshots
    _compactor: Compactor
    _key_index: KeyIndex
    is_stopped: bool = field(default=False, init=False)
    _compaction: Timer | None = field(default=None, init=False)
    _commit_logs: CommitLogCleaning | None = field(default=None, init=False)
    _logged_closed: int = field(default=0, init=False)

    def start(self, listeners: list[Listener]) -> None:
        """Schedules all tasks."""
        number, clock = self._config.number, self._dependencies.clock
        replicas, manager = self._replicas, self._replicas.log_manager
        first_ms = number("log.initial.task.delay.ms")
        self._after(min(_MAX_FLUSH_INTERVAL_MS, first_ms), self._flush_and_delete)
        self._every(min(map(number, _CHECKPOINTS)), self._checkpoint)
        self._every(number("replica.lag.time.max.ms") // 2, lambda: replicas.check_isrs(clock.mono_ms()))
        self._every(
            number("producer.id.expiration.check.interval.ms"),
            lambda: self._run_in_slices(expire_producers(manager, clock.wall_ms())),
        )
        self._schedule_compaction()
        self._every(_INDEX_CHECK_MS, self._key_index.indexer.check)
        self._every(_CLOSE_IDLE_MS, self._close_idle)
        self._every(_CLOSE_IDLE_MS, self._key_index.check_processes)
        self._every(_SNAPSHOT_CHECK_MS, self._check_snapshot)
        self._every(_RETAIN_METADATA_MS, lambda: self._snapshots.retain(self._dependencies.clock.wall_ms()))
        retention_ms = number("log.retention.check.interval.ms")
        if "broker" in self._config.roles:  # otherwise the configurations of its logs are unknown
            self._after(min(first_ms, retention_ms), lambda: self._start_retention(retention_ms))
        self._commit_logs = CommitLogCleaning(self._dependencies, replicas, lambda: self._config)
        self._commit_logs.start()
        for listener in listeners:
            self._close_idle_connections(listener)

    def stop(self) -> None:
        """Schedules no task any more."""
        self.is_stopped = True
        if self._commit_logs is not None:
            self._commit_logs.is_stopped = True
        self._key_index.indexer.stop()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Applies changed intervals to waiting tasks."""
        backoff = self._backoff_ms
        self._config = config
        if self._compaction is not None and self._backoff_ms != backoff:
            self._compaction.cancel()
            self._schedule_compaction()

    def _after(self, delay_ms: int, task: Callable[[], None]) -> Timer | None:
        if self.is_stopped:
            return None
        return self._dependencies.timers.schedule(self._dependencies.clock.mono_ms() + delay_ms, task)

    def _every(self, interval_ms: int, task: Callable[[], None]) -> None:
        interval_ms = max(interval_ms, 1)  # Kafka allows 0 for some settings

        def again() -> None:
            task()
            self._after(interval_ms, again)

        self._after(interval_ms, again)

    def _run_in_slices(self, steps: Iterator[None]) -> None:
        """Runs a step for each log, many in one turn of the event loop but not all."""
        run_in_slices(takewhile(lambda _: not self.is_stopped, steps), self._dependencies.loop.call_soon)

    # ------------------------------------------------------------ storage
    def _flush_and_delete(self) -> None:
        """Flushes the logs that are due by `flush.ms` or a full segment; deletes the files whose delay has passed."""
        manager, wall_ms = self._replicas.log_manager, self._dependencies.clock.wall_ms()
        self._run_in_slices(self._flush_steps(wall_ms))
        for directory, work in due_deletions(manager, wall_ms):
            self._dependencies.worker.background(directory, work).then(_on_deleted)
        soonest = min((log.config.flush_ms for log in manager.logs.values()), default=_MAX_FLUSH_INTERVAL_MS)
        self._after(max(_MIN_INTERVAL_MS, min(_MAX_FLUSH_INTERVAL_MS, soonest)), self._flush_and_delete)

    def _flush_steps(self, wall_ms: int) -> Iterator[None]:
        for log in logs_to_flush(self._replicas.log_manager, wall_ms):
            partition = None if log is None else self._replicas.partitions.get((log.topic, log.partition))
            if partition is not None:
                self._replicas.flushes.sync(partition)
            yield

    def _checkpoint(self) -> None:
        manager = self._replicas.log_manager
        for directory, work in directory_checks(manager):
            self._write_checkpoint(directory, work)
        for directory, steps in begin_checkpoints(manager):
            self._run_in_slices(self._checkpoint_steps(directory, steps))

    def _checkpoint_steps(self, directory: str, steps: CheckpointSteps) -> Iterator[None]:
        work = yield from steps
        if work is not None:
            self._write_checkpoint(directory, work)

    def _write_checkpoint(self, directory: str, work: Work) -> None:
        self._dependencies.worker.background(directory, work).then(partial(self._on_checkpointed, directory))

    def _on_checkpointed(self, directory: str, written: IoResult) -> None:
        error = written.value
        if error is not None and error.is_full:
            invalidate_checkpoints(self._replicas.log_manager, directory)
        elif error is not None:
            self._replicas.directory_failed(directory, error)

    def _start_retention(self, interval_ms: int) -> None:
        self._retain_next_log(retain(self._replicas.log_manager, self._dependencies.clock.wall_ms()), interval_ms)

    def _retain_next_log(
        self,
        steps: RetentionSteps,
        interval_ms: int,
        has_space: bool | None = None,  # noqa: FBT001  # the argument of a callback
    ) -> None:
        """`has_space`: whether the lookup of the last step had space; None without one."""
        if self.is_stopped:
            return
        try:
            log, lookup = steps.send(has_space)
        except StopIteration:
            self._replicas.check_directories()
            self._after(interval_ms, lambda: self._start_retention(interval_ms))
            return
        if lookup is not None:
            self._replicas.disk_lookups.run_in_background(
                log, lookup, partial(self._retain_next_log, steps, interval_ms)
            )
        else:
            self._replicas.on_log_start_changed(log.topic, log.partition)
            self._dependencies.loop.call_soon(partial(self._retain_next_log, steps, interval_ms))

    @property
    def _backoff_ms(self) -> int:
        return max(_MIN_INTERVAL_MS, self._config.number("log.cleaner.backoff.ms"))

    def _schedule_compaction(self) -> None:
        self._compaction = self._after(self._backoff_ms, self._start_compaction)

    def _start_compaction(self) -> None:
        self._compactor.check()
        self._schedule_compaction()

    def _close_idle(self) -> None:
        manager = self._replicas.log_manager
        open_files = manager.file_handles
        if open_files.closed > self._logged_closed:
            _log.info("%s; %d were closed at the limit", open_files, open_files.closed - self._logged_closed)
            self._logged_closed = open_files.closed
        self._run_step(close_idle_files(manager))

    # ------------------------------------------------------------ metadata
    def _check_snapshot(self) -> None:
        image, wall_ms = self._publisher.image, self._dependencies.clock.wall_ms()
        reason = self._snapshots.why_due(image, wall_ms)
        if reason is not None:
            _log.info("generating a snapshot of the metadata: %s", reason)
            self._run_step(self._snapshots.take(image, wall_ms))

    def _run_step(self, steps: Iterator[None]) -> None:
        """Runs one step per iteration of the loop (rule 2)."""
        if not self.is_stopped and next(steps, _ENDED) is not _ENDED:
            self._dependencies.loop.call_soon(partial(self._run_step, steps))

    # ------------------------------------------------------------ peers
    def _close_idle_connections(self, listener: Listener) -> None:
        now_ms = self._dependencies.clock.mono_ms()
        next_ms = listener.close_idle(now_ms)
        if next_ms is not None:
            delay_ms = max(1_000, next_ms - now_ms)
            self._after(delay_ms, lambda: self._close_idle_connections(listener))


def _on_deleted(deleted: IoResult) -> None:
    if deleted.value is not None:
        _log.warning("cannot delete obsolete files: %s", deleted.value)

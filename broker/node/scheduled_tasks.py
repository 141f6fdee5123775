"""What a broker does from time to time without being asked: flush, checkpoint, retain, compact, sum up, look at followers.

RULES    1. Everything is a deadline of the one heap and is scheduled anew when it has run.
         2. What takes long is done log by log, a turn of the loop for each, or handed to the background thread.
NOT HERE What each of these means (`storage/directories/log_manager.py`, `replication/partition/replica_manager.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.network.listener import Listener
from replication.cooperative_tasks import Soon
from replication.io_executor import Worker
from replication.metadata.metadata_publisher import Publisher
from replication.metadata_log.kraft_replica import Clock
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.partition.compactor import Compactor
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Deadline, Deadlines
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from storage.log.log import Log

_log = logging.getLogger("barnabas.housekeeping")

_LONGEST_TICK_MS: Final = 5_000
_SHORTEST_TICK_MS: Final = 100
_CLOSE_IDLE_MS: Final = 60_000
_LOOK_FOR_SNAPSHOT_MS: Final = 1_000
_RETAIN_METADATA_MS: Final = 60_000
_ENDED: Final = object()
_CHECKPOINTS: Final = (
    "replica.high.watermark.checkpoint.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
)
"""All are written together, as often as the one that is wanted most often."""


class Housekeeping:
    """The recurring work of one broker."""

    def __init__(
        self,
        soon: Soon,
        config: BrokerConfig,
        log_manager: LogManager,
        replicas: ReplicaManager,
        publisher: Publisher,
        snapshots: MetadataSnapshots,
        compactor: Compactor,
        worker: Worker,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        self._soon = soon
        self._config = config
        self._log_manager = log_manager
        self._replicas = replicas
        self._publisher = publisher
        self._snapshots = snapshots
        self._compactor = compactor
        self._worker = worker
        self._deadlines = deadlines
        self._clock = clock
        self._compaction: Deadline | None = None
        self._is_stopped = False
        self._closed_for_others = 0

    def start(self, listeners: list[Listener]) -> None:
        """Schedule everything for the first time."""
        number = self._config.number
        first_ms = number("log.initial.task.delay.ms")
        self._after(min(_LONGEST_TICK_MS, first_ms), self._tick)
        self._every(min(map(number, _CHECKPOINTS)), self._checkpoint)
        self._every(number("replica.lag.time.max.ms") // 2, self._check_isrs)
        self._every(number("producer.id.expiration.check.interval.ms"), self._expire_producers)
        self._compact()
        self._every(_CLOSE_IDLE_MS, self._close_idle)
        self._every(_LOOK_FOR_SNAPSHOT_MS, self._look_for_snapshot)
        self._every(_RETAIN_METADATA_MS, lambda: self._snapshots.retain(self._clock.wall_ms()))
        retention_ms = number("log.retention.check.interval.ms")
        self._after(min(first_ms, retention_ms), lambda: self._retain(retention_ms))
        for listener in listeners:
            self._close_idle_connections(listener)

    def stop(self) -> None:
        """Schedule nothing any more."""
        self._is_stopped = True

    def reconfigure(self, config: BrokerConfig) -> None:
        """Settings were changed: what waits by another interval does so from now on."""
        backoff = self._backoff_ms
        self._config = config
        if self._compaction is not None and self._backoff_ms != backoff:
            self._compaction.cancel()
            self._compact()

    def _after(self, delay_ms: int, what: Callable[[], None]) -> Deadline | None:
        if self._is_stopped:
            return None
        return self._deadlines.schedule(self._clock.mono_ms() + delay_ms, what)

    def _every(self, interval_ms: int, what: Callable[[], None]) -> None:
        interval_ms = max(interval_ms, 1)  # Kafka takes 0 for some

        def again() -> None:
            what()
            self._after(interval_ms, again)

        self._after(interval_ms, again)

    # ------------------------------------------------------------ storage
    def _tick(self) -> None:
        """Sync what `flush.ms` or a full segment asks for; remove the files whose time has come."""
        wall_ms = self._clock.wall_ms()
        for log in self._log_manager.flush_due(wall_ms):
            partition = self._replicas.partitions.get((log.topic, log.partition))
            if partition is not None:
                self._replicas.sync(partition)
        for directory, work in self._log_manager.deletions(wall_ms):
            self._worker.background(directory, work, _complain)
        soonest = min((log.config.flush_ms for log in self._log_manager.logs.values()), default=_LONGEST_TICK_MS)
        self._after(max(_SHORTEST_TICK_MS, min(_LONGEST_TICK_MS, soonest)), self._tick)

    def _checkpoint(self) -> None:
        for directory, work in (*self._log_manager.watch(), *self._log_manager.checkpoint()):
            self._worker.background(directory, work, partial(self._checkpointed, directory))

    def _checkpointed(self, directory: str, error: StorageError | None) -> None:
        if error is not None and error.is_full:
            self._log_manager.forget_checkpoints(directory)
        elif error is not None:
            self._replicas.directory_failed(directory, error)

    def _retain(self, interval_ms: int) -> None:
        self._retain_next(self._log_manager.retain(self._clock.wall_ms()), interval_ms)

    def _retain_next(self, steps: Iterator[Log], interval_ms: int) -> None:
        if self._is_stopped:
            return
        log = next(steps, None)
        if log is None:
            self._replicas.check_directories()
            self._after(interval_ms, lambda: self._retain(interval_ms))
        else:
            self._replicas.log_start_moved(log.topic, log.partition)
            self._soon(partial(self._retain_next, steps, interval_ms))

    def _expire_producers(self) -> None:
        self._log_manager.expire_producers(self._clock.wall_ms())

    @property
    def _backoff_ms(self) -> int:
        return max(_SHORTEST_TICK_MS, self._config.number("log.cleaner.backoff.ms"))

    def _compact(self) -> None:
        self._compaction = self._after(self._backoff_ms, self._look_for_dirt)

    def _look_for_dirt(self) -> None:
        self._compactor.look()
        self._compact()

    def _close_idle(self) -> None:
        open_files = self._log_manager.open_files
        if open_files.closed > self._closed_for_others:
            _log.info("%s; %d were closed for others", open_files, open_files.closed - self._closed_for_others)
            self._closed_for_others = open_files.closed
        self._go_on(open_files.close_idle())

    # ------------------------------------------------------------ metadata
    def _look_for_snapshot(self) -> None:
        image, wall_ms = self._publisher.image, self._clock.wall_ms()
        reason = self._snapshots.why_due(image, wall_ms)
        if reason is not None:
            _log.info("taking a snapshot of the metadata: %s", reason)
            self._go_on(self._snapshots.take(image, wall_ms))

    def _go_on(self, steps: Iterator[None]) -> None:
        """A step for each turn of the loop (rule 2)."""
        if not self._is_stopped and next(steps, _ENDED) is not _ENDED:
            self._soon(partial(self._go_on, steps))

    # ------------------------------------------------------------ peers
    def _check_isrs(self) -> None:
        self._replicas.check_isrs(self._clock.mono_ms())

    def _close_idle_connections(self, listener: Listener) -> None:
        now_ms = self._clock.mono_ms()
        next_ms = listener.close_idle(now_ms)
        if next_ms is not None:
            delay_ms = max(1_000, next_ms - now_ms)
            self._after(delay_ms, lambda: self._close_idle_connections(listener))


def _complain(error: StorageError | None) -> None:
    if error is not None:
        _log.warning("files that are out of use could not be removed: %s", error)

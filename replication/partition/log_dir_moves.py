"""Moving replicas between the log directories and storage engines of this broker while they are written and read.

RULES    1. A future replica copies the log batch by batch, at the speed of both disks. When it has nearly everything, it is
            flushed and copies what was appended since. Then appends are paused, the rest is copied and flushed, the
            future replica replaces the log, and appends resume. Readers are never paused.
         2. All I/O runs in the queues of the two directories. Before each step the move checks that the partition still
            exists and both directories are online. It waits while the log is being compacted, before it pauses appends, and
            no other compaction begins then.
         3. A future replica does not survive a restart: the move starts again.
         4. For a partition without a local replica, the preferred directory is stored: its log will be created there.
         5. All moves together copy at most what `rate_limiter` allows, except the last stretch, while appends are paused.
         6. No move starts while a log directory is offline, because its content is unknown.
         7. A copy has the engine of its topic's settings. When these change, replicas move within their log directory,
            `MAX_ENGINE_MOVES` at a time; a start moves those whose topic names another engine, or is compacted: in a commit log
            it would never be.
         8. At most `MAX_SWITCHES` moves have paused appends or are being swapped in on disk: each has a checkpoint of all logs
            of the directory in memory. The others wait when they have nearly everything, and copy what is appended meanwhile.
NOT HERE Copying (`storage/directories/log_copy.py`), the future replica on disk (`future_replica.py`), the API
         (`broker/handlers/records/log_dirs.py`).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from replication.cooperative_tasks import no_op
from replication.io_executor import IoExecutor, IoResult, after_pending_io
from replication.partition.partition import Partition
from replication.partition.rate_limiter import RateLimiter
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock, TimerQueue
from storage.config.log_config import STORAGE_ENGINE
from storage.directories.future_logs import (
    add_future_log,
    drop_future_log,
    new_future_log,
    replace_with_future_log,
    take_interrupted_moves,
)
from storage.directories.log_copy import chunk_bytes, complete_copy, find_start, prepare_chunk
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.io.flush_task import SEGMENTS_AT_A_TIME
from storage.log.append_pipeline import PreparedAppend, write_job
from storage.log.log import Log

_log = logging.getLogger("barnabas.moves")

MAX_ENGINE_MOVES: Final = 4
MAX_SWITCHES: Final = 8
CLEANING_CHECK_MS: Final = 100
_MAX_NAME: Final = 255
_MAX_SUFFIX: Final = len("-.") + 32 + len("-future")


@dataclass(slots=True, eq=False)
class ReplicaMove:
    """A replica that is being moved."""

    partition: Partition
    directory: str
    copy: Log | None = None
    """The future replica; None until it is created."""
    log_start_offset: int = 0
    """Of the log when the copy was created."""
    truncation_count: int = 0
    """Likewise: after a truncation the copy may have records that the log has not."""
    is_durable: bool = False
    """Whether the copy was nearly complete and flushed at least once."""
    is_nearly_done: bool = False
    """Whether little was missing after the last chunk."""
    appends_paused: bool = False
    is_over: bool = False


@dataclass(eq=False)
class LogDirMoves:
    """The moves of one broker."""

    _replicas: ReplicaManager
    _executor: IoExecutor
    _timers: TimerQueue
    _clock: Clock

    def __post_init__(self) -> None:
        self._log_manager = self._replicas.log_manager
        self.rate_limiter = RateLimiter(math.inf)
        self.active: dict[tuple[str, int], ReplicaMove] = {}
        """By topic and partition index."""
        self._switching: set[ReplicaMove] = set()  # rule 8
        self._nearly_done: deque[ReplicaMove] = deque()  # the same: those that wait
        self.is_stopped = False
        """Whether moves do no further step, since the broker stops; the next start continues them (rule 3)."""
        self.on_moved: Callable[[Partition], None] = no_op
        self._in_other_engine: dict[Partition, None] = {}  # they move when others are finished
        self._replicas.on_engine_changed = self.move_to_engine

    # ------------------------------------------------------------ requests
    def alter(self, topic: str, index: int, directory: str) -> ErrorCode:
        """Start a move, continue it, or cancel it if the replica shall stay; returns the refusal."""
        code = self._refusal(topic, index, directory)
        if code == ErrorCode.NONE and directory in self._log_manager.placement.cordoned:
            code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if code == ErrorCode.NONE:
            code = self._alter(topic, index, directory)
            self._start_engine_moves()  # if it has cancelled a move
        return code

    def _alter(self, topic: str, index: int, directory: str) -> ErrorCode:
        key = (topic, index)
        move = self.active.get(key)
        is_recreated = move is not None and self._replicas.partitions.get(key) is not move.partition
        cancelled = move if move is not None and (move.directory != directory or is_recreated) else None
        if cancelled is not None:
            self._end(cancelled)
            move = None
        try:
            partition = self._replicas.find(topic, index)
        except KafkaError as error:
            if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                self._log_manager.placement.prefer((topic, index), directory)
            is_unassigned = error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.REPLICA_NOT_AVAILABLE if is_unassigned else error.code
        if move is not None:
            return ErrorCode.NONE
        if partition.log.directory == directory:
            if cancelled is not None:
                self.move_to_engine(partition)  # the settings may have changed since
            return ErrorCode.NONE
        if self._log_manager.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._start(partition, directory)
        return ErrorCode.NONE

    def _refusal(self, topic: str, index: int, directory: str) -> ErrorCode:
        if len(f"{topic}{index}") + _MAX_SUFFIX > _MAX_NAME:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if directory not in self._log_manager.directories:
            is_offline = directory in self._log_manager.offline
            return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.LOG_DIR_NOT_FOUND
        return ErrorCode.NONE

    def resume(self) -> None:
        """At startup: start the moves again that the last shutdown interrupted (rule 3), also to a cordoned directory."""
        for (topic, index), directory in take_interrupted_moves(self._log_manager):
            code = self._refusal(topic, index, directory)
            if code == ErrorCode.NONE:
                code = self._alter(topic, index, directory)
            if code != ErrorCode.NONE:
                _log.warning("the interrupted move of %s-%d to %s is cancelled: %s", topic, index, directory, code.name)
        for partition in list(self._replicas.partitions.values()):
            topic = partition.topic
            if (
                STORAGE_ENGINE in self._replicas.image.topic_config(topic)
                or self._replicas.config_of(topic).is_compacted
            ):
                self.move_to_engine(partition)

    def move_to_engine(self, partition: Partition) -> None:
        """Move a replica to the engine of its settings, now or later (rule 7)."""
        self._in_other_engine[partition] = None
        self._start_engine_moves()

    def _start_engine_moves(self) -> None:
        while self._in_other_engine and len(self.active) < MAX_ENGINE_MOVES and not self._log_manager.offline:
            partition = next(iter(self._in_other_engine))
            del self._in_other_engine[partition]
            is_here = self._replicas.partitions.get(partition.key) is partition and not partition.is_offline
            if not is_here or partition.key in self.active:
                continue
            if self._log_manager.engines.is_other_than_configured(partition.log):
                self._start(partition, partition.log.directory)

    # ------------------------------------------------------------ copying
    def _start(self, partition: Partition, directory: str) -> None:
        move = self.active[partition.key] = ReplicaMove(partition, directory)
        _log.info("moving %s-%d to %s", partition.topic, partition.index, self._target(move))
        self._create_copy(move)

    def _target(self, move: ReplicaMove) -> str:
        """The directory and the engine of the copy, for the log."""
        uses_commit_log = self._replicas.config_of(move.partition.topic).uses_commit_log
        return f"{'the commit log' if uses_commit_log else 'segment files'} in {move.directory}"

    def _create_copy(self, move: ReplicaMove) -> None:
        partition = move.partition
        log = partition.log
        if self._is_over(move):
            return
        try:
            start_offset = find_start(log)
            if isinstance(start_offset, DiskLookup):
                self._replicas.await_disk(partition, start_offset, lambda: self._create_copy(move))
                return
            move.log_start_offset, move.truncation_count = log.log_start_offset, log.offsets.truncation_count
            config = self._replicas.config_of(partition.topic)
            copy, work = new_future_log(self._log_manager, log, move.directory, start_offset, config)
        except KafkaError:
            _log.exception("%s cannot be read", log.name)
            self._cancel(move)
        except StorageError:
            self._cancel(move)
        else:
            self._executor.background(move.directory, work).then(partial(self._on_copy_created, move, copy))

    def _on_copy_created(self, move: ReplicaMove, copy: Log, created: IoResult) -> None:
        error = created.value
        if error is not None and not error.is_full:
            self._replicas.directory_failed(move.directory, error)
        if error is not None or move.directory not in self._log_manager.directories:
            self._cancel(move)
            return
        if move.is_over:  # another move may have created a copy since
            drop_future_log(self._log_manager, copy)
            return
        add_future_log(self._log_manager, copy)
        move.copy = copy
        self._advance(move)

    def _advance(self, move: ReplicaMove) -> None:
        """Perform the next step of a move."""
        copy = move.copy
        if self.is_stopped or self._is_over(move) or copy is None:
            return
        partition = move.partition
        try:
            if partition.log.opened is None:
                self._await_disk(move, partition.log.open_lookup())
            elif (
                partition.log.log_start_offset > max(copy.log_end_offset, move.log_start_offset)
                or partition.log.offsets.truncation_count != move.truncation_count
            ):
                self._restart(move)
            elif copy.log_end_offset < partition.log.log_end_offset and (
                move.appends_paused or not move.is_nearly_done
            ):
                self._copy_chunk(move, copy)
            else:
                self._finish(move, copy)
        except KafkaError:
            _log.exception("%s-%d cannot be copied", partition.topic, partition.index)
            self._cancel(move)
        except StorageError as error:
            self._replicas.directory_failed(_directory_of(error, copy, partition.log), error)
            self._cancel(move)

    def _await_disk(self, move: ReplicaMove, lookup: DiskLookup) -> None:
        self._replicas.await_disk(move.partition, lookup, lambda: self._advance(move))

    def _copy_chunk(self, move: ReplicaMove, copy: Log) -> None:
        log, mono_ms = move.partition.log, self._clock.mono_ms()
        wait_ms = 0 if move.appends_paused else self.rate_limiter.wait_ms(mono_ms)
        if wait_ms:
            self._timers.schedule(mono_ms + wait_ms, partial(self._advance, move))
            return
        prepared = prepare_chunk(log, copy, self._clock.wall_ms())
        if isinstance(prepared, DiskLookup):
            self._await_disk(move, prepared)
            return
        self.rate_limiter.record(prepared.size, mono_ms)
        move.is_nearly_done = prepared.size < chunk_bytes(copy) // 2
        written = self._executor.write(move.directory, *write_job([prepared]))
        written.then(partial(self._on_chunk_written, move, copy, prepared))

    def _restart(self, move: ReplicaMove) -> None:
        """The log does not hold the copy's next records any more, or other ones: start again."""
        partition, directory = move.partition, move.directory
        self._end(move)
        self._start(partition, directory)

    def _on_chunk_written(self, move: ReplicaMove, copy: Log, prepared: PreparedAppend, written: IoResult) -> None:
        if written.value is not None:
            if not copy.is_offline:
                self._replicas.directory_failed(move.directory, written.value)
            self._cancel(move)
            return
        if move.is_over or copy.is_offline:
            return
        prepared.commit(self._clock.wall_ms())
        copy.high_watermark = move.partition.log.high_watermark
        self._advance(move)

    # ------------------------------------------------------------ switching to the copy
    def _finish(self, move: ReplicaMove, copy: Log) -> None:
        """The copy is complete or nearly complete (rule 1)."""
        partition = move.partition
        if not move.is_durable or (move.appends_paused and _has_unflushed(copy)):
            self._sync(move, copy)
        elif not move.appends_paused and partition.log.is_being_cleaned:
            self._await_cleaning(move)
        elif not move.appends_paused and len(self._switching) >= MAX_SWITCHES:
            move.is_nearly_done = False  # much may have been appended when it continues
            self._nearly_done.append(move)
        elif not move.appends_paused:
            self._switching.add(move)
            partition.log.is_being_replaced = True
            move.appends_paused = self._replicas.appender.pause(partition)
            self._advance_after_pending_io(move)
        elif not self._is_idle(partition) or not self._align_copy(partition, copy):
            self._advance_after_pending_io(move)
        else:
            self._switch(move, copy)

    def _sync(self, move: ReplicaMove, copy: Log) -> None:
        flush = copy.open().flush
        task = flush.begin(SEGMENTS_AT_A_TIME)

        def on_synced(synced: IoResult) -> None:
            if synced.value is not None and not copy.is_offline:
                self._replicas.directory_failed(move.directory, synced.value)
            if not copy.is_offline:
                flush.complete(task.end_offset)
                move.is_durable = task.is_complete
                move.is_nearly_done = False  # much may have been appended since
            self._advance(move)

        self._executor.sync(move.directory, lambda: task).then(on_synced)

    def _await_cleaning(self, move: ReplicaMove) -> None:
        """Continue when the compaction of the log has ended, which may take long."""
        move.partition.log.is_being_replaced = True
        move.is_nearly_done = False  # much may be appended meanwhile
        self._timers.schedule(self._clock.mono_ms() + CLEANING_CHECK_MS, partial(self._advance, move))

    def _advance_after_pending_io(self, move: ReplicaMove) -> None:
        """Continue after all pending I/O of both directories."""
        log, executor = move.partition.log, self._executor
        after_pending_io(
            executor, log.directory, lambda: after_pending_io(executor, move.directory, lambda: self._advance(move))
        )

    @staticmethod
    def _is_idle(partition: Partition) -> bool:
        log = partition.log
        return not (
            partition.writes_in_flight or partition.is_syncing or log.files.has_pending_ops or log.is_being_cleaned
        )

    def _align_copy(self, partition: Partition, copy: Log) -> bool:
        """Trim the copy to the log start offset, complete its state and close it; whether that succeeded."""
        complete_copy(partition.log, copy, self._clock.wall_ms())
        return copy.release()

    def _switch(self, move: ReplicaMove, copy: Log) -> None:
        partition = move.partition
        self._end(move, switched=True)
        replace_with_future_log(self._log_manager, partition.log, copy)
        self._executor.directory_op(move.directory, no_op).then(lambda _: self._end_switch(move))
        copy.update_config(self._replicas.config_of(partition.topic))
        partition.switch_log(copy)
        self._replicas.appender.resume(partition)
        self.on_moved(partition)
        _log.info("moved %s-%d to %s", partition.topic, partition.index, self._target(move))
        self.move_to_engine(partition)  # the settings may have changed since

    def _end_switch(self, move: ReplicaMove) -> None:
        """Let moves that wait continue after one that was swapped in, or has ended."""
        if move in self._switching:
            self._switching.remove(move)
            while self._nearly_done and len(self._switching) < MAX_SWITCHES:
                self._advance(self._nearly_done.popleft())

    # ------------------------------------------------------------ the end
    def _is_over(self, move: ReplicaMove) -> bool:
        """Whether the move has ended; cancels it if the partition or a directory is gone."""
        partition = move.partition
        if move.is_over:
            return True
        is_here = self._replicas.partitions.get(partition.key) is partition and not partition.is_offline
        if is_here and not (move.copy is not None and move.copy.is_offline):
            return False
        self._cancel(move)
        return True

    def _cancel(self, move: ReplicaMove) -> None:
        if not move.is_over:
            name = move.partition.log.name
            _log.warning("the move of %s is cancelled: it stays in its log directory", name)
            self._end(move)
            self._start_engine_moves()

    def _end(self, move: ReplicaMove, *, switched: bool = False) -> None:
        move.is_over = True
        move.partition.log.is_being_replaced = False
        del self.active[move.partition.key]
        if not switched:
            if move.copy is not None and not move.copy.is_offline:
                drop_future_log(self._log_manager, move.copy)
            if move.appends_paused:
                self._replicas.appender.resume(move.partition)
            self._end_switch(move)


def _has_unflushed(copy: Log) -> bool:
    return copy.opened is not None and copy.opened.flush.unflushed_messages > 0


def _directory_of(error: StorageError, copy: Log, log: Log) -> str:
    return copy.directory if error.path.startswith(f"{copy.directory}/") else log.directory

"""Moving replicas between the log directories of this broker, while they are written and read.

RULES    1. A copy follows the log, batch by batch, at the pace of the two disks. When it has nearly everything it is made
            durable, and copies what was appended meanwhile; then appends are held back, the rest is copied and made
            durable, the copy takes the log's place, and appends go on. Readers are never held back.
         2. Everything is done by closed work in the directories' lanes; between two pieces the move looks at the world
            anew, and ends when the partition is gone or a directory failed. A log that is being compacted is waited for.
         3. A copy does not survive a restart: it is begun anew.
         4. A partition that is not here is remembered with its directory: its log will be made there.
         5. All moves together copy no more than `throttle` allows; the last stretch, for which appends wait, is not held up.
         6. Nothing is moved while a log directory is offline: nobody knows what lies there.
NOT HERE What a copy is on disk (`storage/directories/future_replica.py`), who asks (`broker/handlers/records/log_dirs.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.records import parse_header
from replication.io_executor import Worker, behind_all
from replication.partition.partition import Partition
from replication.partition.rate_limiter import Throttle
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Deadlines
from storage.directories.log_manager import LogManager
from storage.engine import Engine
from storage.io.disk import StorageError
from storage.io.flush_task import SEGMENTS_AT_A_TIME
from storage.io.would_block import WouldBlock
from storage.log.append_pipeline import PreparedAppend
from storage.log.log import Log

_log = logging.getLogger("barnabas.moves")

CHUNK_BYTES: Final = 256 * 1024
_LONGEST_NAME: Final = 255
_LONGEST_ENDING: Final = len("-.") + 32 + len("-future")


class Move:
    """One replica on its way."""

    __slots__ = ("copy", "directory", "is_close", "is_durable", "is_held", "is_over", "log_start_offset", "partition")

    def __init__(self, partition: Partition, directory: str) -> None:
        self.partition = partition
        self.directory = directory
        self.copy: Log | None = None
        """None while it is being made."""
        self.log_start_offset = 0
        """Of the log, when the copy was made."""
        self.is_durable = False
        """Whether it had nearly everything once, and that is on disk."""
        self.is_close = False
        """Whether what is missing was little, a moment ago."""
        self.is_held = False
        """Whether appends are held back."""
        self.is_over = False


class Moves:
    """The moves of one broker."""

    def __init__(
        self,
        replicas: ReplicaManager,
        log_manager: LogManager,
        worker: Worker,
        wall_ms: Callable[[], int],
        deadlines: Deadlines,
        mono_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._log_manager = log_manager
        self._worker = worker
        self._wall_ms = wall_ms
        self._deadlines = deadlines
        self._mono_ms = mono_ms
        self.throttle = Throttle(math.inf)
        self.under_way: dict[tuple[str, int], Move] = {}
        """By topic and index."""
        self.on_moved: Callable[[Partition], None] | None = None

    # ------------------------------------------------------------ wishes
    def alter(self, topic: str, index: int, directory: str) -> ErrorCode:
        """Begin to move a replica, go on, or stop because it shall stay where it is; why not, if not."""
        code = self._why_not(topic, index, directory)
        if code != ErrorCode.NONE:
            return code
        key = (topic, index)
        move = self.under_way.get(key)
        is_other = move is not None and self._replicas.partitions.get(key) is not move.partition  # made again meanwhile
        if move is not None and (move.directory != directory or is_other):
            self._end(move)
            move = None
        try:
            partition = self._replicas.find(topic, index)
        except KafkaError as error:
            if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                self._log_manager.prefer(topic, index, directory)
            is_elsewhere = error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else error.code
        if partition.log.directory == directory or move is not None:
            return ErrorCode.NONE
        if self._log_manager.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._begin(partition, directory)
        return ErrorCode.NONE

    def _why_not(self, topic: str, index: int, directory: str) -> ErrorCode:
        if len(f"{topic}{index}") + _LONGEST_ENDING > _LONGEST_NAME:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        known = self._log_manager.directories.get(directory)
        if known is None:
            is_offline = directory in self._log_manager.offline
            return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.LOG_DIR_NOT_FOUND
        broker = self._replicas.image.brokers.get(self._replicas.broker_id)
        if broker is not None and known.directory_id in (broker.cordoned_directories or ()):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        return ErrorCode.NONE

    def resume(self) -> None:
        """After the start: begin anew what the last stop has interrupted (rule 3)."""
        for (topic, index), directory in self._log_manager.take_interrupted():
            code = self.alter(topic, index, directory)
            if code != ErrorCode.NONE:
                _log.warning("%s-%d is not moved to %s any more: %s", topic, index, directory, code.name)

    # ------------------------------------------------------------ copying
    def _begin(self, partition: Partition, directory: str) -> None:
        move = self.under_way[partition.key] = Move(partition, directory)
        _log.info("moving %s-%d to %s", partition.topic, partition.index, directory)
        self._make(move)

    def _make(self, move: Move) -> None:
        partition = move.partition
        log = partition.log
        if self._has_ended(move):
            return
        try:
            log.open(may_block=False)
            start_offset = log.look("first batch", partial(_first_batch, log.log_start_offset), may_block=False)
            move.log_start_offset = log.log_start_offset
            copy, work = self._log_manager.make_copy(log, move.directory, start_offset)
        except WouldBlock as blocked:
            self._replicas.await_disk(partition, blocked, lambda: self._make(move))
        except KafkaError:
            _log.exception("%s-%d cannot be read", partition.topic, partition.index)
            self._give_up(move)
        except StorageError:
            self._give_up(move)
        else:
            self._worker.background(move.directory, work, partial(self._made, move, copy))

    def _made(self, move: Move, copy: Log, error: StorageError | None) -> None:
        if error is not None and not error.is_full:
            self._replicas.directory_failed(move.directory, error)
        if error is not None or move.directory not in self._log_manager.directories:
            self._give_up(move)
            return
        if move.is_over:  # and another one may have a copy by now
            self._log_manager.drop_copy(copy)
            return
        self._log_manager.add_copy(copy)
        move.copy = copy
        self._step(move)

    def _step(self, move: Move, error: StorageError | None = None) -> None:
        """Do the next piece of work; `error`: what became of waiting for a turn, which others report."""
        del error
        copy = move.copy
        if self._has_ended(move) or copy is None:
            return
        partition = move.partition
        try:
            partition.log.open(may_block=False)
            if partition.log.log_start_offset > max(copy.log_end_offset, move.log_start_offset):
                self._begin_anew(move)
            elif copy.log_end_offset < partition.log.log_end_offset and (move.is_held or not move.is_close):
                self._copy_more(move, copy)
            else:
                self._next_stage(move, copy)
        except WouldBlock as blocked:
            self._replicas.await_disk(partition, blocked, lambda: self._step(move))
        except KafkaError:
            _log.exception("%s-%d cannot be copied", partition.topic, partition.index)
            self._give_up(move)
        except StorageError as failure:
            self._replicas.directory_failed(_directory_of(failure, copy, partition.log), failure)
            self._give_up(move)

    def _copy_more(self, move: Move, copy: Log) -> None:
        log, mono_ms = move.partition.log, self._mono_ms()
        wait_ms = 0 if move.is_held else self.throttle.wait_ms(mono_ms)
        if wait_ms:
            self._deadlines.schedule(mono_ms + wait_ms, partial(self._step, move))
            return
        most = min(CHUNK_BYTES, copy.config.segment_bytes)
        start_offset = max(copy.log_end_offset, log.log_start_offset)  # the first batch may begin before the log does
        records = log.read_records(start_offset, most, may_block=False)
        prepared = copy.prepare_as_follower(records, wall_ms=self._wall_ms())
        if prepared is None:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
        self.throttle.took(prepared.size, mono_ms)
        move.is_close = prepared.size < most // 2
        self._worker.write(
            move.directory,
            prepared.size,
            partial(copy.write, prepared),
            partial(self._written, move, copy, prepared),
        )

    def _begin_anew(self, move: Move) -> None:
        """The log does not hold any more what would come next."""
        partition, directory = move.partition, move.directory
        self._end(move)
        self._begin(partition, directory)

    def _written(self, move: Move, copy: Log, prepared: PreparedAppend, error: StorageError | None) -> None:
        if error is not None:
            if not copy.is_offline:
                self._replicas.directory_failed(move.directory, error)
            self._give_up(move)
            return
        if move.is_over or copy.is_offline:
            return
        copy.commit(prepared, self._wall_ms())
        copy.high_watermark = move.partition.log.high_watermark
        self._step(move)

    # ------------------------------------------------------------ taking the log's place
    def _next_stage(self, move: Move, copy: Log) -> None:
        """The copy has everything, or nearly (rule 1)."""
        partition = move.partition
        if not move.is_durable or (move.is_held and copy.unflushed_messages):
            self._sync(move, copy)
        elif not move.is_held:
            move.is_held = self._replicas.hold_appends(partition)
            self._wait_for_others(move)
        elif not self._is_at_rest(partition) or not self._is_ready(partition, copy):
            self._wait_for_others(move)
        else:
            self._take_place(move, copy)

    def _sync(self, move: Move, copy: Log) -> None:
        work = copy.sync_work(SEGMENTS_AT_A_TIME)

        def synced(error: StorageError | None) -> None:
            if error is not None and not copy.is_offline:
                self._replicas.directory_failed(move.directory, error)
            if not copy.is_offline:
                copy.flushed(work.end_offset)
                move.is_durable = work.is_complete
                move.is_close = False  # much may have come meanwhile
            self._step(move)

        self._worker.sync(move.directory, lambda: work, synced)

    def _wait_for_others(self, move: Move) -> None:
        """Come again behind all that is under way in both directories."""
        log, worker = move.partition.log, self._worker
        behind_all(worker, log.directory, lambda _: behind_all(worker, move.directory, lambda _: self._step(move)))

    @staticmethod
    def _is_at_rest(partition: Partition) -> bool:
        log = partition.log
        return not (partition.writes_in_flight or partition.is_syncing or log.is_changing or log.is_being_cleaned)

    def _is_ready(self, partition: Partition, copy: Log) -> bool:
        """Have the copy begin where the log does, and be closed."""
        log = partition.log
        copy.high_watermark = log.high_watermark
        if copy.is_open and log.log_start_offset > copy.log_start_offset:
            copy.trim(log.log_start_offset, self._wall_ms())
        return copy.release()

    def _take_place(self, move: Move, copy: Log) -> None:
        partition = move.partition
        self._end(move, is_done=True)
        self._log_manager.replace(partition.log, copy)
        copy.update_config(self._replicas.config_of(partition.topic))
        partition.lie_in(copy)
        self._replicas.resume_appends(partition)
        if self.on_moved is not None:
            self.on_moved(partition)
        _log.info("%s-%d lies in %s now", partition.topic, partition.index, move.directory)

    # ------------------------------------------------------------ the end
    def _has_ended(self, move: Move) -> bool:
        """Whether there is nothing more to do; sees to it that nothing is left behind."""
        partition = move.partition
        if move.is_over:
            return True
        is_here = self._replicas.partitions.get(partition.key) is partition and not partition.is_offline
        if is_here and not (move.copy is not None and move.copy.is_offline):
            return False
        self._give_up(move)
        return True

    def _give_up(self, move: Move) -> None:
        if not move.is_over:
            _log.warning("%s-%d stays where it is", move.partition.topic, move.partition.index)
            self._end(move)

    def _end(self, move: Move, *, is_done: bool = False) -> None:
        move.is_over = True
        del self.under_way[move.partition.key]
        if not is_done:
            self._drop(move)
            if move.is_held:
                self._replicas.resume_appends(move.partition)

    def _drop(self, move: Move) -> None:
        if move.copy is not None and not move.copy.is_offline:
            self._log_manager.drop_copy(move.copy)


def _first_batch(log_start_offset: int, engine: Engine) -> int:
    """Where the batch begins that holds a log's first record; for a thread."""
    if log_start_offset >= engine.end_offset:
        return engine.end_offset
    return parse_header(engine.read_batches(log_start_offset, 1)).base_offset


def _directory_of(error: StorageError, copy: Log, log: Log) -> str:
    return copy.directory if error.path.startswith(f"{copy.directory}/") else log.directory

"""All logs of this broker: found at the start, made, taken away, and looked after from time to time.

FORMAT   in each log directory: `.lock`, the three offset checkpoints (checkpoint_file.py), partition directories
         (partition_directory.py), and after a clean shutdown a marker (log_directory.py)
RULES    1. The clean-shutdown markers are taken before anything else changes; one is written last, and only in a directory
            where every log was closed durably.
         2. After an unclean stop every log has to be recovered. What needs more than LAZY_RECOVERY_BYTES to be read is
            recovered at the start (`recover`), the rest when it is first used or, unless that is very much, at the
            shutdown; a directory where some logs were not is not marked clean.
         3. A log directory whose disk fails goes offline for good, alone: its logs refuse every use, nothing is
            written there any more, and none of its partitions is made anew elsewhere; nor is one that is known to lie in
            a directory which is not here.
         4. A partition's directory that carries another topic id belongs to a topic that is gone: it is set aside.
         5. Deleting is renaming; the files go after `log.segment.delete.delay.ms`, as closed work. Directories are made and
            renamed through `later` (deferred_file_ops.py): until then nobody looks into them. A name that is used again is made in
            the same log directory, when the renaming is durable and no checkpoint speaks of the log that had it before.
            Nobody is at the files of a log that is renamed (path_guard.py).
         6. What takes long comes in steps (an iterator, one log a step) or as closed work for a thread.
         7. A copy of a log that is being moved is in nobody's way: it is not looked after, and it is no log of its directory
            until it has taken the log's place.
NOT HERE One log (log.py), meta.properties (replication/metadata_log/formatting.py), when to call what (broker/server.py).
         Why recovery may wait: docs/decisions/0005-recovery-on-first-use.md
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, NamedTuple

from protocol.errors import KafkaError
from storage.config.log_config import LogConfig
from storage.directories.checkpoint_writer import OneAtATime, Work
from storage.directories.future_replica import FUTURE, begin_copy, copy_of, finish_moves, take_place
from storage.directories.log_directory import NO_BROKER_EPOCH, LogDirectory
from storage.directories.partition_directory import DELETED, STRAY, aside_name, partition_of, remove
from storage.engine import Engine, EngineFactory
from storage.io.checkpoint_file import TopicPartition
from storage.io.deferred_file_ops import Change
from storage.io.disk import Disk, Lock, StorageError
from storage.io.disk_space import Room
from storage.io.disk_usage import Usage
from storage.io.file_handle_cache import UNLIMITED, OpenFiles
from storage.io.path_guard import Visits
from storage.log.log import Log
from storage.log.openable_log import NEVER_CLEANED, Checkpoint
from storage.log.producer_state import DEFAULT_EXPIRATION_MS
from storage.segments.segment_engine import SegmentEngine

LAZY_RECOVERY_BYTES: Final = 1024 * 1024
RECOVERED_AT_SHUTDOWN: Final = 200
MOST_REMEMBERED: Final = 10_000

_log = logging.getLogger("barnabas.storage")


class _Dying(NamedTuple):
    """A directory that is to be removed."""

    since_ms: int | None
    """None: nobody has looked at the clock yet."""
    is_kept: bool
    """Whether it stays for `deletion_delay_ms`."""
    directory: str
    paths: list[str]
    """Its own, once it is called so."""


class LogManager:
    """The logs of all log directories."""

    def __init__(
        self,
        disk: Disk,
        directories: Mapping[str, bytes],
        config: LogConfig,
        *,
        random_bytes: Callable[[int], bytes],
        engine_factory: EngineFactory | None = None,
        failed: Mapping[str, StorageError] = {},  # nobody changes it
        locks: Sequence[Lock] = (),
        most_open_files: int = UNLIMITED,
        new_lock: Callable[[], OneAtATime] = nullcontext,
    ) -> None:
        """Look at nothing yet: `load` does.

        Args:
            disk: the file system.
            directories: each log directory with its id.
            config: what logs obey until they are told otherwise.
            random_bytes: dice.
            engine_factory: None for the segments engine.
            failed: log directories whose disk has failed already, and why.
            locks: of the directories, to be let go at the shutdown.
            most_open_files: what logs may have open, all together.
            new_lock: makes what lets one thread at a time do something, where there are several.
        """
        self._disk = disk
        self._config = config
        self._random_bytes = random_bytes
        self._visits = Visits(new_lock)
        self.engine_factory = engine_factory or self._segments
        self._locks = locks
        self.open_files = OpenFiles(disk, most_open_files)
        """Of all logs."""
        self.logs: dict[TopicPartition, Log] = {}
        self.directories: dict[str, LogDirectory] = {
            path: LogDirectory(disk, path, id_, new_lock()) for path, id_ in directories.items()
        }
        """Those in service, by path."""
        self.directory_ids = dict(directories)
        """Of those that were in service at the start, by path."""
        self.offline: dict[str, StorageError] = dict(failed)
        """Those that failed, and why."""
        self.cordoned: frozenset[str] = frozenset()
        """Those that take no new logs, while there is another."""
        self.producer_expiration_ms = DEFAULT_EXPIRATION_MS
        self.deletion_delay_ms = config.file_delete_delay_ms
        """How long the files of a deleted topic stay: the broker's own, as in Apache Kafka."""
        self._lost: dict[TopicPartition, bytes | None] = {}  # by topic id, where that is known
        self._lost_unseen = bool(failed)
        self.strays: list[Log] = []
        """Logs that have the names of others: their directory was not here when the topic was made again."""
        self._dying: list[_Dying] = []
        self.later: Callable[[str, Change], None] = lambda _, change: change()
        """Makes changes of the files of logs in a log directory: at once, unless it is set."""
        self.name_later: Callable[[str, Change], None] = lambda _, change: change()
        """Makes and renames logs' directories: likewise."""
        self.room_later: Callable[[str, Change], None] = lambda _, change: change()
        """Makes changes of files that make room, while there is none: likewise."""
        self.rooms = {path: Room(partial(self._make_room, path)) for path in directories}
        self.copies: dict[TopicPartition, Log] = {}
        """Of logs that are being moved, in their new directories (future_replica.py)."""
        self._interrupted: list[tuple[TopicPartition, str]] = []
        self._preferred: dict[TopicPartition, str] = {}
        self._taken_out: dict[TopicPartition, str] = {}  # lately, and from where

    def _segments(self, directory: str, config: LogConfig) -> Engine:
        return SegmentEngine(self._disk, directory, config, self._jitter, self.open_files)

    def _jitter(self, limit_ms: int) -> int:
        return int.from_bytes(self._random_bytes(8), "big") % limit_ms

    # ---- start and end -----------------------------------------------------------------------------------

    def load(self, id_of: Callable[[str], bytes | None] = lambda _: None) -> None:
        """Find the logs of all directories, and open none; `id_of` tells which topic has a name now.

        Raises:
            StorageError: no directory is left in service, or one partition of one topic lies in two of them.
        """
        for step in (LogDirectory.enter, self._finish_moves, partial(self._load, id_of)):
            for directory in list(self.directories.values()):
                try:
                    step(directory)
                except StorageError as error:
                    self.go_offline(directory.path, error)
                    self._lost_unseen = True
        if not self.directories:
            raise next(iter(self.offline.values()))

    def _finish_moves(self, directory: LogDirectory) -> None:
        if not self.offline:  # else nobody knows what is missing
            finish_moves(self._disk, directory.path, self.directories)

    def _load(self, id_of: Callable[[str], bytes | None], directory: LogDirectory) -> None:
        path, disk = directory.path, self._disk
        checkpoints = directory.read_checkpoints()
        for name in disk.listdir(path):
            if name.endswith(DELETED):
                self._dying.append(_Dying(0, False, path, [f"{path}/{name}"]))
            moved = copy_of(name)
            if moved is not None:
                self._interrupted.append((moved, f"{path}/{name}"))
            key = partition_of(name)
            if key is None:
                continue
            log = Log(
                disk,
                self.engine_factory,
                path,
                *key,
                self._config,
                known=checkpoints.get(key, Checkpoint()),
                is_clean=directory.was_clean,
            )
            self._look_after(log)
            directory.logs[key] = log
            other = self.logs.setdefault(key, log)
            if other is not log:
                self._take_one(log, other, id_of(log.topic))

    def _take_one(self, log: Log, other: Log, topic_id: bytes | None) -> None:
        """Of two logs of one name, the one of the topic that has the name, or the one that may be its."""
        if log.topic_id == other.topic_id:
            raise StorageError(
                "use", log.directory, OSError(0, f"{log.name} lies in {other.directory} too; remove one of them")
            )
        if log.topic_id == topic_id or (log.topic_id is None and other.topic_id != topic_id):
            log, other = other, log
        self.logs[log.topic, log.partition] = other
        self.strays.append(log)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last run; -1 unless it ended cleanly in every directory."""
        epochs = {directory.broker_epoch for directory in self.directories.values()}
        return epochs.pop() if len(epochs) == 1 and not self.offline else NO_BROKER_EPOCH

    def recover(self) -> Iterator[Log]:
        """Recover what must not wait for its first use, one log a step (rule 2)."""
        for log in list(self.logs.values()):
            if log.needs_recovery and not log.is_offline:
                try:
                    if log.bytes_to_recover() <= LAZY_RECOVERY_BYTES:
                        continue
                    log.open()
                except StorageError as error:
                    self.go_offline(log.directory, error)
                yield log

    def shutdown(self, broker_epoch: int = NO_BROKER_EPOCH) -> None:
        """Close every log durably and say so (rule 1); directories that fail meanwhile are recovered next time."""
        for directory in list(self.directories.values()):
            try:
                is_clean = self._recover_rest(directory)
                directory.close_all()
                work = directory.update_checkpoints()
                if work is not None:
                    work()
                if is_clean:
                    directory.leave(broker_epoch)
            except StorageError as error:
                self.go_offline(directory.path, error)
        for lock in self._locks:
            lock.release()

    def _recover_rest(self, directory: LogDirectory) -> bool:
        """Recover what nobody has used, unless that is very much; whether the next start finds all in order."""
        if any(gone.directory == directory.path and not gone.paths for gone in self._dying):
            return False  # what was to go is still there: the directory failed to which it was moved
        rest = [log for log in directory.logs.values() if log.needs_recovery]
        if len(rest) > RECOVERED_AT_SHUTDOWN:
            return False
        for log in rest:
            log.open()
        return True

    def go_offline(self, directory: str, error: StorageError) -> list[Log]:
        """Take a log directory out of service (rule 3); the logs that were in it."""
        failed = self.directories.pop(directory, None)
        if failed is None:
            return []
        self.offline[directory] = error
        for key, log in failed.logs.items():
            log.go_offline()
            self._lost[key] = log.known_topic_id
            if self.logs.get(key) is log:
                del self.logs[key]
        for key, copy in list(self.copies.items()):
            if copy.directory == directory:
                copy.go_offline()
                del self.copies[key]
        return list(failed.logs.values())

    # ---- logs --------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        """The log of a partition, if it is here."""
        return self.logs.get((topic, partition))

    def get_or_create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        directory: str | None = None,
        *,
        lies_in: bytes | None = None,
        is_new: bool = True,
    ) -> Log:
        """The log of a partition, made where it is not here yet.

        Args:
            topic: its name.
            partition: its number.
            topic_id: of its topic.
            config: what it obeys.
            directory: where to make it; None: where the fewest are.
            lies_in: the id of the directory where it is known to lie, if that is known.
            is_new: whether nobody has used it yet, so that it need not be looked for.

        Raises:
            StorageError: it cannot be made, or lies in a directory that is offline, or not here.
        """
        key = (topic, partition)
        log = self.logs.get(key)
        if log is not None:
            if log.topic_id is None:
                log.assign_topic_id(topic_id)
            if log.topic_id == topic_id:
                log.update_config(config)
                return log
            self.set_aside(log)
        named = next((path for path, home in self.directories.items() if home.directory_id == lies_in), None)
        is_elsewhere = lies_in is not None and named is None
        is_unseen = self._lost_unseen and not is_new and lies_in is None and directory is None
        if is_elsewhere or is_unseen or (key in self._lost and self._lost[key] in (None, topic_id)):
            why = ", ".join(f"{path} is offline" for path in self.offline) or "its log directory is not here"
            raise StorageError("find the log of", f"{topic}-{partition}", OSError(0, why))
        wished = (directory, named, self._preferred.pop(key, None), was_in := self._taken_out.pop(key, None))
        home = self._home(directory or next((path for path in wished if path in self.directories), None))
        log = Log(self._disk, self.engine_factory, home.path, topic, partition, config, topic_id=topic_id, is_new=True)
        self._look_after(log)
        self.logs[key] = home.logs[key] = log
        try:
            if was_in is not None:
                self.name_later(home.path, partial(self._disk.sync_dir, home.path))
            if home.checkpoints.may_speak_of(key):
                self._write_checkpoints(home)
            log.change(partial(home.make, log.path, topic_id), partial(self.name_later, home.path))
        except StorageError:
            del self.logs[key], home.logs[key]
            raise
        return log

    def _home(self, directory: str | None) -> LogDirectory:
        if directory is not None:
            home = self.directories.get(directory)
            if home is None:
                raise StorageError("use", directory, OSError(0, "it is offline, or none of this broker's"))
            return home
        if not self.directories:
            raise next(iter(self.offline.values()))
        candidates = [home for path, home in self.directories.items() if path not in self.cordoned]
        return min(candidates or self.directories.values(), key=lambda candidate: len(candidate.logs))

    def delete(self, log: Log) -> None:
        """Take a log away: its directory is renamed now and removed later."""
        self._dying.append(_Dying(None, True, log.directory, self._take_out(log, DELETED)))

    def set_aside(self, log: Log) -> None:
        """Take a log out of service whose topic the cluster does not have; its directory is kept."""
        self._take_out(log, STRAY)

    def _take_out(self, log: Log, suffix: str) -> list[str]:
        """Where its directory lies, once it does."""
        key = (log.topic, log.partition)
        home = self.directories.get(log.directory)
        if home is None:
            raise self.offline[log.directory]
        log.delete()
        del home.logs[key]
        if self.logs.get(key) is log:
            del self.logs[key]
        _remember(self._taken_out, key, home.path)
        return self._rename_later(log, suffix)

    def _rename_later(self, log: Log, suffix: str) -> list[str]:
        path = f"{log.directory}/{aside_name(log.topic, log.partition, self._random_bytes(16), suffix)}"
        renamed: list[str] = []
        self.name_later(log.directory, partial(self._rename, log, path, renamed))
        return renamed

    def _rename(self, log: Log, path: str, renamed: list[str]) -> None:
        self._visits.await_end(log)
        if self._disk.exists(log.path):  # else it was taken away before it was made
            self._disk.rename(log.path, path)
        renamed.append(path)

    def _look_after(self, log: Log) -> None:
        log.later = partial(self._change, log.directory)
        log.visits = self._visits
        log.room = self.rooms[log.directory]

    def _make_room(self, directory: str, change: Change) -> None:
        self.room_later(directory, change)

    def _change(self, directory: str, change: Change) -> None:
        self.later(directory, change)

    # ---- moving a log ------------------------------------------------------------------------------------

    def prefer(self, topic: str, partition: int, directory: str) -> None:
        """Make the log of a partition that is not here yet in this directory, when it comes."""
        _remember(self._preferred, (topic, partition), directory)

    def take_interrupted(self) -> list[tuple[TopicPartition, str]]:
        """The logs that were being moved when the broker stopped, and where to, told once; what was copied goes."""
        found, self._interrupted = self._interrupted, []
        moves: dict[TopicPartition, str] = {}
        for key, path in found:
            if key in self.logs:  # else what is missing may be in a directory that is not here: leave it to a person
                moves[key] = directory = path.rpartition("/")[0]
                doomed = f"{directory}/{aside_name(*key, self._random_bytes(16), DELETED)}"
                renamed: list[str] = []  # now, for Kafka does not start where two copies of one log lie
                self.name_later(directory, partial(_rename, partial(self._disk.rename, path, doomed), renamed, doomed))
                self._dying.append(_Dying(0, False, directory, renamed))
        return list(moves.items())

    def make_copy(self, log: Log, directory: str, start_offset: int) -> tuple[Log, Work]:
        """An empty copy of a log, and closed work that makes it on disk; say `add_copy` then.

        Raises:
            StorageError: the directory is offline.
        """
        home, topic_id = self._home(directory), log.topic_id
        assert topic_id is not None, "a log in use has its topic's id"
        copy = Log(
            self._disk, self.engine_factory, home.path, log.topic, log.partition, log.config,
            topic_id=topic_id, is_new=True,
        )  # fmt: skip
        copy.path = f"{home.path}/{aside_name(log.topic, log.partition, self._random_bytes(16), FUTURE)}"
        if log.first_dirty_offset != NEVER_CLEANED:
            copy.first_dirty_offset = start_offset
        return copy, partial(begin_copy, self._disk, copy, topic_id, start_offset)

    def add_copy(self, copy: Log) -> None:
        """A copy lies on disk."""
        self._look_after(copy)
        self.copies[copy.topic, copy.partition] = copy

    def drop_copy(self, copy: Log) -> None:
        """Give a copy up, also one that was not added."""
        self.copies = {key: other for key, other in self.copies.items() if other is not copy}
        copy.delete()
        self._dying.append(_Dying(None, False, copy.directory, self._rename_later(copy, DELETED)))

    def replace(self, log: Log, copy: Log) -> None:
        """Have a copy that is complete, durable and closed take its log's place (future_replica.py rule 1)."""
        key = (log.topic, log.partition)
        doomed = f"{log.directory}/{aside_name(*key, self._random_bytes(16), DELETED)}"
        lay_in, copy.path = copy.path, f"{copy.directory}/{copy.name}"
        log.delete()
        del self.copies[key], self.directories[log.directory].logs[key]
        home = self.directories[copy.directory]
        self.logs[key] = home.logs[key] = copy
        self._write_checkpoints(home)
        self.name_later(copy.directory, partial(self._visits.await_end, log))
        renamed: list[str] = []
        taking = partial(take_place, self._disk, log.path, doomed, lay_in, copy.path)
        self.name_later(copy.directory, partial(_rename, taking, renamed, doomed))
        copy.change(_nothing, partial(self.name_later, copy.directory))  # so that nobody opens it before
        self._dying.append(_Dying(None, True, log.directory, renamed))

    def truncate(self, log: Log, offset: int) -> bool:
        """Cut a log, after writing the checkpoints that must not lie in what is going to be appended there."""
        if offset < log.log_end_offset:
            self._lower_checkpoint(log, offset, log.log_start_offset)
        return log.truncate(offset)

    def truncate_fully(self, log: Log, offset: int) -> None:
        """Empty a log, after writing the checkpoints likewise."""
        self._lower_checkpoint(log, offset, offset)
        log.truncate_fully(offset)

    def _write_checkpoints(self, home: LogDirectory) -> None:
        """Before names in this directory are made or changed that are handed in from now on."""
        work = home.update_checkpoints()
        if work is not None:
            self.name_later(home.path, work)

    def _lower_checkpoint(self, log: Log, end_offset: int, start_offset: int) -> None:
        known, directory = log.checkpoint, self.directories[log.directory]
        bases = [segment.base_offset for segment in log.open().segments() if segment.base_offset <= end_offset]
        lowered = Checkpoint(
            min(known.recovery_point, bases[-1] if bases else 0),  # the segment that will be the last
            start_offset,
            min(known.high_watermark, end_offset),
            min(known.first_dirty_offset, end_offset),
        )
        work = directory.update_checkpoints({(log.topic, log.partition): lowered})
        if work is not None:
            work()

    # ---- from time to time -------------------------------------------------------------------------------

    def checkpoint(self) -> list[tuple[str, Work]]:
        """Closed work, for each log directory, that writes its checkpoint files where they have changed.

        A directory whose last such work is not finished is passed over.
        """
        return [
            (directory.path, work)
            for directory in self.directories.values()
            if not directory.is_writing and (work := directory.checkpoint()) is not None
        ]

    def watch(self) -> list[tuple[str, Work]]:
        """Closed work, for each log directory, that sees whether it is still there."""
        return [(directory.path, directory.check) for directory in self.directories.values()]

    def forget_checkpoints(self, directory: str) -> None:
        """They could not be written for want of room: the next are written whatever they hold."""
        home = self.directories.get(directory)
        if home is not None:
            home.checkpoints.known.clear()

    def checkpoint_anew(self, directory: str) -> Work:
        """Closed work that writes the checkpoint files of a log directory, whatever they hold."""
        self.forget_checkpoints(directory)
        work = self.directories[directory].update_checkpoints(whenever=True)
        assert work is not None, "nobody knows what they hold"
        return work

    def flush_due(self, wall_ms: int) -> list[Log]:
        """The logs that are to be synced now: for `flush.ms`, or because a segment is full."""
        return [log for log in self.logs.values() if log.is_open and log.is_flush_due(wall_ms)]

    def retain(self, wall_ms: int) -> Iterator[Log]:
        """Drop what has expired, some of one log a step; a log that was not open is closed again."""
        for log in list(self.logs.values()):
            goes_past = log.room.is_full and log.is_open  # else what is opened may still have to be made
            is_busy = log.is_in_use_elsewhere if goes_past else log.is_busy
            if is_busy or not log.is_retention_due(wall_ms):
                continue
            was_open = log.is_open
            while has_more := self._retain_some(log, wall_ms, was_open=was_open):
                yield log
                if not log.is_open or log.is_being_cleaned:
                    break
            if not has_more:
                yield log

    def _retain_some(self, log: Log, wall_ms: int, *, was_open: bool) -> bool:
        """Whether there may be more to drop."""
        has_more = False
        try:
            has_more = log.retain(wall_ms)
            if not (was_open or has_more):
                log.release()
        except StorageError as error:
            if not error.is_full:  # else it is looked after when there is room
                self.go_offline(log.directory, error)
        except KafkaError as error:
            _log.warning("%s is not looked after: %s", log.name, error.message or error.code.name)
        return has_more

    def deletions(self, wall_ms: int) -> list[tuple[str, Work]]:
        """Closed work, for each log directory, that removes the files and directories whose time has come.

        What has not got its name for deletion yet is told of at a later look, so nothing has to be waited for.
        """
        found: dict[str, tuple[list[str], list[str]]] = {}
        for log in self.logs.values():
            if log.doomed:
                due = [paths for due_ms, paths in log.doomed if due_ms <= wall_ms]
                log.doomed = [entry for entry in log.doomed if entry[0] > wall_ms or log.is_changing]
                for paths in due:
                    found.setdefault(log.directory, ([], []))[0].extend(_taken(paths))
        dying, self._dying = self._dying, []
        for since_ms, is_kept, directory, paths in dying:
            begun_ms = wall_ms if since_ms is None else since_ms
            if begun_ms + is_kept * self.deletion_delay_ms <= wall_ms and paths:
                found.setdefault(directory, ([], []))[1].extend(paths)
            elif directory in self.directories:
                self._dying.append(_Dying(begun_ms, is_kept, directory, paths))
        return [(directory, partial(remove, self._disk, *what)) for directory, what in found.items() if any(what)]

    def usage(self, directory: str, logs: Iterable[str]) -> Usage:
        """A look, to be run by a thread, at how much a log directory holds, and these of its logs by path."""
        return Usage(self._disk, directory, logs)

    def expire_producers(self, wall_ms: int) -> None:
        """Forget producers that have been idle for too long."""
        for log in self.logs.values():
            if log.is_open:
                log.producers.expire(wall_ms, self.producer_expiration_ms)


def _remember(directories: dict[TopicPartition, str], key: TopicPartition, directory: str) -> None:
    directories.pop(key, None)
    directories[key] = directory
    if len(directories) > MOST_REMEMBERED:
        del directories[next(iter(directories))]


def _rename(change: Change, renamed: list[str], path: str) -> None:
    """Tell of it once it is done."""
    change()
    renamed.append(path)


def _nothing() -> None:
    """Only its turn is waited for."""


def _taken(paths: list[str]) -> list[str]:
    """What is in a list to which a thread adds, which is not there any more then."""
    taken = paths.copy()
    del paths[: len(taken)]
    return taken

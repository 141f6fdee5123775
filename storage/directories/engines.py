"""The engines of the logs: which one a partition has, and which frames of a commit log are its.

RULES    1. What is on disk decides: a partition with frames in the commit log stays there, one with segment files keeps them.
            The engine of an empty partition is that of its settings. In the commit log a partition has no directory, unless a
            move to this log directory has created it; its frames contain its name, and before the first one nothing is on disk.
         2. A partition's frames are dropped after its directory, if any, was renamed durably: else it could reappear without
            them. A new partition starts without the frames of an earlier one, durably, before its directory is created.
         3. The frames of a future replica have an incarnation of their own, which follows from its directory's name: one log
            directory can contain a log and its copy in the other engine. They stay with the copy when it replaces the log.
         4. When a commit log is opened, frames that are neither of a future replica nor of a partition without segment files
            are dropped, if their incarnation or a directory to be deleted says that a crash may have left them. A directory
            whose topic id has no frames may be that of any: its metadata file may be wrong.
         5. `create` and the operations of `drop_of` run in any thread.
NOT HERE When logs are created and deleted (log_manager.py), the commit logs (commit_logs.py), the engines (storage/segments,
         storage/commitlog).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.slots import Slot, SlotId
from storage.config.log_config import LogConfig
from storage.directories.commit_logs import CommitLogs
from storage.directories.future_replica import incarnation_of
from storage.directories.partition_directory import DELETED, FUTURE, STRAY, parse_dir_name
from storage.engine import Engine, EngineFactory
from storage.io.checkpoint_file import PARTITION_METADATA, CorruptCheckpoint, read_topic_id
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk, StorageError
from storage.io.file_handle_cache import FileHandleCache
from storage.io.path_guard import LockContext
from storage.log.log import Log
from storage.log.log_files import index_path
from storage.segments.directory_recovery import LOG
from storage.segments.segment_engine import SegmentEngine

_DROPS_TOGETHER: Final = 256


class _WithoutDirectory:
    """Creates the engine of one partition without a directory."""

    __slots__ = ("_commit_logs", "_slot_id", "_topic")

    def __init__(self, commit_logs: CommitLogs, topic: str, slot_id: SlotId) -> None:
        self._commit_logs = commit_logs
        self._topic = topic
        self._slot_id = slot_id

    def __call__(self, path: str, config: LogConfig) -> Engine:
        """The engine; `path` would be its directory."""
        log = self._commit_logs.get_or_create(path.rpartition("/")[0])
        return CommitLogEngine(log, self._slot_id, self._topic, config)


class Engines:
    """Creates the engines of logs."""

    def __init__(
        self,
        disk: Disk,
        commit_logs: CommitLogs,
        file_handles: FileHandleCache,
        random_bytes: Callable[[int], bytes],
        new_lock: Callable[[], LockContext],
    ) -> None:
        """Create the object; opens no file."""
        self._disk = disk
        self._commit_logs = commit_logs
        self._logs = commit_logs.by_directory
        self._file_handles = file_handles
        self._random_bytes = random_bytes
        self.new_lock = new_lock
        self._incarnations: dict[tuple[str, bytes, int], int] = {}  # by log directory, topic id and partition, unless 0
        self._drops: dict[str, deque[tuple[CommitLog, Slot]]] = {}  # by log directory, those of `queued_drop`

    # ---- engines -----------------------------------------------------------------------------------------

    def create(self, path: str, config: LogConfig) -> Engine:
        """The engine of a partition's directory (rule 1)."""
        directory = path.rpartition("/")[0]
        if directory in self._logs or config.uses_commit_log:
            slot_id = self.slot_id_at(path)
            if slot_id is not None and self._is_in_commit_log(directory, path, slot_id, config):
                return CommitLogEngine(self._commit_logs.get_or_create(directory), slot_id, "", config)
        return self.segment_engine(path, config)

    def factory_of(self, topic: str, partition: int, topic_id: bytes) -> EngineFactory:
        """Creates the engine of a new partition without a directory."""
        return _WithoutDirectory(self._commit_logs, topic, SlotId(topic_id, partition))

    def partitions(self, directory: str) -> Iterator[tuple[str, int, bytes, EngineFactory]]:
        """Topic, partition, topic id and factory of the partitions of an open commit log that have no directory."""
        log = self._logs.get(directory)
        for slot in [] if log is None else log.slots:
            if slot.topic:
                topic_id, partition, _ = slot.slot_id
                yield slot.topic, partition, topic_id, _WithoutDirectory(self._commit_logs, slot.topic, slot.slot_id)

    def segment_engine(self, path: str, config: LogConfig) -> SegmentEngine:
        """The engine of a log that is always stored in segment files."""
        return SegmentEngine(self._disk, path, config, self._jitter, self._file_handles, self.new_lock)

    def _jitter(self, limit_ms: int) -> int:
        return int.from_bytes(self._random_bytes(8), "big") % limit_ms

    def _is_in_commit_log(self, directory: str, path: str, slot_id: SlotId, config: LogConfig) -> bool:
        if self._has_valid_frames(directory, path, slot_id):
            return True
        return config.uses_commit_log and not self._has_segments(path)

    def _has_valid_frames(self, directory: str, path: str, slot_id: SlotId) -> bool:
        log = self._logs.get(directory)
        if log is None or not log.has(slot_id):
            return False
        return not slot_id.incarnation or not self._has_segments(path)  # else rule 4 was not sure

    def is_in_commit_log(self, path: str, topic_id: bytes | None) -> bool:
        """Whether the data of a partition are in the commit log of its log directory."""
        directory = path.rpartition("/")[0]
        slot_id = self.slot_id_at(path, topic_id) if directory in self._logs else None
        return slot_id is not None and self._has_valid_frames(directory, path, slot_id)

    def _has_segments(self, path: str) -> bool:
        return any(name.endswith(LOG) for name in self._disk.listdir(path))

    def is_other_than_configured(self, log: Log) -> bool:
        """Whether a log is not in the engine of its settings; False if it has no files yet."""
        if log.opened is not None:
            return isinstance(log.opened.engine, CommitLogEngine) != log.config.uses_commit_log
        if not log.files.has_directory or self.has_frames(log.path, log.files.cached_topic_id):
            return not log.config.uses_commit_log
        if not log.config.uses_commit_log or max(log.checkpoint.recovery_point, log.checkpoint.high_watermark) > 0:
            return log.config.uses_commit_log
        try:
            return self._has_segments(log.path)  # after a kill before the first checkpoint
        except StorageError:  # it is not created yet, or its first use will fail
            return False

    def is_unidentified(self, log: Log) -> bool:
        """Whether a log may have frames, but its topic id is unknown: it must not be opened, since that creates a segment."""
        return log.directory in self._logs and log.files.topic_id is None and not self._has_segments(log.path)

    def has_frames(self, path: str, topic_id: bytes | None) -> bool:
        """Whether a partition has frames in the commit log of its log directory; opens no file if the topic id is given."""
        return self._with_frames(path, topic_id) is not None

    def _with_frames(self, path: str, topic_id: bytes | None) -> tuple[CommitLog, Slot] | None:
        """The commit log with the frames of a partition, and its slot there; None if it has no frames."""
        log = self._logs.get(path.rpartition("/")[0])
        slot_id = None if log is None else self.slot_id_at(path, topic_id)
        return None if log is None or slot_id is None or not log.has(slot_id) else (log, log.slot(slot_id))

    def slot_id_at(self, path: str, topic_id: bytes | None = None) -> SlotId | None:
        """The identity of the partition in a directory; None if its topic id is not given, nor in a valid metadata file."""
        name = path.rpartition("/")[2]
        found = parse_dir_name(name)
        if found is None:
            return None
        _, partition = found.partition
        if topic_id is None:
            try:
                topic_id = read_topic_id(self._disk, f"{path}/{PARTITION_METADATA}")
            except CorruptCheckpoint:
                return None
        if topic_id is None:
            return None
        incarnation = incarnation_of(name)
        if incarnation is None:
            incarnation = self._incarnations.get((path.rpartition("/")[0], topic_id, partition), 0)
        return SlotId(topic_id, partition, incarnation)

    def usage(self, path: str, topic_id: bytes | None) -> tuple[int, int] | None:
        """The bytes and segments of a log in the commit log; None for others."""
        found = self._with_frames(path, topic_id)
        if found is None:
            return None
        _, slot = found
        return slot.size, len(slot.segments)

    def unused_slots(self, directory: str, logs: Iterable[Log]) -> list[SlotId]:
        """The partitions with frames in the commit log of a log directory that are none of these logs in it."""
        commit_log = self._logs.get(directory)
        used = {self.slot_id_at(log.path, log.files.cached_topic_id) for log in logs}
        return [] if commit_log is None else [found for found in commit_log.slot_ids() if found not in used]

    # ---- frames ------------------------------------------------------------------------------------------

    def drop_leftovers(self, directory: str, names: Sequence[str]) -> None:
        """Drop what a crash has left in the commit log of a log directory with these entries (rule 4)."""
        log = self._logs.get(directory)
        if log is None:
            return
        not_in_service = list(self._slot_ids(directory, names, (FUTURE, DELETED)))
        copies = {slot_id for slot_id, suffix in not_in_service if suffix == FUTURE}
        deleted = {slot_id[:2] for slot_id, suffix in not_in_service if suffix == DELETED}
        doubtful = [found for found in log.slot_ids() if found.incarnation or found[:2] in deleted]
        doubtful = [found for found in doubtful if found not in copies and not log.slot(found).topic]
        newest = {found[:2]: found for found in self._with_partition(log, directory, names, doubtful)}
        for slot_id in doubtful:
            if newest.get(slot_id[:2]) == slot_id:
                self._incarnations[directory, slot_id.topic_id, slot_id.partition] = slot_id.incarnation
            else:
                log.drop(log.slot(slot_id))
        if len(newest) < len(doubtful):
            log.sync()  # before the directories are deleted that show which frames are left over

    def _slot_ids(self, directory: str, names: Sequence[str], suffixes: Sequence[str]) -> Iterator[tuple[SlotId, str]]:
        """The partitions of directories with one of these suffixes, and the suffix of each."""
        for name in names:
            found = parse_dir_name(name)
            if found is not None and found.suffix in suffixes:
                slot_id = self.slot_id_at(f"{directory}/{name}")
                if slot_id is not None:
                    yield slot_id, found.suffix

    def _with_partition(
        self, log: CommitLog, directory: str, names: Sequence[str], slot_ids: Sequence[SlotId]
    ) -> list[SlotId]:
        """Those that are, or may be, of a partition without segment files in service or renamed as a stray.

        They may be if the topic id in its directory is unreadable or wrong: no frames have it.
        """
        if not slot_ids:
            return []
        has_segments: dict[tuple[bytes, int], bool] = {}
        unknown = set[int]()
        stored = {slot_id[:2] for slot_id in log.slot_ids()}
        for name in names:
            parsed = parse_dir_name(name)
            if parsed is not None and parsed.suffix in ("", STRAY):
                path = f"{directory}/{name}"
                slot_id, is_in_segments = self.slot_id_at(path), self._has_segments(path)
                if slot_id is not None and (is_in_segments or slot_id[:2] in stored):
                    has_segments.setdefault(slot_id[:2], is_in_segments)
                elif not is_in_segments:
                    unknown.add(parsed.partition[1])
        return [found for found in slot_ids if not has_segments.get(found[:2], found.partition not in unknown)]

    def switch(self, future_path: str, path: str, topic_id: bytes | None) -> None:
        """A future replica will be renamed to `path`: the partition's frames are now those of the copy, if any (rule 3)."""
        copy = self.slot_id_at(future_path, topic_id)
        assert copy is not None, "the topic id is known"
        self._incarnations[path.rpartition("/")[0], copy.topic_id, copy.partition] = copy.incarnation

    def forget_switch(self, directory: str, topic_id: bytes, partition: int) -> None:
        """A new partition without a directory has no frames of a copy, unlike an earlier one with its topic id."""
        self._incarnations.pop((directory, topic_id, partition), None)

    def drop_of(self, path: str, topic_id: bytes | None) -> FileOp | None:
        """An operation that drops the frames that a partition has now (rule 2); None if it has none.

        `path`: of its directory; `topic_id`: None reads it there.
        """
        found = self._with_frames(path, topic_id)
        return None if found is None else partial(self._drop, path.rpartition("/")[0], *found)

    def queued_drop(self, path: str, topic_id: bytes | None) -> FileOp | None:
        """As `drop_of`, of a partition without a directory: it drops those whose operations wait too, with one sync."""
        found = self._with_frames(path, topic_id)
        if found is None:
            return None
        directory = path.rpartition("/")[0]
        waiting = self._drops.setdefault(directory, deque())
        waiting.append(found)
        return partial(self._drop_waiting, directory, waiting)

    def _drop_waiting(self, directory: str, waiting: deque[tuple[CommitLog, Slot]]) -> None:
        """Drop at least the partition that waits longest; may be repeated after a failure."""
        some = [waiting[number] for number in range(min(len(waiting), _DROPS_TOGETHER))]
        for log, slot in some:
            log.drop(slot)
        for log in {id(log): log for log, _ in some}.values():
            log.sync()
        for _, slot in some:
            self._commit_logs.remove_index(index_path(directory, slot.slot_id.topic_id, slot.slot_id.partition))
            waiting.popleft()

    def _drop(self, directory: str, log: CommitLog, slot: Slot) -> None:
        if not slot.topic:
            self._disk.sync_dir(directory)
        log.drop(slot)
        log.sync()
        if slot.topic:
            self._commit_logs.remove_index(index_path(directory, slot.slot_id.topic_id, slot.slot_id.partition))

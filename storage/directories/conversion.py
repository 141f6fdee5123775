"""Converts the logs of a stopped broker to another storage engine: copies one after the other, then replaces some together.

RULES    1. A log is converted as by a move within its log directory: a future replica with the other engine is written, made
            durable and swapped in (future_replica.py). After a stop at any moment each log is complete in one engine, and a
            repeated conversion converts the rest.
         2. Batches, segments, offsets, leader epochs and producers stay as they are.
         3. The replaced files are deleted at once. Those of a commit log are shared: the shutdown deletes a commit log that has
            no partition left (commit_logs.py rule 2).
         4. Compacted logs stay in segments.
         5. Nothing else uses the log manager, and its file operations run at once.
         6. Logs that are copied are replaced in groups: the checkpoint before that has the offsets of all logs of a directory.
NOT HERE Which logs, free space, the report (broker/tools/convert.py), copying (log_copy.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from protocol.errors import KafkaError
from storage.config.config_def import MAX_INT, MAX_LONG
from storage.config.log_config import COMMIT_LOG, LogConfig
from storage.directories.future_logs import (
    add_future_log,
    drop_future_log,
    new_future_log,
    replace_with_future_logs,
    take_interrupted_moves,
)
from storage.directories.log_copy import begin_with_producers, complete_copy, find_start, prepare_chunk
from storage.directories.log_maintenance import due_deletions
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log

DROP_FILE_BYTES: Final = 1 << 20
"""The size of new files of a commit log that is emptied: they contain only what deletes the replaced logs."""

_GROUP_LOGS: Final = 256
GROUP_BYTES: Final = 16 << 20
"""When the logs of a group have this size in bytes together, their copies replace them. Both are on the disk until then."""


class Conversion:
    """A conversion of logs to one engine."""

    def __init__(self, manager: LogManager, engine: str, wall_ms: int) -> None:
        """`manager` has loaded its logs; `engine`: `segments` or `commitlog`."""
        self._manager = manager
        self._engine = engine
        self._wall_ms = wall_ms
        self._copied: list[tuple[Log, Log]] = []  # logs and their complete copies
        self._copied_bytes = 0
        manager.deletion_delay_ms = 0
        if engine != COMMIT_LOG:
            manager.commit_logs.file_bytes = DROP_FILE_BYTES

    def discard_copies(self) -> list[str]:
        """Delete unfinished future replicas; returns the names of logs whose move to another log directory that cancels."""
        logs = self._manager.logs
        moves = take_interrupted_moves(self._manager)
        self._delete_files()
        return [logs[key].name for key, directory in moves if logs[key].directory != directory]

    def is_due(self, log: Log) -> bool:
        """Whether a log is stored in another engine; opens no file of a log with a known topic id."""
        in_commit_log = self._manager.engines.is_in_commit_log(log.path, log.files.topic_id)
        return in_commit_log != (self._engine == COMMIT_LOG)

    def why_not(self, log: Log) -> str | None:
        """Why a log stays as it is, as a predicate; None if it can be converted."""
        if self._manager.engines.is_unidentified(log) or log.files.topic_id is None:
            return "has no readable topic id"
        if self._engine == COMMIT_LOG and log.config.is_compacted:
            return "is compacted"
        return None

    def copy(self, log: Log) -> Iterator[int]:
        """Copy a log; yields the bytes of each step. `replace_copied` follows, at the latest when `has_full_group`.

        Raises:
            KafkaError: a batch is damaged; the log stays as it is.
            StorageError: the disk failed or is full; likewise.
        """
        manager, wall_ms = self._manager, self._wall_ms
        log.open()
        start_offset = wait_for_disk(find_start, log)
        copy, create = new_future_log(manager, log, log.directory, start_offset, self._config_of_copy(log.config))
        add_future_log(manager, copy)
        try:
            create()
            begin_with_producers(log, copy)
            while copy.log_end_offset < log.log_end_offset:
                prepared = wait_for_disk(prepare_chunk, log, copy, wall_ms, keeps_segments=True)
                prepared.write()
                prepared.commit(wall_ms)
                self._copied_bytes += prepared.size
                yield prepared.size
            complete_copy(log, copy, wall_ms, keeps_segments=True)
            copy.close()
        except (KafkaError, StorageError):
            drop_future_log(manager, copy)
            self._delete_files()
            raise
        self._copied.append((log, copy))

    @property
    def has_full_group(self) -> bool:
        """Whether the logs that are copied should be replaced now."""
        return len(self._copied) >= _GROUP_LOGS or self._copied_bytes >= GROUP_BYTES

    def replace_copied(self) -> None:
        """Replace the logs that are copied.

        Raises:
            StorageError: the disk failed or is full; each log is complete in one engine.
        """
        copied, self._copied, self._copied_bytes = self._copied, [], 0
        replace_with_future_logs(self._manager, copied)
        self._delete_files()

    def _config_of_copy(self, config: LogConfig) -> LogConfig:
        """The settings of a copy, which begins segments only where the log does (rule 2)."""
        return replace(
            config,
            barnabas_storage_engine=self._engine,
            segment_bytes=MAX_INT,
            segment_ms=MAX_LONG,
            max_compaction_lag_ms=MAX_LONG,
            segment_jitter_ms=0,
            file_delete_delay_ms=0,
        )

    def _delete_files(self) -> None:
        for _, work in due_deletions(self._manager, self._wall_ms):
            work()

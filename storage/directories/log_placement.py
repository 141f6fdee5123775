"""The log directory of a new log (Kafka: LogManager.nextLogDirs and preferredLogDirs).

RULES    1. A new log is created in the directory that the controller has assigned; else in the one that an operator prefers for
            its partition; else in that of an earlier log with its name, whose rename may still be queued there; else in the
            directory with the fewest logs, but in a cordoned one only if all are.
         2. A directory that is not in service is no choice: the next one counts.
         3. At most MAX_REMEMBERED partitions have a preferred directory, and as many an earlier one; the oldest are forgotten.
NOT HERE Creating the log (log_manager.py); what the controller assigns (replication/controller/partitions/placement.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from storage.directories.log_directory import LogDirectory
from storage.io.checkpoint_file import TopicPartition
from storage.io.disk import StorageError

MAX_REMEMBERED: Final = 10_000


class LogPlacement:
    """Chooses among the log directories in service."""

    def __init__(self, directories: Mapping[str, LogDirectory], offline: Mapping[str, StorageError]) -> None:
        """Both by path, and kept up to date by the owner; `offline`: the failed ones with their errors."""
        self._directories = directories
        self._offline = offline
        self._preferred: dict[TopicPartition, str] = {}
        self._previous: dict[TopicPartition, str] = {}  # of recently removed logs
        self.cordoned: frozenset[str] = frozenset()
        """Log directories that get no new logs while another one exists."""

    def prefer(self, key: TopicPartition, directory: str) -> None:
        """Create the log of a partition in this directory, once."""
        _put_bounded(self._preferred, key, directory)

    def remember(self, key: TopicPartition, directory: str) -> None:
        """A log was removed from this directory: a new one with its name will be created there."""
        _put_bounded(self._previous, key, directory)

    def take(self, key: TopicPartition, assigned: str | None) -> tuple[LogDirectory, bool]:
        """The directory of a new log, and whether a log with its name was removed before; forgets both."""
        preferred, previous = self._preferred.pop(key, None), self._previous.pop(key, None)
        paths = (path for path in (assigned, preferred, previous) if path in self._directories)
        path = next(paths, None)
        return self._emptiest() if path is None else self._directories[path], previous is not None

    def in_service(self, path: str) -> LogDirectory:
        """The log directory with this path; raises StorageError if it is offline."""
        log_dir = self._directories.get(path)
        if log_dir is None:
            raise StorageError("use", path, OSError(0, "it is offline, or not a log directory of this broker"))
        return log_dir

    def _emptiest(self) -> LogDirectory:
        if not self._directories:
            raise next(iter(self._offline.values()))
        candidates = [log_dir for path, log_dir in self._directories.items() if path not in self.cordoned]
        return min(candidates or self._directories.values(), key=lambda candidate: len(candidate.logs))


def _put_bounded(directories: dict[TopicPartition, str], key: TopicPartition, directory: str) -> None:
    directories.pop(key, None)
    directories[key] = directory
    if len(directories) > MAX_REMEMBERED:
        del directories[next(iter(directories))]

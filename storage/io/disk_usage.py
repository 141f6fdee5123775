"""Disk usage of a log directory, measured by a thread (DescribeLogDirs).

RULES    1. Open logs know their size; for the others the file sizes are read, and no file is opened.
         2. A log or file that is created or deleted meanwhile counts as 0 bytes; that is no disk failure.
NOT HERE The list of logs (log_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from errno import ENOENT
from typing import Final, TypeVar

from storage.io.disk import Disk, StorageError

T = TypeVar("T")

_LOG_SUFFIX: Final = ".log"


class DiskUsage:
    """The usage of one log directory; available after `run`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        logs: Mapping[str, tuple[int, int] | None],
    ) -> None:
        """`logs`: the paths of the logs, and bytes and segments of those without segment files."""
        self._disk = disk
        self._directory = directory
        self._logs = logs
        self.total_bytes = self.usable_bytes = -1
        """Total and usable bytes of the file system."""
        self.sizes: dict[str, int] = {}
        """Bytes of records by log path."""
        self.segments: dict[str, int] = {}
        """Segments by log path."""

    def run(self) -> None:
        """Query the file system; raises StorageError if a query fails."""
        self.total_bytes, self.usable_bytes = self._disk.space(self._directory)
        for path, found in self._logs.items():
            if found is not None:
                self.sizes[path], self.segments[path] = found
                continue
            names = self._unless_missing(self._disk.listdir, path) or []
            files = [f"{path}/{name}" for name in names if name.endswith(_LOG_SUFFIX)]
            self.segments[path] = len(files)
            self.sizes[path] = sum(self._unless_missing(self._disk.size, file) or 0 for file in files)

    @staticmethod
    def _unless_missing(query: Callable[[str], T], path: str) -> T | None:
        try:
            return query(path)
        except StorageError as error:
            if error.errno != ENOENT:
                raise
            return None

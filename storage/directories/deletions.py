"""Directories of deleted logs that wait until they are due.

RULES    1. A directory is deleted after its rename, which may still be queued, and after the delay of its kind.
         2. A directory of a log directory that has failed is forgotten.
NOT HERE The renames (log_manager.py), the deletion itself (partition_directory.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import NamedTuple


class _Deleted(NamedTuple):
    since_ms: int | None
    """None: set by the next `take_due`."""
    has_delay: bool
    directory: str
    paths: list[str]
    """Its path, after the rename."""


class Deletions:
    """The pending deletions of all log directories."""

    def __init__(self) -> None:
        self._pending: list[_Deleted] = []

    def add(self, directory: str, paths: list[str], *, has_delay: bool, since_ms: int | None = None) -> None:
        """Delete a directory of this log directory; `paths` gets its path after the rename."""
        self._pending.append(_Deleted(since_ms, has_delay, directory, paths))

    def waits_for_rename(self, directory: str) -> bool:
        """Whether a directory in this log directory is not renamed yet."""
        return any(gone.directory == directory and not gone.paths for gone in self._pending)

    def take_due(self, wall_ms: int, delay_ms: int, in_service: Container[str]) -> dict[str, list[str]]:
        """The paths to delete now, by log directory."""
        due: dict[str, list[str]] = defaultdict(list)
        pending, self._pending = self._pending, []
        for gone in pending:
            since_ms = wall_ms if gone.since_ms is None else gone.since_ms
            if since_ms + gone.has_delay * delay_ms <= wall_ms and gone.paths:
                due[gone.directory] += gone.paths
            elif gone.directory in in_service:
                self._pending.append(gone._replace(since_ms=since_ms))
        return due

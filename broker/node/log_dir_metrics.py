"""The space of the log directories: free and total bytes of their file systems, and which are full.

RULES    1. A thread asks the file system, before a page is written: a disk that hangs does not stop the event loop.
         2. A directory is full while appends to it are rejected (docs/decisions/0024). A failed one has no series.
NOT HERE Failed directories, sizes of logs (`broker/telemetry/replica_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from broker.io.io_thread_pool import IoThreadPool
from broker.telemetry.families import Families, gauges, label_text
from replication.completion import Completion, all_done
from replication.io_executor import IoResult
from replication.partition.replica_manager import ReplicaManager
from storage.io.disk_usage import DiskUsage


class Space(NamedTuple):
    """Of a file system."""

    total_bytes: int
    free_bytes: int
    """For users without privileges."""


class LogDirMetrics:
    """The families of the log directories."""

    def __init__(self, replicas: ReplicaManager, io: IoThreadPool) -> None:
        self._replicas = replicas
        self._io = io
        self.spaces: dict[str, Space] = {}
        """By directory, as the last page has it."""

    def prepare(self) -> Iterator[Completion[None] | None]:
        """Asks the file systems; the steps before a page, of which there may be several at a time."""
        spaces: dict[str, Space] = {}
        logs = self._replicas.log_manager
        usages = [(directory, logs.disk_usage(directory, ())) for directory in logs.directories]
        yield all_done(
            [self._io.read(path, usage.run).handle(partial(self._take, spaces, path, usage)) for path, usage in usages]
        )
        self.spaces = spaces

    def _take(self, spaces: dict[str, Space], directory: str, usage: DiskUsage, measured: IoResult) -> None:
        if measured.value is not None:
            self._replicas.directory_failed(directory, measured.value)
        else:
            spaces[directory] = Space(usage.total_bytes, usage.usable_bytes)

    def families(self) -> Families:
        """Free and total bytes; 1 for a directory that is full."""
        known = [(label_text(("directory", directory)), space) for directory, space in self.spaces.items()]
        yield gauges(
            "barnabas_log_directory_free_bytes",
            "Free bytes of the directory's file system.",
            [(labels, space.free_bytes) for labels, space in known],
        )
        yield gauges(
            "barnabas_log_directory_total_bytes",
            "Bytes of the directory's file system.",
            [(labels, space.total_bytes) for labels, space in known],
        )
        yield gauges(
            "barnabas_log_directory_full",
            "1: appends are rejected until space is freed.",
            [
                (label_text(("directory", directory)), int(self._io.is_full(directory)))
                for directory in self._replicas.log_manager.directories
            ],
        )

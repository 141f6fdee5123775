"""Sizes of closed logs for the metrics page: an open log knows its own.

RULES    1. A thread lists the files, before a page is written; no log is opened. At most `MAX_MEASURED` logs for each page: the
            others follow with the next pages.
         2. A size is kept while the log stays closed, and while its offsets do not change: it may have been open between
            two pages.
NOT HERE The measurement (`storage/io/disk_usage.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from replication.completion import Completion, all_done
from replication.io_executor import IoExecutor, IoResult
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.log.log import Log

MAX_MEASURED: Final = 2_000
PARTITIONS_PER_STEP: Final = 500


class LogFiles(NamedTuple):
    """The files of one closed log."""

    size_bytes: int
    segments: int


_Key = tuple[Log, int, int, int]


class ClosedLogs:
    """The sizes of this broker's closed logs, as far as they were measured."""

    def __init__(self, replicas: ReplicaManager, io: IoExecutor) -> None:
        self._replicas = replicas
        self._io = io
        self._known: dict[_Key, LogFiles] = {}

    def of(self, partition: Partition) -> LogFiles | None:
        """The files of a closed log; None if they were not measured yet."""
        return self._known.get(_key(partition))

    def prepare(self) -> Iterator[Completion[None] | None]:
        """Measures logs whose size is unknown; the steps before a page."""
        known: dict[_Key, LogFiles] = {}
        unknown: dict[str, list[_Key]] = defaultdict(list)
        count = 0
        for number, partition in enumerate(list(self._replicas.partitions.values()), 1):
            if not partition.log.is_open and not partition.is_offline:
                key = _key(partition)
                files = self._known.get(key)
                if files is not None:
                    known[key] = files
                elif count < MAX_MEASURED:
                    count += 1
                    unknown[partition.log.directory].append(key)
            if number % PARTITIONS_PER_STEP == 0:
                yield None
        self._known = known
        if unknown:
            yield all_done([self._measure(directory, keys) for directory, keys in unknown.items()])

    def _measure(self, directory: str, keys: list[_Key]) -> Completion[None]:
        usage = self._replicas.log_manager.disk_usage(directory, [key[0] for key in keys])

        def on_measured(measured: IoResult) -> None:
            if measured.value is not None:
                self._replicas.directory_failed(directory, measured.value)
                return
            for key in keys:
                path = key[0].path
                if path in usage.sizes:
                    self._known[key] = LogFiles(usage.sizes[path], usage.segments[path])

        return self._io.read(directory, usage.run).handle(on_measured)


def _key(partition: Partition) -> _Key:
    log, offsets = partition.log, partition.log.offsets
    return log, offsets.log_start_offset, offsets.high_watermark, offsets.recovery_point

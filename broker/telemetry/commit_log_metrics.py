"""The commit logs: live and dead bytes, what their cleaning copied and removed, and their settling copied.

RULES    1. A log directory is the label `directory`. Bytes are those of the last cleaning pass, in sealed files.
NOT HERE Cleaning (`storage/commitlog/cleaner.py`).
"""

from __future__ import annotations

from broker.telemetry.families import Families, counters, gauges, label_text
from storage.directories.log_manager import LogManager


class CommitLogMetrics:
    """The families of the commit logs; none without one."""

    def __init__(self, log_manager: LogManager) -> None:
        self._log_manager = log_manager

    def families(self) -> Families:
        """Live, dead, copied, removed and settled bytes."""
        found = [
            (label_text(("directory", directory)), cleaner.metrics)
            for directory, cleaner in list(self._log_manager.commit_logs.cleaners.items())
        ]
        if not found:
            return
        yield gauges(
            "barnabas_commitlog_live_bytes",
            "Batches in sealed files of a commit log that partitions have.",
            [(labels, metrics.live_bytes) for labels, metrics in found],
        )
        yield gauges(
            "barnabas_commitlog_dead_bytes",
            "Batches in sealed files of a commit log that no partition has.",
            [(labels, metrics.dead_bytes) for labels, metrics in found],
        )
        yield gauges(
            "barnabas_commitlog_damaged_files",
            "Files of a commit log that are not cleaned because frames in them are damaged.",
            [(labels, metrics.damaged_files) for labels, metrics in found],
        )
        yield counters(
            "barnabas_commitlog_cleaned_bytes",
            "Bytes that the cleaning of a commit log wrote.",
            [(labels, metrics.copied_bytes) for labels, metrics in found],
        )
        yield counters(
            "barnabas_commitlog_settled_bytes",
            "Bytes that the settling of a commit log wrote.",
            [(labels, metrics.settled_bytes) for labels, metrics in found],
        )
        yield counters(
            "barnabas_commitlog_freed_bytes",
            "Disk space that the cleaning of a commit log freed.",
            [(labels, metrics.removed_bytes) for labels, metrics in found],
        )

"""When a snapshot of the metadata log is taken, and when old snapshots and segments are deleted.

RULES    1. A snapshot is due when enough bytes were written since the last one, or when the last one is old and something was
            written; as in Apache Kafka, except that a restart does not reset either count.
         2. It contains a published image, so only committed records. It is encoded batch by batch, one step each, and written
            by a background job. After a failed write, the next one is tried when the next snapshot is due.
         3. When a snapshot is taken, a large log rolls to a new segment: validation at startup begins there.
         4. The oldest snapshot is deleted while snapshots and log together are too large, or when it is too old, and with it
            the segments completely below the next one. The newest snapshot always stays.
NOT HERE The files (`snapshot_files.py`), their content (`image_records.py`), the schedule (`broker/node/scheduled_tasks.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from replication.io_executor import IoExecutor, IoResult
from replication.metadata.image import MetadataImage
from replication.metadata.image_records import image_records
from replication.metadata.metadata_records import SnapshotName, snapshot_batches
from replication.metadata_log.metadata_log import MetadataLog
from storage.directories.partition_directory import delete_paths
from storage.io.disk import Disk

_log = logging.getLogger("barnabas.metadata")


class SnapshotSettings(NamedTuple):
    """When snapshots are taken and how long they are retained; Kafka's defaults."""

    bytes_between: int = 20 * 1024 * 1024
    interval_ms: int = 3_600_000
    """0: age alone is no reason."""
    retention_bytes: int = 100 * 1024 * 1024
    """-1: no limit; also below."""
    retention_ms: int = 604_800_000


class MetadataSnapshots:
    """Takes and deletes snapshots of one node's metadata log."""

    def __init__(self, disk: Disk, executor: IoExecutor, log: MetadataLog, settings: SnapshotSettings) -> None:
        self._disk = disk
        self._executor = executor
        self._metadata_log = log
        self._snapshots = log.snapshots
        self._settings = settings
        self._last_snapshot_ms = log.snapshot_timestamp_ms
        self._is_writing = False

    # ---- taking ------------------------------------------------------------------------------------------

    def why_due(self, image: MetadataImage, wall_ms: int) -> str | None:
        """Why a snapshot of `image` is due; None if it is not."""
        if self._is_writing or image.offset < self._snapshots.newest.end_offset:
            return None
        # Without a snapshot, the age counts from the process start.
        self._last_snapshot_ms = self._last_snapshot_ms or wall_ms
        written, age_ms = self._metadata_log.bytes_since_snapshot, wall_ms - self._last_snapshot_ms
        if written >= self._settings.bytes_between:
            return f"{written} bytes were written since the last one"
        if 0 < self._settings.interval_ms <= age_ms:
            return f"the last one is {age_ms // 60_000} minutes old"
        return None

    def take(self, image: MetadataImage, wall_ms: int) -> Iterator[None]:
        """Take a snapshot, in short steps."""
        log = self._metadata_log
        self._is_writing = True
        self._last_snapshot_ms = wall_ms
        log.roll_segment(wall_ms, at_least=self._settings.bytes_between)
        log.bytes_since_snapshot = 0
        name = SnapshotName(image.offset + 1, image.epoch)
        batches = snapshot_batches(
            log.snapshot_control_records(image.offset + 1),
            image_records(image),
            leader_epoch=image.epoch,
            timestamp_ms=wall_ms,
            last_contained_ms=log.committed_timestamp_ms,
        )
        chunks = []
        for batch in batches:
            chunks.append(batch)
            yield
        size = sum(map(len, chunks))
        work = self._snapshots.write(name, chunks)
        self._executor.background(log.directory, work).then(partial(self._on_written, name, size, wall_ms))

    def _on_written(self, name: SnapshotName, size: int, wall_ms: int, written: IoResult) -> None:
        self._is_writing = False
        if written.value is not None:
            _log.error(
                "writing the snapshot %s failed; it is tried again when the next one is due: %s", name, written.value
            )
            return
        self._snapshots.add(name, size, wall_ms)
        _log.info("wrote the snapshot %s, %d bytes", name, size)
        self.retain(wall_ms)

    # ---- keeping -----------------------------------------------------------------------------------------

    def retain(self, wall_ms: int) -> None:
        """Delete snapshots that are too large or too old, and files whose deletion delay has passed."""
        log, snapshots = self._metadata_log, self._snapshots
        deletable: list[str] = []
        while (
            not log.is_truncating and len(snapshots.files) > 1 and (reason := self._removal_reason(wall_ms)) is not None
        ):
            oldest_kept = snapshots.files[1].name
            _log.info(
                "deleting the snapshot %s and the log before %d: %s",
                snapshots.files[0].name,
                oldest_kept.end_offset,
                reason,
            )
            log.trim(oldest_kept.end_offset, wall_ms)
            deletable += snapshots.remove_before(oldest_kept)
        deletable += log.take_deletable_files(wall_ms)
        if deletable:
            self._executor.background(log.directory, partial(delete_paths, self._disk, deletable, [])).then(_on_deleted)

    def _removal_reason(self, wall_ms: int) -> str | None:
        files, settings = self._snapshots.files, self._settings
        size = self._metadata_log.size_bytes + sum([file.size for file in files])
        if 0 <= settings.retention_bytes < size:
            return f"{size} bytes are more than metadata.max.retention.bytes"
        if 0 <= settings.retention_ms < wall_ms - files[0].written_ms:
            return "it is older than metadata.max.retention.ms"
        return None


def _on_deleted(deleted: IoResult) -> None:
    if deleted.value is not None:
        _log.warning("old files of the metadata log could not be deleted: %s", deleted.value)

"""When the metadata log is summed up in a snapshot, and when what lies before a snapshot goes.

RULES    1. A snapshot is due when enough bytes were written since the last one, or when the last one is old and anything
            was written; as in Apache Kafka, except that a restart does not begin either count anew.
         2. It holds a published image, so nothing that is not committed. It is encoded batch by batch, a step for each,
            and written by a background thread. One that could not be written is not tried again before the next is due.
         3. A log that has grown large goes on in a new segment when a snapshot is taken: the start checks from there on.
         4. The oldest snapshot goes while snapshots and log together are too large, or when it is too old, and with it
            the segments wholly before the next one. The newest snapshot always stays.
NOT HERE The files (`snapshot_files.py`), what they hold (`image_records.py`), who looks when (`broker/node/scheduled_tasks.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from replication.io_executor import Worker
from replication.metadata.image import MetadataImage
from replication.metadata.image_records import image_records
from replication.metadata.metadata_records import SnapshotName, snapshot_batches
from replication.metadata_log.metadata_log import MetadataLog
from storage.io.disk import Disk, StorageError

_log = logging.getLogger("barnabas.metadata")


class SnapshotSettings(NamedTuple):
    """When snapshots are taken and for how long they are kept; Kafka's defaults."""

    bytes_between: int = 20 * 1024 * 1024
    interval_ms: int = 3_600_000
    """0: age alone is no reason."""
    retention_bytes: int = 100 * 1024 * 1024
    """-1: no limit; so below."""
    retention_ms: int = 604_800_000


class MetadataSnapshots:
    """Takes snapshots of one node's metadata log, and lets old ones go."""

    def __init__(self, disk: Disk, worker: Worker, log: MetadataLog, settings: SnapshotSettings) -> None:
        self._disk = disk
        self._worker = worker
        self._metadata_log = log
        self._files = log.snapshots
        self._settings = settings
        self._since_ms = log.snapshot_ms
        self._is_under_way = False

    # ---- taking ------------------------------------------------------------------------------------------

    def why_due(self, image: MetadataImage, wall_ms: int) -> str | None:
        """Why a snapshot of `image` should be taken now; None when it should not."""
        if self._is_under_way or image.offset < self._files.newest.end_offset:
            return None
        self._since_ms = self._since_ms or wall_ms  # a log without snapshot is as old as this process
        written, age_ms = self._metadata_log.bytes_behind, wall_ms - self._since_ms
        if written >= self._settings.bytes_between:
            return f"{written} bytes were written since the last one"
        if 0 < self._settings.interval_ms <= age_ms:
            return f"the last one is {age_ms // 60_000} minutes old"
        return None

    def take(self, image: MetadataImage, wall_ms: int) -> Iterator[None]:
        """Take a snapshot, in steps that do not take long."""
        log = self._metadata_log
        self._is_under_way = True
        self._since_ms = wall_ms
        log.begin_segment(wall_ms, at_least=self._settings.bytes_between)
        log.bytes_behind = 0
        name = SnapshotName(image.offset + 1, image.epoch)
        batches = snapshot_batches(
            log.quorum_records(image.offset + 1),
            image_records(image),
            leader_epoch=image.epoch,
            timestamp_ms=wall_ms,
            last_contained_ms=log.committed_ms,
        )
        chunks = []
        for batch in batches:
            chunks.append(batch)
            yield
        size = sum(map(len, chunks))
        work = self._files.writing(name, chunks)
        self._worker.background(log.directory, work, partial(self._written, name, size, wall_ms))

    def _written(self, name: SnapshotName, size: int, wall_ms: int, error: StorageError | None) -> None:
        self._is_under_way = False
        if error is not None:
            _log.error("the snapshot %s was not written, the log goes on without it: %s", name, error)
            return
        self._files.made(name, size, wall_ms)
        _log.info("wrote the snapshot %s, %d bytes", name, size)
        self.retain(wall_ms)

    # ---- keeping -----------------------------------------------------------------------------------------

    def retain(self, wall_ms: int) -> None:
        """Let go of what is too large or too old, and remove the files whose time has come."""
        log, files = self._metadata_log, self._files
        doomed: list[str] = []
        while len(files.kept) > 1 and (reason := self._why_too_much(wall_ms)) is not None:
            following = files.kept[1].name
            _log.info("dropping the snapshot %s and the log before %d: %s", files.kept[0].name, following[0], reason)
            log.trim(following.end_offset, wall_ms)
            doomed += files.forget_before(following)
        doomed += log.take_doomed(wall_ms)
        if doomed:
            self._worker.background(log.directory, partial(_unlink, self._disk, doomed), _complain)

    def _why_too_much(self, wall_ms: int) -> str | None:
        files, settings = self._files.kept, self._settings
        size = self._metadata_log.size_bytes + sum([file.size for file in files])
        if 0 <= settings.retention_bytes < size:
            return f"{size} bytes are more than metadata.max.retention.bytes"
        if 0 <= settings.retention_ms < wall_ms - files[0].written_ms:
            return "it is older than metadata.max.retention.ms"
        return None


def _unlink(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        disk.unlink(path, missing_ok=True)


def _complain(error: StorageError | None) -> None:
    if error is not None:
        _log.warning("old files of the metadata log could not be removed: %s", error)

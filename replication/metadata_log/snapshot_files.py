"""The snapshot files beside the metadata log: which there are, the newest that is whole, writing one, removing old ones.

FORMAT   <end offset, 20 digits>-<epoch, 10 digits>.checkpoint          a snapshot (`metadata_records.py`)
         the same with .part behind it                                  being written; removed at the next start
         the same with .deleted behind it                               doomed by Apache Kafka; removed likewise
         the same with .corrupt behind it                               set aside by this node; nobody reads it
RULES    1. A name without a suffix appears when the bytes under it are durable, and never changes them.
         2. What is damaged is passed over for an older snapshot, or for the log where that still has its start. What
            is whole but holds something unknown is not: an older one would only hide it.
         3. Nothing is renamed or removed before the start is sure to succeed (`tidy`).
NOT HERE When a snapshot is taken and when an old one goes (`snapshots.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from replication.metadata.metadata_records import (
    ZERO_SNAPSHOT,
    CorruptMetadata,
    Snapshot,
    SnapshotName,
    read_snapshot,
    snapshot_name,
)
from storage.io.disk import Buffer, Disk, StorageError

_log = logging.getLogger("barnabas.metadata")

PART = ".part"
_CORRUPT = ".corrupt"
_LEFT_OVER = (".checkpoint.part", ".checkpoint.deleted")
_NOTHING = Snapshot(0, [], [])


class SnapshotFile(NamedTuple):
    """One finished snapshot."""

    name: SnapshotName
    size: int
    written_ms: int


class SnapshotFiles:
    """The snapshots of one metadata directory, as of the moment it was looked at: `files` are the names in it."""

    def __init__(self, disk: Disk, directory: str, files: Iterable[str]) -> None:
        self._disk = disk
        self.directory = directory
        self._leftovers: list[str] = []
        self._damaged: list[tuple[str, CorruptMetadata]] = []
        self.kept: list[SnapshotFile] = []
        """From the oldest to the newest."""
        for file in files:
            name = snapshot_name(file)
            if name is not None:
                path = self.path(name)
                self.kept.append(SnapshotFile(name, disk.size(path), disk.modified_ms(path)))
            elif file.endswith(_LEFT_OVER):
                self._leftovers.append(f"{directory}/{file}")
        self.kept.sort()

    def path(self, name: SnapshotName) -> str:
        """Where a snapshot lies."""
        return f"{self.directory}/{name}"

    @property
    def newest(self) -> SnapshotName:
        """The newest; that of an empty log where there is none."""
        return self.kept[-1].name if self.kept else ZERO_SNAPSHOT

    # ---- the start ---------------------------------------------------------------------------------------

    def load(self, log_start: int, log_bytes: int) -> tuple[SnapshotName, Snapshot]:
        """The newest snapshot that is whole; an empty one where the log's own start has to do.

        Args:
            log_start: where the log begins.
            log_bytes: how much there is of it.

        Raises:
            CorruptMetadata: what is whole does not reach to the start of the log.
            UnreadableMetadata: it holds what is not known here.
        """
        found = None
        while self.kept and found is None:
            found = self._read_newest()
        name, snapshot = found or (ZERO_SNAPSHOT, _NOTHING)
        damage = self._damaged[0][1] if self._damaged else None
        if name.end_offset < log_start or (damage is not None and found is None and not log_bytes):
            what = f"The log in {self.directory} begins at {log_start}, and no snapshot reaches up to there"
            raise CorruptMetadata(
                f"{what}: {damage or 'there is none'}. Restore the newest *.checkpoint from a backup."
            )
        for _, error in self._damaged:
            _log.warning("%s; going on from %s", error, name if found else "the start of the log")
        return name, snapshot

    def _read_newest(self) -> tuple[SnapshotName, Snapshot] | None:
        name = self.newest
        path = self.path(name)
        try:
            return name, read_snapshot(self._disk.read(path), path)
        except CorruptMetadata as error:
            self._damaged.append((path, error))
            self.kept.pop()
            return None

    def tidy(self) -> None:
        """Put away what is damaged, remove what is unfinished or doomed."""
        for path, _ in self._damaged:
            self._disk.rename(path, path + _CORRUPT)
        for path in self._leftovers:
            self._disk.unlink(path, missing_ok=True)

    # ---- later -------------------------------------------------------------------------------------------

    def writing(self, name: SnapshotName, chunks: Iterable[Buffer]) -> Callable[[], None]:
        """Closed work that makes a snapshot; `made` when it has succeeded."""
        disk, directory, path = self._disk, self.directory, self.path(name)

        def run() -> None:
            try:
                _write(disk, path + PART, chunks)
            except StorageError:
                with suppress(StorageError):
                    disk.unlink(path + PART)
                raise
            disk.rename(path + PART, path)
            disk.sync_dir(directory)

        return run

    def made(self, name: SnapshotName, size: int, wall_ms: int) -> None:
        """A snapshot is there, durably."""
        self.kept.append(SnapshotFile(name, size, wall_ms))

    # ---- to and from other replicas ----------------------------------------------------------------------

    def piece(self, name: SnapshotName, position: int, max_bytes: int) -> tuple[Buffer, int] | None:
        """Bytes of a snapshot from a position on and how many it has in all; None: there is no such snapshot."""
        found = next((file for file in self.kept if file.name == name), None)
        if found is None:
            return None
        file = self._disk.open(self.path(name), write=False)
        try:
            length = max(0, min(max_bytes, found.size - position))
            return file.pread(length, position) if length else b"", found.size
        finally:
            file.close()

    def piece_writing(self, name: SnapshotName, position: int, piece: Buffer, *, is_last: bool) -> Callable[[], None]:
        """Closed work that writes a piece of another replica's snapshot; `received` when the last one is written."""
        disk, directory, path = self._disk, self.directory, self.path(name)

        def run() -> None:
            _write(disk, path + PART, [piece], position)
            if is_last:
                disk.rename(path + PART, path)
                disk.sync_dir(directory)

        return run

    def received(self, name: SnapshotName, wall_ms: int) -> Snapshot:
        """A snapshot of another replica is there, durably; what it holds.

        Raises:
            CorruptMetadata: it is damaged.
        """
        path = self.path(name)
        data = self._disk.read(path)
        snapshot = read_snapshot(data, path)
        self.made(name, len(data), wall_ms)
        return snapshot

    def forget_before(self, name: SnapshotName) -> list[str]:
        """Count older snapshots no longer; their files are the caller's to remove."""
        old = [file for file in self.kept if file.name < name]
        self.kept = self.kept[len(old) :]
        return [self.path(file.name) for file in old]


def _write(disk: Disk, path: str, chunks: Iterable[Buffer], position: int = 0) -> None:
    file = disk.open(path, write=True, create=True)
    try:
        file.truncate(position)
        for chunk in chunks:
            file.pwrite(chunk, position)
            position += len(chunk)
        file.sync()
    finally:
        file.close()

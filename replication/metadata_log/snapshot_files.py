"""The snapshot files beside the metadata log: listing, loading, writing and removing them.

FORMAT   <end offset, 20 digits>-<epoch, 10 digits>.checkpoint          a snapshot (`metadata_records.py`)
         <the same>.part                                                being written; deleted at the next start
         <the same>.deleted                                             marked for deletion by Apache Kafka; deleted likewise
         <the same>.corrupt                                             set aside by this node; never read
RULES    1. A name without a suffix appears when its content is durable; the content never changes.
         2. A damaged snapshot is skipped in favour of an older one, or of the log if that still has its start. A complete
            snapshot with an unknown record is not skipped: an older one would only hide the problem.
         3. Nothing is renamed or deleted before startup is certain to succeed (`clean_up`).
NOT HERE When a snapshot is taken or deleted (`metadata_snapshots.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from protocol.primitives import Buffer
from replication.metadata.metadata_records import (
    ZERO_SNAPSHOT,
    CorruptMetadata,
    Snapshot,
    SnapshotName,
    read_snapshot,
    snapshot_name,
)
from storage.io.disk import Disk, StorageError

_log = logging.getLogger("barnabas.metadata")

PART = ".part"
_CORRUPT = ".corrupt"
_UNFINISHED = (".checkpoint.part", ".checkpoint.deleted")
_EMPTY_SNAPSHOT = Snapshot(0, [], [])


class SnapshotFile(NamedTuple):
    """A finished snapshot."""

    name: SnapshotName
    size: int
    written_ms: int


class SnapshotFiles:
    """The snapshots of one metadata directory; `files` are the names found in it."""

    def __init__(self, disk: Disk, directory: str, files: Iterable[str]) -> None:
        self._disk = disk
        self.directory = directory
        self._unfinished: list[str] = []
        self._damaged: list[tuple[str, CorruptMetadata]] = []
        self._receiving: SnapshotName | None = None
        self.files: list[SnapshotFile] = []
        """From the oldest to the newest."""
        for file in files:
            name = snapshot_name(file)
            if name is not None:
                path = self.path(name)
                self.files.append(SnapshotFile(name, disk.size(path), disk.modified_ms(path)))
            elif file.endswith(_UNFINISHED):
                self._unfinished.append(f"{directory}/{file}")
        self.files.sort()

    def path(self, name: SnapshotName) -> str:
        """The path of a snapshot."""
        return f"{self.directory}/{name}"

    @property
    def newest(self) -> SnapshotName:
        """The newest snapshot; ZERO_SNAPSHOT if there is none."""
        return self.files[-1].name if self.files else ZERO_SNAPSHOT

    # ---- the start ---------------------------------------------------------------------------------------

    def load(self, log_start: int, log_bytes: int) -> tuple[SnapshotName, Snapshot]:
        """The newest complete snapshot; an empty one if the log still has its start.

        Raises:
            CorruptMetadata: no complete snapshot reaches the start of the log.
            UnreadableMetadata: it contains an unknown record.
        """
        found = None
        while self.files and found is None:
            found = self._read_newest()
        name, snapshot = found or (ZERO_SNAPSHOT, _EMPTY_SNAPSHOT)
        damage = next((error for _, error in self._damaged), None)
        if name.end_offset < log_start or (damage is not None and found is None and not log_bytes):
            gap = f"The log in {self.directory} starts at {log_start}, and no snapshot reaches that offset"
            raise CorruptMetadata(f"{gap}: {damage or 'there is none'}. Restore the newest *.checkpoint from a backup.")
        for _, error in self._damaged:
            _log.warning("%s; starting from %s", error, name if found else "the start of the log")
        return name, snapshot

    def _read_newest(self) -> tuple[SnapshotName, Snapshot] | None:
        name = self.newest
        path = self.path(name)
        try:
            return name, read_snapshot(self._disk.read(path), path)
        except CorruptMetadata as error:
            self._damaged.append((path, error))
            self.files.pop()
            return None

    def clean_up(self) -> None:
        """Rename damaged files, delete unfinished and marked ones."""
        for path, _ in self._damaged:
            self._disk.rename(path, path + _CORRUPT)
        for path in self._unfinished:
            self._disk.unlink(path, missing_ok=True)

    # ---- later -------------------------------------------------------------------------------------------

    def write(self, name: SnapshotName, chunks: Iterable[Buffer]) -> Callable[[], None]:
        """A job that writes a snapshot; call `add` after it succeeded."""
        write = self.write_chunks(name, 0, chunks, is_last=True)

        def run() -> None:
            try:
                write()
            except StorageError:
                with suppress(StorageError):
                    self._disk.unlink(self.path(name) + PART)
                raise

        return run

    def add(self, name: SnapshotName, size: int, wall_ms: int) -> None:
        """Register a snapshot that is durable, perhaps again, and perhaps after newer ones."""
        others = [file for file in self.files if file.name != name]
        self.files = sorted([*others, SnapshotFile(name, size, wall_ms)])

    # ---- to and from other replicas ----------------------------------------------------------------------

    def read_chunk(self, name: SnapshotName, position: int, max_bytes: int) -> tuple[Buffer, int] | None:
        """Bytes of a snapshot and its size; None if it does not exist."""
        found = next((file for file in self.files if file.name == name), None)
        if found is None:
            return None
        file = self._disk.open(self.path(name), write=False)
        try:
            length = min(max_bytes, found.size - position) if position >= 0 else 0
            return file.pread(length, position) if length > 0 else b"", found.size
        finally:
            file.close()

    def receive_chunk(self, name: SnapshotName, position: int, chunk: Buffer, *, is_last: bool) -> Callable[[], None]:
        """A job that writes a chunk of another replica's snapshot, and deletes another one that was not received completely.

        Call `add_received` after the last one.
        """
        abandoned, self._receiving = self._receiving, None if is_last else name
        write = self.write_chunks(name, position, [chunk], is_last=is_last)

        def run() -> None:
            if abandoned is not None and abandoned != name:
                self._disk.unlink(self.path(abandoned) + PART, missing_ok=True)
            write()

        return run

    def write_chunks(
        self, name: SnapshotName, position: int, chunks: Iterable[Buffer], *, is_last: bool
    ) -> Callable[[], None]:
        """A job that writes chunks of a snapshot."""
        disk, directory, path = self._disk, self.directory, self.path(name)

        def run() -> None:
            _write_file(disk, path + PART, chunks, position)
            if is_last:
                disk.rename(path + PART, path)
                disk.sync_dir(directory)

        return run

    def add_received(self, name: SnapshotName, wall_ms: int) -> Snapshot:
        """Register and decode a snapshot of another replica that is durable.

        Raises:
            CorruptMetadata: it is damaged.
        """
        path = self.path(name)
        data = self._disk.read(path)
        snapshot = read_snapshot(data, path)
        self.add(name, len(data), wall_ms)
        return snapshot

    def remove_before(self, name: SnapshotName) -> list[str]:
        """Forget older snapshots; returns their paths for deletion."""
        old = [file for file in self.files if file.name < name]
        self.files = self.files[len(old) :]
        return [self.path(file.name) for file in old]


def _write_file(disk: Disk, path: str, chunks: Iterable[Buffer], position: int) -> None:
    file = disk.open(path, write=True, create=True)
    try:
        file.truncate(position)
        for chunk in chunks:
            file.pwrite(chunk, position)
            position += len(chunk)
        file.sync()
    finally:
        file.close()

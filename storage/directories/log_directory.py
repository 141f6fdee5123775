"""One log directory in service: its logs, and what is written down of them.

FORMAT   the offset checkpoints (checkpoint_file.py), one figure of `Checkpoint` each; after a clean shutdown a marker,
         `.kafka_cleanshutdown`: {"version":0,"brokerEpoch":n}
RULES    1. A checkpoint that cannot be understood is done without.
         2. Another directory under its name, since its disk was unmounted or somebody changed it for another, is not
            written to: it counts as failed.
         3. The marker is deleted durably, and without one the names are made durable that a killed process has left: who
            looks at them goes by them.
NOT HERE Which directories and logs there are (log_manager.py); writing the files (checkpoint_writer.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

from storage.directories.checkpoint_writer import OffsetFiles, Offsets, OneAtATime, Work
from storage.directories.partition_directory import make
from storage.io.checkpoint_file import (
    FIRST_DIRTY,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    TopicPartition,
    read_offsets,
)
from storage.io.disk import Disk, StorageError
from storage.log.log import Log
from storage.log.openable_log import NEVER_CLEANED, Checkpoint

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1
SYNCED_ONE_BY_ONE: Final = 4

# In the order of Checkpoint; and what comes of one that cannot be understood.
_CHECKPOINTS: Final = {
    RECOVERY_POINTS: "what was not closed cleanly is checked from its beginning",
    LOG_STARTS: "logs begin where their first segment does, deleted records there come back",
    HIGH_WATERMARKS: "they are found again",
    FIRST_DIRTY: "compaction begins at the beginning",
}

_log = logging.getLogger("barnabas.storage")


class LogDirectory:
    """A log directory and the logs in it."""

    __slots__ = (
        "_disk",
        "_identity",
        "broker_epoch",
        "checkpoints",
        "directory_id",
        "is_writing",
        "logs",
        "path",
        "was_clean",
    )

    def __init__(self, disk: Disk, path: str, directory_id: bytes, one_at_a_time: OneAtATime) -> None:
        self._disk = disk
        self.path = path
        self.directory_id = directory_id
        self.logs: dict[TopicPartition, Log] = {}
        self.was_clean = False
        """Whether the last shutdown was a clean one."""
        self.broker_epoch = NO_BROKER_EPOCH
        self._identity: tuple[int, int] | None = None
        self.checkpoints = OffsetFiles(disk, path, one_at_a_time)
        self.is_writing = False
        """Whether work of `checkpoint` is going to write there, or does."""

    def enter(self) -> None:
        """Begin to use it, before anything there is looked at (rule 3)."""
        self.check()
        self._take_marker()
        if not self.was_clean:
            self._disk.sync_dir(self.path)

    def _take_marker(self) -> None:
        disk, marker = self._disk, f"{self.path}/{CLEAN_SHUTDOWN}"
        if not disk.exists(marker):
            return
        try:
            self.broker_epoch = int(json.loads(disk.read(marker))["brokerEpoch"])
        except (ValueError, KeyError, TypeError):
            self.broker_epoch = NO_BROKER_EPOCH  # an older Kafka leaves an empty file; clean it is nevertheless
        disk.unlink(marker)
        disk.sync_dir(self.path)
        self.was_clean = True

    def leave(self, broker_epoch: int) -> None:
        """Say that everything here was closed durably."""
        marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
        self._disk.replace_atomically(f"{self.path}/{CLEAN_SHUTDOWN}", marker)

    def check(self) -> None:
        """See that this is still the directory that was found at the first time.

        Raises:
            StorageError: it is not (rule 2).
        """
        found = self._disk.identity(self.path)
        self._identity = self._identity or found
        if found != self._identity:
            raise StorageError("use", self.path, OSError(0, "another directory lies there by now"))

    def make(self, path: str, topic_id: bytes) -> None:
        """Make the directory of a partition here."""
        self.check()
        make(self._disk, path, topic_id)

    def read_checkpoints(self) -> dict[TopicPartition, Checkpoint]:
        """What was written down of each log."""
        known = self.checkpoints.known = {name: self._read(name) for name in _CHECKPOINTS}
        points, starts, watermarks, first_dirty = known.values()
        return {
            key: Checkpoint(
                points.get(key, 0), starts.get(key, 0), watermarks.get(key, 0), first_dirty.get(key, NEVER_CLEANED)
            )
            for key in {key for offsets in known.values() for key in offsets}
        }

    def _read(self, name: str) -> Offsets:
        try:
            return read_offsets(self._disk, f"{self.path}/{name}")
        except CorruptCheckpoint as error:
            _log.warning("%s Going on without it: %s", error, _CHECKPOINTS[name])
            return {}

    def update_checkpoints(
        self,
        instead: Mapping[TopicPartition, Checkpoint] = {},  # nobody changes it
        *,
        whenever: bool = False,
    ) -> Work | None:
        """Closed work that brings the files up to date, with other figures for some; None where they are.

        `whenever`: it is run at any time; else before whatever is done next.
        """
        now: dict[str, Offsets] = {name: {} for name in _CHECKPOINTS}
        points, starts, watermarks, first_dirty = now.values()
        for key, log in self.logs.items():
            points[key], start_offset, watermarks[key], first_dirty_offset = instead.get(key) or log.checkpoint
            if start_offset:
                starts[key] = start_offset
            if first_dirty_offset != NEVER_CLEANED:
                first_dirty[key] = first_dirty_offset
        return self.checkpoints.update(now, whenever=whenever)

    def checkpoint(self) -> Work | None:
        """The same at any time, telling while it is under way."""
        work = self.update_checkpoints(whenever=True)
        if work is None:
            return None
        self.is_writing = True

        def run() -> None:
            try:
                self.check()
                work()
            finally:
                self.is_writing = False

        return run

    def close_all(self) -> None:
        """Close the logs that are in use, durably, with those that were let go of before."""
        in_use = [log for log in self.logs.values() if log.is_open]
        unsynced = [log for log in self.logs.values() if log.is_closed_unsynced]
        if len(in_use) <= SYNCED_ONE_BY_ONE and not unsynced:
            for log in in_use:
                log.close()
            return

        def close() -> None:
            for log in in_use:
                log.close(sync=False)

        def vouch() -> None:
            for log in in_use:
                log.vouch()

        self._disk.sync_all(self.path, close)
        self._disk.sync_all(self.path, vouch)

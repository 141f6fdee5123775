"""Checks all files of a node's log directories without changing them.

RULES    1. An issue has the file's path and a severity. Partitions are checked one after the other, each batch of each.
         2. Unreadable checkpoints count as empty, so that the rest is checked too.
         3. Damage of the metadata log before the newest complete snapshot is only a note: those records are never read.
NOT HERE What a start does about it (dry_run.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from broker.tools.commit_log_partitions import CommitLogPartitions
from broker.tools.dry_run import config_of
from broker.tools.node_identity import Node
from protocol.primitives import uuid_text
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import UnreadableMetadata, read_snapshot, snapshot_name
from replication.metadata_log.node_identity import BOOTSTRAP_CHECKPOINT, UnusableDirectory
from replication.metadata_log.quorum_state_store import read_quorum_state
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.partition_directory import DELETED, FUTURE, METADATA_DIRECTORY, STRAY, parse_partition_dir_name
from storage.inspection.issues import Issue, Severity, severity_of
from storage.inspection.partition_check import PartitionCheck
from storage.inspection.slot_check import SlotCheck, StoredSlot
from storage.io.checkpoint_file import (
    FIRST_DIRTY,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TopicPartition,
    read_offsets,
    read_topic_id,
)
from storage.io.disk import Disk, StorageError
from storage.log.log_offsets import NEVER_CLEANED, Checkpoint

Progress = Callable[[int, int], None]
"""Called with the number of checked partitions and of all partitions."""


class DirectoryCheck:
    """The issues in the directories of one node."""

    def __init__(self, disk: Disk, node: Node, image: MetadataImage | None) -> None:
        self._disk = disk
        self._node = node
        self._image = image
        self.issues: list[Issue] = []
        self.partitions: dict[str, PartitionCheck | SlotCheck] = {}
        """By directory; one in a commit log may have none."""
        self.corrupt_files: list[str] = []
        """Unreadable files that a start can do without."""
        self.is_clean = True
        self._checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}

    @property
    def recovery_points(self) -> dict[str, int]:
        """By partition directory, the offset from which a recovery would repair the log."""
        metadata = f"{self._node.metadata_directory}/{METADATA_DIRECTORY}"
        return {
            path: check.recover_from
            for path, check in self.partitions.items()
            if check.recover_from is not None and path != metadata
        }

    @property
    def correctable(self) -> set[str]:
        """The partitions in commit logs that a start corrects without losing a record."""
        return {
            path
            for path, check in self.partitions.items()
            if isinstance(check, SlotCheck) and Severity.NOTE < check.worst < Severity.LOSS
        }

    def run(self, progress: Progress) -> None:
        """Checks everything."""
        todo: list[tuple[str, str, StoredSlot | None]] = []
        for directory in self._node.log_directories:
            names = sorted(self._disk.listdir(directory))
            partitions = [name for name in names if self._is_partition(directory, name)]
            stored = CommitLogPartitions(self._disk, directory, names, self._image)
            self.issues += stored.issues
            self.corrupt_files += stored.rebuildable
            self._check_checkpoints(directory, [*names, *stored.slots])
            todo += [(directory, name, stored.slots.get(name)) for name in sorted({*partitions, *stored.slots})]
        if self._node.has_metadata:
            self.check_metadata()
        for number, (directory, name, slot) in enumerate(todo):
            progress(number, len(todo))
            self._check_partition(directory, name, slot)
        progress(len(todo), len(todo))

    def _add(self, severity: Severity, path: str, text: str) -> None:
        self.issues.append(Issue(severity, path, text))

    # ---- the directory -----------------------------------------------------------------------------------

    def _is_partition(self, directory: str, name: str) -> bool:
        path = f"{directory}/{name}"
        if name.endswith((DELETED, STRAY, FUTURE)) and self._disk.is_dir(path):
            self._add(Severity.NOTE, path, "It is not in use: renamed for deletion, as a stray, or for a move.")
        return parse_partition_dir_name(name) is not None and self._disk.is_dir(path)

    def _check_checkpoints(self, directory: str, names: list[str]) -> None:
        files = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, FIRST_DIRTY)
        points, starts, watermarks, first_dirty = [self._offsets(f"{directory}/{name}") for name in files]
        self._checkpoints[directory] = {
            key: Checkpoint(
                points.get(key, 0), starts.get(key, 0), watermarks.get(key, 0), first_dirty.get(key, NEVER_CLEANED)
            )
            for key in points.keys() | starts.keys() | watermarks.keys()
        }
        existing = {parse_partition_dir_name(name) for name in names}
        for (topic, partition), known in self._checkpoints[directory].items():
            is_used = known.recovery_point or known.log_start_offset or known.high_watermark
            if is_used and (topic, partition) not in existing:
                self._add(
                    Severity.NOTE, directory, f"Its checkpoints contain {topic}-{partition}, which does not exist."
                )
        marker = f"{directory}/{CLEAN_SHUTDOWN}"
        if CLEAN_SHUTDOWN not in names:
            self.is_clean = False
            self._add(
                Severity.NOTE,
                directory,
                "It was not shut down cleanly: a start checks what may not be durable.",
            )
            return
        try:
            int(json.loads(self._disk.read(marker) or b"{}").get("brokerEpoch", 0))
        except (ValueError, TypeError, AttributeError):
            self._add(
                Severity.NOTE, marker, "It contains no broker epoch; it is still valid as a clean shutdown marker."
            )

    def _offsets(self, path: str) -> Mapping[TopicPartition, int]:
        try:
            return read_offsets(self._disk, path)
        except StorageError as error:
            self._add(severity_of(error), path, str(error))
            self.corrupt_files.append(path)
            return {}

    # ---- metadata ----------------------------------------------------------------------------------------

    def check_metadata(self) -> None:
        """Checks the metadata log, its snapshots and its other files."""
        path, disk = f"{self._node.metadata_directory}/{METADATA_DIRECTORY}", self._disk
        metadata = f"{path}/{PARTITION_METADATA}"
        if self._topic_id(path) is None and disk.exists(metadata) and metadata not in self.corrupt_files:
            self.corrupt_files.append(metadata)  # a start writes it if it is missing
        try:
            read_quorum_state(disk, path)
        except UnusableDirectory as error:
            self._add(Severity.REFUSED, path, str(error))
            self.corrupt_files.append(f"{path}/quorum-state")
        whole = [0]
        snapshots = sorted((name, file) for file in disk.listdir(path) if (name := snapshot_name(file)) is not None)
        for name, file in reversed(snapshots):
            problem = self._snapshot_error(f"{path}/{file}")
            if problem is None:
                whole.append(name.end_offset)
            else:
                self._add(Severity.HARMLESS, f"{path}/{file}", problem)
                if max(whole) > name.end_offset:
                    self.corrupt_files.append(f"{path}/{file}")
        self._check_metadata_log(path, max(whole))
        self._check_bootstrap(f"{self._node.metadata_directory}/{BOOTSTRAP_CHECKPOINT}")

    def _check_metadata_log(self, path: str, snapshot_end: int) -> None:
        check = PartitionCheck(self._disk, path, METADATA_DIRECTORY, is_compacted=False, is_clean=False)
        check.run(Checkpoint())
        self.partitions[path] = check
        damaged_at = check.recover_from
        is_needless = damaged_at is not None and check.end_offset >= snapshot_end > damaged_at
        for severity, where, text in check.issues:
            self._add(Severity.NOTE if is_needless else severity, where, text)
        self.corrupt_files += check.broken_files

    def _check_bootstrap(self, path: str) -> None:
        problem = self._snapshot_error(path) if self._disk.exists(path) else "It is missing."
        if problem is None:
            return
        has_begun = self._image is not None and bool(self._image.features)
        if not has_begun:
            self._add(Severity.REFUSED, path, problem)
        elif self._disk.exists(path):
            self._add(Severity.HARMLESS, path, f"{problem} It is not needed any more.")
            self.corrupt_files.append(path)

    def _snapshot_error(self, path: str) -> str | None:
        try:
            read_snapshot(self._disk.read(path), path)
        except UnreadableMetadata as error:
            return f"{error}."
        return None

    # ---- partitions --------------------------------------------------------------------------------------

    def _check_partition(self, directory: str, name: str, slot: StoredSlot | None) -> None:
        key = parse_partition_dir_name(name)
        assert key is not None
        path = f"{directory}/{name}"
        topic_name, partition = key
        if slot is None or not slot.topic:
            self._check_topic_id(path, topic_name, partition)
        check: PartitionCheck | SlotCheck
        if slot is None:
            is_compacted = self._image is None or config_of(self._image, topic_name).is_compacted
            check = PartitionCheck(self._disk, path, name, is_compacted=is_compacted, is_clean=self.is_clean)
        else:
            check = SlotCheck(directory, name, slot.engine)
        try:
            check.run(self._checkpoints[directory].get(key, Checkpoint()))
        except StorageError as error:
            self._add(Severity.REFUSED, error.path, str(error))
        self.partitions[path] = check
        self.issues += check.issues
        self.corrupt_files += check.broken_files

    def _check_topic_id(self, path: str, topic_name: str, partition: int) -> None:
        topic_id = self._topic_id(path)
        if self._image is None:
            return
        topic = self._image.topics_by_name.get(topic_name)
        if topic is None or partition not in topic.partitions:
            self._add(Severity.LOSS, path, "The metadata contain no such partition: a start renames it to a stray.")
        elif topic_id is not None and topic_id != topic.topic_id:
            text = f"It belongs to topic id {uuid_text(topic_id)}, but {topic_name} has {uuid_text(topic.topic_id)}"
            wrong = f"Correct {PARTITION_METADATA} first if that is wrong."
            self._add(Severity.LOSS, path, f"{text}: a start renames it to a stray. {wrong}")

    def _topic_id(self, path: str) -> bytes | None:
        metadata = f"{path}/{PARTITION_METADATA}"
        try:
            topic_id = read_topic_id(self._disk, metadata)
        except StorageError as error:
            self._add(severity_of(error), metadata, str(error))
            self.corrupt_files.append(metadata)
            return None
        if topic_id is None:
            self._add(Severity.HARMLESS, metadata, "It is missing or incomplete: a start writes it.")
        return topic_id

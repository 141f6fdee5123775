"""A look at all files of a node's log directories; nothing is changed.

RULES    1. What is found is told with the file's path and how bad it is. The files of partitions are looked at one
            partition after the other, each batch of each.
         2. Checkpoints that cannot be understood count as empty afterwards, so the rest is looked at all the same.
         3. What lies in the metadata log before the newest whole snapshot is read by nobody: its damage is a note.
NOT HERE What a start makes of it (dry_run.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from broker.tools.dry_run import config_of
from broker.tools.node_identity import Node
from protocol.primitives import uuid_text
from replication.metadata.image import MetadataImage, TopicImage
from replication.metadata.metadata_records import UnreadableMetadata, read_snapshot, snapshot_name
from replication.metadata_log.formatting import BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY, UnusableDirectory
from replication.metadata_log.quorum_state_store import read_quorum_state
from storage.directories.future_replica import FUTURE
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.partition_directory import DELETED, STRAY, partition_of
from storage.inspection.issues import Finding, Severity
from storage.inspection.partition_check import PartitionCheck
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
from storage.log.openable_log import NEVER_CLEANED, Checkpoint

Progress = Callable[[int, int], None]
"""Told how many partitions of how many have been looked at."""


class Checkup:
    """What was found in the directories of one node."""

    def __init__(self, disk: Disk, node: Node, image: MetadataImage | None) -> None:
        self._disk = disk
        self._node = node
        self._image = image
        self.findings: list[Finding] = []
        self.partitions: dict[str, PartitionCheck] = {}
        """By directory."""
        self.set_aside: list[str] = []
        """Files that nobody can understand and that can be done without."""
        self.is_clean = True
        self._known: dict[str, dict[TopicPartition, Checkpoint]] = {}

    @property
    def worst(self) -> Severity:
        """How bad it is."""
        return max([finding.severity for finding in self.findings], default=Severity.NOTE)

    @property
    def check_from(self) -> dict[str, int]:
        """By partition directory, from where a recovery would put right what was found."""
        metadata = f"{self._node.metadata_directory}/{METADATA_DIRECTORY}"
        return {
            path: check.recover_from
            for path, check in self.partitions.items()
            if check.recover_from is not None and path != metadata
        }

    def run(self, progress: Progress) -> None:
        """Look at everything."""
        todo = []
        for directory in self._node.directory_ids:
            names = sorted(self._disk.listdir(directory))
            self._look_at_small_files(directory, names)
            todo += [(directory, name) for name in names if self._is_partition(directory, name)]
        if self._node.has_metadata:
            self.look_at_metadata()
        for number, (directory, name) in enumerate(todo):
            progress(number, len(todo))
            self._look_at_partition(directory, name)
        progress(len(todo), len(todo))

    def _add(self, severity: Severity, path: str, text: str) -> None:
        self.findings.append(Finding(severity, path, text))

    # ---- the directory -----------------------------------------------------------------------------------

    def _is_partition(self, directory: str, name: str) -> bool:
        path = f"{directory}/{name}"
        if name.endswith((DELETED, STRAY, FUTURE)) and self._disk.is_dir(path):
            self._add(Severity.NOTE, path, "It is out of service.")
        return partition_of(name) is not None and self._disk.is_dir(path)

    def _look_at_small_files(self, directory: str, names: list[str]) -> None:
        files = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, FIRST_DIRTY)
        points, starts, watermarks, first_dirty = [self._offsets(f"{directory}/{name}") for name in files]
        self._known[directory] = {
            key: Checkpoint(
                points.get(key, 0), starts.get(key, 0), watermarks.get(key, 0), first_dirty.get(key, NEVER_CLEANED)
            )
            for key in points.keys() | starts.keys() | watermarks.keys()
        }
        there = {partition_of(name) for name in names}
        for key, known in self._known[directory].items():
            if key not in there and any(known[:3]):
                self._add(Severity.NOTE, directory, f"Its checkpoints name {key[0]}-{key[1]}, which is not there.")
        marker = f"{directory}/{CLEAN_SHUTDOWN}"
        if CLEAN_SHUTDOWN not in names:
            self.is_clean = False
            self._add(Severity.NOTE, directory, "It was not shut down cleanly: a start checks what may not be durable.")
            return
        try:
            int(json.loads(self._disk.read(marker) or b"{}").get("brokerEpoch", 0))
        except (ValueError, TypeError, AttributeError):
            self._add(Severity.NOTE, marker, "It names no broker epoch; as a mark it stands.")

    def _offsets(self, path: str) -> Mapping[TopicPartition, int]:
        try:
            return read_offsets(self._disk, path)
        except StorageError as error:
            self._add(Severity.REFUSED, path, str(error))
            self.set_aside.append(path)
            return {}

    # ---- metadata ----------------------------------------------------------------------------------------

    def look_at_metadata(self) -> None:
        """Look at the metadata log, its snapshots and what belongs to it."""
        path, disk = f"{self._node.metadata_directory}/{METADATA_DIRECTORY}", self._disk
        metadata = f"{path}/{PARTITION_METADATA}"
        if self._topic_id(path) is None and disk.exists(metadata) and metadata not in self.set_aside:
            self.set_aside.append(metadata)  # a start writes it where there is none
        try:
            read_quorum_state(disk, path)
        except UnusableDirectory as error:
            self._add(Severity.REFUSED, path, str(error))
            self.set_aside.append(f"{path}/quorum-state")
        whole = [0]
        snapshots = sorted((name, file) for file in disk.listdir(path) if (name := snapshot_name(file)) is not None)
        for name, file in reversed(snapshots):
            fault = self._fault_of_snapshot(f"{path}/{file}")
            if fault is None:
                whole.append(name.end_offset)
            else:
                self._add(Severity.HARMLESS, f"{path}/{file}", fault)
                if max(whole) > name.end_offset:
                    self.set_aside.append(f"{path}/{file}")
        self._look_at_metadata_log(path, max(whole))
        self._look_at_bootstrap(f"{self._node.metadata_directory}/{BOOTSTRAP_CHECKPOINT}")

    def _look_at_metadata_log(self, path: str, snapshot_end: int) -> None:
        check = PartitionCheck(self._disk, path, METADATA_DIRECTORY, is_compacted=False, is_clean=False)
        check.run(Checkpoint())
        self.partitions[path] = check
        damaged_at = check.recover_from
        is_needless = damaged_at is not None and check.end_offset >= snapshot_end > damaged_at
        for severity, where, text in check.findings:
            self._add(Severity.NOTE if is_needless else severity, where, text)
        self.set_aside += check.broken_files

    def _look_at_bootstrap(self, path: str) -> None:
        fault = self._fault_of_snapshot(path) if self._disk.exists(path) else "It is missing."
        if fault is None:
            return
        has_begun = self._image is not None and bool(self._image.features)
        if not has_begun:
            self._add(Severity.REFUSED, path, fault)
        elif self._disk.exists(path):
            self._add(Severity.HARMLESS, path, f"{fault} Nobody needs it any more.")
            self.set_aside.append(path)

    def _fault_of_snapshot(self, path: str) -> str | None:
        try:
            read_snapshot(self._disk.read(path), path)
        except UnreadableMetadata as error:
            return f"{error}."
        return None

    # ---- partitions --------------------------------------------------------------------------------------

    def _look_at_partition(self, directory: str, name: str) -> None:
        key = partition_of(name)
        assert key is not None
        path = f"{directory}/{name}"
        topic = None if self._image is None else self._image.topics_by_name.get(key[0])
        self._look_at_owner(path, key, topic)
        is_compacted = self._image is None or config_of(self._image, key[0]).is_compacted
        check = PartitionCheck(self._disk, path, name, is_compacted=is_compacted, is_clean=self.is_clean)
        try:
            check.run(self._known[directory].get(key, Checkpoint()))
        except StorageError as error:
            self._add(Severity.REFUSED, error.path, str(error))
        self.partitions[path] = check
        self.findings += check.findings
        self.set_aside += check.broken_files

    def _look_at_owner(self, path: str, key: TopicPartition, topic: TopicImage | None) -> None:
        topic_id = self._topic_id(path)
        if self._image is None:
            return
        if topic is None or key[1] not in topic.partitions:
            self._add(Severity.LOSS, path, "The metadata know no such partition: a start sets it aside as a stray.")
        elif topic_id is not None and topic_id != topic.topic_id:
            text = f"It belongs to topic id {uuid_text(topic_id)}, but {key[0]} has {uuid_text(topic.topic_id)}"
            wrong = f"Correct {PARTITION_METADATA} first if that is wrong."
            self._add(Severity.LOSS, path, f"{text}: a start sets it aside as a stray. {wrong}")

    def _topic_id(self, path: str) -> bytes | None:
        metadata = f"{path}/{PARTITION_METADATA}"
        try:
            topic_id = read_topic_id(self._disk, metadata)
        except StorageError as error:
            self._add(Severity.REFUSED, metadata, str(error))
            self.set_aside.append(metadata)
            return None
        if topic_id is None:
            self._add(Severity.HARMLESS, metadata, "It is missing, or not whole: a start writes it anew.")
        return topic_id

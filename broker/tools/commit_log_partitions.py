"""The partitions of a log directory's commit log for the doctor, and the issues of its files.

RULES    1. A partition's frames have its name, or its directory has: that of a log that was moved to this log directory.
         2. Frames of an unfinished copy, of a partition with segment files, of a stray, and those without a name belong to no
            partition. The doctor notes the directory of a stray; its frames are kept as long as that.
NOT HERE The checks themselves (storage/inspection).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from protocol.primitives import uuid_text
from replication.metadata.image import MetadataImage
from storage.directories.future_replica import incarnation_of
from storage.directories.partition_directory import DELETED, FUTURE, STRAY, parse_dir_name, parse_partition_dir_name
from storage.inspection.commit_log_check import CommitLogCheck, has_commit_log
from storage.inspection.commit_log_files import SlotId, partition_text
from storage.inspection.indexes import LOG
from storage.inspection.issues import Issue, Severity
from storage.inspection.slot_check import StoredSlot, stored_slots
from storage.io.checkpoint_file import PARTITION_METADATA, read_topic_id
from storage.io.disk import Disk, StorageError


class CommitLogPartitions:
    """The partitions in one commit log."""

    def __init__(self, disk: Disk, directory: str, names: Sequence[str], image: MetadataImage | None) -> None:
        """Check the files of the commit log, if there is one; `names`: the entries of the log directory."""
        self._disk = disk
        self._directory = directory
        self._image = image
        self.issues: list[Issue] = []
        self.rebuildable: list[str] = []
        """Files that a start makes again without a loss."""
        self.slots: dict[str, StoredSlot] = {}
        """By name of the partition."""
        if has_commit_log(disk, directory):
            self._check(names)

    def _check(self, names: Sequence[str]) -> None:
        identities = {name: slot_id for name in names if (slot_id := self._slot_id(name)) is not None}
        copies = {slot_id for name, slot_id in identities.items() if name.endswith(FUTURE)}
        strays = {slot_id[:2] for name, slot_id in identities.items() if name.endswith(STRAY)}
        deleted = {slot_id[:2] for name, slot_id in identities.items() if name.endswith(DELETED)}
        in_service = {
            slot_id[:2]: name for name, slot_id in identities.items() if parse_partition_dir_name(name) is not None
        }
        texts = dict(in_service)
        for slot in self._stored():
            name = self._name_of(slot, in_service)
            if name is not None:
                self.slots[name] = slot
                texts[slot.slot_id[:2]] = name
                self._check_topic(name, slot)
            elif slot.slot_id not in copies and slot.slot_id[:2] not in strays:
                self._report_unused(slot, is_left_over=slot.slot_id[:2] in {*in_service, *deleted})
        check = CommitLogCheck(self._disk, self._directory, texts)
        check.run()
        self.issues += check.issues
        self.rebuildable += check.rebuildable

    def _report_unused(self, slot: StoredSlot, *, is_left_over: bool) -> None:
        """Frames of no partition; `is_left_over`: by a stop during a move or a deletion."""
        severity, hint = Severity.HARMLESS, ""
        if not is_left_over:
            severity, hint = Severity.LOSS, f" Correct its {PARTITION_METADATA} first if a partition has lost its data."
        text = f"The frames of {partition_text(slot.slot_id)} are of no partition: a start drops or ignores them.{hint}"
        self.issues.append(Issue(severity, self._directory, text))

    def _stored(self) -> list[StoredSlot]:
        try:
            return stored_slots(self._directory)
        except StorageError as error:
            self.issues.append(Issue(Severity.REFUSED, error.path, str(error)))
            return []

    def _slot_id(self, name: str) -> SlotId | None:
        """The identity of the partition in a directory, or of the copy in one; None for other names."""
        found = parse_dir_name(name)
        topic_id = None
        with suppress(StorageError):  # reported with the partition
            topic_id = (
                None if found is None else read_topic_id(self._disk, f"{self._directory}/{name}/{PARTITION_METADATA}")
            )
        if found is None or topic_id is None:
            return None
        return SlotId(topic_id, found.partition[1], incarnation_of(name) or 0)

    def _name_of(self, slot: StoredSlot, in_service: Mapping[tuple[bytes, int], str]) -> str | None:
        """The name of a slot's partition; None if it has none (rule 2)."""
        topic_id, partition, _ = slot.slot_id
        name = in_service.get((topic_id, partition))
        if name is not None and any(file.endswith(LOG) for file in self._disk.listdir(f"{self._directory}/{name}")):
            return None
        return f"{slot.topic}-{partition}" if slot.topic else name

    def _check_topic(self, name: str, slot: StoredSlot) -> None:
        """Compare a partition without a directory with the metadata."""
        if self._image is None or not slot.topic:
            return
        topic = self._image.topics_by_name.get(slot.topic)
        if topic is None or slot.slot_id.partition not in topic.partitions:
            self._add_loss(name, "The metadata contain no such partition: a start does not use it.")
        elif slot.slot_id.topic_id != topic.topic_id:
            own, current = uuid_text(slot.slot_id.topic_id), uuid_text(topic.topic_id)
            self._add_loss(
                name, f"It belongs to topic id {own}, but {slot.topic} has {current}: a start does not use it."
            )

    def _add_loss(self, name: str, text: str) -> None:
        self.issues.append(Issue(Severity.LOSS, f"{self._directory}/{name}", text))

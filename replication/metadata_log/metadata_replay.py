"""Reads a directory's metadata log and newest snapshot without changing anything.

RULES    1. Nothing is written, truncated or deleted: a log that this node does not understand is refused before that.
         2. The newest complete snapshot is loaded, and the log after it is replayed up to the first incomplete batch, or the
            first of an epoch below the snapshot's: that one is of another history, which a leader's snapshot replaced.
         3. Records of a transaction apply when its end is read; a transaction without an end is void.
         4. Until the cluster has features it has no records: its first records are those of the zero checkpoint (Kafka 4.4) or
            of bootstrap.checkpoint (earlier versions). Without either, the directory is refused: a log may have been lost.
NOT HERE What a record means (`image.py`), judging an incomplete end (`metadata_log_check.py`), truncating it
         (`metadata_log_open.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from protocol.errors import KafkaError
from protocol.messages import stored_records
from protocol.schema import Message
from replication.metadata.feature_levels import KRAFT_VERSION, METADATA_VERSION, unsupported_level
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import (
    CorruptMetadata,
    MetadataBatch,
    Snapshot,
    SnapshotName,
    UnreadableMetadata,
    Versioned,
    read_batch,
    read_snapshot,
)
from replication.metadata_log.control_state import ControlState
from replication.metadata_log.metadata_transactions import TransactionFilter
from replication.metadata_log.node_identity import BOOTSTRAP_CHECKPOINT, NodeIdentity
from replication.metadata_log.snapshot_files import SnapshotFiles
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.inspection.batches import StoredBatch, read_stored_batches
from storage.io.disk import Disk

_SEGMENT = re.compile(r"[0-9]{20}\.log")


class InvalidTail(NamedTuple):
    """Bytes at the end of the log that are not a complete batch with the next offset."""

    path: str
    position: int
    length: int


class ReplayedMetadata:
    """The result of reading; `replay_again` replays other batches after the same snapshot."""

    def __init__(
        self,
        identity: NodeIdentity,
        snapshots: SnapshotFiles,
        loaded: tuple[SnapshotName, Snapshot],
        bootstrap: Callable[[], list[Versioned]],
        batches: Iterable[MetadataBatch],
    ) -> None:
        self._identity = identity
        self._read_bootstrap = bootstrap
        self.snapshots = snapshots
        self.start, self.snapshot = loaded
        """The name of the loaded snapshot, and the snapshot."""
        image = MetadataImage(identity.cluster_id)
        if self.start.end_offset:
            data, offset = self.snapshot.data, self.start.end_offset - 1
            image, _ = image.apply(data, offset=offset, epoch=self.start.leader_epoch)
        self.snapshot_image = image
        """The image of the snapshot."""
        self.control = ControlState()
        self._check_kraft_version(self.snapshot.control)
        self.control.reset_to(self.start.end_offset, self.snapshot.control)
        self.last_voters: list[int] = []
        """Ids of the voters when a leader was last elected."""
        self.size = 0
        """Bytes after the snapshot."""
        self.timestamp_ms = self.snapshot.last_contained_ms
        self.removed: set[bytes] = set()
        """Ids of topics that the log after the snapshot removes."""
        self.removed_names: set[str] = set()
        """Their names, for directories that have lost their topic id."""
        self.transactions = TransactionFilter()
        """The transaction in which the log ends, if any."""
        self.image = self._replay(batches)
        """The image at the log's end."""
        self.end_offset = max(self.image.offset + 1, self.start.end_offset)
        self.invalid_tail: InvalidTail | None = None
        """The bytes after the last complete batch."""
        self.bootstrap = [] if self.image.features else bootstrap()
        """The first records of a new cluster; empty if it has records."""
        _check_levels(self.image, self.bootstrap, snapshots.directory)

    def _replay(self, batches: Iterable[MetadataBatch]) -> MetadataImage:
        """Collect the records of all batches and apply them at once, so that the image is copied once."""
        image = self.snapshot_image
        offset, epoch, leader_id = image.offset, image.epoch, image.leader_id
        records: list[Message] = []
        for batch in batches:
            self.timestamp_ms = batch.timestamp_ms
            self.size += batch.size
            offset, epoch = batch.last_offset, batch.leader_epoch
            if not batch.is_control:
                records += self.transactions.apply(batch.messages)
                continue
            self._check_kraft_version(batch.messages)
            for at, message in enumerate(batch.messages, batch.base_offset):
                self.control.apply(at, message)
                if isinstance(message, stored_records.LeaderChangeMessage):
                    self.last_voters = [voter.voter_id for voter in message.voters]
                    leader_id = message.leader_id
        self._note_removals(image, records)
        image, _ = image.apply(records, offset=offset, epoch=epoch)
        return image.with_leader(leader_id, offset=offset, epoch=epoch)

    def _note_removals(self, image: MetadataImage, records: Sequence[Message]) -> None:
        """`image`: before the records."""
        created = {record.topic_id: record.name for record in records if isinstance(record, stored_records.TopicRecord)}
        for record in records:
            if isinstance(record, stored_records.RemoveTopicRecord):
                known = image.topics_by_id.get(record.topic_id)
                self.removed.add(record.topic_id)
                self.removed_names.add(created.get(record.topic_id, "") if known is None else known.name)

    @staticmethod
    def _check_kraft_version(control: Iterable[Message]) -> None:
        for message in control:
            if isinstance(message, stored_records.KRaftVersionRecord):
                _check_level(KRAFT_VERSION, message.kraft_version, "The metadata quorum")

    def replay_again(self, batches: Iterable[MetadataBatch]) -> ReplayedMetadata:
        """The same with other batches after the snapshot."""
        return ReplayedMetadata(
            self._identity, self.snapshots, (self.start, self.snapshot), self._read_bootstrap, batches
        )


def read_metadata(disk: Disk, identity: NodeIdentity) -> ReplayedMetadata:
    """Read snapshot and log.

    Raises:
        UnreadableMetadata: a record is unknown to this node.
        StorageError: the disk failed.
    """
    path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    files = disk.listdir(path) if disk.exists(path) else []
    bases = sorted(int(file[:20]) for file in files if _SEGMENT.fullmatch(file))
    snapshots = SnapshotFiles(disk, path, files)
    log_bytes = sum([disk.size(f"{path}/{base:020d}.log") for base in bases])
    loaded = snapshots.load(min(bases, default=0), log_bytes)
    start, snapshot = loaded
    zero_checkpoint_records = [] if start.end_offset else snapshot.data
    bootstrap = partial(_bootstrap_records, disk, identity.metadata_directory, zero_checkpoint_records)
    invalid_tail: list[InvalidTail] = []
    batches = _stored_batches(disk, path, bases, start, invalid_tail.append)
    found = ReplayedMetadata(identity, snapshots, loaded, bootstrap, batches)
    found.invalid_tail = invalid_tail[0] if invalid_tail else None
    return found


def _stored_batches(
    disk: Disk, path: str, bases: Sequence[int], start: SnapshotName, on_invalid_tail: Callable[[InvalidTail], None]
) -> Iterator[MetadataBatch]:
    """The batches after a snapshot (rule 2) up to the first that is incomplete or has another offset: the invalid tail."""
    offset = start.end_offset
    for base, next_base in zip(bases, [*bases[1:], None], strict=False):
        if next_base is not None and next_base <= offset:
            continue
        file = disk.open(f"{path}/{base:020d}.log", write=False)
        try:
            for found in read_stored_batches(file):
                if isinstance(found, StoredBatch):
                    header = found.header
                    if found.is_valid and header.last_offset < offset:
                        continue
                    if found.is_valid and header.leader_epoch < start.leader_epoch:
                        return
                if not isinstance(found, StoredBatch) or not found.is_valid or header.base_offset < offset:
                    on_invalid_tail(InvalidTail(file.path, found.position, file.size() - found.position))
                    return
                offset = header.last_offset + 1
                yield _decoded(found)
        finally:
            file.close()


def _decoded(found: StoredBatch) -> MetadataBatch:
    try:
        return read_batch(found.buffer, found.at, found.header)
    except KafkaError as error:
        raise CorruptMetadata(f"a batch of the metadata log is corrupt: {error}") from None


def _bootstrap_records(disk: Disk, directory: str, in_zero_checkpoint: Sequence[Message]) -> list[Versioned]:
    """The first records of a new cluster (rule 4)."""
    if in_zero_checkpoint:
        return [(record, 0) for record in in_zero_checkpoint]
    path = f"{directory}/{BOOTSTRAP_CHECKPOINT}"
    if not disk.exists(path):
        return []
    try:
        return [(record, 0) for record in read_snapshot(disk.read(path), path).data]
    except CorruptMetadata as error:
        raise CorruptMetadata(f"{error}. Restore the file from a copy.") from None


def _check_levels(image: MetadataImage, bootstrap: Iterable[Versioned], path: str) -> None:
    bootstrap_levels = {
        m.name: m.feature_level for m, _ in bootstrap if isinstance(m, stored_records.FeatureLevelRecord)
    }
    if not image.features and not bootstrap_levels:
        raise UnreadableMetadata(
            f"There is no metadata in {path}, and no {BOOTSTRAP_CHECKPOINT} to start with: restore them from a backup; or, if "
            "other controllers have the metadata, format the directory with --ignore-formatted."
        )
    for name, level in {METADATA_VERSION: 0, **image.features, **bootstrap_levels}.items():
        _check_level(name, level, f"The cluster in {path}")


def _check_level(name: str, level: int, where: str) -> None:
    problem = unsupported_level(name, level)
    if problem is not None:
        raise UnreadableMetadata(f"{where} has {problem}.")

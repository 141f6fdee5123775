"""What stands in a directory's metadata log and its newest snapshot, read without changing anything.

RULES    1. Nothing is written, cut or removed: what this node does not understand is refused before that.
         2. The newest whole snapshot is loaded, and the log behind it is replayed up to its first batch that is not whole.
         3. Records of a transaction count when its end is there; one that never ended is void.
         4. While the cluster has no features it has not begun: its first records are those of the zero checkpoint (Kafka 4.4)
            or of bootstrap.checkpoint (before). Without either it is refused: a log may have been lost.
NOT HERE What a record means (`image.py`), what to think of an end that is not whole (`metadata_log_check.py`), mending and
         leading the log (`metadata_log.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from protocol.errors import KafkaError
from protocol.messages import stored_records
from protocol.schema import Message
from replication.metadata.feature_levels import KRAFT_VERSION, METADATA_VERSION, unknown_level
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
from replication.metadata_log.formatting import BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY, Identity
from replication.metadata_log.metadata_transactions import WholeTransactions
from replication.metadata_log.snapshot_files import SnapshotFiles
from replication.raft.control_state_history import History
from replication.raft.voters import VoterSet, from_record
from storage.inspection.batches import FoundBatch, walk
from storage.io.disk import Disk

_SEGMENT = re.compile(r"[0-9]{20}\.log")


class LeftOver(NamedTuple):
    """Bytes of the log that are no whole batch which comes next."""

    path: str
    position: int
    length: int


class Replayed:
    """What was found; `again` replays the log from other batches."""

    def __init__(
        self,
        identity: Identity,
        snapshots: SnapshotFiles,
        loaded: tuple[SnapshotName, Snapshot],
        bootstrap: Callable[[], list[Versioned]],
        batches: Iterable[MetadataBatch],
    ) -> None:
        self._identity = identity
        self._first = bootstrap
        self.snapshots = snapshots
        self.start, self.snapshot = loaded
        """The snapshot that was loaded."""
        image = MetadataImage(identity.cluster_id)
        if self.start.end_offset:
            data, offset = self.snapshot.data, self.start.end_offset - 1
            image, _ = image.apply(data, offset=offset, epoch=self.start.leader_epoch)
        self.begins_as = image
        """As of the snapshot."""
        replay = _Replay(image, self.start.end_offset, self.snapshot)
        for batch in batches:
            replay.take(batch)
        self.image = replay.finish()
        """As of the log's end."""
        self.end_offset = max(self.image.offset + 1, self.start.end_offset)
        self.voters = replay.voters
        """Without voters where they are a setting (kraft.version 0)."""
        self.kraft_version = replay.kraft_version
        self.last_voters = replay.last_voters
        """Ids of the voters when a leader was last elected."""
        self.size = replay.size
        """Bytes behind the snapshot."""
        self.timestamp_ms = replay.timestamp_ms
        self.is_in_transaction = replay.is_in_transaction
        self.removed = replay.removed
        """Ids of topics that the log behind the snapshot removes."""
        self.left_over: LeftOver | None = None
        """What lies behind the last whole batch."""
        self.bootstrap = [] if self.image.features else bootstrap()
        """What a new cluster begins with; empty when it has begun."""
        _check_levels(self.image, self.bootstrap, snapshots.directory)

    def again(self, batches: Iterable[MetadataBatch]) -> Replayed:
        """The same with another log behind the snapshot."""
        return Replayed(self._identity, self.snapshots, (self.start, self.snapshot), self._first, batches)


def read_metadata(disk: Disk, identity: Identity) -> Replayed:
    """Read it all.

    Raises:
        UnreadableMetadata: somebody wrote what this node does not understand.
        StorageError: the disk failed.
    """
    path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    files = disk.listdir(path) if disk.exists(path) else []
    bases = sorted(int(file[:20]) for file in files if _SEGMENT.fullmatch(file))
    snapshots = SnapshotFiles(disk, path, files)
    log_bytes = sum([disk.size(f"{path}/{base:020d}.log") for base in bases])
    loaded = snapshots.load(min(bases, default=0), log_bytes)
    start, snapshot = loaded
    first = [] if start.end_offset else snapshot.data
    bootstrap = partial(_bootstrap_records, disk, identity.metadata_directory, first)
    left_over: list[LeftOver] = []
    batches = _stored_batches(disk, path, bases, start.end_offset, left_over.append)
    found = Replayed(identity, snapshots, loaded, bootstrap, batches)
    found.left_over = left_over[0] if left_over else None
    return found


def _stored_batches(
    disk: Disk, path: str, bases: Sequence[int], offset: int, leave: Callable[[LeftOver], None]
) -> Iterator[MetadataBatch]:
    """The batches from `offset` on, up to the first that is not whole or does not come next, which is left over."""
    for base, following in zip(bases, [*bases[1:], None], strict=False):
        if following is not None and following <= offset:
            continue
        file = disk.open(f"{path}/{base:020d}.log", write=False)
        try:
            for found in walk(file):
                if isinstance(found, FoundBatch):
                    header = found.header
                    if found.is_valid and header.last_offset < offset:
                        continue
                if not isinstance(found, FoundBatch) or not found.is_valid or header.base_offset < offset:
                    leave(LeftOver(file.path, found.position, file.size() - found.position))
                    return
                offset = header.last_offset + 1
                yield _decoded(found)
        finally:
            file.close()


def _decoded(found: FoundBatch) -> MetadataBatch:
    try:
        return read_batch(found.buffer, found.at, found.header)
    except KafkaError as error:
        raise CorruptMetadata(f"a batch of the metadata log is corrupt: {error}") from None


def _bootstrap_records(disk: Disk, directory: str, in_zero_checkpoint: Sequence[Message]) -> list[Versioned]:
    """Rule 4."""
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
    begun = {m.name: m.feature_level for m, _ in bootstrap if isinstance(m, stored_records.FeatureLevelRecord)}
    if not image.features and not begun:
        raise UnreadableMetadata(
            f"There is no metadata in {path}, and no {BOOTSTRAP_CHECKPOINT} to begin with: restore them from a backup."
        )
    for name, level in {METADATA_VERSION: 0, **image.features, **begun}.items():
        _check_level(name, level, f"The cluster in {path}")


def _check_level(name: str, level: int, where: str) -> None:
    unknown = unknown_level(name, level)
    if unknown is not None:
        raise UnreadableMetadata(f"{where} has {unknown}.")


class _Replay:
    """Batches to an image: all records are applied at once, so that nothing is copied twice."""

    def __init__(self, image: MetadataImage, start_offset: int, snapshot: Snapshot) -> None:
        self._image = image
        self._records: list[Message] = []
        self._whole = WholeTransactions()
        self.removed: set[bytes] = set()
        self.voters = History(VoterSet())
        self.kraft_version = History(0)
        self.last_voters: list[int] = []
        self._last = (image.offset, image.epoch, image.leader_id)
        self.timestamp_ms = snapshot.last_contained_ms
        self.size = 0
        for message in snapshot.control:
            self._begin_control(start_offset, message)

    def _begin_control(self, start_offset: int, message: Message) -> None:
        """What the snapshot says of the quorum."""
        if isinstance(message, stored_records.VotersRecord):
            self.voters.begins_with(start_offset, from_record(message))
        elif isinstance(message, stored_records.KRaftVersionRecord):
            _check_level(KRAFT_VERSION, message.kraft_version, "The metadata quorum")
            self.kraft_version.begins_with(start_offset, message.kraft_version)

    @property
    def is_in_transaction(self) -> bool:
        return self._whole.is_open

    def take(self, batch: MetadataBatch) -> None:
        self.timestamp_ms = batch.timestamp_ms
        self.size += batch.size
        if batch.is_control:
            for offset, message in enumerate(batch.messages, batch.base_offset):
                self._take_control(offset, message)
        else:
            found = self._whole.take(batch.messages)
            self._records += found
            self.removed.update(
                [message.topic_id for message in found if isinstance(message, stored_records.RemoveTopicRecord)]
            )
        self._last = (batch.last_offset, batch.leader_epoch, self._last[2])

    def _take_control(self, offset: int, message: Message) -> None:
        if isinstance(message, stored_records.VotersRecord):
            self.voters.changed(offset, from_record(message))
        elif isinstance(message, stored_records.LeaderChangeMessage):
            self.last_voters = [voter.voter_id for voter in message.voters]
            self._last = (*self._last[:2], message.leader_id)
        elif isinstance(message, stored_records.KRaftVersionRecord):
            _check_level(KRAFT_VERSION, message.kraft_version, "The metadata quorum")
            self.kraft_version.changed(offset, message.kraft_version)

    def finish(self) -> MetadataImage:
        offset, epoch, leader_id = self._last
        image, _ = self._image.apply(self._records, offset=offset, epoch=epoch)
        return image.led_by(leader_id, offset=offset, epoch=epoch)

"""Builds and publishes images from committed records while another node leads the metadata log (Kafka: MetadataLoader).

RULES    1. Only committed records are published. A node that becomes leader continues from the log's end
            (`load_uncommitted`) and uses the loader again after it has lost leadership (`resume`).
         2. Records of a transaction apply when its end is read.
         3. A snapshot that replaces the log replaces the image. It does not contain the leader: the quorum knows it (`leader`).
         4. Batches that are committed together become one image, up to RECORDS_PER_IMAGE: each image copies the dictionaries
            that its records change. After a start these can be all batches since the snapshot.
NOT HERE What is committed (`kraft_replica.py`), the leader's own images (`controller/controller.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from protocol.messages.stored_records import LeaderChangeMessage
from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataDelta, MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.metadata.metadata_records import MetadataBatch, Snapshot, SnapshotName
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_transactions import TransactionFilter

RECORDS_PER_IMAGE: Final = 10_000
"""An image is published when its batches have at least this many records: some 0.1 s of CPU."""


class _End(NamedTuple):
    """The end of the batches that an image contains, and the leader there."""

    offset: int
    epoch: int
    leader_id: int


class MetadataLoader:
    """Applies the metadata log of another leader."""

    def __init__(self, log: MetadataLog, publisher: MetadataPublisher, *, is_in_transaction: bool) -> None:
        """Continue from the publisher's image; `is_in_transaction`: its offset is inside a transaction, which is void."""
        self.log = log
        self.publisher = publisher
        self.transactions = TransactionFilter(is_open=is_in_transaction)
        """The transaction in which the records read so far end, if any."""
        self._next_offset = publisher.newest.offset + 1
        self._timestamp_ms = 0
        """The timestamp of the last batch of the newest image."""
        self.is_following = True
        self.leader: Callable[[], int] = lambda: -1
        """Returns the leader of the metadata log; -1 if unknown."""

    def on_commit(self, high_watermark: int) -> None:
        """Publish the records below the high watermark.

        Raises:
            UnreadableMetadata: another leader wrote a record that this node does not know.
        """
        if self.is_following:
            for image, changes in self._images(self.publisher.newest, high_watermark):
                self.log.committed_timestamp_ms = self._timestamp_ms
                self.publisher.publish(image, changes, Completion())

    def load_uncommitted(self) -> Iterator[tuple[MetadataImage, MetadataDelta]]:
        """The images up to the log's end, committed or not, for a new leader."""
        self.is_following = False
        yield from self._images(self.publisher.newest, self.log.next_offset)

    def resume(self) -> None:
        """Continue after this node has lost leadership."""
        self.is_following = True
        self.transactions = TransactionFilter()
        self._next_offset = self.publisher.newest.offset + 1

    def on_snapshot_loaded(self, name: SnapshotName, snapshot: Snapshot) -> None:
        """Replace the image by a snapshot's (rule 3)."""
        before = self.publisher.newest
        offset, epoch = name.end_offset - 1, name.leader_epoch
        image, _ = MetadataImage(before.cluster_id).apply(snapshot.data, offset=offset, epoch=epoch)
        image = image.with_leader(self.leader(), offset=offset, epoch=epoch)
        self.transactions = TransactionFilter()
        self._next_offset = name.end_offset
        self.publisher.publish(image, MetadataDelta.between(before, image), Completion())

    def _images(self, image: MetadataImage, end_offset: int) -> Iterator[tuple[MetadataImage, MetadataDelta]]:
        """The images up to an offset, in as few steps as rule 4 allows."""
        if self._next_offset >= end_offset:
            return
        records: list[Message] = []
        end = start = _End(image.offset, image.epoch, image.leader_id)
        for batch in self.log.batches(self._next_offset, end_offset):
            self._next_offset = batch.last_offset + 1
            applied = [] if batch.is_control else self.transactions.apply(batch.messages)
            if not batch.is_control and self.transactions.is_open and not applied:
                continue
            records += applied
            self._timestamp_ms = batch.timestamp_ms
            end = _End(batch.last_offset, batch.leader_epoch, self._leader_after(batch, end.leader_id))
            if len(records) >= RECORDS_PER_IMAGE:
                image, changes = _apply(image, records, end)
                yield image, changes
                records, start = [], end
        if end != start:
            yield _apply(image, records, end)

    def _leader_after(self, batch: MetadataBatch, leader_id: int) -> int:
        """The leader that a batch names, or the one before it; if that is unknown, the one that the quorum knows."""
        if batch.is_control:
            named = [message.leader_id for message in batch.messages if isinstance(message, LeaderChangeMessage)]
            return named[-1] if named else leader_id
        return leader_id if leader_id >= 0 else self.leader()


def _apply(image: MetadataImage, records: list[Message], end: _End) -> tuple[MetadataImage, MetadataDelta]:
    image, changes = image.apply(records, offset=end.offset, epoch=end.epoch)
    return image.with_leader(end.leader_id, offset=end.offset, epoch=end.epoch), changes

"""The images that the metadata log leads to where another node leads it: what is committed is read, applied and published.

RULES    1. Only what is committed is published. Who begins to lead goes on from the log's end (`rest`), and reads here no more
            until another one leads (`go_on`).
         2. Records of a transaction count when its end is there.
         3. A snapshot that replaced the log replaces the image. It does not say who leads: the quorum does (`leader`).
NOT HERE What is committed (`kraft_replica.py`), the leader's own images (`controller/controller.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.messages.stored_records import LeaderChangeMessage
from replication.metadata.image import Changes, MetadataImage
from replication.metadata.metadata_publisher import Publisher
from replication.metadata.metadata_records import MetadataBatch, Snapshot, SnapshotName
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_transactions import WholeTransactions


class CommittedMetadata:
    """Follows the metadata log of another leader."""

    def __init__(self, log: MetadataLog, publisher: Publisher, *, is_in_transaction: bool) -> None:
        """Go on from the publisher's image; `is_in_transaction`: the log ends there inside a transaction, which is void."""
        self._log = log
        self._publisher = publisher
        self._whole = WholeTransactions(is_open=is_in_transaction)
        self._next_offset = publisher.newest.offset + 1
        self.is_following = True
        self.leader: Callable[[], int] = _nobody
        """Who leads the metadata log; -1: nobody knows."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether what was read ends inside a transaction."""
        return self._whole.is_open

    def committed(self, high_watermark: int) -> None:
        """Publish what lies before the high watermark.

        Raises:
            UnreadableMetadata: another leader wrote what this node does not understand.
        """
        if self.is_following:
            for image, changes in self._images(self._publisher.newest, high_watermark):
                self._publisher.publish(image, changes, _nothing)

    def rest(self) -> Iterator[tuple[MetadataImage, Changes]]:
        """What the log holds besides, committed or not, for a node that begins to lead."""
        self.is_following = False
        yield from self._images(self._publisher.newest, self._log.next_offset)

    def go_on(self) -> None:
        """Another node leads again."""
        self.is_following = True
        self._whole = WholeTransactions()
        self._next_offset = self._publisher.newest.offset + 1

    def loaded(self, name: SnapshotName, snapshot: Snapshot) -> None:
        """Rule 3."""
        before = self._publisher.newest
        offset, epoch = name.end_offset - 1, name.leader_epoch
        image, _ = MetadataImage(before.cluster_id).apply(snapshot.data, offset=offset, epoch=epoch)
        image = image.led_by(self.leader(), offset=offset, epoch=epoch)
        self._whole = WholeTransactions()
        self._next_offset = name.end_offset
        self._publisher.publish(image, Changes.between(before, image), _nothing)

    def _images(self, image: MetadataImage, end_offset: int) -> Iterator[tuple[MetadataImage, Changes]]:
        if self._next_offset >= end_offset:
            return
        for batch in self._log.batches(self._next_offset, end_offset):
            self._next_offset = batch.last_offset + 1
            image, changes = self._apply(image, batch)
            yield image, changes

    def _apply(self, image: MetadataImage, batch: MetadataBatch) -> tuple[MetadataImage, Changes]:
        offset, epoch = batch.last_offset, batch.leader_epoch
        if not batch.is_control:
            counting = self._whole.take(batch.messages)
            if self._whole.is_open and not counting:
                return image, Changes()
            image, changes = image.apply(counting, offset=offset, epoch=epoch)
            is_known = image.leader_id >= 0
            return image if is_known else image.led_by(self.leader(), offset=offset, epoch=epoch), changes
        leader_id = image.leader_id
        for message in batch.messages:
            if isinstance(message, LeaderChangeMessage):
                leader_id = message.leader_id
        return image.led_by(leader_id, offset=offset, epoch=epoch), Changes()


def _nothing() -> None:
    pass


def _nobody() -> int:
    return -1

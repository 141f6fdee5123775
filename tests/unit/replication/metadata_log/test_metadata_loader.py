"""Loading another leader\'s snapshot."""

from __future__ import annotations

from typing import Any

from protocol.messages.stored_records import FeatureLevelRecord
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.metadata.metadata_records import Snapshot, SnapshotName
from replication.metadata_log.metadata_loader import MetadataLoader


def test_the_leader_after_a_snapshot_is_the_quorum_s() -> None:
    before = MetadataImage("c").with_leader(1, offset=3, epoch=1)
    publisher = MetadataPublisher(before)
    unused: Any = None
    loader = MetadataLoader(unused, publisher, is_in_transaction=False)
    loader.leader = lambda: 2
    level = FeatureLevelRecord(name="metadata.version", feature_level=30)
    loader.on_snapshot_loaded(SnapshotName(49, 2), Snapshot(0, [], [level]))
    image = publisher.image
    assert (image.offset, image.epoch, image.leader_id, image.metadata_version) == (48, 2, 2, 30)

"""Images from committed records of other leaders (replication/metadata_log/metadata_loader.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.messages import stored_records
from replication.cooperative_tasks import no_op
from replication.metadata.image import MetadataDelta, MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.metadata.metadata_records import Snapshot, SnapshotName
from replication.metadata_log import metadata_loader
from replication.metadata_log.metadata_loader import MetadataLoader
from replication.metadata_log.metadata_log import MetadataLog
from tests.support.controller_harness import WALL_MS, ControllerHarness
from tests.support.metadata_histories import METADATA_VERSION, topic_record


class LoaderHarness:
    """A loader behind the log of another node, and what it publishes."""

    def __init__(self, log: MetadataLog) -> None:
        self.log = log
        self.publisher = MetadataPublisher(MetadataImage("c"))
        self.published: list[MetadataImage] = []
        self.publisher.on_published = self.published.append
        self.loader = MetadataLoader(log, self.publisher, is_in_transaction=False)

    def append(self, *records: Any) -> int:
        """Append a batch; returns the log's end."""
        self.log.append([(record, 0) for record in records], wall_ms=WALL_MS, on_committed=no_op)
        return self.log.next_offset


@pytest.fixture
def harness(tmp_path: Path) -> LoaderHarness:
    return LoaderHarness(ControllerHarness(tmp_path).start().log)


def test_the_leader_after_a_snapshot_is_the_quorum_s() -> None:
    before = MetadataImage("c").with_leader(1, offset=3, epoch=1)
    publisher = MetadataPublisher(before)
    unused: Any = None
    loader = MetadataLoader(unused, publisher, is_in_transaction=False)
    loader.leader = lambda: 2
    loader.on_snapshot_loaded(SnapshotName(49, 2), Snapshot(0, [], [METADATA_VERSION]))
    image = publisher.image
    assert (image.offset, image.epoch, image.leader_id, image.metadata_version) == (48, 2, 2, 30)


def test_batches_that_are_committed_together_become_one_image(harness: LoaderHarness) -> None:
    """A copy of all topics for each batch would need memory in proportion to the square of their number."""
    for number in range(50):
        end = harness.append(topic_record(f"t{number}"))
    harness.loader.on_commit(end)
    (image,) = harness.published
    assert (len(image.topics_by_name), image.offset, image.epoch, image.leader_id) == (50, end - 1, 1, 1)
    uncommitted = harness.append(topic_record("t50"))
    harness.append(topic_record("t51"))
    ((newest, changes),) = harness.loader.load_uncommitted()
    assert (len(newest.topics_by_name), newest.offset) == (52, uncommitted)
    assert changes == MetadataDelta(
        created_topics={topic_record(name).topic_id for name in ("t50", "t51")}, partitions=changes.partitions
    )


def test_an_image_has_a_limited_number_of_batches(harness: LoaderHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_loader, "RECORDS_PER_IMAGE", 20)
    first = harness.log.next_offset
    harness.loader.on_commit(first)
    ends = [harness.append(topic_record(f"{number}a"), topic_record(f"{number}b")) for number in range(25)]
    harness.loader.on_commit(ends[-1])
    assert [image.offset + 1 for image in harness.published[1:]] == [ends[9], ends[19], ends[24]]


def test_records_of_an_open_transaction_do_not_move_the_image(harness: LoaderHarness) -> None:
    first = harness.append(topic_record("a"))
    end = harness.append(stored_records.BeginTransactionRecord(), topic_record("b"))
    harness.loader.on_commit(end)
    assert harness.publisher.image.offset == first - 1
    harness.loader.on_commit(harness.append(topic_record("c"), stored_records.EndTransactionRecord()))
    assert set(harness.publisher.image.topics_by_name) == {"a", "b", "c"}


def test_the_time_of_the_last_committed_record_is_known_while_following(harness: LoaderHarness) -> None:
    """A follower's snapshots contain it: without it, their age after a restart would be wrong."""
    harness.append(topic_record("a"))
    end = harness.log.next_offset
    harness.log.append([(topic_record("b"), 0)], wall_ms=WALL_MS + 5, on_committed=no_op)
    harness.log.committed_timestamp_ms = 0
    harness.loader.on_commit(end)
    assert harness.log.committed_timestamp_ms == WALL_MS
    harness.loader.on_commit(harness.log.next_offset)
    assert harness.log.committed_timestamp_ms == WALL_MS + 5

"""An image as records."""

from __future__ import annotations

import random

import pytest

from protocol.messages import stored_records
from replication.metadata.image import MetadataImage
from replication.metadata.image_records import image_records
from replication.metadata.metadata_records import decode_record, encode_record, read_batches
from tests.support.metadata_histories import random_history
from tests.unit.replication.kafka_bytes import METADATA_LOG

REBUILT_SLOTS = set(MetadataImage.__slots__) - {"offset", "epoch", "leader_id"}
_TRANSACTION_RECORDS = (
    stored_records.BeginTransactionRecord,
    stored_records.EndTransactionRecord,
    stored_records.AbortTransactionRecord,
)


def assert_round_trip(image: MetadataImage) -> None:
    """The image equals the one built from its encoded records."""
    written = [encode_record(message, version) for message, version in image_records(image)]
    again, _ = MetadataImage(image.cluster_id).apply(map(decode_record, written), offset=0, epoch=0)
    for slot in REBUILT_SLOTS:
        assert getattr(again, slot) == getattr(image, slot), slot
        assert type(getattr(again, slot)) is type(getattr(image, slot)), slot
    assert [list(t.partitions) for t in again.topics_by_id.values()] == [
        list(t.partitions) for t in image.topics_by_id.values()
    ], "partitions in ascending order"


@pytest.mark.parametrize("seed", range(150))
def test_a_random_image_is_rebuilt_from_its_records(seed: int) -> None:
    history = random_history(random.Random(seed), 120)
    image, _ = MetadataImage("cluster").apply([message for message, _ in history], offset=len(history) - 1, epoch=1)
    assert_round_trip(image)


def test_the_image_of_an_apache_kafka_log_is_rebuilt_from_its_records() -> None:
    batches = [batch for batch in read_batches(METADATA_LOG) if not batch.is_control]
    seen = [message for batch in batches for message in batch.messages if not isinstance(message, _TRANSACTION_RECORDS)]
    image, _ = MetadataImage("cluster").apply(seen, offset=batches[-1].last_offset, epoch=1)
    assert len(image.topics_by_name) == 2
    assert_round_trip(image)


def test_an_empty_image_has_no_records() -> None:
    assert list(image_records(MetadataImage("cluster"))) == []


def test_metadata_version_is_the_first_record() -> None:
    levels = [("a.version", 1), ("metadata.version", 20), ("z.version", 1)]
    records = [stored_records.FeatureLevelRecord(name=name, feature_level=level) for name, level in levels]
    image, _ = MetadataImage("cluster").apply(records, offset=2, epoch=1)
    first, _ = next(image_records(image))
    assert first == records[1]

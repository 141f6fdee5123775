"""The batches of a delivery (broker/coordinators/delivery/target_batches.py)."""

from __future__ import annotations

import random

import pytest

from broker.coordinators.delivery.target_batches import StoredRecord, TargetBatches, murmur2, stored_record
from protocol.record_codec import Headers, encode_record
from protocol.records import parse_header, records


def batches(max_batch_bytes: int = 1_000_000, partitions: int = 4) -> TargetBatches:
    return TargetBatches("s-0", partitions, 6, (9, 2), max_batch_bytes)


def stored(key: bytes | None, value: bytes, headers: Headers = ()) -> StoredRecord:
    return stored_record(encode_record(77, 300, key, value, headers))


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ],
)
def test_the_hash_is_that_of_javas_client(key: bytes, found: int) -> None:
    """The values of Apache Kafka's UtilsTest."""
    assert murmur2(key) == found & 0xFFFFFFFF


def test_records_with_a_key_go_to_its_partition_and_others_to_one_of_the_transaction() -> None:
    made = batches()
    for offset, key in enumerate((b"21", None, b"21", None)):
        assert made.add(stored(key, b"v", (("h", None),)), offset, 100)
    found = made.build()
    assert sorted(found) == sorted({(murmur2(b"21") & 0x7FFFFFFF) % 4, 6 % 4})
    batch = bytes(found[6 % 4])
    header = parse_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (9, 2, 0, True)
    first = records(batch, 0, header, max_bytes=1 << 20)[0]
    assert first == (0, 100, None, b"v", (("h", None), ("schedule-id", b"s-0-1")))


def test_a_batch_stays_below_the_limit_unless_its_first_record_is_larger() -> None:
    made = batches(max_batch_bytes=1_000, partitions=1)
    assert made.add(stored(None, random.Random(1).randbytes(5_000)), 0, 1)
    assert not made.add(stored(None, b"v"), 1, 1)
    (large,) = made.build().values()
    assert len(large) > 5_000
    small = batches(max_batch_bytes=1_000, partitions=1)
    count = 0
    while small.add(stored(b"key", bytes(50)), count, 1):
        count += 1
    (batch,) = small.build().values()
    assert count > 5
    assert len(batch) <= 1_000


def test_a_record_that_is_larger_than_a_batch_may_be_is_compressed() -> None:
    made = batches(max_batch_bytes=1_000, partitions=1)
    assert made.add(stored(b"key", bytes(5_000)), 0, 1)
    assert not made.add(stored(None, b"v"), 1, 1)
    batch = bytes(made.build()[0])
    assert len(batch) <= 1_000
    (record,) = records(batch, 0, parse_header(batch), max_bytes=10_000)
    assert record[2:4] == (b"key", bytes(5_000))

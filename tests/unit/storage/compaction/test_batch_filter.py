"""Filtering one batch (storage/compaction/batch_filter.py)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.records import Record, TimestampType, crc_is_valid, parse_header, patch, records, set_max_timestamp
from storage.compaction.batch_filter import empty_batch, filter_batch
from tests.support.logs import EVERYTHING, NOW_MS

HORIZON_MS = NOW_MS + 500


def batch(compression: Compression = Compression.NONE, *, tombstone: bool = False) -> bytearray:
    """Four records at offsets 70, 71, 73, 74 with different timestamps, of an idempotent producer."""
    builder = BatchBuilder(
        70, compression=compression, leader_epoch=3, producer_id=9, producer_epoch=2, base_sequence=40
    )
    for number, offset in enumerate((70, 71, 73, 74)):
        value = None if tombstone and number == 2 else b"v%d" % number
        builder.append(NOW_MS + (0, 30, 10, 20)[number], b"k%d" % number, value, [("h", b"x")], offset=offset)
    return builder.build()


def without(data: bytearray, *offsets: int, always: bool = False, keep_empty: bool = False) -> Any:
    found = filter_batch(
        data,
        0,
        parse_header(data),
        lambda offset, _key, _has_value: offset not in offsets,
        horizon_ms=HORIZON_MS,
        always=always,
        keep_empty=keep_empty,
    )
    return None if found is None else bytes(found)


def read(data: bytes | bytearray) -> list[Record]:
    """The records; checks the CRC."""
    header = parse_header(data)
    assert crc_is_valid(data, 0, header)
    return records(data, 0, header, max_bytes=EVERYTHING)


@pytest.mark.parametrize("codec", list(Compression))
def test_retained_records_are_unchanged(codec: Compression) -> None:
    data = batch(codec)
    found = without(data, 71, 74)
    assert read(found) == [record for record in read(data) if record.offset in (70, 73)]
    before, after = parse_header(data), parse_header(found)
    assert after._replace(batch_length=0, crc=0, max_timestamp=0, record_count=0) == before._replace(
        batch_length=0, crc=0, max_timestamp=0, record_count=0
    )
    assert (after.record_count, after.max_timestamp, after.last_sequence) == (2, NOW_MS + 10, before.last_sequence)


def test_a_batch_without_removed_records_keeps_its_bytes() -> None:
    data = batch(Compression.GZIP)
    assert without(data) == bytes(data)


@pytest.mark.parametrize("codec", list(Compression))
def test_the_first_tombstone_sets_the_delete_horizon(codec: Compression) -> None:
    """KIP-534: attribute bit 6 and the base timestamp; every record keeps its own timestamp."""
    data = batch(codec, tombstone=True)
    found = without(data)
    assert parse_header(found).delete_horizon_ms == HORIZON_MS
    assert read(found) == read(data)
    again = without(bytearray(found))
    assert again == found, "the time is set once"
    fewer = without(bytearray(found), 70)
    assert parse_header(fewer).delete_horizon_ms == HORIZON_MS
    assert read(fewer) == read(data)[1:]


def test_a_marker_without_its_transaction_gets_a_delete_horizon() -> None:
    found = without(batch(), always=True)
    assert parse_header(found).delete_horizon_ms == HORIZON_MS


def test_a_removed_tombstone_sets_no_delete_horizon() -> None:
    found = without(batch(tombstone=True), 73)
    assert parse_header(found).delete_horizon_ms is None


def test_an_empty_batch_is_removed_or_retained_as_a_header() -> None:
    """The bytes of Kafka's empty batch: no codec, no base timestamp, the max timestamp kept."""
    data = batch(Compression.LZ4)
    assert without(data, 70, 71, 73, 74) is None
    found = without(data, 70, 71, 73, 74, keep_empty=True)
    header = parse_header(found)
    assert (header.size, header.record_count, header.attributes, header.base_timestamp) == (61, 0, 0, -1)
    assert (header.base_offset, header.last_offset, header.last_sequence) == (70, 74, 44)
    assert header.max_timestamp == NOW_MS + 30
    assert read(found) == []
    assert empty_batch(header) == found


def test_log_append_time_is_kept() -> None:
    data = batch()
    set_max_timestamp(data, 0, parse_header(data), TimestampType.LOG_APPEND_TIME, NOW_MS + 99)
    patch(data, 0, 70, 3)
    found = without(data, 71)
    assert {record.timestamp_ms for record in read(found)} == {NOW_MS + 99}
    assert parse_header(found).is_log_append_time == bool(TimestampType.LOG_APPEND_TIME)

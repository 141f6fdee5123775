"""Decoding of batches written by the daemon's builder and by a client, and of invalid batches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.damage import DamagedBatch, WrongChecksum
from barnabas.pipeline.sources.decoding import COLUMN_TYPES, Aborted, Decoder, ReadRequest, decode
from barnabas.pipeline.sources.records import MIN_PARALLEL_BATCHES
from protocol.batch_builder import BatchBuilder, assemble
from protocol.compression import Compression
from protocol.control_records import ControlType
from protocol.record_codec import encode_record
from protocol.records import BatchHeader, TimestampType, headers, records
from tests.support.batches import broken_bodies, with_body
from tests.support.logs import ProducerInfo, marker, produced

NOW_MS = 1_700_000_000_000
EVERYTHING = tuple(COLUMN_TYPES)
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]

texts = st.text(st.characters(codec="utf-8"), max_size=8)
maybe = st.none() | st.binary(max_size=300)
one_record = st.tuples(
    st.integers(-(1 << 40), 1 << 40), maybe, maybe, st.lists(st.tuples(texts, maybe), max_size=3).map(tuple)
)
one_batch = st.tuples(
    st.sampled_from(list(Compression)),
    st.booleans(),
    st.lists(st.tuples(one_record, st.integers(1, 200)), min_size=1, max_size=6),
)


def rows_of(table: Any) -> list[Row]:
    """Rows in the form of protocol/records.py."""
    return [
        (
            row["offset"],
            row["timestamp"] // 1000,
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in table.set_column(5, "timestamp", table["timestamp"].cast(pa.int64())).to_pylist()
    ]


def expected(data: bytes) -> list[Row]:
    return [
        (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        for position, header in headers(data)
        if not header.is_control
        for record in records(data, position, header, max_bytes=1 << 30)
    ]


def decoded(data: bytes, **wanted: Any) -> list[Row]:
    return rows_of(decode(data, "t", 3, columns=EVERYTHING, **wanted))


def many(batches: int, count: int, codec: Compression = Compression.NONE, size: int = 20) -> bytes:
    """Consecutive batches with records of different lengths."""
    rng = random.Random(batches * count)
    data, offset = b"", 0
    for _ in range(batches):
        builder = BatchBuilder(offset, compression=codec)
        for number in range(count):
            value = rng.randbytes(rng.randrange(size))
            builder.append(NOW_MS + number, b"%d" % number, value, [("h", value[:3])] if number % 3 == 0 else [])
        data += builder.build()
        offset = builder.next_offset
    return data


@settings(max_examples=60)
@given(st.lists(one_batch, min_size=1, max_size=8))
def test_any_batches_are_decoded_as_written(batches: list[Any]) -> None:
    """Nulls, headers, gaps between offsets, both timestamp types, every codec in one buffer."""
    data, offset = b"", 5
    for codec, is_append_time, rows in batches:
        kind = TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
        builder = BatchBuilder(offset, compression=codec, timestamp_type=kind)
        for (delta, key, value, pairs), step in rows:
            offset += step
            builder.append(NOW_MS + delta, key, value, pairs, offset=offset)
        offset += 1
        data += builder.build()
    assert decoded(data) == expected(data)


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize(
    ("batches", "count"), [(1, 3000), (MIN_PARALLEL_BATCHES - 1, 40), (MIN_PARALLEL_BATCHES * 4, 40)]
)
def test_the_loop_and_the_vectors_find_the_same_records(batches: int, count: int, codec: Compression) -> None:
    data = many(batches, count, codec, size=40) + many(1, 2, codec, size=30_000)
    assert decoded(data) == expected(data)


def test_batches_of_very_different_sizes_are_read_completely() -> None:
    """The loop continues when few batches are left."""
    data = b"".join(many(1, count) for count in [1, 700, *range(2, 2 * MIN_PARALLEL_BATCHES), 300])
    assert decoded(data) == expected(data)


def test_columns_have_the_types_of_the_kafka_source() -> None:
    table = decode(many(2, 4), "topic", 7, columns=EVERYTHING)
    assert {field.name: field.type for field in table.schema} == COLUMN_TYPES
    assert set(table["topic"].to_pylist()) == {"topic"}
    assert set(table["partition"].to_pylist()) == {7}
    assert set(table["timestampType"].to_pylist()) == {0}
    assert [row is None for row in table["headers"].to_pylist()] == [False, True, True, False] * 2
    assert decode(many(1, 1), columns=("offset", "value")).column_names == ["offset", "value"]
    assert decode(b"").num_rows == 0


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_a_clients_batches_are_read(codec: int) -> None:
    """Written by kafka-python."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for number in range(50):
        builder.append(number, NOW_MS + number, b"key", b"value %d" % number, [("h", b"x")])
    data = bytes(builder.build())
    found = decoded(data)
    assert found == [(number, NOW_MS + number, b"key", b"value %d" % number, (("h", b"x"),)) for number in range(50)]


@settings(max_examples=40)
@given(st.integers(0, 330), st.integers(0, 330))
def test_only_the_requested_offsets_are_returned(start: int, end: int) -> None:
    data = many(8, 40)
    wanted = [row for row in expected(data) if start <= row[0] < end]
    assert decoded(data, start_offset=start, end_offset=end) == wanted


def test_aborted_records_and_markers_are_skipped() -> None:
    """Other records of the same producer, and records of others between them, are returned."""
    data, offset = b"", 0

    def put(batch: bytearray, count: int) -> None:
        nonlocal data, offset
        batch[0:8] = offset.to_bytes(8, "big")
        data += batch
        offset += count

    def written(producer: ProducerInfo | None, name: str) -> None:
        put(produced(f"{name}1", f"{name}2", producer=producer), 2)

    one, other = ProducerInfo(7, 0, 0, transactional=True), ProducerInfo(8, 0, 0, transactional=True)
    written(one, "kept")
    put(marker(ControlType.COMMIT, 7, 0), 1)
    written(one, "lost")  # offsets 3 and 4
    written(other, "others")
    written(None, "plain")
    written(one, "lost")
    put(marker(ControlType.ABORT, 7, 0), 1)  # offset 11
    written(one, "again")
    aborted = (Aborted(7, 3, 11), Aborted(9, 0, 100))
    values = [row[3].decode() for row in decoded(data, aborted=aborted) if row[3]]
    assert values == [f"{name}{n}" for name in ("kept", "others", "plain", "again") for n in (1, 2)]
    assert len(decoded(data)) == 12


def test_an_incomplete_batch_is_ignored() -> None:
    data = many(3, 5)
    for length in range(len(data) - 1, len(data) - 80, -7):
        assert decoded(data[:length]) == expected(data)[:10]


def test_bytes_that_are_not_a_batch_are_refused() -> None:
    with pytest.raises(DamagedBatch, match="position 0 there is no batch"):
        decode(bytes(100))
    old = bytearray(many(1, 1))
    old[16] = 1
    with pytest.raises(DamagedBatch, match="no batch of format 2"):
        decode(old)


def test_a_flipped_bit_is_found_and_earlier_batches_are_returned() -> None:
    data = bytearray(many(6, 40))
    positions = [position for position, _ in headers(data)]
    data[positions[4] + 70] ^= 4
    decoder = Decoder(ReadRequest(TopicPartition("t", 0), columns=EVERYTHING))
    found: list[Any] = []
    with pytest.raises(WrongChecksum, match="the batch of offset 160") as caught:
        found += decoder.batches(data, np.array(positions))
    assert caught.value.offset == 160
    assert rows_of(pa.Table.from_batches(found)) == expected(bytes(data[: positions[4]]))


def test_the_crc_of_batches_outside_the_request_is_not_checked() -> None:
    data = bytearray(many(6, 40))
    data[70] ^= 4
    assert len(decoded(bytes(data), start_offset=40)) == 200


@pytest.mark.parametrize("name", broken_bodies())
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_invalid_records_with_a_valid_crc_are_damage(name: str, codec: Compression) -> None:
    broken = bytes(with_body(broken_bodies()[name], 2, NOW_MS, codec))
    for data in (broken, many(MIN_PARALLEL_BATCHES, 2) + broken):
        with pytest.raises(DamagedBatch, match="offset"):
            decode(data, columns=EVERYTHING)


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_invalid_compressed_data_is_damage(codec: Compression) -> None:
    good = with_body(many(1, 50)[61:], 50, NOW_MS, codec)
    header, body = headers(good)[0][1], bytes(good[61:])
    for wrong in (body[:-9], body[:18] + b"\xff" * 40 + body[58:], b""):
        with pytest.raises(DamagedBatch):
            decode(bytes(assemble(header, wrong)), columns=EVERYTHING)
    with pytest.raises(DamagedBatch, match="no codec 6"):
        decode(bytes(assemble(header._replace(attributes=6), body)))


def test_an_invalid_header_key_is_decoded_as_in_java() -> None:
    body = encode_record(0, 0, b"k", b"v", (("\udcff", b"x"),))
    data = with_body(bytes([2 * len(body)]) + bytes(body), 1, NOW_MS)
    assert decoded(bytes(data))[0][4] == (("�", b"x"),)


def test_an_impossible_record_count_allocates_no_memory() -> None:
    header = BatchHeader(0, 0, -1, 2, 0, 0, 2**31 - 2, NOW_MS, NOW_MS, -1, -1, -1, 2**31 - 1)
    with pytest.raises(DamagedBatch, match="its number of records is negative or too large"):
        decode(bytes(assemble(header, b"\0" * 10)))


def test_a_large_read_is_split_into_arrow_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows, and by bytes of compressed batches."""
    from barnabas.pipeline.sources import decoding

    monkeypatch.setattr(decoding, "ROWS", 100)
    monkeypatch.setattr(decoding, "BYTES", 2000)
    for codec in (Compression.NONE, Compression.ZSTD):
        data = many(30, 40, codec)
        positions = np.array([position for position, _ in headers(data)])
        found = list(Decoder(ReadRequest(TopicPartition("t", 0), columns=EVERYTHING)).batches(data, positions))
        assert max(batch.num_rows for batch in found) <= 160
        assert rows_of(pa.Table.from_batches(found)) == expected(data)

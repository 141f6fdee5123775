"""Record batches: header, patching, building, reading, and batches of other clients."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression, decompress
from protocol.control_records import ControlType, control_batch, control_type, coordinator_epoch_of, end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import varint
from protocol.record_codec import check_first, encode_record, scan
from protocol.records import (
    BATCH_OVERHEAD,
    HEADER,
    BatchHeader,
    Record,
    TimestampType,
    crc_is_valid,
    headers,
    parse_header,
    patch,
    records,
    set_max_timestamp,
)
from tests.support.batches import batch, broken_bodies, record, with_body, with_fields
from tests.support.captured_batches import CAPTURED
from tests.support.kafka import needs_kafka, run_tool

NOW_MS = 1_763_000_000_000
MAX = 1 << 24

ONE_RECORD = bytes.fromhex(
    "0000000000000000" "00000041" "ffffffff" "02" "1f929265" "0000" "00000000" "00000000000003e8" "00000000000003e8"
    "0000000000001388" "0003" "00000007" "00000001" "1e" "00" "00" "00" "066b6579" "0676616c" "02" "0268" "01"
)  # fmt: skip
"""Offset 0, time 1000, producer 5000 epoch 3 sequence 7, key "key", value "val", a header "h" with a null value."""


def read(data: bytes | bytearray, position: int = 0) -> list[Record]:
    """The records of the batch at `position`."""
    return records(data, position, parse_header(data, position), max_bytes=MAX)


# ---- header ------------------------------------------------------------------------------------------------


def test_a_built_batch_equals_the_format_byte_for_byte() -> None:
    builder = BatchBuilder(producer_id=5000, producer_epoch=3, base_sequence=7)
    builder.append(1000, b"key", b"val", (("h", None),))
    built = builder.build()
    assert bytes(built[:17]) == ONE_RECORD[:17]
    assert bytes(built[21:]) == ONE_RECORD[21:]
    assert built == ONE_RECORD
    assert HEADER.size == BATCH_OVERHEAD == 61
    assert read(ONE_RECORD) == [Record(0, 1000, b"key", b"val", (("h", None),))]


def test_a_batch_header_derives_sizes_offsets_and_sequences() -> None:
    """Sizes, offsets and sequences; sequences wrap at 2**31 - 1."""
    header = BatchHeader(100, 88, 4, 2, 0, 0b111_1011, 9, 50, 60, 7, 1, 2**31 - 5, 10)
    assert (header.size, header.last_offset, header.next_offset) == (100, 109, 110)
    assert header.last_sequence == 4
    assert header._replace(base_sequence=-1).last_sequence == -1
    assert header.compression == Compression.LZ4
    assert header.is_log_append_time
    assert header.is_transactional
    assert header.is_control
    assert header.delete_horizon_ms == 50
    bare = header._replace(attributes=0)
    assert not any((bare.is_log_append_time, bare.is_transactional, bare.is_control))
    assert bare.delete_horizon_ms is None


def test_headers_returns_every_complete_batch() -> None:
    """The last batch may be incomplete, as in a fetch response or a part of a file."""
    one, two = batch(NOW_MS, 2), batch(NOW_MS, 5)
    data = bytes(one + two)
    assert [(at, header.record_count) for at, header in headers(data)] == [(0, 2), (len(one), 5)]
    for cut in range(len(one), len(data)):
        assert [at for at, _ in headers(data[:cut])] == [0]
    for cut in range(len(one)):
        assert headers(data[:cut]) == []
    assert headers(memoryview(data)[len(one) :])[0][1].record_count == 5


@pytest.mark.parametrize(
    ("position", "layout", "value", "code"),
    [
        (16, ">b", 0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (16, ">b", 1, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (16, ">b", 3, ErrorCode.CORRUPT_MESSAGE),
        (16, ">b", -1, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", -1, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", -(2**31), ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", 13, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", 48, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_an_invalid_batch_header_is_refused(position: int, layout: str, value: int, code: ErrorCode) -> None:
    """Also after a valid batch."""
    good = batch(NOW_MS)
    bad = bytearray(good)
    struct.pack_into(layout, bad, position, value)
    for data in (bad, good + bad):
        with pytest.raises(KafkaError) as caught:
            headers(data)
        assert caught.value.code == code
        assert caught.value.message
    with pytest.raises(KafkaError) as caught:
        parse_header(bad)
    assert caught.value.code == code


def test_a_truncated_batch_header_is_refused() -> None:
    good = bytes(batch(NOW_MS))
    for size in range(BATCH_OVERHEAD):
        with pytest.raises(KafkaError) as caught:
            parse_header(good[:size])
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(KafkaError):
        parse_header(good, len(good) + 5)


def test_the_crc_detects_every_flipped_bit() -> None:
    good = batch(NOW_MS, 2)
    header = parse_header(good)
    assert crc_is_valid(good, 0, header)
    assert crc_is_valid(b"xyz" + bytes(good) + b"abc", 3, header)
    for position in range(21, len(good)):
        for bit in range(8):
            good[position] ^= 1 << bit
            assert not crc_is_valid(good, 0, header)
            good[position] ^= 1 << bit


def test_patch_changes_only_base_offset_and_leader_epoch() -> None:
    good = batch(NOW_MS)
    frame = memoryview(bytearray(b"abc" + bytes(good) + b"xyz"))
    patch(frame, 3, 2**40 + 5, 17)
    header = parse_header(frame, 3)
    assert (header.base_offset, header.leader_epoch) == (2**40 + 5, 17)
    assert crc_is_valid(frame, 3, header)
    changed = [
        index for index, (was, now) in enumerate(zip(b"abc" + bytes(good) + b"xyz", frame, strict=True)) if was != now
    ]
    assert set(changed) <= {*range(3, 11), *range(15, 19)}


def test_the_timestamp_type_of_a_batch_can_be_changed() -> None:
    """The timestamp type, the max timestamp and the CRC change; other attribute bits are kept."""
    data = with_fields(batch(NOW_MS), attributes=0x0F10)
    header = set_max_timestamp(data, 0, parse_header(data), TimestampType.LOG_APPEND_TIME, 77)
    assert header == parse_header(data)
    assert header.attributes == 0x0F18
    assert crc_is_valid(data, 0, header)
    assert {record.timestamp_ms for record in read(data)} == {77}
    header = set_max_timestamp(data, 0, header, TimestampType.CREATE_TIME, NOW_MS + 2)
    assert data == with_fields(batch(NOW_MS), attributes=0x0F10)


# ---- records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CAPTURED))
def test_batches_of_other_clients_are_read(name: str) -> None:
    """Java's and librdkafka's producers, every codec."""
    data = CAPTURED[name]
    ((position, header),) = headers(data)
    assert crc_is_valid(data, position, header)
    assert Compression(header.compression).name.lower() == name.split("-")[1]
    found = read(data)
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]
    assert [record.value and json.loads(record.value)["flight"] for record in found][:4] == [1000, 1001, 1002, 1003]
    if name.startswith("java"):
        assert [record.key for record in found] == [b"key-%d" % index for index in range(5)]
        assert [record.headers for record in found] == [(("a", b"%d" % index), ("b", b"x")) for index in range(5)]
    else:
        assert (found[3].key, found[4].value) == (None, None)
        assert [record.timestamp_ms for record in found] == [1357016400000 + index * 60_000 for index in range(5)]
        assert found[1].headers == (("trace", b"\0\1"), ("none", None))
    keyless = [index for index in range(5) if found[index].key is None]
    assert scan(decompress(header.compression, data[61:], MAX), 5)[2] == keyless


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("name", sorted(broken_bodies()))
def test_every_reader_refuses_broken_records(name: str, codec: Compression) -> None:
    body = broken_bodies()[name]
    data = with_body(body, 2, NOW_MS, codec)
    with pytest.raises(KafkaError) as caught:
        read(data)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    with pytest.raises(KafkaError) as caught:
        scan(body, 2)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    if "header" not in name:
        with pytest.raises(KafkaError):
            check_first(memoryview(body), 2, 2)


def test_an_overlong_varint_is_an_invalid_record() -> None:
    """Five bytes hold 32 bits, ten hold 64."""
    for start in (b"\x80" * 6, varint(20) + b"\0" + b"\x80" * 11, varint(20) + b"\0\0" + b"\x80" * 6):
        with pytest.raises(KafkaError):
            read(with_body(start + bytes(40), 1, NOW_MS))
        with pytest.raises(KafkaError):
            scan(start + bytes(40), 1)


def test_extreme_values_survive_a_round_trip() -> None:
    """Distant timestamps, long fields, offset gaps as after compaction."""
    builder = BatchBuilder(2**62)
    expected = []
    for index, (time_ms, key) in enumerate(((-1, None), (2**62, b""), (-(2**62), b"k" * 70_000), (0, b"k" * 63))):
        builder.append(time_ms, key, key, (("ü" * index, key),) * index, offset=2**62 + index * 1000)
        expected.append(Record(2**62 + index * 1000, time_ms, key, key, (("ü" * index, key),) * index))
    assert builder.next_offset == 2**62 + 3001
    data = builder.build()
    assert read(data) == expected
    assert parse_header(data).last_offset_delta == 3000
    assert parse_header(data).max_timestamp == 2**62


def test_header_keys_with_invalid_utf8_survive_a_round_trip() -> None:
    key = b"\xff\xfe\x80".decode("utf-8", "surrogateescape")
    builder = BatchBuilder()
    builder.append(1, b"k", b"v", [(key, b"x")])
    data = builder.build()
    assert b"\xff\xfe\x80" in data
    assert read(data)[0].headers == ((key, b"x"),)


def test_an_empty_batch_of_a_compacted_log_has_no_records() -> None:
    """Compaction keeps the header for offsets and sequences."""
    assert read(with_fields(with_body(b"", 1, NOW_MS), record_count=0)) == []


def test_decompression_of_records_is_limited() -> None:
    data = batch(NOW_MS, 3, compression=Compression.ZSTD, value=bytes(100_000))
    assert len(data) < 500
    with pytest.raises(KafkaError) as caught:
        records(data, 0, parse_header(data), max_bytes=100_000)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError) as caught:
        records(data[:-1], 0, parse_header(data), max_bytes=MAX)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("count", [4, 6])
def test_scan_refuses_another_number_of_records(count: int) -> None:
    encoded = [encode_record(0, index, b"k", b"v", ()) for index in range(5)]
    with pytest.raises(KafkaError):
        scan(b"".join(varint(len(record)) + record for record in encoded), count)


def test_extend_writes_the_same_bytes_as_append() -> None:
    """Including null and empty fields, and lengths and deltas of more than one byte."""
    pairs = [(None, b"v"), (b"k", None), (b"", b""), (b"k" * 70, b"v" * 9000), *[(b"k", b"v")] * 200]
    one_by_one, together = BatchBuilder(7), BatchBuilder(7)
    for key, value in pairs:
        one_by_one.append(1_700_000_000_000, key, value)
    together.extend(1_700_000_000_000, pairs[:3])
    together.extend(1_700_000_000_000, pairs[3:])
    assert together.build() == one_by_one.build()


def test_check_first_checks_records_up_to_its_limit() -> None:
    """Bytes after the limit are ignored; up to it the records must fill the batch."""
    body = record(0) + record(1, value=b"v" * 100) + record(2)
    check_first(memoryview(body), 3, 3)
    check_first(memoryview(body), 3, 99)
    check_first(memoryview(body + b"\xff" * 30), 5, 3)
    for data, count in ((body, 2), (body, 4), (body + b"\0", 3), (body[:-1], 3), (body + b"\xff" * 30, 5)):
        with pytest.raises(KafkaError):
            check_first(memoryview(data), count, 99)


# ---- control batches ---------------------------------------------------------------------------------------


def test_a_transaction_marker_has_kafkas_layout() -> None:
    """Key: i16 version 0, i16 type; value: i16 version 0, i32 coordinator epoch."""
    data = end_txn_marker(
        ControlType.COMMIT, producer_id=9, producer_epoch=2, coordinator_epoch=5, timestamp_ms=NOW_MS, base_offset=44
    )
    header = parse_header(data)
    assert (header.attributes, header.producer_id, header.producer_epoch, header.base_sequence) == (0x30, 9, 2, -1)
    (marker,) = read(data)
    assert marker == Record(44, NOW_MS, bytes.fromhex("00000001"), bytes.fromhex("000000000005"), ())
    assert control_type(marker.key) == ControlType.COMMIT
    assert coordinator_epoch_of(marker.value) == 5


def test_control_batches_hold_several_records() -> None:
    """A metadata snapshot starts with a batch of header, KRaft version and voters."""
    entries = [(ControlType.SNAPSHOT_HEADER, b"a"), (ControlType.KRAFT_VERSION, b"b"), (ControlType.KRAFT_VOTERS, b"c")]
    data = control_batch(entries, base_offset=3, timestamp_ms=NOW_MS, leader_epoch=6)
    header = parse_header(data)
    assert (header.attributes, header.leader_epoch, header.producer_id, header.next_offset) == (0x20, 6, -1, 6)
    assert [(control_type(record.key), record.value) for record in read(data)] == entries


def test_control_types_equal_kafkas() -> None:
    assert [kind.name for kind in sorted(ControlType)] == [
        "ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS",
    ]  # fmt: skip
    assert [int(kind) for kind in sorted(ControlType)] == list(range(7))


def test_invalid_control_records_are_refused() -> None:
    for key in (None, b"", b"\0\0\0", b"\xff\xff\0\0"):
        with pytest.raises(KafkaError):
            control_type(key)
    assert control_type(b"\0\1\0\x63") == 99
    for value in (None, b"", b"\0" * 5):
        with pytest.raises(KafkaError):
            coordinator_epoch_of(value)


# ---- Kafka reads ours --------------------------------------------------------------------------------------


@needs_kafka
def test_dump_log_segments_reads_our_batches_in_every_codec(tmp_path: Path) -> None:
    log = bytearray()
    end = 0
    for codec in Compression:
        builder = BatchBuilder(
            end, compression=codec, leader_epoch=4, producer_id=8, producer_epoch=0, base_sequence=end
        )
        for index in range(40):
            builder.append(NOW_MS + index, None if index == 1 else b"key %d" % index, b"value " * index, (("h", b"x"),))
        log += builder.build()
        end = builder.next_offset
    builder = BatchBuilder(end, compression=Compression.LZ4)
    builder.append(NOW_MS, b"large", bytes(range(256)) * 3000)
    log += builder.build()
    log += end_txn_marker(
        ControlType.ABORT,
        producer_id=8,
        producer_epoch=0,
        coordinator_epoch=3,
        timestamp_ms=NOW_MS,
        base_offset=end + 1,
    )
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(log)
    done = run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", path, "--deep-iteration", "--print-data-log")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("compresscodec: ")[1].split()[0] for line in lines if line.startswith("baseOffset")] == [
        "none", "gzip", "snappy", "lz4", "zstd", "lz4", "none",
    ]  # fmt: skip
    assert all("isvalid: true" in line for line in lines if line.startswith("baseOffset"))
    inner = [line for line in lines if line.startswith("| offset")]
    assert len(inner) == end + 2
    assert "endTxnMarker: ABORT coordinatorEpoch: 3" in inner[-1]
    assert [line.split("payload: ")[1].rstrip() for line in inner[80:120]] == [
        ("value " * n).rstrip() for n in range(40)
    ]

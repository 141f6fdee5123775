"""Validation of batches: accepted, changed and rejected ones."""

from __future__ import annotations

import random
from dataclasses import replace

import cramjam
import pytest

from protocol.batch_builder import BatchBuilder, assemble
from protocol.compression import Compression
from protocol.control_records import ControlType as Control
from protocol.control_records import control_batch, end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import varint
from protocol.record_codec import encode_record
from protocol.records import Record, crc_is_valid, headers, parse_header, patch, records
from storage.config.log_config import LogConfig, log_config
from storage.log.log_validator import (
    CHECKED_RECORDS,
    FEW_RECORDS,
    MAX_UNCHECKED_COUNT,
    AppendOrigin,
    BatchRules,
    RejectedRecords,
    Validated,
    refuse_zstd,
    validate,
    validate_replicated,
)
from tests.support.batches import LARGE, TOPICS, Case, batch, cases, record, with_body, with_fields
from tests.support.logs import refused

NOW_MS = 1_763_000_000_000
MAX = 1 << 24


def rules(topic: str = "plain", *, checks_all_records: bool = False) -> BatchRules:
    """The rules of a topic of the table."""
    return BatchRules(log_config(TOPICS[topic], {}), f"{topic}-0", checks_all_records=checks_all_records)


def refusal(data: bytes | bytearray | None, by: BatchRules | None = None) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validate(None if data is None else bytearray(data), by or rules(), wall_ms=NOW_MS)
    return caught.value


def rejected(data: bytes | bytearray, by: BatchRules) -> RejectedRecords:
    error = refusal(data, by)
    assert isinstance(error, RejectedRecords)
    return error


def accepted(data: bytes | bytearray, by: BatchRules | None = None) -> Validated:
    """The accepted bytes; checks that their header and CRC are correct."""
    found = validate(bytearray(data), by or rules(), wall_ms=NOW_MS)
    assert [(position, header) for position, header in headers(found.records)] == found.batches
    assert all(crc_is_valid(found.records, position, header) for position, header in found.batches)
    return found


def opened(found: Validated) -> list[Record]:
    position, header = found.batches[0]
    return records(found.records, position, header, max_bytes=MAX)


CASES = cases(NOW_MS)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.topic}: {case.name}" for case in CASES])
def test_each_batch_of_the_table_gets_its_answer(case: Case) -> None:
    """Differences from Kafka: decision 0003."""
    if case.ours == ErrorCode.NONE:
        assert case.data is not None
        accepted(case.data, rules(case.topic))
        return
    error = refusal(case.data, rules(case.topic))
    assert error.code == case.ours
    assert bool(error.message) == (case.ours != LARGE)
    blamed = tuple(index for index, _ in error.record_errors) if isinstance(error, RejectedRecords) else ()
    assert blamed == case.rejected


@pytest.mark.parametrize("case", CASES, ids=[f"{case.topic}: {case.name}" for case in CASES])
def test_with_all_records_checked_answers_equal_kafkas(case: Case) -> None:
    """Every error code is Kafka's, or stricter."""
    by = rules(case.topic, checks_all_records=True)
    if case.kafka == ErrorCode.NONE and "offset deltas" not in case.name:
        assert case.data is not None
        accepted(case.data, by)
    else:
        differs = case.ours not in {case.kafka, ErrorCode.NONE}
        stricter = ErrorCode.INVALID_RECORD if case.kafka in {ErrorCode.NONE, None} else case.kafka
        assert refusal(case.data, by).code == (case.ours if differs else stricter)


def test_an_accepted_batch_is_not_copied() -> None:
    data = batch(NOW_MS)
    assert validate(data, rules(), wall_ms=NOW_MS).records is data
    frame = memoryview(bytearray(b"12345") + batch(NOW_MS) + b"678")
    found = validate(frame[5 : 5 + len(data)], rules(), wall_ms=NOW_MS)
    patch(frame, 5, 77, 3)
    assert parse_header(found.records).base_offset == 77


def test_a_rejected_batch_is_unchanged() -> None:
    for case in CASES:
        if case.data is not None and case.ours != ErrorCode.NONE:
            data = bytearray(case.data)
            with pytest.raises(KafkaError):
                validate(data, rules(case.topic), wall_ms=NOW_MS)
            assert data == case.data, case.name


def test_short_trailing_bytes_are_dropped() -> None:
    good = batch(NOW_MS)
    assert accepted(good + b"\0" * 11).records == good
    assert accepted(good + good[:-1]).records == good


def test_log_append_time_is_set_without_decoding_records() -> None:
    good = batch(NOW_MS - 5000)
    found = accepted(good, rules("append"))
    assert found.log_append_time_ms == NOW_MS
    assert found.records[61:] == good[61:]
    assert {record.timestamp_ms for record in opened(found)} == {NOW_MS}
    assert accepted(good).log_append_time_ms == -1


def test_a_clients_log_append_time_bit_is_cleared() -> None:
    found = accepted(with_fields(batch(NOW_MS), attributes=8, max_timestamp=NOW_MS + 99))
    assert not found.batches[0][1].is_log_append_time
    assert found.batches[0][1].max_timestamp == NOW_MS + 2


def test_the_max_timestamp_is_corrected_if_all_records_are_checked() -> None:
    for count, topic, is_read in ((FEW_RECORDS, "plain", True), (20, "compact", True), (20, "plain", False)):
        low = with_fields(batch(NOW_MS, count), max_timestamp=NOW_MS - 5000)
        found = accepted(low, rules(topic)).batches[0][1].max_timestamp
        assert found == (NOW_MS + count - 1 if is_read else NOW_MS - 5000)


def test_a_record_alone_is_checked_for_key_time_and_format() -> None:
    record = encode_record(0, 0, None, bytes(1000))
    body = varint(len(record)) + record
    good = with_body(body, 1, NOW_MS)
    assert accepted(good).records == good
    assert refusal(good, rules("compact")).code == ErrorCode.INVALID_RECORD
    assert refusal(with_body(body + b"\0", 1, NOW_MS)).code == ErrorCode.INVALID_RECORD
    assert refusal(with_body(body, 1, NOW_MS + 2 * 3_600_000)).code == ErrorCode.INVALID_TIMESTAMP
    corrected = accepted(with_fields(good, max_timestamp=NOW_MS + 5))
    assert corrected.records == good
    assert accepted(with_fields(good, attributes=8)).records == good
    assert accepted(good, rules("append")).log_append_time_ms == NOW_MS


def test_a_timestamp_beyond_64_bits_is_rejected() -> None:
    body = encode_record(2**62, 0, b"k", b"v")
    data = with_body(bytes([len(body) << 1]) + bytes(body), 1, NOW_MS)
    data = with_fields(data, base_timestamp=2**63 - 1, max_timestamp=2**63 - 1)
    assert refusal(data).code == ErrorCode.INVALID_TIMESTAMP
    data = with_fields(data, base_timestamp=-(2**63), max_timestamp=0)
    everything = BatchRules(
        replace(LogConfig(), message_timestamp_after_max_ms=2**63 - 1), "t-0", checks_all_records=True
    )
    accepted(data, everything)


@pytest.mark.parametrize("source", list(Compression))
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_its_own_codec_recompresses_batches(source: Compression, target: str) -> None:
    builder = BatchBuilder(compression=source, producer_id=9, producer_epoch=2, base_sequence=5, transactional=True)
    for index in range(50):
        builder.append(NOW_MS + index % 7, b"k%d" % index, b"value " * index, (("h", None),))
    data = builder.build()
    found = accepted(data, BatchRules(replace(LogConfig(), compression_type=target), "t-0"))
    before, after = parse_header(data), found.batches[0][1]
    assert Compression(after.compression).name.lower() == target.replace("uncompressed", "none")
    assert after[6:] == before[6:]
    assert after.is_transactional
    assert opened(found) == records(data, 0, before, max_bytes=MAX)
    if before.compression == after.compression:
        assert found.records == data


def test_a_batch_too_large_after_recompression_is_rejected() -> None:
    data = batch(NOW_MS, 100, compression=Compression.GZIP, value=b"v" * 100)
    size = len(batch(NOW_MS, 100, value=b"v" * 100))
    assert len(data) < size
    for limit in (size, size - 1):
        config = replace(LogConfig(), compression_type="uncompressed", max_message_bytes=limit)
        if limit == size:
            accepted(data, BatchRules(config, "t-0"))
        else:
            assert refusal(data, BatchRules(config, "t-0")).code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_large_compressed_batch_is_recompressed_too() -> None:
    rng = random.Random(1)
    builder = BatchBuilder(compression=Compression.LZ4)
    for index in range(100):
        builder.append(NOW_MS, b"%d" % index, rng.randbytes(200))
    data = builder.build()
    found = accepted(data, rules("gzip"))
    assert found.batches[0][1].compression == Compression.GZIP
    assert opened(found) == records(data, 0, parse_header(data), max_bytes=MAX)
    broken = assemble(parse_header(data), bytes(data[61:-9]))
    garbage = with_body(b"\xee" + rng.randbytes(9000), 100, NOW_MS, Compression.LZ4)
    assert refusal(broken, rules("gzip")).code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert refusal(garbage, rules("gzip")).code == ErrorCode.INVALID_RECORD
    accepted(garbage)


def test_the_decompressed_size_is_limited() -> None:
    by = rules("compact")
    by.max_opened_bytes = 10_000
    data = batch(NOW_MS, 1, compression=Compression.ZSTD, value=bytes(20_000))
    assert refusal(data, by).code == ErrorCode.MESSAGE_TOO_LARGE
    accepted(data)


def test_a_small_batch_with_a_high_compression_ratio_is_accepted() -> None:
    data = batch(NOW_MS, 2, compression=Compression.ZSTD, value=bytes(500_000))
    assert len(data) < 1000
    accepted(data)


def test_an_implausible_record_count_is_verified() -> None:
    data = batch(NOW_MS, 2, compression=Compression.GZIP, value=bytes(range(256)) * 40)
    filler = batch(NOW_MS, 300, compression=Compression.SNAPPY, value=bytes(range(256)))
    assert len(filler) > 4096
    for original in (data, filler):
        reserve = with_fields(original, record_count=MAX_UNCHECKED_COUNT + 1, last_offset_delta=MAX_UNCHECKED_COUNT)
        assert refusal(reserve).code == ErrorCode.INVALID_RECORD


def test_only_the_first_record_lengths_are_checked() -> None:
    whole = b"".join(record(index, value=b"x" * 100) for index in range(CHECKED_RECORDS))
    garbage = b"\xff" * 500
    assert refusal(with_body(whole[:-1], CHECKED_RECORDS, NOW_MS)).code == ErrorCode.INVALID_RECORD
    assert refusal(with_body(whole + b"\0", CHECKED_RECORDS, NOW_MS)).code == ErrorCode.INVALID_RECORD
    accepted(with_body(whole, CHECKED_RECORDS, NOW_MS))
    accepted(with_body(whole + garbage, CHECKED_RECORDS + 1, NOW_MS))
    behind = with_body(whole + garbage, CHECKED_RECORDS + 1, NOW_MS)
    assert refusal(behind, rules(checks_all_records=True)).code == ErrorCode.INVALID_RECORD


def test_null_keys_are_reported_as_in_kafka() -> None:
    error = rejected(with_body(record(0) + record(1, None), 2, NOW_MS), rules("compact"))
    text = "Compacted topic cannot accept message without key in topic partition compact-0"
    assert error.record_errors == [(1, text)]
    assert error.message == (
        "One or more records have been rejected due to 1 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=1, message='{text}')]"
    )


def test_timestamps_out_of_range_are_reported_as_in_kafka() -> None:
    error = rejected(batch(NOW_MS + 700_000, 1), rules("range"))
    assert error.message == "One or more records have been rejected due to invalid timestamp"
    reach = f"[{NOW_MS - 600_000}, {NOW_MS + 600_000}]"
    text = (
        f"Timestamp {NOW_MS + 700_000} of message with offset 0 is out of range. The timestamp should be within {reach}"
    )
    assert error.record_errors == [(0, text)]


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(
    ("delta_ms", "is_in"), [(-600_000, True), (-600_001, False), (600_000, True), (600_001, False)]
)
def test_the_timestamp_range_includes_both_bounds(count: int, delta_ms: int, is_in: bool) -> None:
    builder = BatchBuilder()
    for index in range(count):
        builder.append(NOW_MS + (delta_ms if index == 0 else 0), b"k", b"v")
    if is_in:
        accepted(builder.build(), rules("range"))
    else:
        assert [index for index, _ in rejected(builder.build(), rules("range")).record_errors] == [0]


@pytest.mark.parametrize("count", [3, 20])
def test_records_without_timestamp_are_in_every_range(count: int) -> None:
    builder = BatchBuilder()
    for index in range(count):
        builder.append(NOW_MS if index else -1, b"k", b"v")
    accepted(builder.build(), rules("range"))


def test_every_late_record_is_reported_with_its_timestamp() -> None:
    builder = BatchBuilder()
    for delta_ms in (5, -700_000, 0, 800_000):
        builder.append(NOW_MS + delta_ms, None, b"v")
    error = rejected(builder.build(), rules("range"))
    assert [(index, text.split()[1]) for index, text in error.record_errors] == [
        (1, str(NOW_MS - 700_000)),
        (3, str(NOW_MS + 800_000)),
    ]
    many = refusal(with_fields(builder.build(), base_timestamp=NOW_MS - 700_000), rules("compact"))
    assert many.message is not None
    assert "4 record errors" in many.message
    assert many.message.count("batchIndex") == 3


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"last_offset_delta": -1}, "Batch has an invalid offset range: [0, -1] in topic partition plain-0"),
        ({"record_count": 0}, "Invalid reported count for record batch: 0 in topic partition plain-0"),
        (
            {"record_count": 2},
            "Inconsistent batch offset range [0, 2] and count of records 2 in topic partition plain-0",
        ),
        ({"attributes": 0x20}, "Clients are not allowed to write control records in topic partition plain-0"),
        ({"attributes": 5}, "Unknown compression type id: 5 in topic partition plain-0"),
        ({"base_offset": 7}, "The baseOffset of the record batch in the append to plain-0 should be 0, but it is 7"),
        (
            {"producer_id": 0, "producer_epoch": 0},
            "Invalid sequence number -1 in record batch with producerId 0 in topic partition plain-0",
        ),
    ],
)
def test_invalid_headers_are_rejected_with_kafkas_messages(fields: dict[str, int], sentence: str) -> None:
    error = refusal(with_fields(batch(NOW_MS), **fields))
    code = ErrorCode.UNKNOWN_SERVER_ERROR if "compression" in sentence else ErrorCode.INVALID_RECORD
    assert (error.code, error.message) == (code, sentence)


def test_producer_id_0_is_valid_and_an_epoch_without_id_is_ignored() -> None:
    accepted(with_fields(batch(NOW_MS), producer_id=0, producer_epoch=0, base_sequence=0))
    accepted(with_fields(batch(NOW_MS), producer_id=-1, producer_epoch=3, base_sequence=-1))


def test_a_short_batch_of_an_unknown_format_is_corrupt() -> None:
    data = batch(NOW_MS)[:40]
    data[16] = 7
    assert refusal(data).code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_large_compressed_batch_is_checked_by_its_frame_header(codec: Compression) -> None:
    for size, is_in in ((4096, False), (4097, True)):
        start = bytes(batch(NOW_MS, 20, compression=codec)[61:69])
        header = parse_header(batch(NOW_MS, 20, compression=codec))
        data = assemble(header, start + b"\xee" * (size - 61 - len(start)))
        assert len(data) == size
        if is_in:
            accepted(data)
        else:
            assert refusal(data).code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert refusal(data, rules(checks_all_records=True)).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_raw_snappy_is_accepted_with_a_plausible_length() -> None:
    rng = random.Random(1)
    for value in (b"", b"v" * 100, b"v" * 20_000, rng.randbytes(20_000), rng.randbytes(900_000)):
        body = record(0, None, value)
        header = parse_header(with_body(body, 1, NOW_MS, Compression.SNAPPY))
        accepted(assemble(header, bytes(cramjam.snappy.compress_raw(body))))
    header = parse_header(with_body(record(0), 1, NOW_MS, Compression.SNAPPY))
    for start in (b"\x06", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01", b"\x80\x80\x40"):
        assert refusal(assemble(header, start + b"\0" * 5000)).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_zstd_requires_produce_v7() -> None:
    data = batch(NOW_MS, compression=Compression.ZSTD)
    refuse_zstd(data, 7)
    refuse_zstd(batch(NOW_MS), 3)
    refuse_zstd(None, 3)
    refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, lambda: refuse_zstd(data, 6))


def test_the_brokers_own_batches_are_trusted() -> None:
    marker = end_txn_marker(Control.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=4, timestamp_ms=NOW_MS)
    two = bytearray(marker + batch(NOW_MS))
    found = validate(two, rules("compact"), wall_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert [header.is_control for _, header in found.batches] == [True, False]
    found = validate(two, rules("append"), wall_ms=NOW_MS + 9, origin=AppendOrigin.COORDINATOR)
    assert found.log_append_time_ms == NOW_MS + 9
    assert all(crc_is_valid(two, position, header) for position, header in headers(two))
    assert {header.max_timestamp for _, header in headers(two)} == {NOW_MS + 9}
    limit = rules("small")
    limit.max_message_bytes = len(batch(NOW_MS, 99))
    validate(batch(NOW_MS, 99), limit, wall_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        lambda: validate(batch(NOW_MS, 99), rules("small"), wall_ms=NOW_MS, origin=AppendOrigin.COORDINATOR),
    )


def leaders_batches() -> bytearray:
    """Three batches of a leader, of epochs 4, 4 and 5."""
    out = bytearray()
    for base, epoch in ((10, 4), (13, 4), (20, 5)):
        data = batch(NOW_MS)
        patch(data, 0, base, epoch)
        out += data
    return out


def test_a_follower_accepts_whole_valid_batches_in_order() -> None:
    data = leaders_batches()
    assert [header.base_offset for _, header in validate_replicated(data, leader_epoch=5)] == [10, 13, 20]
    assert [header.base_offset for _, header in validate_replicated(data[:-1], leader_epoch=5)] == [10, 13]
    assert [header.base_offset for _, header in validate_replicated(data, leader_epoch=4)] == [10, 13]
    assert validate_replicated(b"", leader_epoch=4) == []
    assert validate_replicated(data, leader_epoch=0) == []
    assert len(validate_replicated(data, leader_epoch=-1)) == 3
    assert len(validate_replicated(batch(NOW_MS, 1), leader_epoch=0)) == 1


def test_a_follower_rejects_corrupt_and_unordered_batches() -> None:
    data = leaders_batches()
    data[-1] ^= 1
    refused(ErrorCode.CORRUPT_MESSAGE, lambda: validate_replicated(data, leader_epoch=5))
    unordered, negative = leaders_batches(), leaders_batches()
    patch(unordered, 0, 11, 4)
    patch(negative, 0, -5, 4)
    for data in (unordered, negative, with_fields(batch(NOW_MS), last_offset_delta=-1)):
        with pytest.raises(KafkaError):
            validate_replicated(data, leader_epoch=5)


def test_a_kraft_control_batch_is_accepted() -> None:
    data = control_batch([(Control.LEADER_CHANGE, b"\0\0")], base_offset=7, timestamp_ms=NOW_MS, leader_epoch=3)
    found = validate(data, rules("append"), wall_ms=NOW_MS, origin=AppendOrigin.RAFT_LEADER)
    assert found.batches[0][1].base_offset == 7
    assert found.log_append_time_ms == -1

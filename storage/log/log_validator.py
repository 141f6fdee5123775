"""Validation of batches before an append: header and CRC always, records only where necessary (Kafka: LogValidator).

RULES    1. A client sends exactly one whole batch of format v2 per partition; trailing bytes that are too short for another
            batch are dropped.
         2. Always checked: sizes, CRC, consistent offsets and counts, no control batch, no producer without sequence, a
            known codec, and a body that starts with the codec's frame header. In an uncompressed or small batch also
            the whole first record and the lengths of the first 32.
         3. All records are checked, as Kafka does for every batch, if there are at most 8, the topic is compacted or a
            schedule topic, the header has timestamps out of range or of the wrong type, or a compressed batch claims very
            many records.
         4. A rejected batch is unchanged, unless recompression made it too large. An accepted one may be changed in place:
            timestamp type, max timestamp and CRC.
         5. Batches of the broker itself (an origin other than CLIENT) are trusted.
NOT HERE Sequences and transactions (producer_state.py), offsets (append_pipeline.py). Why few records are decoded:
         docs/decisions/0003-validation-of-produced-batches.md
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, NoReturn

from protocol.batch_builder import assemble
from protocol.compression import XERIAL_MAGIC, Compression, compress, lz4_frame_bytes
from protocol.crc32c import crc32c
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.record_codec import MIN_RECORD_BYTES, check_first, invalid_record, is_usual_record, scan, timestamp_deltas
from protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    TimestampType,
    crc_is_valid,
    headers,
    parse_header,
    record_bytes,
    set_max_timestamp,
)
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig
from storage.log.delivery_time import schedule_errors

FEW_RECORDS: Final = 8  # up to this number all records are checked (0.7 us)
CHECKED_RECORDS: Final = 32  # else the lengths of this number are checked (4 us)
SMALL_BATCH_BYTES: Final = 4096  # a compressed batch up to this size is decompressed, at most to:
SMALL_BODY_BYTES: Final = 64 * 1024
MAX_UNCHECKED_COUNT: Final = 100_000  # a compressed batch with a larger count is decompressed and counted
MAX_OPENED_BYTES: Final = 64 * 1024 * 1024
MAX_RECORD_ERRORS: Final = 1000
FIRST_PRODUCE_VERSION_WITH_ZSTD: Final = 7

_UNUSUAL_ATTRIBUTES: Final = ~TRANSACTIONAL_BIT
_CODEC_OF_SETTING: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_GZIP_START: Final = b"\x1f\x8b\x08"
_LZ4_START: Final = b"\x04\x22\x4d\x18"
_LZ4_FIXED_FLAGS: Final = 0xE3  # version, independence, reserved, dictionary: Kafka's reader accepts one value
_LZ4_VERSION_AND_INDEPENDENCE: Final = 0x60  # that value: version 01, independent blocks
_ZSTD_START: Final = b"\x28\xb5\x2f\xfd"


_new_tuple = tuple.__new__


class AppendOrigin(IntEnum):
    """The source of an append; only clients' batches are validated fully."""

    CLIENT = 0
    CLIENT_FROM_0 = 1
    """A client whose sequences start at 0 if the producer is unknown (transactions v2, KIP-890)."""
    COORDINATOR = 2
    RAFT_LEADER = 3

    @property
    def is_client(self) -> bool:
        """Whether sequences are checked and retriable errors are possible."""
        return self <= AppendOrigin.CLIENT_FROM_0


_CLIENT: Final = AppendOrigin.CLIENT


class RejectedRecords(KafkaError):
    """A batch with invalid records; `record_errors` has (index in the batch, reason)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class BatchRules:
    """The limits for batches of one partition, computed once from its settings."""

    __slots__ = (
        "_config", "after_max_ms", "before_max_ms", "checks_all_records", "codec", "deliver_max_ms", "is_compacted",
        "is_plain", "is_schedule", "max_message_bytes", "max_opened_bytes", "partition", "uses_log_append_time",
    )  # fmt: skip

    def __init__(self, config: LogConfig, partition: str, *, checks_all_records: bool = False) -> None:
        self._config = config
        self.partition = partition
        self.max_message_bytes = config.max_message_bytes
        self.is_compacted = config.is_compacted
        self.is_schedule = config.is_schedule
        self.deliver_max_ms = config.barnabas_deliver_max_ms
        self.checks_all_records = checks_all_records or self.is_compacted or self.is_schedule
        self.uses_log_append_time = config.message_timestamp_type == "LogAppendTime"
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.codec: int | None = _CODEC_OF_SETTING.get(config.compression_type)  # None: the producer's codec
        self.max_opened_bytes = MAX_OPENED_BYTES
        self.is_plain = not (
            self.is_compacted or self.is_schedule or self.uses_log_append_time or self.codec is not None
        )
        """Whether batches are stored as the producers sent them, and records may lack keys and delivery times."""

    @property
    def level(self) -> int | None:
        """The compression level; None for a codec without levels."""
        config = self._config
        return {
            Compression.GZIP: config.compression_gzip_level,
            Compression.LZ4: config.compression_lz4_level,
            Compression.ZSTD: config.compression_zstd_level,
        }.get(Compression(self.codec or 0))


class Validated(NamedTuple):
    """Batches that may be appended."""

    records: Buffer  # the bytes to write: the request's batch, or a recompressed one
    batches: list[tuple[int, BatchHeader]]
    log_append_time_ms: int  # -1 if the records keep their timestamps


def validate(
    records: bytearray | memoryview | None,
    rules: BatchRules,
    wall_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> Validated:
    """Validate and timestamp a batch; offsets are not changed.

    Raises:
        KafkaError: the same error as Apache Kafka; RejectedRecords for invalid records.
    """
    if origin is not _CLIENT and not origin.is_client:
        return _validate_internal(records, rules, wall_ms, origin)
    if records is None or len(records) < BATCH_OVERHEAD:
        _refuse_short(records)
    header = parse_header_of_client(records)
    (
        base_offset, length, _, _, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, _, base_sequence, count,
    ) = header  # fmt: skip
    size = length + LOG_OVERHEAD
    if size != len(records):
        records = _first_batch(records, size)
    if base_offset:
        _refuse_base_offset(header, rules)
    if size > rules.max_message_bytes:
        _refuse_size()
    view = records if isinstance(records, memoryview) else memoryview(records)
    if crc32c(view[ATTRIBUTES_POSITION:]) != crc:
        _refuse_crc(header, rules)
    if (  # a record alone, for which this is as good as all checks that follow
        count == 1
        and last_offset_delta == 0
        and not attributes & _UNUSUAL_ATTRIBUTES
        and max_timestamp == base_timestamp
        and (base_sequence >= 0 or producer_id < 0)
        and rules.is_plain
        and -rules.after_max_ms <= wall_ms - base_timestamp <= rules.before_max_ms
        and is_usual_record(view, BATCH_OVERHEAD)
    ):
        return _new_tuple(Validated, (records, [(0, header)], -1))
    if (
        count <= 0
        or last_offset_delta != count - 1
        or attributes & CONTROL_BIT
        or (base_sequence < 0 and producer_id >= 0)
        or attributes & COMPRESSION_MASK > Compression.ZSTD
    ):
        _refuse_header(header, rules)
    codec = attributes & COMPRESSION_MASK
    if codec or count > FEW_RECORDS:
        body, checks_all = _body_to_check(records, header, rules, wall_ms)
    else:
        body, checks_all = view[BATCH_OVERHEAD:], True
    if checks_all:
        assert body is not None
        header = _check_all_records(records, header, body, rules, wall_ms)
    elif body is not None:
        check_first(body, count, CHECKED_RECORDS)
    if rules.codec is not None and rules.codec != codec:
        records, header = _rebuilt(records, header, body, rules)
    if rules.uses_log_append_time:
        header = set_max_timestamp(records, 0, header, TimestampType.LOG_APPEND_TIME, wall_ms)
        return Validated(records, [(0, header)], wall_ms)
    return _new_tuple(Validated, (records, [(0, header)], -1))


def validate_replicated(records: Buffer, *, leader_epoch: int) -> list[tuple[int, BatchHeader]]:
    """The batches that a follower may append: whole, valid, ascending, and not of a later epoch than `leader_epoch`."""
    found: list[tuple[int, BatchHeader]] = []
    end = 0
    for position, header in headers(records):
        if header.leader_epoch > leader_epoch >= 0:
            break  # from a leader that this replica does not know yet; it is fetched again
        if not crc_is_valid(records, position, header):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Record is corrupt (stored crc = {header.crc})")
        if header.base_offset < end or header.last_offset_delta < 0:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"Out of order offsets: {header.base_offset} is below {end}"
            )
        end = header.next_offset
        found.append((position, header))
    return found


def refuse_zstd(records: Buffer | None, produce_version: int) -> None:
    """Reject zstd before Produce v7 with UNSUPPORTED_COMPRESSION_TYPE."""
    if produce_version >= FIRST_PRODUCE_VERSION_WITH_ZSTD or records is None or len(records) < BATCH_OVERHEAD:
        return
    if parse_header_of_client(records).compression == Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {produce_version} are not allowed to use ZStandard compression",
        )


def parse_header_of_client(records: Buffer) -> BatchHeader:
    """The first batch's header; formats before v2 are rejected as by Produce."""
    try:
        return parse_header(records)
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            text = "Produce requests are only allowed to contain record batches with magic version 2"
            raise invalid_record(text) from None
        raise


def _body_to_check(
    records: bytearray | memoryview, header: BatchHeader, rules: BatchRules, wall_ms: int
) -> tuple[Buffer | None, bool]:
    """The uncompressed records, if they must be checked, and whether all of them must."""
    codec, count = header.attributes & COMPRESSION_MASK, header.record_count
    if codec:
        _check_frame(records, codec)
    if (
        rules.checks_all_records
        or (codec and count > MAX_UNCHECKED_COUNT)
        or header.attributes & LOG_APPEND_TIME_BIT
        or (not rules.uses_log_append_time and _is_out_of_range(header, rules, wall_ms))
    ):
        return open_body(records, header, rules, rules.max_opened_bytes), True
    if not codec:
        return memoryview(records)[BATCH_OVERHEAD:], False
    body = _open_small_body(records, header, rules) if len(records) <= SMALL_BATCH_BYTES else None
    return body, body is not None and count <= FEW_RECORDS


# ---- decoding a batch ------------------------------------------------------------------------------------


def _check_all_records(
    records: bytearray | memoryview, header: BatchHeader, body: Buffer, rules: BatchRules, wall_ms: int
) -> BatchHeader:
    """Check every record; returns the header with the true max timestamp."""
    lowest, greatest, keyless = scan(body, header.record_count)
    first, last = header.base_timestamp + lowest, header.base_timestamp + greatest
    if rules.uses_log_append_time:
        is_suspect = header.attributes & LOG_APPEND_TIME_BIT
    else:
        is_suspect = last - wall_ms > rules.after_max_ms or wall_ms - first > rules.before_max_ms
    if is_suspect or (keyless and rules.is_compacted):
        _check_keys_and_timestamps(header, body, keyless if rules.is_compacted else [], rules, wall_ms)
    if rules.is_schedule:
        append_ms = wall_ms if rules.uses_log_append_time else None
        errors = schedule_errors(header, body, append_ms, wall_ms + rules.deliver_max_ms)
        if errors:
            raise RejectedRecords(ErrorCode.INVALID_RECORD, _summary(errors), errors[:MAX_RECORD_ERRORS])
    if rules.uses_log_append_time or (last == header.max_timestamp and not header.attributes & LOG_APPEND_TIME_BIT):
        return header
    last = min(max(last, NO_TIMESTAMP), MAX_LONG)
    return set_max_timestamp(records, 0, header, TimestampType.CREATE_TIME, last)


def _check_keys_and_timestamps(
    header: BatchHeader, body: Buffer, keyless: list[int], rules: BatchRules, wall_ms: int
) -> None:
    """Raise RejectedRecords if a key is missing or a timestamp is invalid. A record may have no timestamp (-1)."""
    text = f"Compacted topic cannot accept message without key in topic partition {rules.partition}"
    errors = [(index, text) for index in keyless]
    if not rules.uses_log_append_time:
        timestamp_errors = _timestamp_errors(header, body, rules, wall_ms)
    elif header.attributes & LOG_APPEND_TIME_BIT:
        text = "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
        timestamp_errors = [(index, text) for index in range(header.record_count)]
    else:
        timestamp_errors = []
    refused = set(keyless)
    if any(index not in refused for index, _ in timestamp_errors):  # a record without a key is refused for that alone
        raise RejectedRecords(
            ErrorCode.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            sorted(dict(timestamp_errors + errors).items())[:MAX_RECORD_ERRORS],
        )
    if errors:
        raise RejectedRecords(ErrorCode.INVALID_RECORD, _summary(errors), errors[:MAX_RECORD_ERRORS])


def _rebuilt(
    records: bytearray | memoryview, header: BatchHeader, body: Buffer | None, rules: BatchRules
) -> tuple[bytearray, BatchHeader]:
    """The batch in the topic's codec; its first records are checked if they were not decoded before."""
    assert rules.codec is not None
    if body is None:
        body = open_body(records, header, rules, rules.max_opened_bytes)
        check_first(body, header.record_count, CHECKED_RECORDS)
    attributes = header.attributes & ~COMPRESSION_MASK | rules.codec
    rebuilt = assemble(header._replace(attributes=attributes), compress(rules.codec, body, rules.level))
    if len(rebuilt) > rules.max_message_bytes:
        _refuse_size()
    return rebuilt, parse_header(rebuilt)


def open_body(records: Buffer, header: BatchHeader, rules: BatchRules, max_bytes: int) -> Buffer:
    """The uncompressed records; a corrupt frame is a final error, because a retry cannot succeed."""
    body_bytes = len(records) - BATCH_OVERHEAD
    if header.compression == Compression.LZ4 and lz4_frame_bytes(memoryview(records)[BATCH_OVERHEAD:]) < body_bytes:
        raise invalid_record(f"The records must be in one lz4 frame in topic partition {rules.partition}")
    try:
        return record_bytes(records, 0, header, max_bytes)
    except KafkaError as error:
        if error.code == ErrorCode.CORRUPT_MESSAGE:
            raise _unreadable_batch(f"{error.message} in topic partition {rules.partition}") from None
        raise


def _is_out_of_range(header: BatchHeader, rules: BatchRules, wall_ms: int) -> bool:
    """Whether the header has a timestamp outside the topic's limits."""
    return max(header.max_timestamp, header.base_timestamp) - wall_ms > rules.after_max_ms or (
        wall_ms - header.base_timestamp > rules.before_max_ms and header.base_timestamp != NO_TIMESTAMP
    )


def _timestamp_errors(header: BatchHeader, body: Buffer, rules: BatchRules, wall_ms: int) -> list[tuple[int, str]]:
    base = header.base_timestamp
    earliest, latest = wall_ms - rules.before_max_ms, wall_ms + rules.after_max_ms
    errors: list[tuple[int, str]] = []
    for index, delta in enumerate(timestamp_deltas(body, header.record_count)):
        stamp = base + delta
        if stamp != NO_TIMESTAMP and not earliest <= stamp <= latest:
            text = f"Timestamp {stamp} of message with offset {index} is out of range. "
            errors.append((index, f"{text}The timestamp should be within [{earliest}, {latest}]"))
    return errors


def _summary(errors: list[tuple[int, str]]) -> str:
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{why}')" for index, why in errors[:3])
    return (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


# ---- checks without decompression ------------------------------------------------------------------------


def _check_frame(records: bytearray | memoryview, codec: int) -> None:
    """Check that the body starts with its codec's frame header, in a form that all consumers can read."""
    start = bytes(records[BATCH_OVERHEAD : BATCH_OVERHEAD + 8])
    if codec == Compression.GZIP:
        is_valid = start.startswith(_GZIP_START)
    elif codec == Compression.LZ4:
        has_flags = len(start) > 4 and start[4] & _LZ4_FIXED_FLAGS == _LZ4_VERSION_AND_INDEPENDENCE
        is_valid = start.startswith(_LZ4_START) and has_flags
    elif codec == Compression.ZSTD:
        is_valid = start.startswith(_ZSTD_START)
    else:
        is_valid = start == XERIAL_MAGIC or _is_raw_snappy(start, len(records) - BATCH_OVERHEAD)
    if not is_valid:
        raise _unreadable_batch(f"The records do not begin as {Compression(codec).name.lower()} does")


def _open_small_body(records: Buffer, header: BatchHeader, rules: BatchRules) -> Buffer | None:
    try:
        return open_body(records, header, rules, SMALL_BODY_BYTES)
    except KafkaError as error:
        if error.code == ErrorCode.MESSAGE_TOO_LARGE:
            return None  # not small after decompression
        raise


def _is_raw_snappy(start: bytes, size: int) -> bool:
    """Whether a raw snappy block declares a length that its bytes can contain."""
    length = shift = 0
    for byte in start[:5]:
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return MIN_RECORD_BYTES <= length <= 64 * size
        shift += 7
    return False


def _validate_internal(
    records: bytearray | memoryview | None, rules: BatchRules, wall_ms: int, origin: AppendOrigin
) -> Validated:
    assert records is not None, "the broker appends bytes"
    batches = headers(records)
    assert batches, "the broker appends whole batches"
    if origin == AppendOrigin.COORDINATOR:
        for index, (position, header) in enumerate(batches):
            if header.size > rules.max_message_bytes:
                _refuse_size()
            if rules.uses_log_append_time:
                stamped = set_max_timestamp(records, position, header, TimestampType.LOG_APPEND_TIME, wall_ms)
                batches[index] = (position, stamped)
    position, last = batches[-1]
    assert position + last.size == len(records), "the broker appends whole batches"
    return Validated(
        records, batches, wall_ms if rules.uses_log_append_time and origin == AppendOrigin.COORDINATOR else -1
    )


# ---- errors ----------------------------------------------------------------------------------------------


def _not_one_batch() -> KafkaError:
    return invalid_record("Produce requests must have exactly one record batch per partition")


def _refuse_short(records: Buffer | None) -> NoReturn:
    if records is not None and len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        parse_header_of_client(records)
    raise _not_one_batch()


def _first_batch(records: bytearray | memoryview, size: int) -> memoryview:
    """The first batch alone; the trailing bytes must be too short for another one."""
    if size > len(records) or headers(memoryview(records)[size:]):
        raise _not_one_batch()
    return memoryview(records)[:size]


def _refuse_base_offset(header: BatchHeader, rules: BatchRules) -> NoReturn:
    raise invalid_record(
        f"The baseOffset of the record batch in the append to {rules.partition} should be 0, "
        f"but it is {header.base_offset}"
    )


def _refuse_size() -> NoReturn:
    """Without a message, as in Apache Kafka: each client has a sentence for this code."""
    raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)


def _refuse_crc(header: BatchHeader, rules: BatchRules) -> NoReturn:
    raise KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"Record is corrupt (stored crc = {header.crc}) in topic partition {rules.partition}.",
    )


def _unreadable_batch(message: str) -> KafkaError:
    """The error for an unknown codec or a corrupt frame: Apache Kafka's code, final for every client."""
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)


def _refuse_header(header: BatchHeader, rules: BatchRules) -> NoReturn:
    offsets = f"[{header.base_offset}, {header.last_offset}]"
    where = f"in topic partition {rules.partition}"
    if header.last_offset_delta < 0:
        raise invalid_record(f"Batch has an invalid offset range: {offsets} {where}")
    if header.record_count <= 0:
        raise invalid_record(f"Invalid reported count for record batch: {header.record_count} {where}")
    if header.last_offset_delta != header.record_count - 1:
        text = f"Inconsistent batch offset range {offsets} and count of records {header.record_count} {where}"
        raise invalid_record(text)
    if header.is_control:
        raise invalid_record(f"Clients are not allowed to write control records {where}")
    if header.compression > Compression.ZSTD:
        raise _unreadable_batch(f"Unknown compression type id: {header.compression} {where}")
    raise invalid_record(
        f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id} {where}"
    )

"""What a batch must be to enter a log: checked by its header and CRC, its records opened only where it matters.

RULES    1. A client sends exactly one whole batch of format v2 per partition; bytes behind it that cannot be one
            more are cut off.
         2. Always checked: sizes, CRC, offsets and counts that agree, no control batch, no producer without
            sequence, a codec that exists and whose frame the body begins with. Of an uncompressed or small batch
            also the whole first record and the lengths of the first 32.
         3. Every record is checked, as Kafka does for every batch, where there are no more than 8, a topic is
            compacted, the header shows timestamps out of range or of the wrong type, or a compressed batch claims
            very many records.
         4. A refused batch has not been changed, unless it grew too large when it was recompressed. An accepted one
            may have been, in place: its timestamp type and max timestamp, and the CRC with them.
         5. What the broker has made itself (origin not CLIENT) is not doubted.
NOT HERE Sequences and transactions (producer_state.py), offsets (log.py). Why so little is opened:
         docs/decisions/0003-what-is-checked-in-a-produced-batch.md
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from protocol.compression import XERIAL_MAGIC, Compression, compress
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.record_codec import SMALLEST_RECORD, check_first, invalid_record, scan
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
    BatchHeader,
    TimestampType,
    assemble,
    crc_is_valid,
    headers,
    parse_header,
    record_bytes,
    set_max_timestamp,
)
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig

FEW_RECORDS: Final = 8  # of so few each one is checked, which takes 0.7 us
FIRST_RECORDS: Final = 32  # else the lengths of so many are walked, which takes 4 us
SMALL_BATCH_BYTES: Final = 4096  # a compressed batch up to this size is decompressed, at most to so much:
SMALL_BODY_BYTES: Final = 64 * 1024
BELIEVED_COUNT: Final = 100_000  # a compressed batch that claims more records is opened and counted
MAX_OPENED_BYTES: Final = 64 * 1024 * 1024
MAX_RECORD_ERRORS: Final = 1000
FIRST_PRODUCE_VERSION_WITH_ZSTD: Final = 7

_CODEC_OF_SETTING: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_GZIP_START: Final = b"\x1f\x8b\x08"
_LZ4_START: Final = b"\x04\x22\x4d\x18"
_LZ4_VERSION_AND_INDEPENDENCE: Final = 0x60  # flags: version 01, and blocks that do not refer to earlier ones
_ZSTD_START: Final = b"\x28\xb5\x2f\xfd"


class Origin(IntEnum):
    """Who appends, and so how much is doubted."""

    CLIENT = 0
    CLIENT_FROM_0 = 1
    """A client whose records begin at sequence 0 where nothing is known of it (transactions of version 2, KIP-890)."""
    COORDINATOR = 2
    RAFT_LEADER = 3
    REPLICATION = 4

    @property
    def is_client(self) -> bool:
        """Whether its sequences are checked, and it may be told to come again."""
        return self <= Origin.CLIENT_FROM_0


class RejectedRecords(KafkaError):
    """Some records of a batch are the reason; `record_errors` names them as (index in the batch, why)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class BatchRules:
    """What one partition asks of a batch: made once from its settings, asked for every append."""

    __slots__ = (
        "_config", "after_max_ms", "before_max_ms", "codec", "is_compacted", "max_message_bytes", "max_opened_bytes",
        "opens_all", "partition", "stamps",
    )  # fmt: skip

    def __init__(self, config: LogConfig, partition: str, *, opens_all: bool = False) -> None:
        self._config = config
        self.partition = partition
        self.max_message_bytes = config.max_message_bytes
        self.is_compacted = "compact" in config.cleanup_policy
        self.opens_all = opens_all or self.is_compacted
        self.stamps = config.message_timestamp_type == "LogAppendTime"
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.codec: int | None = _CODEC_OF_SETTING.get(config.compression_type)  # None: as the producer chose
        self.max_opened_bytes = MAX_OPENED_BYTES

    @property
    def level(self) -> int | None:
        """How hard the codec tries; None where it has no levels."""
        config = self._config
        return {
            Compression.GZIP: config.compression_gzip_level,
            Compression.LZ4: config.compression_lz4_level,
            Compression.ZSTD: config.compression_zstd_level,
        }.get(Compression(self.codec or 0))


class Validated(NamedTuple):
    """Batches that may be appended."""

    records: Buffer  # the bytes to write: what came, cut to its batches, or a rebuilt batch
    batches: list[tuple[int, BatchHeader]]
    log_append_time_ms: int  # -1 when the records keep their own


def validate(
    records: bytearray | memoryview | None, rules: BatchRules, *, wall_ms: int, origin: Origin = Origin.CLIENT
) -> Validated:
    """Check what is to be appended and stamp it; its offsets stay as they are.

    Raises:
        KafkaError: as Kafka refuses it; RejectedRecords where single records are to blame.
    """
    if not origin.is_client:
        return _validate_own(records, rules, wall_ms, origin)
    if records is None or len(records) < BATCH_OVERHEAD:
        _refuse_short(records)
    header = parse_header_of_client(records)
    size = header[1] + LOG_OVERHEAD
    if size != len(records):
        records = _cut(records, size)
    if header[0]:
        _refuse_base_offset(header, rules)
    if size > rules.max_message_bytes:
        _refuse_size(size, rules)
    if crc32c(memoryview(records)[ATTRIBUTES_POSITION:]) != header[4]:
        _refuse_crc(header, rules)
    attributes, count = header[5], header[12]
    if (
        count <= 0
        or header[6] != count - 1
        or attributes & CONTROL_BIT
        or (header[11] < 0 and header[9] >= 0)
        or attributes & COMPRESSION_MASK > Compression.ZSTD
    ):
        _refuse_header(header, rules)
    codec = attributes & COMPRESSION_MASK
    if codec:
        _check_frame(records, codec)
    body: Buffer | None
    if (
        rules.opens_all
        or (codec and count > BELIEVED_COUNT)
        or attributes & LOG_APPEND_TIME_BIT
        or (not rules.stamps and _is_out_of_range(header, rules, wall_ms))
    ):
        body, is_each_checked = open_body(records, header, rules, rules.max_opened_bytes), True
    else:
        body = None
        if not codec:
            body = memoryview(records)[BATCH_OVERHEAD:]
        elif size <= SMALL_BATCH_BYTES:
            body = _open_small_body(records, header, rules)
        is_each_checked = count <= FEW_RECORDS and body is not None
    if is_each_checked:
        assert body is not None
        header = _check_all_records(records, header, body, rules, wall_ms)
    elif body is not None:
        check_first(body, count, FIRST_RECORDS)
    if rules.codec is not None and rules.codec != codec:
        records, header = _rebuilt(records, header, body, rules)
    if rules.stamps:
        header = set_max_timestamp(records, 0, header, TimestampType.LOG_APPEND_TIME, wall_ms)
        return Validated(records, [(0, header)], wall_ms)
    return Validated(records, [(0, header)], -1)


def validate_replicated(records: Buffer, *, leader_epoch: int) -> list[tuple[int, BatchHeader]]:
    """The batches that a follower may append: whole, valid, in ascending offsets, of no later epoch than known."""
    found: list[tuple[int, BatchHeader]] = []
    end = 0
    for position, header in headers(records):
        if header.leader_epoch > leader_epoch >= 0:
            break  # sent by a leader of whom this replica has not heard yet; it will come again
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
    """Zstandard is allowed from Produce v7 on: older clients are told by UNSUPPORTED_COMPRESSION_TYPE."""
    if produce_version >= FIRST_PRODUCE_VERSION_WITH_ZSTD or records is None or len(records) < BATCH_OVERHEAD:
        return
    if parse_header_of_client(records).compression == Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {produce_version} are not allowed to use ZStandard compression",
        )


def parse_header_of_client(records: Buffer) -> BatchHeader:
    """The first batch's header; the formats before v2 are refused as Produce refuses them."""
    try:
        header = parse_header(records)
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            raise _only_v2() from None
        raise
    return header


# ---- opening a batch -------------------------------------------------------------------------------------


def _check_all_records(
    records: bytearray | memoryview, header: BatchHeader, body: Buffer, rules: BatchRules, wall_ms: int
) -> BatchHeader:
    """All that Kafka checks; the header, which tells the true max timestamp then."""
    timestamps, keyless = scan(body, header.record_count)
    first, last = header.base_timestamp + min(timestamps), header.base_timestamp + max(timestamps)
    errors = _keyless_errors(keyless, rules) if rules.is_compacted and keyless else []
    late: list[tuple[int, str]] = []
    if rules.stamps:
        if header.is_log_append_time:
            text = "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
            late = [(index, text) for index in range(header.record_count)]
    elif last - wall_ms > rules.after_max_ms or wall_ms - first > rules.before_max_ms:
        late = _timestamp_errors(header, timestamps, rules, wall_ms)
    if late:
        raise RejectedRecords(
            ErrorCode.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            sorted(dict(late + errors).items())[:MAX_RECORD_ERRORS],
        )
    if errors:
        raise RejectedRecords(ErrorCode.INVALID_RECORD, _summary(errors), errors[:MAX_RECORD_ERRORS])
    if rules.stamps or (last == header.max_timestamp and not header.is_log_append_time):
        return header
    last = min(max(last, NO_TIMESTAMP), MAX_LONG)
    return set_max_timestamp(records, 0, header, TimestampType.CREATE_TIME, last)


def _rebuilt(
    records: bytearray | memoryview, header: BatchHeader, body: Buffer | None, rules: BatchRules
) -> tuple[bytearray, BatchHeader]:
    """The batch in the topic's own codec; where its records have not been opened yet, the first are checked."""
    assert rules.codec is not None
    if body is None:
        body = open_body(records, header, rules, rules.max_opened_bytes)
        check_first(body, header.record_count, FIRST_RECORDS)
    rebuilt = recompress(header, body, rules.codec, rules.level)
    if len(rebuilt) > rules.max_message_bytes:
        _refuse_size(len(rebuilt), rules)
    return rebuilt, parse_header(rebuilt)


def open_body(records: Buffer, header: BatchHeader, rules: BatchRules, max_bytes: int) -> Buffer:
    """The records uncompressed; a broken frame is none that sending it again will mend."""
    try:
        return record_bytes(records, 0, header, max_bytes)
    except KafkaError as error:
        if error.code == ErrorCode.CORRUPT_MESSAGE:
            raise _unreadable(f"{error.message} in topic partition {rules.partition}") from None
        raise


def recompress(header: BatchHeader, body: Buffer, codec: int, level: int | None) -> bytearray:
    """The same batch with its records stored in another codec; needs nothing but its arguments."""
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, body, level))


def _is_out_of_range(header: BatchHeader, rules: BatchRules, wall_ms: int) -> bool:
    """Does the header show a timestamp that the topic refuses?"""
    return header[8] - wall_ms > rules.after_max_ms or (
        wall_ms - header[7] > rules.before_max_ms and header[7] != NO_TIMESTAMP
    )


def _timestamp_errors(
    header: BatchHeader, timestamps: list[int], rules: BatchRules, wall_ms: int
) -> list[tuple[int, str]]:
    base = header.base_timestamp
    earliest, latest = wall_ms - rules.before_max_ms, wall_ms + rules.after_max_ms
    errors: list[tuple[int, str]] = []
    for index, delta in enumerate(timestamps):
        stamp = base + delta
        if stamp != NO_TIMESTAMP and not earliest <= stamp <= latest:
            text = f"Timestamp {stamp} of message with offset {index} is out of range. "
            errors.append((index, f"{text}The timestamp should be within [{earliest}, {latest}]"))
    return errors


def _keyless_errors(keyless: list[int], rules: BatchRules) -> list[tuple[int, str]]:
    text = f"Compacted topic cannot accept message without key in topic partition {rules.partition}"
    return [(index, text) for index in keyless]


def _summary(errors: list[tuple[int, str]]) -> str:
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{why}')" for index, why in errors[:3])
    return (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


# ---- looking without opening -----------------------------------------------------------------------------


def _check_frame(records: bytearray | memoryview, codec: int) -> None:
    """Does the body begin as its codec does, and as every consumer can read it?"""
    start = bytes(records[BATCH_OVERHEAD : BATCH_OVERHEAD + 8])
    if codec == Compression.GZIP:
        is_one = start.startswith(_GZIP_START)
    elif codec == Compression.LZ4:
        flags = _LZ4_VERSION_AND_INDEPENDENCE
        is_one = start.startswith(_LZ4_START) and len(start) > 4 and start[4] & flags == flags
    elif codec == Compression.ZSTD:
        is_one = start.startswith(_ZSTD_START)
    else:
        is_one = start == XERIAL_MAGIC or _is_raw_snappy(start, len(records) - BATCH_OVERHEAD)
    if not is_one:
        raise _unreadable(f"The records do not begin as {Compression(codec).name.lower()} does")


def _open_small_body(records: Buffer, header: BatchHeader, rules: BatchRules) -> Buffer | None:
    try:
        return open_body(records, header, rules, SMALL_BODY_BYTES)
    except KafkaError as error:
        if error.code == ErrorCode.MESSAGE_TOO_LARGE:
            return None  # not so small after all
        raise


def _is_raw_snappy(start: bytes, size: int) -> bool:
    """Does a raw block declare a length that so few bytes can hold?"""
    length = shift = 0
    for byte in start[:5]:
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return SMALLEST_RECORD <= length <= 64 * size
        shift += 7
    return False


def _validate_own(records: bytearray | memoryview | None, rules: BatchRules, wall_ms: int, origin: Origin) -> Validated:
    assert records is not None, "the broker appends bytes"
    batches = headers(records)
    assert batches, "the broker appends whole batches"
    last = batches[-1]
    if origin == Origin.COORDINATOR:
        for index, (position, header) in enumerate(batches):
            if header.size > rules.max_message_bytes:
                _refuse_size(header.size, rules)
            if rules.stamps:
                stamped = set_max_timestamp(records, position, header, TimestampType.LOG_APPEND_TIME, wall_ms)
                batches[index] = (position, stamped)
    assert last[0] + last[1].size == len(records), "the broker appends whole batches"
    return Validated(records, batches, wall_ms if rules.stamps and origin == Origin.COORDINATOR else -1)


# ---- refusals --------------------------------------------------------------------------------------------


def _only_v2() -> KafkaError:
    return invalid_record("Produce requests are only allowed to contain record batches with magic version 2")


def _not_one_batch() -> KafkaError:
    return invalid_record("Produce requests must have exactly one record batch per partition")


def _refuse_short(records: Buffer | None) -> NoReturn:
    if records is not None and len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        parse_header_of_client(records)
    raise _not_one_batch()


def _cut(records: bytearray | memoryview, size: int) -> memoryview:
    """The first batch alone; what follows must be too short to be one."""
    if size > len(records):
        raise _not_one_batch()
    if headers(memoryview(records)[size:]):
        raise _not_one_batch()
    return memoryview(records)[:size]


def _refuse_base_offset(header: BatchHeader, rules: BatchRules) -> NoReturn:
    raise invalid_record(
        f"The baseOffset of the record batch in the append to {rules.partition} should be 0, "
        f"but it is {header.base_offset}"
    )


def _refuse_size(size: int, rules: BatchRules) -> NoReturn:
    raise KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size in the append to {rules.partition} is {size} bytes which exceeds the "
        f"maximum configured value of {rules.max_message_bytes}.",
    )


def _refuse_crc(header: BatchHeader, rules: BatchRules) -> NoReturn:
    raise KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"Record is corrupt (stored crc = {header.crc}) in topic partition {rules.partition}.",
    )


def _unreadable(message: str) -> KafkaError:
    """A codec or frame that cannot be opened, under the code that Apache Kafka gives it: final for every client."""
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
        raise _unreadable(f"Unknown compression type id: {header.compression} {where}")
    raise invalid_record(
        f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id} {where}"
    )

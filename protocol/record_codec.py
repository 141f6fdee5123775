"""The records inside a batch as bytes: encode one, decode one, or check all without keeping any.

FORMAT   one record (the records of a batch are concatenated and compressed together):
             varint length of the rest, i8 attributes 0, varlong timestamp delta, varint offset delta,
             varint key length (-1 null) and key, the same for the value, varint number of headers,
             per header: varint key length and key (UTF-8), varint value length (-1 null) and value
         varints are zigzag: 0, -1, 1, -2 are 0, 1, 2, 3
RULES    1. Records that violate the format raise KafkaError(INVALID_RECORD) with Kafka's sentence.
         2. At the end of the data the functions for one record raise IndexError; functions that loop over records
            convert it into rule 1.
         3. A length is checked against the available bytes before it is used.
         4. Any negative length is null, as in Kafka.
         5. Header keys that are not UTF-8 survive a round trip (surrogateescape).
NOT HERE The enclosing batch (records.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, TypeAlias

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer, varint

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

MIN_RECORD_BYTES: Final = 7
NO_MORE_BYTES: Final = "Incorrect declared batch size, premature EOF reached"
BYTES_REMAIN: Final = "Incorrect declared batch size, records still remaining in file"

_USUAL_START: Final = Struct("<BBxHB")  # length of two bytes, attributes, timestamp and offset delta, key length


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, bytes | None]] = (),
) -> bytes:
    """Encodes one record without its length prefix."""
    parts: list[Buffer] = [b"\0", varint(timestamp_delta), varint(offset_delta)]
    parts += _field(key)
    parts += _field(value)
    pairs = tuple(headers)
    parts.append(varint(len(pairs)))
    for name, content in pairs:
        parts += _field(name.encode("utf-8", "surrogateescape"))
        parts += _field(content)
    return b"".join(parts)


def encode_records(first_delta: int, records: Iterable[tuple[Buffer | None, Buffer | None]]) -> list[bytes]:
    """Encodes key-value records without headers at the batch's base timestamp, each with its length prefix."""
    encoded = []
    for delta, (key, value) in enumerate(records, first_delta):
        before_key = b"\1" if key is None else varint(len(key))
        before_value = b"\1" if value is None else varint(len(value))
        parts = (b"\0\0", varint(delta), before_key, key or b"", before_value, value or b"", b"\0")
        record = b"".join(parts)
        encoded.append(varint(len(record)) + record)
    return encoded


def _field(content: Buffer | None) -> tuple[Buffer, ...]:
    return (b"\1",) if content is None else (varint(len(content)), content)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Reads a 32-bit varint; returns it and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    more = data[at + 1]
    if more < 0x80:
        value = byte & 0x7F | more << 7
        return (value >> 1) ^ -(value & 1), at + 2
    return _read_long_varint(data, at, 5, 0xFFFFFFFF)


def read_varlong(data: Buffer, at: int) -> tuple[int, int]:
    """Reads a 64-bit varint; returns it and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_long_varint(data, at, 10, 0xFFFFFFFFFFFFFFFF)


def _read_long_varint(data: Buffer, at: int, max_size: int, mask: int) -> tuple[int, int]:
    value, at = _read_long_uvarint(data, at, max_size)
    value &= mask  # as in Java, excess bits are dropped
    return (value >> 1) ^ -(value & 1), at


def _read_long_uvarint(data: Buffer, at: int, max_size: int = 5) -> tuple[int, int]:
    value = shift = 0
    for _ in range(max_size):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise invalid_record("Found invalid record structure")


def read_record(data: bytes, at: int) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    """Returns timestamp delta, offset delta, key, value and headers of the record at `at`, and the next record's position."""
    length, at = read_varint(data, at)
    stop = at + length
    if length < 0 or stop > len(data):
        raise _wrong_length(length, len(data) - at)
    timestamp, at = read_varlong(data, at + 1)
    delta, at = read_varint(data, at)
    key, at = _read_bytes(data, at, stop)
    value, at = _read_bytes(data, at, stop)
    pairs: Headers = ()
    if data[at]:
        pairs, at = _read_headers(data, at, stop)
    else:
        at += 1
    if at != stop:
        raise invalid_record(
            f"Invalid record size: expected to read {length} bytes in record payload, "
            f"but instead read {at - stop + length}"
        )
    return timestamp, delta, key, value, pairs, stop


def _read_bytes(data: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    end = at + length
    if end > stop:
        raise invalid_record("Found invalid record structure")
    return data[at:end], end


def _read_headers(data: bytes, at: int, stop: int) -> tuple[Headers, int]:
    count, at = read_varint(data, at)
    if not 0 <= count <= stop - at:
        raise _wrong_header_count(count)
    pairs: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, at = _read_bytes(data, at, stop)
        if key is None:
            raise invalid_record("Invalid negative header key size")
        value, at = _read_bytes(data, at, stop)
        pairs.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(pairs), at


Slice: TypeAlias = tuple[int, int, int, int, bytes | None, bool]
"""Of one record: start, end, timestamp delta, offset delta, key, and whether it has a value."""


def slices(data: bytes, count: int) -> list[Slice]:
    """Locates exactly `count` records. Offsets may have gaps; values and headers are not checked."""
    found: list[Slice] = []
    at = 0
    try:
        for _ in range(count):
            start = at
            length, at = read_varint(data, at)
            stop = at + length
            if length < 0 or stop > len(data):
                raise _wrong_length(length, len(data) - at)
            timestamp, at = read_varlong(data, at + 1)
            delta, at = read_varint(data, at)
            key, at = _read_bytes(data, at, stop)
            found.append((start, stop, timestamp, delta, key, not data[at] & 1))
            at = stop
    except IndexError:
        raise invalid_record(NO_MORE_BYTES) from None
    if at != len(data):
        raise invalid_record(BYTES_REMAIN)
    return found


def check_record(data: Buffer, at: int, index: int) -> tuple[int, bool, int]:
    """Checks the format of the batch's record number `index`.

    Returns its timestamp delta, whether it has a key, and the next record's position.
    """
    # Called for every record of a compacted topic: varints of one or two bytes are decoded inline.
    length = data[at]
    if length < 0x80:
        at += 1
    elif (more := data[at + 1]) < 0x80:
        length = length & 0x7F | more << 7
        at += 2
    else:
        length, at = _read_long_uvarint(data, at)
    stop = at + (length >> 1)
    if length & 1 or stop > len(data):
        raise _wrong_length((length >> 1) ^ -(length & 1), len(data) - at)
    timestamp = data[at + 1]
    if timestamp < 0x80:
        timestamp = (timestamp >> 1) ^ -(timestamp & 1)
        at += 2
    else:
        timestamp, at = read_varlong(data, at + 1)
    delta = data[at]
    if delta < 0x80:
        at += 1
    elif (more := data[at + 1]) < 0x80:
        delta = delta & 0x7F | more << 7
        at += 2
    else:
        delta, at = _read_long_uvarint(data, at)
    if delta != index << 1:
        raise _out_of_sequence(index, delta)
    key_length = data[at]
    if key_length < 0x80:
        at += 1
    else:
        key_length, at = _read_long_uvarint(data, at)
    if not key_length & 1:
        at += key_length >> 1
    length = data[at]
    if length < 0x80:
        at += 1
    elif (more := data[at + 1]) < 0x80:
        length = length & 0x7F | more << 7
        at += 2
    else:
        length, at = _read_long_uvarint(data, at)
    if not length & 1:
        at += length >> 1
    if data[at]:
        at = _check_headers(data, at, stop)
    else:
        at += 1
    if at != stop:
        raise invalid_record(f"Invalid record size: record {index} does not end where its length says")
    return timestamp, not key_length & 1, stop


def _check_headers(data: Buffer, at: int, stop: int) -> int:
    pairs, at = read_varint(data, at)
    if not 0 <= pairs <= stop - at:
        raise _wrong_header_count(pairs)
    for _ in range(pairs):
        length, at = read_varint(data, at)
        if length < 0:
            raise invalid_record("Invalid negative header key size")
        length, at = read_varint(data, at + length)
        if length > 0:
            at += length
    return at


def scan(data: Buffer, count: int) -> tuple[int, int, list[int]]:
    """Checks exactly `count` records in sequence.

    Returns the lowest and the greatest timestamp delta, and the indexes of records without key.
    """
    if count * MIN_RECORD_BYTES > len(data):
        raise invalid_record(NO_MORE_BYTES)
    keyless: list[int] = []
    try:
        lowest, has_key, at = check_record(data, 0, 0)
        greatest = lowest
        if not has_key:
            keyless.append(0)
        for index in range(1, count):
            timestamp, has_key, at = check_record(data, at, index)
            if timestamp > greatest:
                greatest = timestamp
            elif timestamp < lowest:
                lowest = timestamp
            if not has_key:
                keyless.append(index)
    except IndexError:
        raise invalid_record(NO_MORE_BYTES) from None
    if at != len(data):
        raise invalid_record(BYTES_REMAIN)
    return lowest, greatest, keyless


def is_usual_record(data: Buffer, start: int = 0) -> bool:
    """Whether `data` from `start` on is one valid record of the usual form, in half the time of `scan`, which decides about
    all others.

    The form: timestamp delta 0, no headers, a key of at most 63 bytes or none, a value of 64 to 8191 bytes.
    """
    # Both length varints have two bytes then: 0x80 more than the length in zigzag, if the bits of the second are just added.
    end = len(data)
    size = end - start
    if not 71 < size < 8194:
        return False
    length, more, deltas, key_length = _USUAL_START.unpack_from(data, start)
    if deltas or key_length > 0x7F or length < 0x80 or length + (more << 7) != size + 62 << 1 or data[end - 1]:
        return False
    at = start + 6 if key_length & 1 else start + 6 + (key_length >> 1)
    length = data[at]
    return length > 0x7F and length + (data[at + 1] << 7) == end - at + 61 << 1


def timestamp_deltas(data: Buffer, count: int) -> Iterator[int]:
    """The timestamp deltas of `count` records that were checked."""
    at = 0
    for index in range(count):
        timestamp, _, at = check_record(data, at, index)
        yield timestamp


def check_first(data: Buffer, count: int, limit: int) -> None:
    """Checks the first record fully, then only lengths, for at most `limit` of the batch's `count` records.

    If the batch has at most `limit` records, the last one must end at the end of the data.
    """
    end = len(data)
    if count * MIN_RECORD_BYTES > end:
        raise invalid_record(NO_MORE_BYTES)
    try:
        _, _, at = check_record(data, 0, 0)
        for _ in range(1, min(count, limit)):
            length = data[at]
            if length < 0x80:
                at += 1
            elif (more := data[at + 1]) < 0x80:
                length = length & 0x7F | more << 7
                at += 2
            else:
                length, at = _read_long_uvarint(data, at)
            if length & 1:
                raise _wrong_length((length >> 1) ^ -1, end - at)
            at += length >> 1
    except IndexError:
        raise invalid_record(NO_MORE_BYTES) from None
    if at > end:
        raise invalid_record(NO_MORE_BYTES)
    if count <= limit and at != end:
        raise invalid_record(BYTES_REMAIN)


def invalid_record(message: str) -> KafkaError:
    """The error for records that violate the format or contradict the batch header."""
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _wrong_length(length: int, available: int) -> KafkaError:
    return invalid_record(
        f"Invalid record size: expected {length} bytes in record payload, "
        f"but instead the buffer has only {available} remaining bytes."
    )


def _out_of_sequence(index: int, zigzag: int) -> KafkaError:
    delta = (zigzag >> 1) ^ -(zigzag & 1)
    return invalid_record(f"Record {index} of the batch has offset delta {delta}: offsets must be in sequence")


def _wrong_header_count(count: int) -> KafkaError:
    if count < 0:
        return invalid_record(f"Found invalid number of record headers {count}")
    return invalid_record(
        f"Found invalid number of record headers. {count} is larger than the remaining size of the buffer"
    )

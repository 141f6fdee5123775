"""Valid and invalid batches, with the answers of Apache Kafka 4.3.1 and of this broker.

RULES    1. `kafka` is Kafka's answer, `ours` ours: the same, except as explained in
            docs/decisions/0003-validation-of-produced-batches.md.
         2. tests/unit/storage/log/test_log_validator.py checks `validate` against `ours`,
            tests/conformance/test_produced_batches.py checks Kafka against `kafka`.
NOT HERE Sequences of several batches (producers).
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import cramjam
import crc32c

from protocol.batch_builder import BatchBuilder, assemble
from protocol.compression import Compression, compress
from protocol.errors import ErrorCode
from protocol.primitives import varint
from protocol.record_codec import encode_record
from protocol.records import HEADER, BatchHeader, parse_header

HOUR_MS = 3_600_000
OK = ErrorCode.NONE
BAD = ErrorCode.INVALID_RECORD
CORRUPT = ErrorCode.CORRUPT_MESSAGE
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR
LATE = ErrorCode.INVALID_TIMESTAMP
LARGE = ErrorCode.MESSAGE_TOO_LARGE

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "compact": {"cleanup.policy": "compact"},
    "append": {"message.timestamp.type": "LogAppendTime"},
    "gzip": {"compression.type": "gzip"},
    "range": {"message.timestamp.before.max.ms": "600000", "message.timestamp.after.max.ms": "600000"},
    "small": {"max.message.bytes": "1000"},
}
"""The topics that the cases are for, with their settings."""


class Case(NamedTuple):
    """One batch for one topic."""

    name: str
    topic: str
    data: bytes | None
    kafka: ErrorCode | None  # None: it hangs up
    ours: ErrorCode
    rejected: tuple[int, ...] = ()  # indexes of the records to blame


def batch(now_ms: int, count: int = 3, *, compression: int = Compression.NONE, value: bytes | None = None) -> bytearray:
    """A valid batch of `count` records."""
    builder = BatchBuilder(compression=compression)
    for index in range(count):
        builder.append(now_ms + index, b"k%d" % index, b"v%d" % index if value is None else value)
    return builder.build()


def with_fields(data: bytes | bytearray, **fields: int) -> bytearray:
    """The batch with other header values and a correct CRC."""
    changed = bytearray(data)
    HEADER.pack_into(changed, 0, *parse_header(data)._replace(**fields))
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return changed


def with_body(body: bytes, count: int, now_ms: int, compression: int = Compression.NONE) -> bytearray:
    """A batch with any bytes as its records, compressed here."""
    header = BatchHeader(0, 0, -1, 2, 0, compression, count - 1, now_ms, now_ms, -1, -1, -1, count)
    return assemble(header, compress(compression, body))


def record(
    delta: int, key: bytes | None = b"k", value: bytes | None = b"v", headers: tuple[tuple[str, bytes], ...] = ()
) -> bytes:
    """One record with its length; `delta` is its offset delta, its timestamp delta is 0."""
    encoded = encode_record(0, delta, key, value, headers)
    return varint(len(encoded)) + bytes(encoded)


def old_message(magic: int, now_ms: int) -> bytearray:
    """A message of format 0 or 1."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", now_ms) if magic else b"")
    body += struct.pack(">ii", -1, 1) + b"x"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return bytearray(struct.pack(">qi", 0, len(message)) + message)


def broken_bodies() -> dict[str, bytes]:
    """Record bytes for batches with a record count of 2."""
    second = record(1)
    return {
        "garbage": b"\xff" * 20,
        "zeros": b"\0" * 20,
        "nothing": b"",
        "a record's length too long": varint(100) + b"\0" * 10,
        "a record's length negative": varint(-2) + b"\0" * 12,
        "bytes behind the last record": record(0) + second + b"\0\0",
        "one record only": record(0),
        "a key longer than its record": varint(8) + b"\0\0\0" + varint(50) + b"abcd" + second,
        "a record longer than its fields": varint(9) + bytes(encode_record(0, 0, b"k", b"v")) + b"\0" + second,
        "minus one headers": varint(6) + b"\0\0\0" + varint(-1) + varint(-1) + varint(-1) + second,
        "a hundred headers": varint(7) + b"\0\0\0" + varint(-1) + varint(-1) + varint(100) + second,
        "a null header key": varint(8) + b"\0\0\0" + b"\1\1" + varint(1) + b"\1\1" + second,
    }


def cases(now_ms: int) -> list[Case]:
    """All cases, for a broker with a clock near `now_ms`."""
    return [*_framing(now_ms), *_headers(now_ms), *_bodies(now_ms), *_codecs(now_ms), *_times(now_ms), *_sizes(now_ms)]


def _framing(now_ms: int) -> Iterator[Case]:
    good = batch(now_ms)

    def case(name: str, data: bytes | bytearray | None, kafka: ErrorCode | None, ours: ErrorCode | None = None) -> Case:
        return Case(
            name, "plain", None if data is None else bytes(data), kafka, (kafka or OK) if ours is None else ours
        )

    def cut_in(data: bytearray, position: int, layout: str, value: int) -> bytearray:
        changed = bytearray(data)
        struct.pack_into(layout, changed, position, value)
        return changed

    yield case("good", good, OK)
    yield case("null", None, None, BAD)
    yield case("empty", b"", BAD)
    for size in (5, 12, 40, len(good) - 1):
        yield case(f"cut to {size} bytes", good[:size], BAD)
    yield case("5 bytes behind it", good + b"\0" * 5, OK)
    yield case("30 bytes behind it", good + b"\0" * 30, CORRUPT)
    yield case("two batches", good + good, BAD)
    yield case("format 0", old_message(0, now_ms), BAD)
    yield case("format 1", old_message(1, now_ms), BAD)
    yield case("magic 3", cut_in(good, 16, ">b", 3), CORRUPT)
    yield case("magic -1", cut_in(good, 16, ">b", -1), CORRUPT)
    yield case("CRC off by one bit", cut_in(good, 17, ">B", good[17] ^ 1), CORRUPT)
    yield case("last byte off by one bit", cut_in(good, len(good) - 1, ">B", good[-1] ^ 1), CORRUPT)
    for length in (-1, 10, 20, 48):
        yield case(f"length {length}", cut_in(good, 8, ">i", length), CORRUPT)
    yield case("length too long", cut_in(good, 8, ">i", len(good)), BAD)
    yield case("length 2**31-1", cut_in(good, 8, ">i", 2**31 - 1), UNKNOWN, BAD)
    yield case("base offset 7", cut_in(good, 0, ">q", 7), BAD)
    yield case("base offset -7", cut_in(good, 0, ">q", -7), BAD)
    yield case("leader epoch 99", cut_in(good, 12, ">i", 99), OK)


def _headers(now_ms: int) -> Iterator[Case]:
    good = batch(now_ms)

    def case(name: str, kafka: ErrorCode, ours: ErrorCode | None = None, **fields: int) -> Case:
        return Case(name, "plain", bytes(with_fields(good, **fields)), kafka, kafka if ours is None else ours)

    yield case("no records", BAD, record_count=0)
    yield case("no records, delta -1", BAD, record_count=0, last_offset_delta=-1)
    yield case("minus one records", BAD, record_count=-1)
    yield case("count 2 of 3", BAD, record_count=2)
    yield case("count 4 of 3", BAD, record_count=4)
    yield case("count and delta for 2 of 3", BAD, record_count=2, last_offset_delta=1)
    yield case("count and delta for 4 of 3", BAD, record_count=4, last_offset_delta=3)
    yield case("count and delta for 2**31-1", BAD, record_count=2**31 - 1, last_offset_delta=2**31 - 2)
    yield case("last offset delta 5 of 3", BAD, last_offset_delta=5)
    yield case("last offset delta -1", BAD, last_offset_delta=-1)
    yield case("control batch", BAD, attributes=0x20)
    yield case("delete horizon", OK, attributes=0x40)
    yield case("attributes of the future", OK, attributes=0x0F80)
    yield case("producer without sequence", BAD, producer_id=1000, producer_epoch=0)
    yield case("producer with sequence -5", BAD, producer_id=1000, producer_epoch=0, base_sequence=-5)
    yield case("producer id -5", OK, producer_id=-5, producer_epoch=0, base_sequence=0)
    yield case("sequence without producer", OK, base_sequence=4)
    yield case("codec 5", UNKNOWN, attributes=5)
    yield case("codec 7", UNKNOWN, attributes=7)
    for codec in list(Compression)[1:]:
        yield case(f"not compressed, but says {codec.name}", UNKNOWN, attributes=codec)
    yield case("log append time set by the client", OK, attributes=8)
    stamped = bytes(with_fields(good, attributes=8))
    yield Case("log append time set by the client", "append", stamped, LATE, LATE, (0, 1, 2))
    yield Case("log append time", "append", bytes(good), OK, OK)


def _bodies(now_ms: int) -> Iterator[Case]:
    for name, body in broken_bodies().items():
        answer = UNKNOWN if name == "garbage" else BAD
        yield Case(name, "plain", bytes(with_body(body, 2, now_ms)), answer, BAD)
        yield Case(f"{name}, lz4", "plain", bytes(with_body(body, 2, now_ms, Compression.LZ4)), BAD, BAD)
        yield Case(name, "compact", bytes(with_body(body, 2, now_ms)), answer, BAD)
        yield Case(f"{name}, lz4", "gzip", bytes(with_body(body, 2, now_ms, Compression.LZ4)), BAD, BAD)
    broken_last = varint(8) + b"\0\0" + varint(19) + varint(50) + b"abcd"
    many = with_body(b"".join(record(delta) for delta in range(19)) + broken_last, 20, now_ms)
    yield Case("the last of twenty records broken inside", "plain", bytes(many), BAD, OK)
    sound = {
        "two records": record(0) + record(1),
        "key length -2": varint(6) + b"\0\0\0" + varint(-2) + varint(-5) + b"\0" + record(1),
        "a header key that is not UTF-8": record(0, headers=(("\udcff", b"x"),)) + record(1),
    }
    for name, body in sound.items():
        for topic in ("plain", "gzip"):
            yield Case(name, topic, bytes(with_body(body, 2, now_ms)), OK, OK)
            yield Case(f"{name}, zstd", topic, bytes(with_body(body, 2, now_ms, Compression.ZSTD)), OK, OK)
    for topic in ("plain", "compact"):
        yield Case("offset deltas 0, 0", topic, bytes(with_body(record(0) + record(0), 2, now_ms)), OK, BAD)
    yield Case("offset deltas 5, 6", "plain", bytes(with_body(record(5) + record(6), 2, now_ms)), OK, BAD)
    deltas = with_body(record(5) + record(6), 2, now_ms, Compression.GZIP)
    yield Case("offset deltas 5, 6, gzip", "plain", bytes(deltas), UNKNOWN, BAD)
    keyless = record(0) + record(1, None)
    for codec in (Compression.NONE, Compression.GZIP):
        data = bytes(with_body(keyless, 2, now_ms, codec))
        yield Case(f"second record without key, {codec.name}", "compact", data, BAD, BAD, (1,))
        yield Case(f"second record without key, {codec.name}", "plain", data, OK, OK)
    both = bytes(with_body(record(0, None) + record(1, None), 2, now_ms))
    yield Case("no record with a key", "compact", both, BAD, BAD, (0, 1))
    late = now_ms + 2 * HOUR_MS
    neither = bytes(with_body(record(0, None) + record(1, None), 2, late))
    yield Case("no record with a key, and two hours ahead", "compact", neither, BAD, BAD, (0, 1))
    one = bytes(with_body(record(0, None) + record(1), 2, late))
    yield Case("one record without a key, and two hours ahead", "compact", one, LATE, LATE, (0, 1))


def _codecs(now_ms: int) -> Iterator[Case]:
    body = record(0) + record(1)
    for codec in list(Compression)[1:]:
        good = with_body(body, 2, now_ms, codec)
        packed = bytes(good[61:])
        header = parse_header(good)
        yield Case(codec.name, "plain", bytes(good), OK, OK)
        yield Case(f"{codec.name} cut", "plain", bytes(assemble(header, packed[:-3])), UNKNOWN, UNKNOWN)
        overwritten = bytes(assemble(header, packed[:18] + b"\xff" * 12))
        in_the_checksum = codec in {Compression.GZIP, Compression.ZSTD}
        yield Case(f"{codec.name} overwritten", "plain", overwritten, BAD if in_the_checksum else UNKNOWN, UNKNOWN)
        nothing = BAD if codec == Compression.ZSTD else UNKNOWN
        yield Case(f"{codec.name} empty", "plain", bytes(assemble(header, b"")), nothing, UNKNOWN)
    header = parse_header(with_body(body, 2, now_ms, Compression.SNAPPY))
    raw = bytes(cramjam.snappy.compress_raw(body))
    yield Case("a raw snappy block", "plain", bytes(assemble(header, raw)), OK, OK)
    header = parse_header(with_body(body, 2, now_ms, Compression.LZ4))
    linked = bytes(cramjam.lz4.compress(body))
    yield Case("lz4 with linked blocks", "plain", bytes(assemble(header, linked)), UNKNOWN, UNKNOWN)
    frames = bytes(compress(Compression.LZ4, record(0))) + bytes(compress(Compression.LZ4, record(1)))
    for topic in ("plain", "compact", "gzip"):
        yield Case("lz4 in two frames", topic, bytes(assemble(header, frames)), BAD, BAD)
    large = with_body(record(0, value=random.Random(1).randbytes(5000)) + record(1), 2, now_ms, Compression.LZ4)
    for name, flag in {"with a dictionary": 1, "with a reserved flag": 2, "of version 3": 0x80}.items():
        flagged = bytearray(large[61:])
        flagged[4] |= flag
        yield Case(f"lz4 {name}", "plain", bytes(assemble(parse_header(large), flagged)), UNKNOWN, UNKNOWN)


def _times(now_ms: int) -> Iterator[Case]:
    def at(time_ms: int, count: int = 3, codec: int = Compression.NONE) -> bytes:
        return bytes(batch(time_ms, count, compression=codec))

    yield Case("two hours ahead", "plain", at(now_ms + 2 * HOUR_MS), LATE, LATE, (0, 1, 2))
    yield Case("400 days old", "plain", at(now_ms - 400 * 24 * HOUR_MS), OK, OK)
    yield Case("without time", "plain", at(-1, 1), OK, OK)
    yield Case("at -2", "plain", at(-2, 1), OK, OK)
    yield Case("without time", "append", at(-1, 1), OK, OK)
    yield Case("an hour old", "range", at(now_ms - HOUR_MS), LATE, LATE, (0, 1, 2))
    yield Case("an hour old, gzip", "range", at(now_ms - HOUR_MS, 3, Compression.GZIP), LATE, LATE, (0, 1, 2))
    yield Case("an hour ahead", "range", at(now_ms + HOUR_MS), LATE, LATE, (0, 1, 2))
    yield Case("now", "range", at(now_ms), OK, OK)
    yield Case("without time", "range", at(-1, 1), OK, OK)
    mixed = BatchBuilder()
    for delta in (0, -HOUR_MS, 1):
        mixed.append(now_ms + delta, b"k", b"v")
    data = bytes(mixed.build())
    yield Case("the second record of three an hour old", "range", data, LATE, LATE, (1,))
    mixed = BatchBuilder()
    for index in range(20):
        mixed.append(now_ms - HOUR_MS * (index == 9), b"k", b"v")
    yield Case("the tenth record of twenty an hour old", "range", bytes(mixed.build()), LATE, OK)
    twenty = with_fields(batch(now_ms, 20), base_timestamp=now_ms + HOUR_MS)
    yield Case(
        "a base timestamp an hour ahead of the max timestamp", "range", bytes(twenty), LATE, LATE, tuple(range(20))
    )
    mixed = BatchBuilder()
    for delta in (0, HOUR_MS, 1):
        mixed.append(now_ms + delta, b"k", b"v")
    yield Case("the second record of three an hour ahead", "range", bytes(mixed.build()), LATE, LATE, (1,))
    good = batch(now_ms)
    yield Case("max timestamp too low", "plain", bytes(with_fields(good, max_timestamp=now_ms - 5000)), OK, OK)
    yield Case("max timestamp -1", "plain", bytes(with_fields(good, max_timestamp=-1)), OK, OK)
    lying = bytes(with_fields(good, max_timestamp=now_ms + HOUR_MS))
    yield Case("max timestamp out of range, records not", "range", lying, OK, OK)


def _sizes(now_ms: int) -> Iterator[Case]:
    def of(size: int) -> bytearray:
        return batch(now_ms, 1, value=b"v" * (size - 61 - 11))

    yield Case("1000 bytes", "small", bytes(of(1000)), OK, OK)
    yield Case("1001 bytes", "small", bytes(of(1001)), LARGE, LARGE)
    broken = of(1500)
    broken[17] ^= 1
    yield Case("too large, and a wrong CRC", "small", bytes(broken), LARGE, LARGE)
    yield Case("1048588 bytes", "plain", bytes(of(1048586)), OK, OK)
    yield Case("1048589 bytes", "plain", bytes(of(1048587)), LARGE, LARGE)

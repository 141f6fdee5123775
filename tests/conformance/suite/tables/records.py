"""Records: written and read with every codec, in every shape, from any offset."""

from __future__ import annotations

import random
import time
from functools import partial

from tests.conformance.suite.steps import Record, Scenario, Step, do, numbered, scenario

_records = partial(scenario, "records")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WRITTEN_MS = time.time_ns() // 1_000_000 - 3_600_000
"""An hour ago, within the default retention of a week."""

SHAPES = [
    Record(0, b"key", b"value", (("a", b"1"), ("a", b"2"), ("b", b"3")), WRITTEN_MS),
    Record(1, None, b"no key", (), WRITTEN_MS + 1),
    Record(2, b"tombstone", None, (), WRITTEN_MS + 2),
    Record(0, "schlüssel".encode(), "日本語".encode() * 50, (("ключ", "знач".encode()),), WRITTEN_MS + 3),
    Record(1, b"binary", bytes(range(256)), (("bytes", bytes(range(256))),), WRITTEN_MS + 4),
    Record(2, b"compressible", b"again and again " * 2000, (), WRITTEN_MS + 5),
]
LARGE = [Record(0, b"large", random.Random(9).randbytes(900 * 1024))]
MANY = 40


def topic(partitions: int = 1, name: str = "$t", **configs: str) -> Step:
    return do(
        "create_topic", topic=name, count=partitions, configs={k.replace("_", "."): v for k, v in configs.items()}
    )


def write(records: list[Record], name: str = "$t", **more: object) -> Step:
    return do("produce", topic=name, records=records, **more)


def read(count: int, partitions: int = 1, name: str = "$t", **more: object) -> Step:
    """Reads `count` records from the beginning, without a group."""
    return do("consume", topic=name, partitions=list(range(partitions)), count=count, **more)


def _round_trip(codec: str) -> Scenario:
    return _records(
        f"keys, values, headers and timestamps are preserved, codec {codec}",
        topic(3),
        write(SHAPES * 5, codec=codec).gives(
            offsets=[number for turn in range(5) for number in (2 * turn, 2 * turn, 2 * turn, *[2 * turn + 1] * 3)]
        ),
        read(30, 3).gives(records=SHAPES * 5),
    )


SCENARIOS = (
    *(_round_trip(codec) for codec in CODECS),
    _records(
        "a header without a value",
        topic(),
        write([Record(0, b"k", b"v", (("null", None), ("empty", b"")))]),
        read(1).gives(records=[Record(0, b"k", b"v", (("null", None), ("empty", b"")))]),
    ),
    _records(
        "an empty key and an empty value are not null",
        topic(),
        write([Record(0, b"", b"")]),
        read(1).gives(records=[Record(0, b"", b"")]),
    ),
    _records(
        "a record of 900 KiB, every codec",
        topic(),
        *(write(LARGE, codec=codec) for codec in CODECS),
        read(len(CODECS)).gives(records=LARGE * len(CODECS)),
    ),
    _records(
        f"{MANY} partitions, 2,000 records",
        topic(MANY),
        write(numbered(2000, MANY), idempotent=True),
        read(2000, MANY).gives(records=numbered(2000, MANY)),
    ),
    _records(
        "the topic's codec replaces the producer's",
        topic(compression_type="zstd"),
        write(SHAPES[:1] * 3, codec="gzip"),
        read(3).gives(records=SHAPES[:1] * 3),
    ),
    _records(
        "acks=0 and acks=1",
        topic(),
        write(numbered(3), acks="1"),
        write(numbered(3, start=3), acks="0"),
        read(6).gives(records=numbered(6)),
    ),
    _records(
        "an idempotent producer",
        topic(4),
        write(numbered(200, 4), idempotent=True).gives(offsets=[number // 4 for number in range(200)]),
        read(200, 4).gives(records=numbered(200, 4)),
    ),
    _records(
        "a consumer starts at an offset",
        topic(),
        write(numbered(20)),
        read(5, offset=15).gives(
            records=[record._replace(offset=15 + n) for n, record in enumerate(numbered(5, start=15))]
        ),
    ),
    _records(
        "log append time",
        topic(message_timestamp_type="LogAppendTime"),
        write([Record(0, b"k", b"v", (), WRITTEN_MS)]),
        do("list_offsets", topic="$t", partition=0, at="time", time=WRITTEN_MS + 60_000).gives(offset=0),
    ),
    _records(
        "auto-creation by a producer",
        do("produce", topic="$auto", records=numbered(3), auto_create=True),
        read(3, name="$auto").gives(records=numbered(3)),
    ),
)

"""Records that break what is not careful: nulls, empty texts, bytes that are no text, odd headers and timestamps.

They are written and read with this project's protocol classes, and not with the verbs that tests examine.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.records import headers, records
from tests.support.loading import append_request, fetch_request
from tests.support.raw_client import RawClient

PIECES = (
    *(
        b"",
        b"\n",
        b"\r\n",
        b"\t",
        b'"',
        b"\\",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x92\xa5",
        b"\xc3\xa9",
        b"null",
    ),
    *(
        b'{"base64":"/w=="}',
        b"%v{",
        b"\x1b[2J",
        b"\xef\xbb\xbf",
        "\u2028".encode(),
        b"a" * 200,
        b"true",
        b" ",
        b"key",
        b"-1",
    ),
)
TIMESTAMPS = (0, 1, -1, 1_700_000_000_000, 1_700_000_000_001)
MAX_BYTES = 1 << 26

Sent = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Timestamp, key, value and headers."""


def hostile_records(dice: random.Random, count: int) -> list[Sent]:
    """Random records."""
    return [
        (
            dice.choice(TIMESTAMPS),
            _field(dice),
            _field(dice),
            tuple((_bytes(dice).decode(errors="surrogateescape"), _field(dice)) for _ in range(_headers(dice))),
        )
        for _ in range(count)
    ]


def _headers(dice: random.Random) -> int:
    return dice.choice((0, 0, 0, 1, 2, 5, 70))


def _field(dice: random.Random) -> bytes | None:
    return None if dice.random() < 0.2 else _bytes(dice)


def _bytes(dice: random.Random) -> bytes:
    return b"".join(dice.choices(PIECES, k=dice.choice((0, 1, 1, 2, 6)))) + dice.randbytes(dice.choice((0, 0, 3)))


def write(client: RawClient, topic: str, partition: int, sent: Iterable[Sent], codec: int = Compression.NONE) -> None:
    """Appends the records in one batch."""
    builder = BatchBuilder(compression=codec)
    for record in sent:
        builder.append(*record)
    answer = client.ask(append_request(topic, partition, bytes(builder.build())), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def read(client: RawClient, topic: str, partition: int) -> list[Sent]:
    """All records of a partition, without their offsets."""
    found: list[Sent] = []
    offset = 0
    while True:
        request = fetch_request(11, {(topic, b"", partition): offset}, max_bytes=MAX_BYTES)
        answer = client.ask(request, 11).responses[0].partitions[0]
        assert answer.error_code == 0, answer
        data = bytes(answer.records or b"")
        if not data:
            return found
        for position, header in headers(data):
            if not header.is_control:
                inside = records(data, position, header, max_bytes=MAX_BYTES)
                found += [(one.timestamp_ms, one.key, one.value, one.headers) for one in inside]
            offset = header.next_offset

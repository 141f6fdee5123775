"""What one real client writes, every real client reads: each codec, headers, null keys and values, large records.

The same tests run against any broker: `make test ARGS="tests/conformance --kafka-bootstrap HOST:PORT"`.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.conformance.clients import CODECS, CONSUMERS, PRODUCERS, Sent

BASE_MS = time.time_ns() // 1_000_000 - 3_600_000  # the broker deletes what is a week old


def sample(producer: str) -> list[Sent]:
    """Records of every shape, spread over four partitions; only librdkafka can write a null header value."""
    rng = random.Random(5)
    null_header = (("null", None),) if producer == "confluent-kafka" else ()
    shapes = [
        Sent(b"key", b"value", (("h", b"1"), ("h", b"2"), ("empty", b""), *null_header)),
        Sent(None, b"no key"),
        Sent(b"tombstone", None),
        Sent(b"", b""),
        Sent("schlüssel".encode(), "日本語".encode() * 50, (("ключ", "знач".encode()),)),
        Sent(b"binary", bytes(range(256))),
    ]
    records = [shapes[number % len(shapes)] for number in range(200)]
    return [
        record._replace(timestamp_ms=BASE_MS + number, partition=rng.randrange(4))
        for number, record in enumerate(records)
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_client_reads_what_one_client_wrote(kafka_broker, kafka_topic, producer: str, codec: str) -> None:
    """seeds.md R8: key, value, headers, timestamp and order within the partition survive the way to disk and back."""
    sent = sample(producer)
    offsets = PRODUCERS[producer](kafka_broker.bootstrap, kafka_topic, sent, codec)
    expected = sorted(
        (record.partition, offset, record.timestamp_ms, record.key, record.value, record.headers)
        for record, offset in zip(sent, offsets, strict=True)
    )
    for partition in range(4):
        in_partition = [offset for record, offset in zip(sent, offsets, strict=True) if record.partition == partition]
        assert in_partition == list(range(len(in_partition)))
    for name, consume in CONSUMERS.items():
        assert sorted(consume(kafka_broker.bootstrap, kafka_topic, len(sent))) == expected, name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_record_of_900_kilobytes_goes_through(kafka_broker, kafka_topic, producer: str, codec: str) -> None:
    """Incompressible, so that the batch is as large on the wire; the first batch of a fetch is returned whole."""
    value = random.Random(9).randbytes(900 * 1024)
    PRODUCERS[producer](kafka_broker.bootstrap, kafka_topic, [Sent(b"big", value)], codec)
    for name, consume in CONSUMERS.items():
        (got,) = consume(kafka_broker.bootstrap, kafka_topic, 1)
        assert (got.key, got.value) == (b"big", value), name

"""Every client reads what one client wrote: each codec, headers, null keys and values, large records.

The same tests run against any broker: `make test ARGS="tests/conformance --kafka-bootstrap HOST:PORT"`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.conformance.clients import CLIENTS, consume, produce
from tests.conformance.python.driver import Driver
from tests.conformance.suite.steps import Record
from tests.conformance.suite.tables.records import CODECS, WRITTEN_MS


@pytest.fixture
def drivers(kafka_broker) -> Iterator[dict[str, Driver]]:
    made = {name: client(kafka_broker.bootstrap) for name, client in CLIENTS.items()}
    yield made
    for driver in made.values():
        driver.close()


def sample(producer: str) -> list[Record]:
    """Records of every shape, spread over four partitions; only librdkafka can write a null header value."""
    rng = random.Random(5)
    null_header = (("null", None),) if producer == "confluent-kafka" else ()
    shapes = [
        (b"key", b"value", (("h", b"1"), ("h", b"2"), ("empty", b""), *null_header)),
        (None, b"no key", ()),
        (b"tombstone", None, ()),
        (b"", b"", ()),
        ("schlüssel".encode(), "日本語".encode() * 50, (("ключ", "знач".encode()),)),
        (b"binary", bytes(range(256)), ()),
    ]
    return [Record(rng.randrange(4), *shapes[number % len(shapes)], WRITTEN_MS + number) for number in range(200)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", CLIENTS)
def test_every_client_reads_what_one_client_wrote(drivers, kafka_topic, producer: str, codec: str) -> None:
    """Key, value, headers, timestamp and the order within a partition survive the way to disk and back."""
    sent = sample(producer)
    offsets = produce(drivers[producer], kafka_topic, sent, codec)
    expected = [record._replace(offset=offset) for record, offset in zip(sent, offsets, strict=True)]
    for partition in range(4):
        in_partition = [record.offset for record in expected if record.partition == partition]
        assert in_partition == list(range(len(in_partition)))
    expected.sort(key=lambda record: (record.partition, record.offset))
    for name, driver in drivers.items():
        found = consume(driver, kafka_topic, len(sent))
        assert sorted(found, key=lambda record: (record.partition, record.offset)) == expected, name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", CLIENTS)
def test_a_record_of_900_kilobytes_goes_through(drivers, kafka_topic, producer: str, codec: str) -> None:
    """Incompressible, so that the batch is as large on the wire; the first batch of a fetch is returned whole."""
    value = random.Random(9).randbytes(900 * 1024)
    produce(drivers[producer], kafka_topic, [Record(0, b"big", value)], codec)
    for name, driver in drivers.items():
        (found,) = consume(driver, kafka_topic, 1)
        assert (found.key, found.value) == (b"big", value), name

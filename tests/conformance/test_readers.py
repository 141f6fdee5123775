"""What consumers may request of Fetch, with four client libraries.

A proxy records requests and responses, so the claims are about the broker and not about time: the same for this broker and,
with --kafka-bootstrap, for Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from barnabas import Broker
from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from tests.conformance import readers
from tests.conformance.suite.partition_readiness import await_partitions
from tests.support.loading import create, produce
from tests.support.raw_client import RawClient
from tests.support.recording_proxy import Exchange, WatchingProxy
from tests.support.timestamps import RECENT_MS

pytestmark = pytest.mark.long

WAIT_S = 40
COMMITTED = 1
EARLY_MS = 50
"""The tolerance for early responses: clocks have ticks, and the proxy measures a little less."""


@pytest.fixture(scope="module")
def java() -> Iterator[readers.JavaProcess]:
    reason = readers.why_no_java_reader()
    if reason is not None:
        pytest.skip(reason)
    process = readers.JavaProcess()
    yield process
    process.stop()


@pytest.fixture(params=[*readers.PYTHON_READERS, "java"])
def make(request: pytest.FixtureRequest) -> Callable[[str, readers.Options], readers.Reader]:
    """The constructor of one kind of reader."""
    if request.param in readers.PYTHON_READERS:
        return readers.PYTHON_READERS[request.param]
    process = request.getfixturevalue("java")
    return lambda bootstrap, options: readers.Java(process, bootstrap, options)


class ReaderSetup(NamedTuple):
    """A topic of four partitions, behind a proxy."""

    topic: str
    direct: RawClient
    proxy: WatchingProxy
    make: Callable[[str, readers.Options], readers.Reader]
    opened: list[readers.Reader]

    def read(self, *partitions: int, offset: int = 0, topic: str = "", **options: Any) -> readers.Reader:
        """A consumer of some partitions."""
        reader = self.make(self.proxy.bootstrap, readers.Options(**options))
        self.opened.append(reader)
        reader.assign(topic or self.topic, partitions, offset)
        return reader

    def write(self, *batches: bytes) -> None:
        """Appends a batch to each of the first partitions."""
        produce(self.direct, {self.topic: list(batches)})

    @property
    def with_records(self) -> list[Exchange]:
        """Fetches whose response has records."""
        return [fetch for fetch in self.proxy.fetches if fetch.record_bytes]


@pytest.fixture
def harness(
    kafka_broker: Broker, kafka_topic: str, make: Callable[[str, readers.Options], readers.Reader]
) -> Iterator[ReaderSetup]:
    """Consumers are closed before the proxy."""
    opened: list[readers.Reader] = []
    with RawClient(kafka_broker.bootstrap) as direct, WatchingProxy(kafka_broker.bootstrap) as proxy:
        await_partitions(kafka_broker.bootstrap, kafka_topic, 4)
        yield ReaderSetup(kafka_topic, direct, proxy, make, opened)
        for reader in opened:
            reader.close()
        for fetch in proxy.fetches:
            assert is_complete(fetch), f"answered too soon: {fetch}"


def is_complete(fetch: Exchange) -> bool:
    """Whether the response was due: enough bytes, the maximum wait, an empty request, or an error."""
    request = fetch.request
    return (
        fetch.record_bytes >= min(request.min_bytes, request.max_bytes)
        or fetch.waited_ms >= request.max_wait_ms - EARLY_MS
        or fetch.has_error
        or (not request.topics and request.session_epoch in (0, -1))
    )


def batch(partition: int, start: int, count: int, size: int = 10, codec: int = Compression.NONE) -> bytes:
    """Records whose values name their offsets."""
    builder = BatchBuilder(compression=codec)
    for number in range(start, start + count):
        builder.append(RECENT_MS, None, value(partition, number, size))
    return bytes(builder.build())


def value(partition: int, offset: int, size: int = 10) -> bytes:
    return f"{partition}-{offset} ".encode().ljust(size, b".")


def take(reader: readers.Reader, count: int) -> list[readers.ConsumedRecord]:
    """Polls until `count` records have arrived."""
    found: list[readers.ConsumedRecord] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += reader.poll()
    return found


def expected(partition: int, offsets: range, size: int = 10) -> list[readers.ConsumedRecord]:
    return [readers.ConsumedRecord(partition, offset, value(partition, offset, size)) for offset in offsets]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_both_isolation_levels_read_everything_without_transactions(harness: ReaderSetup, isolation: str) -> None:
    """Without transactions the last stable offset is the high watermark, and there are no aborted transactions."""
    harness.write(batch(0, 0, 5))
    reader = harness.read(0, isolation=isolation)
    assert take(reader, 5) == expected(0, range(5))
    harness.write(batch(0, 5, 5))
    assert take(reader, 5) == expected(0, range(5, 10))
    is_committed = isolation == "read_committed"
    assert {fetch.request.isolation_level for fetch in harness.proxy.fetches} == {COMMITTED if is_committed else 0}
    for fetch in harness.with_records:
        (data,) = fetch.answer.responses[0].partitions
        assert data.last_stable_offset == data.high_watermark
        assert not data.aborted_transactions


def test_a_fetch_waits_for_fetch_min_bytes(harness: ReaderSetup) -> None:
    """10,000 bytes are not enough; they arrive together with those that make them 50,000."""
    harness.write(batch(0, 0, 10, 1000))
    reader = harness.read(0, min_bytes=50_000, max_wait_ms=20_000)
    assert reader.poll() == []
    for start in range(10, 60, 10):
        harness.write(batch(0, start, 10, 1000))
    assert take(reader, 50)[:50] == expected(0, range(50), 1000)
    first = harness.with_records[0]
    assert (first.request.min_bytes, first.request.max_wait_ms) == (50_000, 20_000)
    assert first.record_bytes >= 50_000
    assert first.batches[0].base_offset == 0
    harness.write(batch(0, 60, 50, 1000))  # the delayed fetch completes before the consumer closes


def test_a_fetch_waits_no_longer_than_fetch_max_wait_ms(harness: ReaderSetup) -> None:
    """After the wait the response has too few bytes, or none."""
    harness.write(batch(0, 0, 3))
    reader = harness.read(0, min_bytes=50_000, max_wait_ms=300)
    assert take(reader, 3) == expected(0, range(3))
    assert reader.poll() == []
    assert len(harness.with_records) == 1
    assert harness.with_records[0].waited_ms >= 300 - EARLY_MS


def test_a_batch_larger_than_max_partition_fetch_bytes_comes_whole(harness: ReaderSetup) -> None:
    """A consumer with small buffers makes progress at a large batch."""
    harness.write(batch(0, 0, 30, 10_000))
    harness.write(batch(0, 30, 1, 500_000))
    harness.write(batch(0, 31, 2))
    reader = harness.read(0, max_partition_bytes=1000)
    got = take(reader, 33)
    assert [(record.offset, len(record.value)) for record in got] == [
        *((offset, 10_000) for offset in range(30)),
        (30, 500_000),
        (31, 10),
        (32, 10),
    ]
    for fetch in harness.with_records:
        query = fetch.request.topics[0].partitions[0].partition_max_bytes if fetch.request.topics else 1000
        assert query == 1000
    assert [len(fetch.batches) for fetch in harness.with_records[:2]] == [1, 1]
    assert [fetch.batches[0].base_offset for fetch in harness.with_records[:2]] == [0, 30]


def read_four(harness: ReaderSetup, count: int, step: int, size: int, **options: Any) -> None:
    """Records in each of four partitions, `step` per batch, are read as they were produced."""
    for start in range(0, count, step):
        harness.write(*(batch(index, start, step, size) for index in range(4)))
    got = take(harness.read(*range(4), **options), 4 * count)
    for index in range(4):
        mine = [record for record in got if record.partition == index]
        assert mine == expected(index, range(count), size)


def test_max_partition_fetch_bytes_bounds_what_comes_of_each_partition(harness: ReaderSetup) -> None:
    """Four partitions, at most 3,000 bytes of each, except for a first batch."""
    read_four(harness, 20, 2, 500, max_partition_bytes=3000)
    for fetch in harness.with_records:
        for topic in fetch.answer.responses:
            assert all(len(data.records or b"") <= 3000 for data in topic.partitions)


def test_fetch_max_bytes_bounds_the_whole_answer(harness: ReaderSetup) -> None:
    """Four partitions with 60,000 bytes each, at most 50,000 in one response."""
    read_four(harness, 60, 10, 1000, max_bytes=50_000)
    assert {fetch.request.max_bytes for fetch in harness.proxy.fetches} == {50_000}
    assert all(fetch.record_bytes <= 50_000 for fetch in harness.with_records)


def test_a_consumer_with_a_rack_reads_from_the_leader(harness: ReaderSetup) -> None:
    """No replica is in the rack of client.rack."""
    harness.write(batch(0, 0, 5))
    reader = harness.read(0, rack="somewhere-1a")
    assert take(reader, 5) == expected(0, range(5))
    assert {fetch.request.rack_id for fetch in harness.proxy.fetches if fetch.version >= 11} == {"somewhere-1a"}
    for fetch in harness.with_records:
        assert fetch.answer.responses[0].partitions[0].preferred_read_replica == -1


@pytest.mark.parametrize("check_crcs", [True, False])
def test_batches_of_every_codec_pass_the_consumers_checks(harness: ReaderSetup, check_crcs: bool) -> None:
    """check.crcs: the stored batch is the produced one."""
    for number, codec in enumerate(Compression):
        harness.write(batch(0, number * 7, 7, 300, codec))
    reader = harness.read(0, check_crcs=check_crcs)
    count = 7 * len(Compression)
    assert take(reader, count) == expected(0, range(count), 300)


def test_one_consumer_reads_many_partitions(harness: ReaderSetup) -> None:
    """Sixty partitions, then new records in two: every record once, and the session's responses name only those two."""
    topic = f"{harness.topic}-many"
    create(harness.direct, topic, partitions=60)
    await_partitions(harness.proxy.bootstrap, topic, 60)
    produce(harness.direct, {topic: [batch(index, 0, 3) for index in range(60)]})
    reader = harness.read(*range(60), topic=topic)
    got = sorted(take(reader, 180))
    assert got == [record for index in range(60) for record in expected(index, range(3))]
    assert reader.poll() == []
    seen = len(harness.proxy.fetches)
    produce(harness.direct, {topic: [batch(index, 3, 1) for index in range(2)]})
    assert sorted(take(reader, 2)) == [expected(index, range(3, 4))[0] for index in range(2)]
    for fetch in harness.proxy.fetches[seen:]:
        if fetch.request.session_epoch > 0:  # librdkafka and aiokafka have no sessions
            response = [data.partition_index for topic in fetch.answer.responses for data in topic.partitions]
            assert set(response) <= {0, 1}


def test_a_reader_that_seeks_reads_from_there(harness: ReaderSetup) -> None:
    """Into the middle of a batch, to the start, to the end."""
    for start in range(0, 100, 10):
        harness.write(batch(0, start, 10))
    reader = harness.read(0, offset=55)
    assert take(reader, 45) == expected(0, range(55, 100))
    for target in (0, 99, 7, 50):
        reader.seek(harness.topic, 0, target)
        assert take(reader, 100 - target) == expected(0, range(target, 100))
    reader.seek(harness.topic, 0, 100)
    harness.write(batch(0, 100, 1))
    assert take(reader, 1) == expected(0, range(100, 101))


def test_a_paused_partition_waits_until_it_is_resumed(harness: ReaderSetup) -> None:
    """The other partition continues; records that arrived meanwhile are read after `resume`."""
    harness.write(batch(0, 0, 5), batch(1, 0, 5))
    reader = harness.read(0, 1)
    assert sorted(take(reader, 10)) == expected(0, range(5)) + expected(1, range(5))
    reader.pause(harness.topic, 0)
    harness.write(batch(0, 5, 5), batch(1, 5, 5))
    assert take(reader, 5) == expected(1, range(5, 10))
    assert reader.poll() == []
    reader.resume(harness.topic, 0)
    assert take(reader, 5) == expected(0, range(5, 10))

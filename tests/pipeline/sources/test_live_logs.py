"""A topic read through a broker and from its files, also in Spark: Barnabas, and Apache Kafka if its jars are present."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer

from barnabas import Broker
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import describe_failure
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.sources.damage import MissingRecords
from barnabas.pipeline.sources.decoding import COLUMN_TYPES
from barnabas.pipeline.sources.planning import plan
from barnabas.pipeline.sources.segment_files import bases_of, read_checkpoint
from barnabas.pipeline.sources.segment_options import parse_options
from barnabas.pipeline.sources.segments import NAME, read_task, register
from tests.pipeline.sources.random_comparison import CODECS, rows_of
from tests.pipeline.topics import producer_of, read_from, transactional
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.storage_engine import default_engine
from tests.support.waiting import until

pytestmark = pytest.mark.long

TOPIC, STAMPED, COMPACTED = "varied", "stamped", "compacted"
PARTITIONS = 2
SMALL = {"segment.bytes": str(1 << 20), "retention.ms": "-1", "file.delete.delay.ms": "0"}
TOPICS = {
    TOPIC: SMALL,
    STAMPED: {**SMALL, "message.timestamp.type": "LogAppendTime"},
    COMPACTED: {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}
SOON = {"log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 200, "log.retention.check.interval.ms": 200}
SEED = 20261122


@pytest.fixture(scope="module", params=["Barnabas", pytest.param("Apache Kafka", marks=needs_kafka)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A broker with varied topics."""
    data_dir = tmp_path_factory.mktemp("logs") / "data"
    kind: Any = Broker if request.param == "Barnabas" else ApacheKafka
    with kind(
        settings={
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "offsets.topic.replication.factor": 1,
            **SOON,
        },
        data_dir=data_dir,
    ) as started:
        fill(started.bootstrap)
        yield started


def fill(bootstrap: str) -> None:
    """Writes all codecs, nulls, headers, both timestamp types, and committed, aborted and open transactions across segments."""
    brokers = Brokers(BrokerSettings(bootstrap=bootstrap))
    for topic, settings in TOPICS.items():
        brokers.create_topic(topic, PARTITIONS, 1, settings)
    rng = random.Random(SEED)
    for turn, codec in enumerate(CODECS):
        for topic in TOPICS:
            send(producer_of(bootstrap, compression_type=codec), rng, 300 if topic == STAMPED else 1200, topic)
        for outcome in ("commit", "abort"):
            producer = transactional(bootstrap, f"{outcome}-{turn}", compression_type=codec)
            producer.begin_transaction()
            for topic in TOPICS:
                send(producer, rng, 150, topic)
            producer.commit_transaction(30) if outcome == "commit" else producer.abort_transaction(30)
    left_open = transactional(bootstrap, "open", compression_type="zstd")
    left_open.begin_transaction()
    send(left_open, rng, 40, TOPIC)
    fill.left_open = left_open  # type: ignore[attr-defined]  # it must not be collected: it would abort
    send(producer_of(bootstrap, compression_type="lz4"), rng, 40, TOPIC)


def send(to: Producer, rng: random.Random, count: int, topic: str) -> None:
    for number in range(count):
        value = None if number % 11 == 0 else rng.randbytes(rng.randrange(700)) + b"same" * rng.randrange(150)
        key = None if number % 7 == 0 and topic != COMPACTED else b"key-%d" % rng.randrange(50)
        pairs: list[tuple[str, str | bytes | None]] = (
            [("one", b"1"), ("one", None), ("größer", b"")] if number % 5 == 0 else []
        )
        to.produce(
            topic, value, key, partition=number % PARTITIONS, headers=pairs, timestamp=1_700_000_000_000 + number
        )
        to.poll(0)
    assert to.flush(30) == 0


def through_the_broker(bootstrap: str, isolation: str, topic: str = TOPIC) -> list[Any]:
    """The records that a consumer reads."""
    found = []
    for message in read_from(bootstrap, topic, dict.fromkeys(range(PARTITIONS), 0), isolation):
        kind, moment = message.timestamp()
        headers = message.headers() and tuple(message.headers())
        fields = (message.key(), message.value(), moment * 1000, kind - 1, headers)
        found.append((message.partition(), message.offset(), *fields))
    return sorted(found, key=lambda row: row[:2])


def from_the_files(data_dir: Path, parts: Any = None, **options: str) -> list[Any]:
    """The records in the log directory."""
    chosen = {"path": str(data_dir), "subscribe": TOPIC, "columns": ",".join(COLUMN_TYPES), **options}
    return as_rows([batch for part in parts or plan(parse_options(chosen)) for batch in read_task(part)])


def as_rows(batches: list[Any]) -> list[Any]:
    columns = ["topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers"]
    return [row[1:] for row in rows_of(pa.Table.from_batches(batches).select(columns))]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", TOPICS)
def test_files_and_broker_have_the_same_records(broker: Any, topic: str, isolation: str) -> None:
    directories = [broker.data_dir / f"{topic}-{number}" for number in range(PARTITIONS)]
    if topic == COMPACTED:
        await_cleaner(broker)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.isolation.level": isolation, "subscribe": topic}
    expected = through_the_broker(broker.bootstrap, isolation, topic)
    assert {row[5] for row in expected} == {int(topic == STAMPED)}, (
        "a record has its batch's timestamp with LogAppendTime"
    )
    if topic == COMPACTED:
        offsets = [row[1] for row in expected if row[0] == 0]
        assert len(offsets) < offsets[-1] - offsets[0], "something is gone"
    if topic == TOPIC:
        assert len(expected) > 6000
        if default_engine() == "segments":
            assert all(len(list(directory.glob("*.log"))) > 2 for directory in directories)
    assert from_the_files(broker.data_dir, **options) == expected


def await_cleaner(broker: Any) -> None:
    """Waits until the cleaner has processed all segments of the compacted topic but the active ones."""

    def is_compacted(number: int) -> bool:
        checkpoint = read_checkpoint(broker.data_dir / "cleaner-offset-checkpoint") or {}
        return (
            checkpoint.get(TopicPartition(COMPACTED, number), 0)
            >= bases_of(str(broker.data_dir / f"{COMPACTED}-{number}"))[-1]
        )

    until(lambda: all(is_compacted(number) for number in range(PARTITIONS)), "the cleaner", 60)


def test_both_sources_return_the_same_frame(spark: Any, broker: Any) -> None:
    register(spark)
    await_cleaner(broker)
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": ",".join(TOPICS),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "startingOffsets": json.dumps({name: {"0": 100, "1": -2} for name in TOPICS}),
        "endingOffsets": json.dumps({name: {"0": -1, "1": 1000} for name in TOPICS}),
    }
    through = spark.read.format("kafka").options(**options).load()
    straight = spark.read.format(NAME).options(**options).load(str(broker.data_dir))
    assert straight.dtypes == through.dtypes
    assert rows_of(straight.toArrow()) == rows_of(through.toArrow())
    assert straight.rdd.getNumPartitions() > 2, "a part for each segment"
    few = spark.read.format(NAME).options(**options, columns="offset,key").load(str(broker.data_dir))
    assert few.columns == ["offset", "key", "headers"]


def test_errors_are_found_in_sparks_exception(spark: Any, broker: Any) -> None:
    """An empty result is not an error."""
    register(spark)
    with pytest.raises(Exception, match="There is no option colour") as caught:
        spark.read.format(NAME).options(subscribe=TOPIC, colour="red").load(str(broker.data_dir)).count()
    assert describe_failure(caught.value).endswith("until.")
    nothing = {"subscribe": TOPIC, "kafka.bootstrap.servers": broker.bootstrap, "startingTimestamp": str(1 << 42)}
    nothing["startingOffsetsByTimestampStrategy"] = "latest"
    assert spark.read.format(NAME).options(**nothing).load(str(broker.data_dir)).count() == 0


def test_a_log_start_inside_a_segment_is_respected(broker: Any) -> None:
    """An earlier plan still reads all its records."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "columns": ",".join(COLUMN_TYPES)}
    before = plan(parse_options({"path": str(broker.data_dir), "subscribe": TOPIC, **options}))
    everything = through_the_broker(broker.bootstrap, "read_committed")
    trimmed = {TopicPartition(TOPIC, 0): 300, TopicPartition(TOPIC, 1): 511}
    Brokers(BrokerSettings(bootstrap=broker.bootstrap)).delete_records(trimmed)
    expected = through_the_broker(broker.bootstrap, "read_committed")
    assert 0 < len(expected) < len(everything)
    assert from_the_files(broker.data_dir, **options) == expected
    assert from_the_files(broker.data_dir, before) == everything
    with pytest.raises(MissingRecords, match="goes from offset 300"):
        from_the_files(broker.data_dir, **options, startingOffsets=f'{{"{TOPIC}": {{"0": 3, "1": -2}}}}')


def begins_at(folder: Path, base_offset: int) -> bool:
    return min(path.name for path in folder.glob("*.log*"))[:20] == f"{base_offset:020}"


def test_segments_deleted_during_a_read(broker: Any) -> None:
    """An open segment is read to its end; one deleted before is missing."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "columns": ",".join(COLUMN_TYPES)}
    strict, lenient = (
        plan(parse_options({"path": str(broker.data_dir), "subscribe": TOPIC, "failOnDataLoss": fail, **options}))
        for fail in ("true", "false")
    )
    expected = through_the_broker(broker.bootstrap, "read_committed")
    readers = [read_task(part) for part in strict]
    begun = [next(reader, None) for reader in readers]
    folders = {number: broker.data_dir / f"{TOPIC}-{number}" for number in range(PARTITIONS)}
    first_bases = {number: bases_of(str(folder))[-2] for number, folder in folders.items()}
    Brokers(BrokerSettings(bootstrap=broker.bootstrap)).delete_records(
        {TopicPartition(TOPIC, number): base for number, base in first_bases.items()}
    )
    for number, folder in folders.items():
        until(partial(begins_at, folder, first_bases[number]), "the segments before it are deleted", 60)
    batches = [batch for first, reader in zip(begun, readers, strict=True) for batch in (first, *reader) if batch]
    assert as_rows(batches) == expected
    with pytest.raises(MissingRecords, match="is missing, and with it"):
        from_the_files(broker.data_dir, strict)
    left = [row for row in expected if row[1] >= first_bases[row[0]]]
    assert 0 < len(left) < len(expected)
    assert from_the_files(broker.data_dir, lenient) == left == through_the_broker(broker.bootstrap, "read_committed")

"""The same topic read through a broker and from its files: Barnabas, and Apache Kafka where its jars are."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from barnabas import Broker
from barnabas.pipeline.brokers import Brokers, Place
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.sources.damage import MissingRecords
from barnabas.pipeline.sources.decoding import COLUMN_TYPES
from barnabas.pipeline.sources.planning import plan
from barnabas.pipeline.sources.segment_options import understand
from barnabas.pipeline.sources.segment_reading import read_part
from tests.support.kafka import ApacheKafka, needs_kafka

TOPIC, PARTITIONS = "varied", 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SEED = 20261122


@pytest.fixture(scope="module", params=["Barnabas", pytest.param("Apache Kafka", marks=needs_kafka)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A broker with a topic in which there is something of everything."""
    data_dir = tmp_path_factory.mktemp("logs") / "data"
    kind: Any = Broker if request.param == "Barnabas" else ApacheKafka
    with kind(
        settings={
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "offsets.topic.replication.factor": 1,
        },
        data_dir=data_dir,
    ) as started:
        fill(started.bootstrap)
        yield started


def fill(bootstrap: str) -> None:
    """All codecs, nulls, headers, and transactions of each fate across segments, the last of them open."""
    settings = {"segment.bytes": str(1 << 20), "retention.ms": "-1"}
    Brokers(BrokerSettings(bootstrap=bootstrap)).create_topic(TOPIC, PARTITIONS, 1, settings)
    dice = random.Random(SEED)
    for turn, codec in enumerate(CODECS):
        send(producer(bootstrap, codec), dice, 1200)
        for fate in ("commit", "abort"):
            transactional = producer(bootstrap, codec, f"{fate}-{turn}")
            transactional.init_transactions(30)
            transactional.begin_transaction()
            send(transactional, dice, 150)
            transactional.commit_transaction(30) if fate == "commit" else transactional.abort_transaction(30)
    left_open = producer(bootstrap, "zstd", "open")
    left_open.init_transactions(30)
    left_open.begin_transaction()
    send(left_open, dice, 40)
    fill.left_open = left_open  # type: ignore[attr-defined]  # it must not be collected: it would abort
    send(producer(bootstrap, "lz4"), dice, 40)


def producer(bootstrap: str, codec: str, transactional_id: str | None = None) -> Producer:
    settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 3, "log_level": 0}
    if transactional_id is not None:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": 900_000}
    return Producer(settings)


def send(to: Producer, dice: random.Random, count: int) -> None:
    for number in range(count):
        value = None if number % 11 == 0 else dice.randbytes(dice.randrange(700)) + b"same" * dice.randrange(150)
        key = None if number % 7 == 0 else b"key-%d" % dice.randrange(50)
        pairs = [("one", b"1"), ("one", None), ("größer", b"")] if number % 5 == 0 else []
        to.produce(
            TOPIC, value, key, partition=number % PARTITIONS, headers=pairs, timestamp=1_700_000_000_000 + number
        )
        to.poll(0)
    assert to.flush(30) == 0


def through_the_broker(bootstrap: str, isolation: str) -> list[Any]:
    """All that a consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    # From the beginning by name: asked where its group stands, a consumer waits for the group's coordinator.
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found, ended, deadline = [], 0, time.monotonic() + 60
    while ended < PARTITIONS:
        assert time.monotonic() < deadline, (
            f"{ended} of {PARTITIONS} partitions came to an end, after {len(found)} records"
        )
        for message in consumer.consume(1000, 0.3):
            if message.error():
                ended += 1
            else:
                kind, moment = message.timestamp()
                fields = (message.key(), message.value(), moment * 1000, kind - 1, message.headers())
                found.append((message.partition(), message.offset(), *fields))
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def from_the_files(data_dir: Path, parts: Any = None, **options: str) -> list[Any]:
    """The same from the log directory."""
    chosen = {"path": str(data_dir), "subscribe": TOPIC, "columns": ",".join(COLUMN_TYPES), **options}
    batches = [batch for part in parts or plan(understand(chosen)) for batch in read_part(*part)]
    table = pa.Table.from_batches(batches)
    columns = [table[name] for name in ("partition", "offset", "key", "value")]
    columns += [table["timestamp"].cast(pa.int64()), table["timestampType"], table["headers"]]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    pairs = lambda headers: headers and [(one["key"], one["value"]) for one in headers]  # noqa: E731
    return sorted(((*row[:-1], pairs(row[-1])) for row in rows), key=lambda row: row[:2])


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_files_and_broker_tell_the_same(broker: Any, isolation: str) -> None:
    """Every codec, nulls, headers, times; aborted, committed and open transactions over several segments."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.isolation.level": isolation}
    expected = through_the_broker(broker.bootstrap, isolation)
    assert len(expected) > 6000
    assert len(list(broker.data_dir.glob(f"{TOPIC}-*/*.log"))) > 2 * PARTITIONS
    assert from_the_files(broker.data_dir, **options) == expected


def test_a_trimmed_start_is_respected_inside_a_segment(broker: Any) -> None:
    """The broker says where its log begins, at once; a plan from before that reads what it planned."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "columns": ",".join(COLUMN_TYPES)}
    before = plan(understand({"path": str(broker.data_dir), "subscribe": TOPIC, **options}))
    everything = through_the_broker(broker.bootstrap, "read_committed")
    trimmed = {Place(TOPIC, 0): 777, Place(TOPIC, 1): 2100}
    Brokers(BrokerSettings(bootstrap=broker.bootstrap)).delete_records(trimmed)
    expected = through_the_broker(broker.bootstrap, "read_committed")
    assert 0 < len(expected) < len(everything)
    assert from_the_files(broker.data_dir, **options) == expected
    assert from_the_files(broker.data_dir, before) == everything
    with pytest.raises(MissingRecords, match="goes from offset 777"):
        from_the_files(broker.data_dir, **options, startingOffsets=f'{{"{TOPIC}": {{"0": 3, "1": -2}}}}')


def test_of_a_stopped_broker_the_checkpoints_tell(broker: Any) -> None:
    """Ends, starts and transactions without anybody to ask. It comes last: the broker is gone then."""
    expected = {level: through_the_broker(broker.bootstrap, level) for level in ("read_committed", "read_uncommitted")}
    broker.stop()
    for level, rows in expected.items():
        assert from_the_files(broker.data_dir, **{"kafka.isolation.level": level}) == rows

"""Compacted logs: Barnabas' under Apache Kafka, and Kafka's under Barnabas.

RULES    1. Both cleaners keep the same records of a log; the batches differ only in the empty ones that Barnabas keeps at
            the end of a segment.
         2. Kafka's DumpLogSegments accepts our files; a Kafka broker serves them and compacts them further.
         3. Barnabas serves a directory that Kafka has compacted, to read_committed consumers too, and compacts it further.
            Likewise if Kafka was killed during the compaction, although no checkpoint says up to where it compacted.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import ResourceType

from barnabas import Broker
from protocol.records import BatchHeader, headers, records
from storage.config.log_config import LogConfig
from storage.io.checkpoint_file import read_offsets
from storage.io.disk import Disk
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.segments.segment_engine import SegmentEngine
from tests.conformance.test_segment_files import COMPLAINTS, dump
from tests.support.compaction import compact
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.librdkafka import create_topic, read_to_end, set_configs, transactional_producer
from tests.support.logs import EVERYTHING, bytes_of
from tests.support.waiting import until

pytestmark = pytest.mark.long

TOPIC = "compacted"
SEGMENT_BYTES = 1_048_576
SETTINGS = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 200}
NEVER: dict[str, Any] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "1.0",
}
SOON: dict[str, Any] = {**NEVER, "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "1000"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ROUNDS = 200
WAIT_S = 60.0

Seen = list[tuple[int, bytes | None, bytes | None]]


def produce(bootstrap: str, seed: int, rounds: int = ROUNDS) -> None:
    """Values and tombstones of few keys, by idempotent and other producers of every codec."""
    rng = random.Random(seed)
    producers = [
        Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5, "enable.idempotence": idem}
        )
        for codec in CODECS
        for idem in (False, True)
    ]
    for _ in range(rounds):
        producer = rng.choice(producers)
        for _ in range(rng.choice((1, 5, 200))):
            value = None if rng.random() < 0.1 else rng.randbytes(rng.choice((10, 500)))
            producer.produce(TOPIC, key=b"k%d" % rng.randrange(60), value=value, headers=[("h", b"1")])
        assert producer.flush(WAIT_S) == 0


def transact(bootstrap: str, seed: int) -> None:
    rng = random.Random(seed)
    producer = transactional_producer(bootstrap, "x", compression_type="lz4")
    for number in range(20):
        producer.begin_transaction()
        for _ in range(rng.choice((1, 30))):
            producer.produce(TOPIC, key=b"t%d" % rng.randrange(20), value=b"%d:" % number + rng.randbytes(20))
        producer.flush(WAIT_S)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(WAIT_S)


def consumed(bootstrap: str) -> Seen:
    """Offset, key and value of all committed records."""
    found = read_to_end(bootstrap, TOPIC, isolation="read_committed")
    return [(message.offset() or 0, message.key(), message.value()) for message in found]


def end_of(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "c"})
    end: int = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), WAIT_S)[1]
    consumer.close()
    return end


def cleaned_to(data: Path) -> int:
    return read_offsets(Disk(), str(data / "cleaner-offset-checkpoint")).get((TOPIC, 0), 0)


def active_base(data: Path) -> int:
    return max(int(path.stem) for path in (data / f"{TOPIC}-0").glob("*.log"))


def log_in(data: Path, **settings: Any) -> Log:
    """The partition's log, opened while no broker serves it."""
    disk = Disk()
    config = replace(LogConfig(), cleanup_policy=frozenset({"compact"}), segment_bytes=SEGMENT_BYTES, **settings)
    log = Log(disk, lambda path, given: SegmentEngine(disk, path, given), str(data), TOPIC, 0, config)
    log.open()
    log.high_watermark = log.log_end_offset
    return log


def batches(log: Log) -> Iterator[tuple[BatchHeader, list[Any]]]:
    data = bytes_of(log)
    for position, header in headers(data):
        yield header, records(data, position, header, max_bytes=EVERYTHING)


def summary(log: Log) -> list[tuple[Any, ...]]:
    """What both cleaners must produce: the headers except sizes, checksums and delete horizons."""
    return [
        (
            header.base_offset, header.last_offset, header.attributes, header.leader_epoch, header.max_timestamp,
            header.producer_id, header.producer_epoch, header.base_sequence, found,
        )
        for header, found in batches(log)
        if found
    ]  # fmt: skip


def empty(log: Log) -> set[int]:
    """Base offsets of the batches without records."""
    return {header.base_offset for header, found in batches(log) if not found}


def accepted(files: list[Path], *options: str) -> None:
    """Kafka's tool reports only faults that its own compaction causes: missing offsets, and time index entries of a batch that
    has become empty.
    """
    faults = [word for word in COMPLAINTS if word not in {"invalid", "is followed by", "mismatch"}]
    text = dump(files, *options, complaints=faults)
    wrong = [line for line in text.splitlines() if line.strip().startswith("Index timestamp:")]
    assert all(line.endswith("log timestamp: -1") for line in wrong), wrong


@needs_kafka
def test_both_cleaners_keep_the_same(tmp_path: Path) -> None:
    """Rules 1 and 3: of a log that Kafka wrote one copy is compacted by Barnabas, the other by Kafka."""
    data, ours = tmp_path / "kafka", tmp_path / "ours"
    with ApacheKafka(SETTINGS, data_dir=data) as kafka:
        create_topic(kafka.bootstrap, TOPIC, **NEVER)
        produce(kafka.bootstrap, seed=1)
        transact(kafka.bootstrap, seed=2)
        produce(kafka.bootstrap, seed=3)
        before = consumed(kafka.bootstrap)
    shutil.copytree(data, ours)
    log = log_in(ours)
    cleaned = compact(log, int(1000 * os.stat(data).st_mtime))
    assert cleaned is not None
    with ApacheKafka(SETTINGS, data_dir=data) as kafka:
        set_configs(kafka.bootstrap, ResourceType.TOPIC, TOPIC, {**SOON, "delete.retention.ms": "86400000"})
        until(lambda: cleaned_to(data) >= active_base(data), "Kafka's cleaner", WAIT_S)
        after = consumed(kafka.bootstrap)
    theirs = log_in(data)
    assert summary(log) == summary(theirs)
    assert empty(theirs) <= empty(log), "what Kafka keeps for producers we keep too"
    ends = {segment.end_offset for segment in log.open().engine.segments()}
    rest = empty(log) - empty(theirs)
    assert {header.next_offset for header, _ in batches(log) if header.base_offset in rest} <= ends
    aborted = [found[:3] for found in wait_for_disk(theirs.open().engine.aborted, 0, theirs.log_end_offset)]
    assert [found[:3] for found in wait_for_disk(log.open().engine.aborted, 0, log.log_end_offset)] == aborted
    log.close()
    theirs.close()
    assert len(after) < len(before)
    for directory in (data, ours):
        with Broker(directory) as broker:
            assert consumed(broker.bootstrap) == after
            produce(broker.bootstrap, seed=4, rounds=3)


@needs_kafka
def test_kafka_serves_what_we_have_compacted(tmp_path: Path) -> None:
    """Rule 2, over several rounds with expired tombstones; then Kafka's cleaner continues."""
    data = tmp_path / "data"
    ours = {"log.cleaner.backoff.ms": 100, "offsets.topic.num.partitions": 1}
    with Broker(data, settings=ours) as broker:
        create_topic(broker.bootstrap, TOPIC, **SOON)
        for seed in range(3):
            produce(broker.bootstrap, seed)
            until(lambda: cleaned_to(data) >= active_base(data), "our cleaner", WAIT_S)
        seen, end = consumed(broker.bootstrap), end_of(broker.bootstrap)
    files = sorted((data / f"{TOPIC}-0").glob("*.log"))
    assert len(seen) < end / 2
    accepted(files, "--deep-iteration")
    accepted(sorted(path for path in (data / f"{TOPIC}-0").iterdir() if path.suffix in {".index", ".timeindex"}))
    with ApacheKafka(SETTINGS, data_dir=data) as kafka:
        assert (consumed(kafka.bootstrap), end_of(kafka.bootstrap)) == (seen, end)
        produce(kafka.bootstrap, seed=9)
        until(lambda: cleaned_to(data) >= active_base(data), "Kafka's cleaner", WAIT_S)
        after = consumed(kafka.bootstrap)
    with Broker(data, settings=ours) as broker:
        assert consumed(broker.bootstrap) == after


@needs_kafka
def test_no_record_is_lost_after_kafka_was_killed_during_a_compaction(tmp_path: Path) -> None:
    """Rule 3, for segments that lose only their end, and nearly everything; the files are then served by Kafka again."""
    data, last = tmp_path / "data", {}
    slow = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": 8 * SEGMENT_BYTES}
    with ApacheKafka(slow, data_dir=data) as kafka:
        create_topic(kafka.bootstrap, TOPIC, **NEVER)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
        for number in range(20 * 2500):  # of 20 segments
            key = b"own%d" % number if number % 5000 < 250 else b"k%d" % (number % 3)
            last[key] = number
            producer.produce(TOPIC, key=key, value=bytes(400))
            if number % 250 == 249:
                assert producer.flush(WAIT_S) == 0
        del producer
        set_configs(kafka.bootstrap, ResourceType.TOPIC, TOPIC, SOON)
        replaced = (data / f"{TOPIC}-0").glob
        until(lambda: len(list(replaced("*.log.deleted"))) > 3, "Kafka's cleaner", WAIT_S)
        kafka.kill()
    assert not cleaned_to(data)
    for _ in ("after the kill of Kafka", "after a kill of its own"):
        with Broker(data) as broker:
            assert {key: offset for offset, key, _ in consumed(broker.bootstrap)} == last
            assert end_of(broker.bootstrap) == 20 * 2500
            broker.kill()
    with ApacheKafka(SETTINGS, data_dir=data) as kafka:
        assert {key: offset for offset, key, _ in consumed(kafka.bootstrap)} == last

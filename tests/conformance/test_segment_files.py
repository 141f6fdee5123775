"""Segment files: ours read by Apache Kafka's DumpLogSegments, Kafka's read by our engine.

RULES    1. Kafka's tool accepts every file: logs record by record, indexes entry by entry.
         2. Our engine opens, reads, searches and recovers Kafka's files; the indexes that it rebuilds for Kafka's log are
            Kafka's byte for byte.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.control_records import ControlType, end_txn_marker
from protocol.records import crc_is_valid, headers, records
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction
from storage.io.disk import Disk
from storage.segments.indexes import OffsetIndex, TimeIndex
from storage.segments.segment_engine import SegmentEngine
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.librdkafka import create_topic
from tests.support.segments import NOW_MS, append, contents, opened, read

DUMP = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = ("Mismatches in", "mismatch", "out of order", "Exception", "corrupt", "invalid", "is followed by")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOT_A_FAULT = "-1 is followed by"  # of the first offset in a file, when it is not 0


def dump(files: list[Path], *options: str, complaints: Sequence[str] = COMPLAINTS) -> str:
    """The output of Kafka's tool for these files, in one JVM."""
    done = run_tool(DUMP, *options, "--files", ",".join(str(file) for file in files))
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-3000:]
    lines = [line for line in text.splitlines() if "isvalid: true" not in line and NOT_A_FAULT not in line]
    found = [line for line in lines if any(word in line for word in complaints)]
    assert not found, found[:10]
    assert "isvalid: false" not in text
    return text


def random_batch(rng: random.Random, offset: int, now_ms: int) -> bytes:
    """A random batch with this base offset."""
    builder = BatchBuilder(offset, compression=rng.choice(list(Compression)), leader_epoch=3)
    for _ in range(rng.choice((1, 1, 2, 20))):
        value = None if rng.random() < 0.05 else rng.randbytes(rng.choice((0, 10, 300, 3000)))
        builder.append(now_ms + rng.randrange(-500, 500), rng.choice((None, b"", b"key")), value, [("h", b"1")])
    return bytes(builder.build())


def aborted_marker(now_ms: int, offset: int) -> bytes:
    given = {"producer_id": 9, "producer_epoch": 0, "coordinator_epoch": 0, "leader_epoch": 3}
    return bytes(end_txn_marker(ControlType.ABORT, timestamp_ms=now_ms, base_offset=offset, **given))


def write_log(directory: Path, seed: int, batches: int, config: LogConfig) -> SegmentEngine:
    """A log of random batches with some aborted transactions."""
    rng = random.Random(seed)
    engine = opened(directory, config)
    for number in range(batches):
        if number % 50 == 49:
            first = engine.end_offset
            builder = BatchBuilder(first, producer_id=9, producer_epoch=0, base_sequence=number, transactional=True)
            builder.append(NOW_MS + 100 * number, None, b"aborted")
            append(engine, bytes(builder.build()))
            append(engine, aborted_marker(NOW_MS + 100 * number, first + 1))
            engine.add_aborted(AbortedTransaction(9, first, first + 1, first))
        append(engine, random_batch(rng, engine.end_offset, NOW_MS + 100 * number))
    return engine


@needs_kafka
def test_kafka_accepts_every_file_we_write(tmp_path: Path) -> None:
    """Rule 1: closed, truncated and continued, recovered; small and large indexes."""
    small = LogConfig(segment_bytes=100_000, index_interval_bytes=1000)
    write_log(tmp_path / "small-0", 1, 400, small).close()
    write_log(tmp_path / "large-0", 2, 400, LogConfig()).close()

    cut = write_log(tmp_path / "cut-0", 3, 200, small)
    cut.truncate(cut.end_offset // 2)
    rng = random.Random(4)
    for number in range(100):
        append(cut, random_batch(rng, cut.end_offset, NOW_MS + 10_000 + number))
    cut.trim(cut.segments()[1].base_offset)
    cut.close()

    write_log(tmp_path / "torn-0", 5, 200, small)  # not closed, so its indexes are incomplete
    last = max((tmp_path / "torn-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-30])
    torn = SegmentEngine(Disk(), str(tmp_path / "torn-0"), small)
    torn.recover(torn.open(0) or 0, lambda *_: None)
    torn.close()

    write_log(tmp_path / "empty-0", 6, 3, small).roll(NOW_MS)
    files = sorted(path for path in tmp_path.glob("*-0/*") if not path.name.endswith(".deleted"))
    suffixes = {path.suffix for path in files}
    assert suffixes == {".log", ".index", ".timeindex", ".txnindex"}
    text = dump(files, "--deep-iteration", "--print-data-log")
    assert text.count("Dumping ") == len(files)
    assert text.count("producerId: 9 ") > 4
    indexes = [path for path in files if path.suffix in {".index", ".timeindex"}]
    text = dump(indexes, "--index-sanity-check")
    assert text.count("passed sanity check") + text.count("is empty") == len(indexes)


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partition directories from Kafka: one per codec after a clean shutdown, and one after a kill."""
    data, copies = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("copies")
    settings = {"log.segment.bytes": 1_048_576, "log.index.interval.bytes": 2000, "log.retention.ms": -1}
    with ApacheKafka(settings, data_dir=data) as kafka:
        for name in (*CODECS, "killed"):
            create_topic(kafka.bootstrap, name)
        for seed in (0, 10):
            for number, codec in enumerate(CODECS):
                produce(kafka.bootstrap, codec, codec, seed + number)
            kafka.stop()
            if not seed:
                kafka.start()
        for codec in CODECS:
            shutil.copytree(data / f"{codec}-0", copies / f"{codec}-0")
        kafka.start()
        produce(kafka.bootstrap, "killed", "none", seed=20)
        kafka.kill()
        shutil.copytree(data / "killed-0", copies / "killed-0")
    return copies


def produce(bootstrap: str, topic: str, codec: str, seed: int) -> None:
    """Records of various sizes with unordered timestamps, in batches of various sizes."""
    rng = random.Random(seed)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 2, "batch.size": 20_000, "acks": 1}
    )
    for number in range(1500):
        value = rng.randbytes(rng.choice((1, 100, 1000, 4000)))
        producer.produce(topic, value, b"k%d" % number, timestamp=NOW_MS + 10 * number + rng.randrange(-99, 99))
        if number % 50 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0


def partition(data: Path, name: str, target: Path) -> Path:
    """A copy of a partition's directory."""
    return Path(shutil.copytree(data / f"{name}-0", target / f"{name}-0"))


def engine_of(directory: Path) -> SegmentEngine:
    """An engine with the configs of `kafkas`."""
    return SegmentEngine(Disk(), str(directory), LogConfig(segment_bytes=1_048_576, index_interval_bytes=2000))


@needs_kafka
@pytest.mark.parametrize("codec", CODECS)
def test_what_kafka_wrote_is_opened_read_and_found(kafkas: Path, tmp_path: Path, codec: str) -> None:
    """Rule 2: every batch, by offset and by timestamp."""
    directory = partition(kafkas, codec, tmp_path)
    engine = engine_of(directory)
    assert engine.open(None) is None
    assert engine.end_offset == 3000
    offset = 0
    times = []
    while offset < engine.end_offset:
        data = read(engine, offset)
        for position, header in headers(data):
            assert header.base_offset == offset
            assert crc_is_valid(data, position, header)
            found = records(data, position, header, max_bytes=1 << 24)
            assert [record.offset for record in found] == list(range(offset, header.next_offset))
            assert bytes(read(engine, header.last_offset, 1)) == data[position : position + header.size]
            times.append((header.max_timestamp, header.base_offset))
            offset = header.next_offset
    for target in range(NOW_MS - 200, NOW_MS + 15_300, 333):
        expected = next((base for time, base in times if time >= target), None)
        assert engine.view().find_timestamp(target, 0) == expected
    assert engine.view().max_timestamp() is not None
    assert engine.view().max_timestamp()[0] == max(times)[0]  # type: ignore[index]


@needs_kafka
@pytest.mark.parametrize("codec", CODECS)
def test_indexes_built_for_kafkas_log_are_kafkas(kafkas: Path, tmp_path: Path, codec: str) -> None:
    """Rule 2: recovery rebuilds the same files."""
    directory = partition(kafkas, codec, tmp_path)
    before = contents(directory)
    engine = engine_of(directory)
    assert engine.open(0) == 0
    engine.recover(0, lambda *_: None)
    engine.close()
    after = contents(directory)
    differing = [name for name in before if before[name] != after[name]]
    # The restart is within one segment, where Kafka restarts the byte count of the index interval.
    assert len({name[:20] for name in differing}) <= 1
    assert len(before) > 6
    for name in differing:
        kind = OffsetIndex if name.endswith(".index") else TimeIndex
        theirs, ours = entries(kind, before[name], tmp_path), entries(kind, after[name], tmp_path)
        assert theirs[:3] == ours[:3]
        assert abs(len(theirs) - len(ours)) <= 2


def entries(kind: type[OffsetIndex | TimeIndex], data: bytes, directory: Path) -> list[tuple[int, int]]:
    path = directory / "entries"
    path.write_bytes(data)
    index = kind(Disk(), str(path), 0)
    return [index.entry(slot) for slot in range(index.entries)]


@needs_kafka
def test_a_partition_of_a_killed_kafka_is_recovered(kafkas: Path, tmp_path: Path) -> None:
    """Rule 2: preallocated indexes filled with zeros, and a log end that may be torn."""
    directory = partition(kafkas, "killed", tmp_path)
    logs = {name: data for name, data in contents(directory).items() if name.endswith(".log")}
    sizes = [path.stat().st_size for path in directory.glob("*index")]
    assert max(sizes) >= 10_000_000
    engine = engine_of(directory)
    assert engine.open(0) == 0
    engine.recover(0, lambda *_: None)
    assert engine.end_offset == 1500
    engine.close()
    assert {name: data for name, data in contents(directory).items() if name.endswith(".log")} == logs
    files = [path for path in directory.iterdir() if path.suffix in {".log", ".index", ".timeindex"}]
    dump(files, "--deep-iteration")
    assert max(os.stat(path).st_size for path in directory.glob("*index")) < 100_000

"""Flushing, rolling, deletion and damaged logs: this broker and Apache Kafka behave alike.

RULES    1. One directory is filled and stopped cleanly; some of its files are then damaged or replaced. Each broker starts with
            a copy of it.
         2. The first retention check runs soon after the start, then one every second: Apache Kafka's first check may precede
            the partition's leadership, and then deletes nothing.
         3. Tests wait only for events that must happen; segments roll by record timestamps.
NOT HERE Rolling by size and index, retention (test_segments_and_retention.py); DeleteRecords errors (test_log_answers.py).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest

from barnabas import Broker
from protocol.batch_builder import BatchBuilder
from protocol.records import crc_is_valid, headers
from storage.config.log_config import LogConfig
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import LOG_STARTS, RECOVERY_POINTS, read_offsets, write_offsets
from storage.io.disk import Disk
from tests.conformance.brokers import KAFKA, delete_records, fetched, offset_at, running
from tests.conformance.suite.partition_readiness import await_partitions
from tests.support.data_directory import change_logs
from tests.support.follower_harness import BOTH
from tests.support.loading import create, end_offset, load, produce_request
from tests.support.logs import append_records
from tests.support.raw_client import RawClient
from tests.support.waiting import until

FIRST = "00000000000000000000"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FOREVER = str(2**63 - 1)
SETTINGS = {
    "log.initial.task.delay.ms": "300",
    "log.retention.check.interval.ms": "1000",
    "log.flush.interval.ms": "100",
    "log.flush.scheduler.interval.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "100",
}
SMALL = {"internal.segment.bytes": "1000", "retention.ms": str(2 * DAY_MS)}
KEPT, GONE = {"file.delete.delay.ms": str(HOUR_MS)}, {"file.delete.delay.ms": "100"}
JITTER = {"segment.ms": "100000", "retention.ms": "-1"}
LOGS = 24
TOPICS: dict[str, dict[str, str]] = {
    "damaged": {},
    "expired": {**SMALL, **KEPT},
    "expired-gone": {**SMALL, **GONE},
    "trimmed": {**SMALL, **KEPT, "retention.ms": "-1"},
    "trimmed-gone": {**SMALL, **GONE, "retention.ms": "-1"},
    "left-over": {"retention.ms": "-1"},
    "far": {},
    "far-within-a-batch": {},
    "flush-by-default": {},
    "flush-by-topic": {"flush.ms": "200"},
    "flush-never": {"flush.ms": FOREVER},
    "jitter": {**JITTER, "segment.jitter.ms": "40000"},
    "jitter-of-one": {**JITTER, "segment.jitter.ms": "1"},
}
FAR = 2**31 - 1
"""The last offset that fits in a segment with base offset 0."""


def record(timestamp_ms: int, count: int = 1, base_offset: int = 0, value: bytes = b"x" * 100) -> bytes:
    builder = BatchBuilder(base_offset)
    for _ in range(count):
        builder.append(timestamp_ms, b"key", value)
    return bytes(builder.build())


@pytest.fixture(scope="module")
def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, now_ms: int) -> Path:
    """The directory of rule 1."""
    path = tmp_path_factory.mktemp("made") / "data"
    with Broker(data_dir=path) as broker, RawClient(broker.bootstrap) as client:
        for name, settings in TOPICS.items():
            create(client, name, partitions=LOGS if name.startswith("jitter") else 1, **settings)
    change_logs(path, lambda manager: fill(manager, now_ms))
    damaged = path / "damaged-0" / f"{FIRST}.log"
    content = bytearray(damaged.read_bytes())
    content[content.index(b"value 2")] ^= 1
    damaged.write_bytes(content)
    starts = path / LOG_STARTS
    moved = {("trimmed", 0): 2, ("trimmed-gone", 0): 2}
    write_offsets(Disk(), str(starts), {**read_offsets(Disk(), str(starts)), **moved})
    for name in (f"{FIRST}.log.deleted", f"{FIRST}.index.deleted", f"{7:020}.snapshot.deleted"):
        (path / "left-over-0" / name).write_bytes(b"")
    for name in ("far", "far-within-a-batch"):
        (path / f"{name}-0" / f"{FIRST}.log").write_bytes(record(now_ms, base_offset=FAR - 2))
    return path


def fill(manager: LogManager, now_ms: int) -> None:
    """The content of the logs before the brokers start."""
    for name in ("damaged", "expired", "expired-gone", "trimmed", "trimmed-gone"):
        log = manager.logs.get((name, 0))
        assert log is not None
        log.update_config(LogConfig(segment_bytes=1000))
        age_ms = 0 if name == "damaged" else 5 * DAY_MS
        for number in range(5):
            value = b"value %d" % number if name == "damaged" else b"x" * 700
            batch = record(now_ms - age_ms * (number < 3) + number, value=value)
            append_records(log, bytearray(batch), wall_ms=now_ms)
        log.high_watermark = log.log_end_offset


class Node(NamedTuple):
    """A broker and its log directory."""

    client: RawClient
    bootstrap: str
    directory: Path
    is_kafka: bool = False

    def files(self, name: str, index: int = 0) -> list[str]:
        return sorted(path.name for path in (self.directory / f"{name}-{index}").iterdir() if path.name[0] == "0")

    def bases(self, name: str, index: int = 0) -> list[int]:
        """The base offsets of a partition's segments."""
        return [int(file.split(".")[0]) for file in self.files(name, index) if file.endswith(".log")]

    def begins_with(self, name: str, base: int) -> bool:
        """Whether the first segment of partition 0 has this base offset."""
        return self.bases(name)[:1] == [base]

    def is_flushed(self, name: str, offset: int) -> bool:
        """Whether the checkpoint has this recovery point for partition 0."""
        return self.recovery_points().get((name, 0)) == offset

    def start(self, name: str) -> int:
        return self.found_at(name, -2)

    def found_at(self, name: str, timestamp_ms: int) -> int:
        found = offset_at(self.client, name, timestamp_ms)
        assert found.error_code == 0, found
        return int(found.offset)

    def fetched(self, name: str, offset: int) -> tuple[int, int, bytes]:
        found = fetched(self.client, name, offset)
        return found.error_code, found.high_watermark, bytes(found.records or b"")

    def recovery_points(self) -> dict[tuple[str, int], int]:
        """The recovery point checkpoint."""
        return dict(read_offsets(Disk(), str(self.directory / RECOVERY_POINTS)))


@pytest.fixture(scope="module", params=BOTH)
def node(request: pytest.FixtureRequest, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker that has started with a copy of the directory."""
    path = shutil.copytree(made, tmp_path_factory.mktemp(request.param) / "data")
    with running(request.param, SETTINGS, path) as broker, RawClient(broker.bootstrap) as client:
        node = Node(client, broker.bootstrap, path, request.param == KAFKA)
        for name in TOPICS:
            await_partitions(broker.bootstrap, name, LOGS if name.startswith("jitter") else 1)
        yield node


# ------------------------------------------------------------ a damaged batch
def test_a_wrong_crc_below_the_recovery_point_is_left_to_the_reader(node: Node, made: Path) -> None:
    """After a clean shutdown there is no recovery: the end offset stays, and the damaged bytes are served unchanged."""
    content = (made / "damaged-0" / f"{FIRST}.log").read_bytes()
    valid = [crc_is_valid(content, position, header) for position, header in headers(content)]
    assert valid == [True, True, False, True, True]
    assert (node.start("damaged"), end_offset(node.client, "damaged")) == (0, 5)
    assert node.fetched("damaged", 0) == (0, 5, content)


def test_a_consumer_that_checks_crcs_finds_the_damage_and_may_seek_past_it(node: Node) -> None:
    """librdkafka with check.crcs."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "none", "check.crcs": True, "enable.auto.commit": False}
    )
    try:
        found = {start: consumed(consumer, start) for start in (0, 3)}
    finally:
        consumer.close()
    assert found == {0: [0, 1, "_BAD_MSG"], 3: [3, 4]}


def consumed(consumer: confluent_kafka.Consumer, offset: int) -> list[object]:
    """Offsets up to the last one or the first error."""
    consumer.assign([confluent_kafka.TopicPartition("damaged", 0, offset)])
    found: list[object] = []
    while not found or found[-1] not in (4, "_BAD_MSG"):
        message = consumer.poll(20)
        assert message is not None, found
        error = message.error()
        found.append(message.offset() if error is None else error.name())
    return found


def test_times_are_found_before_and_after_the_damage(node: Node, now_ms: int) -> None:
    """The damaged batch is found too: only a reader verifies its CRC."""
    assert [node.found_at("damaged", now_ms + number) for number in (0, 2, 4, 5)] == [0, 2, 4, -1]


# ------------------------------------------------------------ flushing
def test_the_recovery_point_follows_flush_ms_without_further_appends(node: Node, now_ms: int) -> None:
    """With the broker's default and the topic's own flush.ms; a log that is never flushed keeps its recovery point.

    Ours stays before the last record of the active segment, so that a start verifies its indexes.
    """
    names = ("flush-by-default", "flush-by-topic", "flush-never")
    for name in names:
        load(node.client, name, [record(now_ms)] * 3)
    flushed = 3 if node.is_kafka else 2
    for name in names[:2]:
        until(partial(node.is_flushed, name, flushed), f"{name} is flushed")
    assert node.recovery_points().get(("flush-never", 0), 0) == 0


# ------------------------------------------------------------ rolling
def test_a_segment_rolls_after_segment_ms_less_part_of_the_jitter(node: Node, now_ms: int) -> None:
    """A batch every two seconds: each log rolls between 60 and 100 s, at different offsets."""
    for number in range(52):
        send_to_all(node.client, "jitter", record(now_ms - 200_000 + number * 2000))
    rolled = [node.bases("jitter", index)[1:] for index in range(LOGS)]
    assert {len(bases) for bases in rolled} == {1}
    seconds = {bases[0] * 2 for bases in rolled}
    assert seconds <= set(range(62, 104, 2))
    assert len(seconds) > 3


def test_the_jitter_itself_is_never_reached(node: Node, now_ms: int) -> None:
    """The jitter is an exclusive bound: with one millisecond nothing is random."""
    for at_ms in (0, 100_000, 100_001):
        send_to_all(node.client, "jitter-of-one", record(now_ms - 200_000 + at_ms))
    assert [node.bases("jitter-of-one", index) for index in range(LOGS)] == [[0, 2]] * LOGS


def send_to_all(client: RawClient, name: str, batch: bytes) -> None:
    """One batch to each partition, in one request."""
    answer = client.ask(produce_request({name: [batch] * LOGS}), 9)
    assert {row.error_code for row in answer.responses[0].partition_responses} == {0}


def test_a_segment_ends_where_relative_offsets_do(node: Node, now_ms: int) -> None:
    """An offset more than 2**31 - 1 above the base offset starts a new segment; a batch is never split."""
    load(node.client, "far", [record(now_ms)] * 3)
    load(node.client, "far-within-a-batch", [record(now_ms, 3), record(now_ms)])
    assert node.bases("far") == [0, FAR + 1]
    assert node.bases("far-within-a-batch") == [0, FAR - 1]
    for name, batches in (("far", [1, 1, 1, 1]), ("far-within-a-batch", [1, 3, 1])):
        assert end_offset(node.client, name) == FAR - 2 + sum(batches)
        found = b"".join(node.fetched(name, base)[2] for base in node.bases(name))
        assert [header.record_count for _, header in headers(found)] == batches


# ------------------------------------------------------------ deleting
@pytest.mark.parametrize("name", ["expired", "trimmed"])
def test_files_are_renamed_and_deleted_after_the_delay(node: Node, name: str) -> None:
    """Three of five segments have expired, or the log start offset is above two; a check (rule 2) renames them."""
    gone = 3 if name == "expired" else 2
    for topic_name in (name, f"{name}-gone"):
        until(partial(node.begins_with, topic_name, gone), f"the start of {topic_name} goes")
        assert (node.start(topic_name), end_offset(node.client, topic_name)) == (gone, 5)
    kept = [file for file in node.files(name) if file.endswith(".deleted") and "snapshot" not in file]
    assert kept == [f"{base:020}.{kind}.deleted" for base in range(gone) for kind in ("index", "log", "timeindex")]
    until(lambda: not any("deleted" in file for file in node.files(f"{name}-gone")), "files go")


def test_files_left_renamed_are_deleted_at_startup(node: Node) -> None:
    """A restart does not wait for file.delete.delay.ms."""
    until(lambda: node.files("left-over") == [f"{FIRST}.{kind}" for kind in ("index", "log", "timeindex")], "they go")


def test_deleting_records_within_a_segment_renames_nothing(node: Node) -> None:
    """DeleteRecords moves the log start offset only."""
    load(node.client, "left-over", [record(0, value=b"")] * 2)
    row = delete_records(node.client, "left-over", 1)
    assert (row.error_code, row.low_watermark) == (0, 1)
    assert (node.start("left-over"), node.bases("left-over")) == (1, [0])


def test_the_first_retention_check_waits_for_the_initial_delay_only(made: Path, tmp_path: Path) -> None:
    """Our log.initial.task.delay.ms, with an hour between checks; Apache Kafka's first check may be too early (rule 2)."""
    path = shutil.copytree(made, tmp_path / "data")
    settings = {**SETTINGS, "log.retention.check.interval.ms": HOUR_MS}
    with Broker(data_dir=path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        node = Node(client, broker.bootstrap, path)
        until(lambda: node.bases("expired-gone") == [3, 4], "the first look is over")

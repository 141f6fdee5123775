"""Dynamic configs of topics and brokers take effect without a restart, on this broker and on Apache Kafka alike.

Each config is changed by IncrementalAlterConfigs while a log is in use; the effect is observed in responses and files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.messages.produce_fetch import ListOffsetsRequest
from protocol.records import headers
from tests.conformance.brokers import EARLIEST, alter_configs, append, fetched, offset_at, running
from tests.support.config_cases import BROKER, DELETE_SETTING, GROUP, SET, TOPIC
from tests.support.follower_harness import BOTH
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.waiting import until

E = ErrorCode
SETTINGS = {
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "300",
    "log.retention.hours": "1",
    "log.retention.minutes": "10080",
    "log.cleaner.backoff.ms": "3600000",
}
DAY_MS = 86_400_000


class Node(NamedTuple):
    """A broker and its log directory."""

    client: RawClient
    directory: Path


@pytest.fixture(scope="module", params=BOTH)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    path = tmp_path_factory.mktemp("dynamic") / "data"
    with running(request.param, SETTINGS, path) as broker, RawClient(broker.bootstrap) as client:
        yield Node(client, path)


def alter(client: RawClient, kind: int, name: str, values: dict[str, object]) -> None:
    """Sets configs, or deletes them (None)."""
    changes = (
        (key.replace("_", "."), DELETE_SETTING if value is None else SET, None if value is None else str(value))
        for key, value in values.items()
    )
    alter_configs(client, kind, name, *changes)


@contextmanager
def changed(node: Node, name: str = "", **values: object) -> Iterator[None]:
    """Configs of the broker with this name ("" for all brokers) during the block."""
    alter(node.client, BROKER, name, values)
    yield
    alter(node.client, BROKER, name, dict.fromkeys(values))


class Topic:
    def __init__(self, node: Node, name: str) -> None:
        self.client = node.client
        self.name = name
        self.path = node.directory / f"{name}-0"
        create(self.client, name)
        until(lambda: self.produce() == E.NONE, "the topic takes records")

    def alter(self, **values: object) -> None:
        alter(self.client, TOPIC, self.name, values)

    def send(self, *, age_ms: int = 0, key: bytes | None = b"key", size: int = 10, acks: int = 1) -> Any:
        """Appends one record; the partition's response."""
        builder = BatchBuilder()
        builder.append(int(time.time() * 1000) - age_ms, key, bytes(size))
        return append(self.client, self.name, bytes(builder.build()), acks=acks)

    def produce(self, **record: Any) -> int:
        return int(self.send(**record).error_code)

    def becomes(self, code: ErrorCode, **record: Any) -> None:
        """Kafka's broker applies a change shortly after the response."""
        until(lambda: self.produce(**record) == code, f"records are answered with {code.name}")

    def codec(self) -> int:
        """Appends one record; the codec of the stored batch."""
        offset = self.send(size=1000).base_offset
        records = fetched(self.client, self.name, offset, max_wait_ms=500).records
        return [header.attributes & 7 for _, header in headers(records)][-1]

    def has_codec(self, codec: int) -> bool:
        return self.codec() == codec

    def start(self) -> int:
        return int(offset_at(self.client, self.name, EARLIEST).offset)

    def segments(self) -> int:
        return len(list(self.path.glob("*.log")))


def test_min_insync_replicas_above_the_number_of_replicas_has_no_effect(node: Node) -> None:
    """min.insync.replicas above the number of replicas has no effect."""
    t = Topic(node, "in-sync")
    t.alter(min_insync_replicas=2)
    t.alter(max_message_bytes=500)
    t.becomes(E.MESSAGE_TOO_LARGE, size=600)  # so the other change is applied too
    assert t.produce(acks=-1) == E.NONE


def test_the_limits_and_the_type_of_timestamps_change(node: Node) -> None:
    t = Topic(node, "timestamps")
    t.alter(message_timestamp_before_max_ms=DAY_MS)
    t.becomes(E.INVALID_TIMESTAMP, age_ms=2 * DAY_MS)
    t.alter(message_timestamp_before_max_ms=3 * DAY_MS, message_timestamp_after_max_ms=1000)
    t.becomes(E.NONE, age_ms=2 * DAY_MS)
    t.becomes(E.INVALID_TIMESTAMP, age_ms=-60_000)
    assert t.send().log_append_time_ms == -1
    t.alter(message_timestamp_type="LogAppendTime")
    until(lambda: t.send().log_append_time_ms > 0, "the broker's time is used")


def test_records_are_stored_with_the_new_compression_type(node: Node) -> None:
    t = Topic(node, "compression")
    assert t.codec() == Compression.NONE
    for text, codec in (("zstd", Compression.ZSTD), ("gzip", Compression.GZIP), ("uncompressed", Compression.NONE)):
        t.alter(compression_type=text)
        until(partial(t.has_codec, codec), f"records are stored as {text}")


def test_records_without_keys_are_refused_while_the_topic_is_compacted(node: Node) -> None:
    """A compacted topic requires keys."""
    t = Topic(node, "policy")
    assert t.produce(key=None) == E.NONE
    t.alter(cleanup_policy="compact")
    t.becomes(E.INVALID_RECORD, key=None)
    t.alter(cleanup_policy=None)
    t.becomes(E.NONE, key=None)


def test_a_segment_rolls_when_its_records_span_segment_ms(node: Node) -> None:
    """The record timestamps count, from the first one in the segment."""
    t = Topic(node, "by-time")
    t.alter(segment_ms=60_000)
    before = t.segments()
    until(lambda: t.produce(age_ms=-120_000) == E.NONE and t.segments() > before, "a segment is rolled by time")


def test_a_segment_rolls_when_its_index_is_full(node: Node) -> None:
    """One entry per batch and an index of four entries, from the next segment on."""
    t = Topic(node, "by-index")
    t.alter(index_interval_bytes=0, segment_index_bytes=48, segment_bytes=1 << 20)
    until(lambda: t.produce(size=900_000) == E.NONE and t.segments() > 1, "a segment is rolled by size")
    before = t.segments()
    for _ in range(20):
        assert t.produce(size=2000) == E.NONE
    assert t.segments() > before


def test_the_next_segment_is_preallocated(node: Node) -> None:
    """The next segment's space is reserved: Kafka extends the file, Barnabas allocates blocks only."""
    t = Topic(node, "preallocated")
    t.alter(preallocate="true", segment_bytes=1 << 20)

    def has_space() -> bool:
        assert t.produce(size=300_000) == E.NONE  # three of them fill a segment, and take less than its space
        files = [path.stat() for path in t.path.glob("*.log")]
        return any(max(file.st_size, file.st_blocks * 512) >= 1 << 20 for file in files)

    until(has_space, "a segment is preallocated")


def test_retention_ms_deletes_expired_records(node: Node) -> None:
    """Expired records are deleted at the next check; -1 keeps them."""
    t = Topic(node, "retention-time")
    other = Topic(node, "no-retention")
    for each in (t, other):
        each.alter(retention_ms=-1)
        assert each.produce(age_ms=30 * DAY_MS) == E.NONE
    t.alter(retention_ms=1)
    until(lambda: t.start() > 1, "the records have gone")
    assert other.start() == 0


def test_retention_bytes_deletes_the_oldest_segment(node: Node) -> None:
    t = Topic(node, "retention-size")
    t.alter(segment_bytes=1 << 20)
    for _ in range(4):
        assert t.produce(size=900_000) == E.NONE
    assert t.start() == 0
    t.alter(retention_bytes=1 << 20)
    until(lambda: t.produce(size=900_000) == E.NONE and t.start() > 0, "the oldest segment has gone")


# ---- settings of brokers ----------------------------------------------------------------------------------


def test_a_topics_own_setting_wins_over_the_brokers_and_that_over_all_brokers(node: Node) -> None:
    t = Topic(node, "precedence")
    with changed(node, message_max_bytes=500):
        t.becomes(E.MESSAGE_TOO_LARGE, size=600)
        with changed(node, "1", message_max_bytes=5000):
            t.becomes(E.NONE, size=600)
            t.alter(max_message_bytes=300)
            t.becomes(E.MESSAGE_TOO_LARGE, size=600)
            t.alter(max_message_bytes=None)
            t.becomes(E.NONE, size=600)
        t.becomes(E.MESSAGE_TOO_LARGE, size=600)
    t.becomes(E.NONE, size=600)


def test_a_time_in_milliseconds_wins_over_one_in_minutes_and_hours(node: Node) -> None:
    """The file's log.retention.minutes is a week and not dynamic; log.retention.ms is."""
    t = Topic(node, "retention-of-all")
    with changed(node, log_retention_ms=1):
        until(lambda: t.start() > 0, "the records have gone")


def test_log_roll_ms_rolls_segments_of_all_topics(node: Node) -> None:
    """log.roll.ms replaces the default of a week."""
    t = Topic(node, "roll-of-all")
    before = t.segments()
    with changed(node, "1", log_roll_ms=60_000):
        until(lambda: t.produce(age_ms=-120_000) == E.NONE and t.segments() > before, "a segment is rolled by time")


def test_timestamp_and_compression_types_apply_to_all_topics(node: Node) -> None:
    t = Topic(node, "records-of-all")
    with changed(node, log_message_timestamp_type="LogAppendTime", compression_type="zstd"):
        until(lambda: t.send().log_append_time_ms > 0, "the broker's time is used")
        until(lambda: t.codec() == Compression.ZSTD, "records are stored as zstd")
    until(lambda: t.codec() == Compression.NONE, "records are stored as they come")


def test_a_shorter_cleaner_interval_applies_at_once(node: Node) -> None:
    """The cleaner does not wait for the end of the old interval, which is an hour."""
    t = Topic(node, "dirty")
    t.alter(cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.01)
    for _ in range(4):
        t.produce(size=900_000)

    def is_clean() -> bool:
        return sum(path.stat().st_size for path in t.path.glob("*.log")) < 2_500_000

    with changed(node, log_cleaner_backoff_ms=100, log_segment_delete_delay_ms=0):
        until(is_clean, "one record of each key is left")


def test_a_second_connection_of_an_address_is_refused_at_the_limit(node: Node) -> None:
    """Existing connections stay."""

    def is_served() -> bool:
        try:
            with RawClient(f"127.0.0.1:{node.client.socket.getpeername()[1]}") as another:
                another.ask(ListOffsetsRequest(topics=[]), 7)
        except (EOFError, OSError):
            return False
        return True

    with changed(node, max_connections_per_ip=1):
        until(lambda: not is_served(), "a second connection is refused")
    until(is_served, "it is not any more")


def heartbeat(client: RawClient, group: str, member: str) -> Any:
    joining = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=0)
    joining.rebalance_timeout_ms, joining.subscribed_topic_names, joining.topic_partitions = 60_000, ["t"], []
    return client.ask(joining, 1)


def has_coordinator(client: RawClient, group: str) -> bool:
    """Whether the group has a coordinator; the first request creates __consumer_offsets."""
    (found,) = client.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators
    return bool(found.error_code == E.NONE and heartbeat(client, group, "first").error_code == E.NONE)


def test_the_time_between_two_assignments_of_consumer_groups(node: Node) -> None:
    """A member that joins within the interval gets the same epoch as the first one; without an interval it gets its own."""

    def epoch_of_second() -> int:
        group = f"interval-{time.time()}"
        until(lambda: has_coordinator(node.client, group), "a coordinator")
        return int(heartbeat(node.client, group, "second").member_epoch)

    until(lambda: epoch_of_second() == 2, "one assignment")
    with changed(node, group_consumer_assignment_interval_ms=0):
        until(lambda: epoch_of_second() == 3, "an assignment for each")
    until(lambda: epoch_of_second() == 2, "one assignment again")


def test_a_group_has_settings_of_its_own(node: Node) -> None:
    """They take effect at the next heartbeat."""
    group = "of-its-own"
    until(lambda: has_coordinator(node.client, group), "a coordinator")
    alter(node.client, GROUP, group, {"consumer_heartbeat_interval_ms": 7000})
    until(lambda: heartbeat(node.client, group, "m").heartbeat_interval_ms == 7000, "its own interval")
    alter(node.client, GROUP, group, {"consumer_heartbeat_interval_ms": None})
    until(lambda: heartbeat(node.client, group, "m").heartbeat_interval_ms == 5000, "the broker's interval")

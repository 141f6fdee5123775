"""Committed offsets: records, expiry, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.classic.classic_group import ClassicGroup, State
from broker.coordinators.classic.group_records import (
    OffsetAndMetadata,
    commit_records,
    commit_tombstone,
    encode_commit_key,
    encode_commit_value,
    encode_plain_commit,
    is_plain_commit,
    read_commit_key,
    read_commit_value,
    to_offset_and_metadata,
)
from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.offset_manager import OffsetMetadataManager
from broker.coordinators.runtime.stored_records import encode_record
from protocol.codec import encode
from protocol.errors import ErrorCode, MalformedRequest
from protocol.messages.groups import (
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from protocol.messages.stored_records import OffsetCommitValue
from protocol.records import headers, parse_header, records
from tests.support.group_harness import START_WALL_MS, LocalGroupHarness
from tests.support.group_requests import commit_request, subscription
from tests.support.messages import message
from tests.unit.broker.coordinators.classic.test_classic_group import member
from tests.unit.broker.coordinators.runtime.test_coordinator_runtime import committed, stable_group

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS
NOW = 1_700_000_000_000
TOPIC_ID = b"0123456789abcdef"


def harness(**settings: Any) -> LocalGroupHarness:
    made = LocalGroupHarness(GroupSettings(initial_rebalance_delay_ms=0, **settings), offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    made.create_topic("t", 3)
    made.create_topic("u", 1)
    return made


def groups_of(made: LocalGroupHarness) -> list[str]:
    return [group.group_id for group in made.ask(ListGroupsRequest(), 5).groups]


# ---- records


@pytest.mark.parametrize("group_id", ["g", "", "Größe 😀", "g" * 9000])
@pytest.mark.parametrize(
    "committed",
    [
        OffsetAndMetadata(300, 7, "", NOW, -1, TOPIC_ID),
        OffsetAndMetadata(2**63 - 1, -1, "", 0, -1, TOPIC_ID),
        OffsetAndMetadata(-5, 2**31 - 1, "", NOW, -1, TOPIC_ID),
        OffsetAndMetadata(300, 7, "note", NOW, -1, TOPIC_ID),
        OffsetAndMetadata(300, 7, "", NOW, NOW + 5, TOPIC_ID),
        OffsetAndMetadata(300, 7, "", NOW),
    ],
)
def test_hand_encoded_commits_equal_the_codecs(group_id: str, committed: OffsetAndMetadata) -> None:
    is_usual = not committed.metadata and committed.expire_wall_ms < 0 and any(committed.topic_id)
    stored = plain_commit(committed) if is_usual else committed
    for record in commit_records(group_id, "t.x-y_z", [(0, stored), (2**31 - 1, stored)]):
        assert encode_record(record) == (encode_commit_key(*record.key), encode_commit_value(committed))
    assert to_offset_and_metadata(stored) == committed


def plain_commit(committed: OffsetAndMetadata) -> bytes:
    """A plain commit."""
    return encode_plain_commit(committed.offset, committed.leader_epoch, committed.commit_wall_ms, committed.topic_id)


def test_a_commit_is_written_as_kafka_writes_it() -> None:
    key, value = encode_record(commit_records("g", "t", [(2, OffsetAndMetadata(300, 7, "note", NOW, -1, TOPIC_ID))])[0])
    assert key == b"\0\1\0\1g\0\1t\0\0\0\2"
    assert value == (b"\0\4\0\0\0\0\0\0\1\x2c\0\0\0\7\5note\0\0\1\x8b\xcf\xe5\x68\0\1\0\x10" + TOPIC_ID)


def test_a_commit_with_an_expiry_is_written_in_version_1() -> None:
    _, value = encode_record(commit_records("g", "t", [(2, OffsetAndMetadata(300, 7, "", NOW, NOW + 5, TOPIC_ID))])[0])
    assert value is not None
    assert value[:2] == b"\0\1"
    assert read_commit_value(value) == OffsetAndMetadata(300, -1, "", NOW, NOW + 5)


def test_a_tombstone_has_no_value() -> None:
    assert encode_record(commit_tombstone("g", "t", 2)) == (b"\0\1\0\1g\0\1t\0\0\0\2", None)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("metadata", ["", "n\u00f6te", "x" * 200])
def test_a_commit_of_any_version_is_read(version: int, metadata: str) -> None:
    stored = OffsetCommitValue(
        offset=5,
        leader_epoch=3 if version >= 3 else -1,
        metadata=metadata,
        commit_timestamp=NOW,
        topic_id=TOPIC_ID if version >= 4 else bytes(16),
    )
    value = version.to_bytes(2, "big") + encode(stored, version)
    read = to_offset_and_metadata(value) if is_plain_commit(value) else read_commit_value(value)
    assert read == OffsetAndMetadata(5, stored.leader_epoch, metadata, NOW, -1, stored.topic_id)


def test_plain_commits_are_detected() -> None:
    for offset in (0, 1, 2**62):
        for leader_epoch in (-1, 0, 2**31 - 1):
            _, value = encode_record(
                commit_records("g", "t", [(0, OffsetAndMetadata(offset, leader_epoch, "", NOW, -1, TOPIC_ID))])[0]
            )
            assert value is not None
            assert is_plain_commit(value)
            assert to_offset_and_metadata(value) == read_commit_value(value)


@pytest.mark.parametrize(
    "key",
    [b"\0\1", b"\0\1\0\1", b"\0\1\0\1g\0\1t\0\0\0", b"\0\1\0\1g\0\1t\0\0\0\1\0", b"\0\1\xff\xff\0\1t\0\0\0\1",
     b"\0\1\0\1\xff\0\1t\0\0\0\1", b"\0\1\0\5g\0\1t\0\0\0\1", b"\0\1\0\1g\xff\xff\0\0\0\1"],
)  # fmt: skip
def test_a_truncated_key_is_malformed(key: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_commit_key(key)


@pytest.mark.parametrize(
    "value", [b"", b"\0", b"\0\5" + bytes(50), b"\xff\xff" + bytes(50), b"\0\4\0", b"\0\3" + bytes(9)]
)
def test_a_truncated_value_is_malformed(value: bytes) -> None:
    assert not is_plain_commit(value)
    with pytest.raises(MalformedRequest):
        read_commit_value(value)


def test_commits_store_the_topic_id_in_every_version() -> None:
    made = harness()
    made.ask(commit_request(5), 8)
    (batch,) = made.logs[0].batches
    ((at, header),) = headers(batch)
    (record,) = records(batch, at, header, max_bytes=10_000)
    assert record.value is not None
    assert to_offset_and_metadata(record.value).topic_id == made.topic_id("t")
    assert record.timestamp_ms == made.clock.wall_ms()


# ---- metadata


@pytest.mark.parametrize(("note", "is_taken"), [("x" * 10, True), ("x" * 11, False), ("\U0001f600" * 5, True),
                                               ("\U0001f600" * 6, False), ("\u00e9" * 10, True)])  # fmt: skip
def test_metadata_size_is_measured_in_utf16_units(note: str, is_taken: bool) -> None:
    made = harness(offset_metadata_max_size=10)
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": note}
    topics = [{"name": "t", "partitions": [partition]}]
    answer = made.ask(message(OffsetCommitRequest, group_id="g", member_id="", topics=topics), 8)
    assert (answer.topics[0].partitions[0].error_code == 0) == is_taken


# ---- expiry


def test_offsets_of_a_simple_group_expire_a_week_after_their_commit() -> None:
    made = harness()
    made.ask(commit_request(1, partition=0), 8)
    made.advance(DAY_MS)
    made.ask(commit_request(2, partition=1), 8)
    made.advance(WEEK_MS - DAY_MS - 1_000_000)
    assert committed(made, partition=0) == 1
    made.advance(2_000_000)
    assert committed(made, partition=0) == -1
    assert committed(made, partition=1) == 2
    assert groups_of(made) == ["g"]
    made.advance(DAY_MS)
    assert groups_of(made) == []
    assert len(made.clock.timers) == 0
    made.restart()
    assert groups_of(made) == []


def test_offsets_expire_a_week_after_their_group_became_empty() -> None:
    made = harness()
    name = stable_group(made)
    made.ask(commit_request(1, member=name, generation=1), 8)
    made.advance(10_000)  # its session ends
    made.advance(WEEK_MS - 1_000_000)
    assert committed(made) == 1
    made.advance(2_000_000)
    assert committed(made) == -1
    assert groups_of(made) == []


def test_the_clients_expiry_overrides_the_retention() -> None:
    made = harness()
    request = commit_request(1)
    request.retention_time_ms = 1_000
    made.ask(request, 4)
    request = commit_request(2, partition=1)
    request.retention_time_ms = 2 * WEEK_MS
    made.ask(request, 4)
    made.advance(600_000)
    assert committed(made, partition=0) == -1
    made.advance(WEEK_MS + DAY_MS)
    assert committed(made, partition=1) == 2


def test_the_longest_retention_does_not_overflow() -> None:
    made = harness()
    request = commit_request(1)
    request.retention_time_ms = 2**63 - 1
    made.ask(request, 2)
    made.advance(10 * WEEK_MS)
    assert committed(made) == 1


def test_a_stable_group_expires_offsets_of_unsubscribed_topics() -> None:
    offsets = OffsetMetadataManager(4096)
    for topic in ("read", "left"):
        record = commit_records("g", topic, [(0, OffsetAndMetadata(1, -1, "", NOW))])[0]
        offsets.apply(record.key, record.value, -1)
    for metadata, is_known in ((subscription(1, "read"), True), (b"unknown", False)):
        group = ClassicGroup("g", NOW)
        group.add(member("a", metadata=metadata), None)
        group.transition_to(State.PREPARING_REBALANCE, NOW)
        assert not group.can_expire_offsets
        group.init_next_generation(NOW)
        group.transition_to(State.STABLE, NOW)
        assert group.can_expire_offsets is is_known
        if is_known:
            records_, is_bare = offsets.expire_offsets("g", group.is_subscribed_to, -1, NOW + 2 * WEEK_MS, WEEK_MS)
            keys: list[Any] = [record.key for record in records_]
            assert [key.topic for key in keys] == ["left"]
            assert not is_bare


def test_expiry_checks_groups_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.coordinators.group_coordinator.ITEMS_PER_STEP", 100)
    made = harness()
    for number in range(105):
        made.ask(commit_request(1, group=f"g{number}", count=3), 8)
    made.advance(WEEK_MS - 100_000)
    assert len(groups_of(made)) == 105
    appended = len(made.logs[0].batches)
    made.advance(700_000)
    assert groups_of(made) == []
    assert len(made.logs[0].batches) - appended > 2


def test_the_offsets_of_a_large_group_expire_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 offsets took 400 ms of the event loop."""
    monkeypatch.setattr("broker.coordinators.group_coordinator.ITEMS_PER_STEP", 100)
    made = harness()
    made.create_topic("large", 350)
    partitions = [{"partition_index": index, "committed_offset": 1, "committed_metadata": ""} for index in range(350)]
    topics = [{"name": "large", "partitions": partitions}]
    made.ask(message(OffsetCommitRequest, group_id="g", member_id="", topics=topics), 8)
    appended = len(made.logs[0].batches)
    made.advance(WEEK_MS + 700_000)
    assert groups_of(made) == []
    expired = [parse_header(batch).record_count for batch in made.logs[0].batches[appended:]]
    assert max(expired) <= 101
    assert sum(expired) == 351


def test_an_expiry_that_is_not_stored_waits_for_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.coordinators.group_coordinator.ITEMS_PER_STEP", 2)
    made = harness()
    made.ask(commit_request(1, count=3), 8)
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    made.advance(WEEK_MS + 700_000)
    made.logs[0].refusal = None
    made.advance(700_000)
    assert groups_of(made) == []


# ---- deleted topics


def test_deleted_topics_lose_their_offsets() -> None:
    made = harness()
    made.ask(commit_request(1), 8)
    topics = [{"name": "u", "partitions": [{"partition_index": 0, "committed_offset": 9, "committed_metadata": ""}]}]
    made.ask(message(OffsetCommitRequest, group_id="g", member_id="", topics=topics), 8)
    made.delete_topic("t")
    made.restart()
    fetched = made.ask(message(OffsetFetchRequest, groups=[{"group_id": "g", "topics": None}]), 8)
    assert [one.name for one in fetched.groups[0].topics] == ["u"]


def test_the_last_commit_survives_restarts_and_recreated_topics() -> None:
    made = harness()
    for offset in (1, 2, 3):
        made.ask(commit_request(offset), 8)
    made.restart()
    assert committed(made) == 3
    made.delete_topic("t")
    made.create_topic("t", 3)
    made.ask(commit_request(4), 8)
    made.restart()
    assert committed(made) == 4
    stored = made.runtime.shards[0].coordinator.offsets.by_group.values()
    assert [list(partitions) for topics in stored for partitions in topics.values()] == [[0]]
    assert made.clock.wall_ms() > START_WALL_MS


@pytest.mark.parametrize("version", [1, 2, 7])
def test_a_group_error_is_set_in_every_partition_of_version_1_only(version: int) -> None:
    made = harness()
    stable_group(made)
    made.runtime.on_resignation(0)
    made.runtime.on_election(0, 7)
    request = message(OffsetFetchRequest, group_id="g", topics=[{"name": "t", "partition_indexes": [0, 2]}])
    made.send("early", request, version)
    answer: Any = made.answers["early"].pop()
    assert answer.error_code == (0 if version < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    results = [
        (one.partition_index, one.error_code, one.committed_offset)
        for topic in answer.topics
        for one in topic.partitions
    ]
    indexes = (0, 2) if version < 2 else ()
    assert results == [(index, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1) for index in indexes]

"""Committed offsets: their records, their expiry, their end."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.classic.classic_group import ClassicGroup, State
from broker.coordinators.classic.classic_protocol import GroupSettings
from broker.coordinators.classic.group_records import (
    Committed,
    commit_records,
    commit_tombstone,
    committed_of,
    encode_commit_key,
    encode_commit_value,
    is_usual_commit,
    read_commit_key,
    read_commit_value,
    usual_commit,
)
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.offset_manager import STEP, CommittedOffsets
from broker.coordinators.runtime.coordinator_runtime import encode_record
from protocol.errors import ErrorCode, MalformedRequest
from protocol.messages.groups import (
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from protocol.messages.stored_records import OffsetCommitValue
from protocol.records import headers, records
from tests.support.group_harness import START_WALL_MS, LocalWorld, topic_id_of
from tests.unit.broker.coordinators.classic.test_classic_group import member, subscription
from tests.unit.broker.coordinators.runtime.test_coordinator_runtime import commit_request, committed, stable_group

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS
NOW = 1_700_000_000_000
TOPIC_ID = b"0123456789abcdef"


def world(**settings: int) -> LocalWorld:
    made = LocalWorld(GroupSettings(initial_rebalance_delay_ms=0, **settings), offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    made.create_topic("t", 3)
    made.create_topic("u", 1)
    return made


def groups_of(made: LocalWorld) -> list[str]:
    return [group.group_id for group in made.ask(ListGroupsRequest(), 5).groups]


# ---- records


@pytest.mark.parametrize("group_id", ["g", "", "Größe 😀", "g" * 9000])
@pytest.mark.parametrize(
    "committed",
    [
        Committed(300, 7, "", NOW, -1, TOPIC_ID),
        Committed(2**63 - 1, -1, "", 0, -1, TOPIC_ID),
        Committed(-5, 2**31 - 1, "", NOW, -1, TOPIC_ID),
        Committed(300, 7, "note", NOW, -1, TOPIC_ID),
        Committed(300, 7, "", NOW, NOW + 5, TOPIC_ID),
        Committed(300, 7, "", NOW),
    ],
)
def test_commits_that_are_encoded_by_hand_are_as_the_codec_has_them(group_id: str, committed: Committed) -> None:
    """group_records.py, `commit_records` and `usual_commit`: the same bytes, whichever form."""
    is_usual = not committed.metadata and committed.expire_wall_ms < 0 and any(committed.topic_id)
    stored = usual(committed) if is_usual else committed
    for record in commit_records(group_id, "t.x-y_z", [(0, stored), (2**31 - 1, stored)]):
        assert encode_record(record) == (encode_commit_key(*record.key), encode_commit_value(committed))
    assert committed_of(stored) == committed


def usual(committed: Committed) -> bytes:
    """A commit without a note and an expiry."""
    return usual_commit(committed.offset, committed.leader_epoch, committed.commit_wall_ms, committed.topic_id)


def test_a_commit_is_written_as_kafka_writes_it() -> None:
    """group_records.py FORMAT: key type 1, value version 4 with the topic's id; the bytes are Kafka 4.3.1's."""
    key, value = encode_record(commit_records("g", "t", [(2, Committed(300, 7, "note", NOW, -1, TOPIC_ID))])[0])
    assert key == b"\0\1\0\1g\0\1t\0\0\0\2"
    assert value == (b"\0\4\0\0\0\0\0\0\1\x2c\0\0\0\7\5note\0\0\1\x8b\xcf\xe5\x68\0\1\0\x10" + TOPIC_ID)


def test_a_commit_with_an_expiry_is_written_in_version_1() -> None:
    """Later versions have no field for it; the leader epoch is lost, as with Kafka."""
    _, value = encode_record(commit_records("g", "t", [(2, Committed(300, 7, "", NOW, NOW + 5, TOPIC_ID))])[0])
    assert value is not None
    assert value[:2] == b"\0\1"
    assert read_commit_value(value) == Committed(300, -1, "", NOW, NOW + 5)


def test_a_tombstone_has_no_value() -> None:
    """group_records.py rule 2."""
    assert encode_record(commit_tombstone("g", "t", 2)) == (b"\0\1\0\1g\0\1t\0\0\0\2", None)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("metadata", ["", "n\u00f6te", "x" * 200])
def test_a_commit_of_any_version_is_read(version: int, metadata: str) -> None:
    """group_records.py rule 1."""
    from protocol.codec import encode

    stored = OffsetCommitValue(
        offset=5,
        leader_epoch=3 if version >= 3 else -1,
        metadata=metadata,
        commit_timestamp=NOW,
        topic_id=TOPIC_ID if version >= 4 else bytes(16),
    )
    value = version.to_bytes(2, "big") + encode(stored, version)
    read = committed_of(value) if is_usual_commit(value) else read_commit_value(value)
    assert read == Committed(5, stored.leader_epoch, metadata, NOW, -1, stored.topic_id)


def test_the_usual_commit_is_recognised_and_read_without_decoding() -> None:
    """group_records.py rule 3: a fast way that must not differ from the slow one."""
    for offset in (0, 1, 2**62):
        for leader_epoch in (-1, 0, 2**31 - 1):
            _, value = encode_record(
                commit_records("g", "t", [(0, Committed(offset, leader_epoch, "", NOW, -1, TOPIC_ID))])[0]
            )
            assert value is not None
            assert is_usual_commit(value)
            assert committed_of(value) == read_commit_value(value)


@pytest.mark.parametrize(
    "key",
    [b"\0\1", b"\0\1\0\1", b"\0\1\0\1g\0\1t\0\0\0", b"\0\1\0\1g\0\1t\0\0\0\1\0", b"\0\1\xff\xff\0\1t\0\0\0\1",
     b"\0\1\0\1\xff\0\1t\0\0\0\1", b"\0\1\0\5g\0\1t\0\0\0\1", b"\0\1\0\1g\xff\xff\0\0\0\1"],
)  # fmt: skip
def test_a_broken_key_is_malformed(key: bytes) -> None:
    """loading.py rule 4: never another exception."""
    with pytest.raises(MalformedRequest):
        read_commit_key(key)


@pytest.mark.parametrize(
    "value", [b"", b"\0", b"\0\5" + bytes(50), b"\xff\xff" + bytes(50), b"\0\4\0", b"\0\3" + bytes(9)]
)
def test_a_broken_value_is_malformed(value: bytes) -> None:
    """loading.py rule 4."""
    assert not is_usual_commit(value)
    with pytest.raises(MalformedRequest):
        read_commit_value(value)


def test_the_topic_id_is_stored_whichever_way_the_topic_was_named() -> None:
    """offsets.py rule 2; Kafka looks it up for clients that name the topic."""
    made = world()
    made.ask(commit_request(5), 8)
    (batch,) = made.logs[0].batches
    ((at, header),) = headers(batch)
    (record,) = records(batch, at, header, max_bytes=10_000)
    assert record.value is not None
    assert committed_of(record.value).topic_id == made.topic_id("t")
    assert record.timestamp_ms == made.clock.wall_ms()


# ---- metadata


@pytest.mark.parametrize(("note", "is_taken"), [("x" * 10, True), ("x" * 11, False), ("\U0001f600" * 5, True),
                                               ("\U0001f600" * 6, False), ("\u00e9" * 10, True)])  # fmt: skip
def test_a_note_is_measured_in_javas_characters(note: str, is_taken: bool) -> None:
    """offsets.py rule 1: offset.metadata.max.bytes counts UTF-16 units, in Kafka too."""
    made = world(offset_metadata_max_size=10)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=note)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    answer = made.ask(OffsetCommitRequest(group_id="g", member_id="", topics=[topic]), 8)
    assert (answer.topics[0].partitions[0].error_code == 0) == is_taken


# ---- expiry


def test_offsets_of_a_simple_group_expire_a_week_after_their_commit() -> None:
    """offsets.py rule 3: each by itself; the group goes with the last of them."""
    made = world()
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
    assert len(made.clock.deadlines) == 0
    made.restart()
    assert groups_of(made) == []


def test_offsets_expire_a_week_after_their_group_became_empty() -> None:
    """offsets.py rule 3: not before, however old the commit is; a member keeps them."""
    made = world()
    name = stable_group(made)
    made.ask(commit_request(1, member=name, generation=1), 8)
    made.advance(10_000)  # its session ends
    made.advance(WEEK_MS - 1_000_000)
    assert committed(made) == 1
    made.advance(2_000_000)
    assert committed(made) == -1
    assert groups_of(made) == []


def test_an_expiry_that_the_client_asked_for_overrules_all() -> None:
    """offsets.py rule 3: retention_time_ms of versions 2 to 4."""
    made = world()
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


def test_an_offset_may_be_kept_for_ever() -> None:
    """offsets.py rule 3: the longest retention ends after the last time that a record can hold."""
    made = world()
    request = commit_request(1)
    request.retention_time_ms = 2**63 - 1
    made.ask(request, 2)
    made.advance(10 * WEEK_MS)
    assert committed(made) == 1


def test_a_stable_group_loses_offsets_of_topics_that_it_does_not_read() -> None:
    """offsets.py rule 3; without knowing its topics, nothing."""
    offsets = CommittedOffsets(4096)
    for topic in ("read", "left"):
        record = commit_records("g", topic, [(0, Committed(1, -1, "", NOW))])[0]
        offsets.apply(record.key, record.value, -1)
    for metadata, is_known in ((subscription(1, "read"), True), (b"unknown", False)):
        group = ClassicGroup("g", NOW)
        group.add(member("a", metadata=metadata), None)
        group.become(State.PREPARING_REBALANCE, NOW)
        assert not group.may_forget_offsets
        group.start_generation(NOW)
        group.become(State.STABLE, NOW)
        assert group.may_forget_offsets is is_known
        if is_known:
            records_, is_bare = offsets.expire("g", group.is_subscribed_to, -1, NOW + 2 * WEEK_MS, WEEK_MS)
            keys: list[Any] = [record.key for record in records_]
            assert [key.topic for key in keys] == ["left"]
            assert not is_bare


def test_expiry_looks_at_some_groups_at_a_time() -> None:
    """groups.py: many offsets do not keep the loop; no step looks at more than it may."""
    made = world()
    for number in range(3 * STEP // 3 + 5):
        made.ask(commit_request(1, group=f"g{number}", count=3), 8)
    made.advance(WEEK_MS - 100_000)
    assert len(groups_of(made)) == STEP + 5
    appended = len(made.logs[0].batches)
    made.advance(700_000)
    assert groups_of(made) == []
    assert len(made.logs[0].batches) - appended > 2


# ---- topics that go


def test_offsets_go_with_their_topic() -> None:
    """offsets.py rule 2: tombstones for this topic, and nothing else."""
    made = world()
    made.ask(commit_request(1), 8)
    other = OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="u", partitions=[other])
    made.ask(OffsetCommitRequest(group_id="g", member_id="", topics=[topic]), 8)
    made.delete_topic("t")
    made.restart()
    fetched = made.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8)
    assert [one.name for one in fetched.groups[0].topics] == ["u"]


def test_an_offset_of_a_topic_that_was_made_anew_does_not_count() -> None:
    """offsets.py rule 2: what was committed under another id is not told, even where no tombstone was written."""
    made = world()
    made.ask(commit_request(1), 8)
    del made.holder.image.topics_by_name["t"]
    made.create_topic("t", 3)
    assert made.topic_id("t") != topic_id_of("t")
    assert committed(made) == -1


def test_the_books_hold_what_was_committed_last() -> None:
    """loading.py: of many commits for one partition the last one counts, also after a tombstone."""
    made = world()
    for offset in (1, 2, 3):
        made.ask(commit_request(offset), 8)
    made.restart()
    assert committed(made) == 3
    made.delete_topic("t")
    made.create_topic("t", 3)
    made.ask(commit_request(4), 8)
    made.restart()
    assert committed(made) == 4
    assert len(made.runtime.shards[0].machine.offsets) == 1
    assert made.clock.wall_ms() > START_WALL_MS


@pytest.mark.parametrize("version", [1, 2, 7])
def test_while_offsets_are_not_known_each_partition_says_so(version: int) -> None:
    """group_offsets.py: aiokafka 0.14 takes an answer without partitions for that of a group without offsets."""
    made = world()
    stable_group(made)
    made.runtime.resigned(0)
    made.runtime.elected(0, 7)
    asked = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 2])])
    made.send("early", asked, version)
    answer: Any = made.answers["early"].pop()
    assert answer.error_code == (0 if version < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    told = [
        (one.partition_index, one.error_code, one.committed_offset)
        for topic in answer.topics
        for one in topic.partitions
    ]
    assert told == [(index, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1) for index in (0, 2)]

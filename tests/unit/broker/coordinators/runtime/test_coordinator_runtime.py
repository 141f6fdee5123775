"""Shards: loading, commits, failed appends, resignation."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.classic.classic_group import State
from broker.coordinators.classic.group_records import OffsetAndMetadata, commit_records
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Shard
from broker.coordinators.runtime.java_compat import abs_hash, java_hash
from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.control_records import ControlType
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from protocol.records import headers, records
from protocol.schema import Message
from tests.support.group_harness import FakeLog, LocalGroupHarness
from tests.support.group_requests import (
    commit_request,
    consumer_heartbeat,
    error_of,
    fetch_request,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from tests.support.logs import marker


def harness(partitions: int = 1) -> LocalGroupHarness:
    made = LocalGroupHarness(offsets_partitions=partitions)
    made.create_topic(OFFSETS_TOPIC, partitions)
    made.create_topic("t", 3)
    return made


@pytest.fixture
def made() -> LocalGroupHarness:
    return harness()


def shard(of: LocalGroupHarness, partition: int = 0) -> Shard[Any]:
    return of.runtime.shards[partition]


def committed(of: LocalGroupHarness, group: str = "g", partition: int = 0) -> int:
    answer = of.ask(fetch_request(group, partition), 8)
    assert answer.groups[0].error_code == 0, answer
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def start_loading(of: LocalGroupHarness, epoch: int = 7) -> None:
    of.runtime.on_resignation(0)
    of.runtime.on_election(0, epoch)


def stable_group(of: LocalGroupHarness, group: str = "g") -> str:
    """Create a stable group with one member; returns the member id."""
    member = str(of.ask(join_request(group), 3).member_id)
    of.ask(sync_request(member, group, assignments={member: b"all"}), 3)
    return member


# ---- finding the shard


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("group-1", 293427299),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -2147483648),
        ("gr\u00fcppe", -1233264812),
        ("\U0001f600", 1772899),
    ],
)
def test_a_key_is_hashed_as_java_does(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert abs_hash(text) == (0 if value == -(2**31) else abs(value))


def test_a_broker_without_the_partition_is_not_coordinator() -> None:
    bare = LocalGroupHarness()
    assert bare.ask(heartbeat_request("m"), 4).error_code == 16
    made = harness()
    made.runtime.on_resignation(0)
    assert made.ask(heartbeat_request("m"), 4).error_code == 16
    assert error_of(made.ask(commit_request(1), 8)) is ErrorCode.NOT_COORDINATOR
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR


# ---- commits


def test_responses_wait_for_the_commit_of_their_records(made: LocalGroupHarness) -> None:
    log = made.logs[0]
    log.is_holding = True
    made.send("writer", commit_request(7), 8)
    made.send("reader", fetch_request(), 8)
    assert made.take("writer") is None
    assert made.take("reader") is None
    log.release()
    assert error_of(made.take("writer")) is ErrorCode.NONE
    reader: Any = made.take("reader")
    assert reader.groups[0].topics[0].partitions[0].committed_offset == 7
    log.is_holding = False
    assert committed(made) == 7


def test_a_failed_append_changes_no_group_state(made: LocalGroupHarness) -> None:
    made.ask(commit_request(7), 8)
    for refusal, code in (
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ):
        made.logs[0].refusal = refusal
        assert error_of(made.ask(commit_request(8), 8)) is code
    made.logs[0].refusal = None
    assert committed(made) == 7


def test_a_commit_times_out_and_readers_still_wait(made: LocalGroupHarness) -> None:
    log = made.logs[0]
    log.is_holding = True
    made.send("writer", commit_request(7), 8)
    made.advance(4_999)
    assert made.take("writer") is None
    made.advance(1)
    assert error_of(made.take("writer")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    log.release()
    log.is_holding = False
    assert committed(made) == 7


def test_a_client_that_leaves_does_not_end_the_wait_of_others(made: LocalGroupHarness) -> None:
    log = made.logs[0]
    log.is_holding = True
    made.send("writer", commit_request(7), 8)
    made.send("leaver", ListGroupsRequest(), 5)
    made.waiting["leaver"].cancel()
    made.send("reader", ListGroupsRequest(), 5)
    assert made.take("reader") is None, "the commit is pending"
    log.release()
    assert error_of(made.take("writer")) is ErrorCode.NONE
    assert made.take("reader") is not None


def test_a_marker_is_awaited_by_others_after_its_sender_left(made: LocalGroupHarness) -> None:
    log = made.logs[0]
    log.is_holding = True
    made.runtime.end_transaction(0, marker(ControlType.COMMIT, 5, 0), 5, is_commit=True).cancel()
    made.send("reader", fetch_request(), 8)
    assert made.take("reader") is None, "the commit is pending"
    log.release()
    assert made.take("reader") is not None


def test_an_uncommitted_assignment_starts_another_rebalance(made: LocalGroupHarness) -> None:
    made.send("a", join_request(), 3)
    first: Any = made.take("a")
    log = made.logs[0]
    log.is_holding = True
    made.send("a", sync_request(first.member_id), 3)
    assert made.take("a") is None
    log.release(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    answer: Any = made.take("a")
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shard(made).coordinator.classic_groups["g"].state is State.PREPARING_REBALANCE


def test_a_group_without_its_first_record_is_removed(made: LocalGroupHarness) -> None:
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert made.ask(join_request(), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not shard(made).coordinator.classic_groups
    made.logs[0].refusal = None
    made.advance(600_000)
    assert made.ask(ListGroupsRequest(), 5).groups == []


def test_a_group_whose_first_record_is_late_can_become_a_consumer_group(made: LocalGroupHarness) -> None:
    log = made.logs[0]
    log.is_holding = True
    made.ask(join_request(), 3)
    made.advance(5_000)
    assert not shard(made).coordinator.classic_groups
    log.is_holding = False
    log.release()
    joined = made.ask(consumer_heartbeat("m", 0, rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], owned={}), 1)
    assert joined.error_code == 0
    made.restart()
    assert [group.group_type for group in made.ask(ListGroupsRequest(), 5).groups] == ["consumer"]


def test_a_failed_replacement_keeps_the_static_member(made: LocalGroupHarness) -> None:
    request = join_request(instance="one")
    member = made.ask(request, 9).member_id
    made.ask(sync_request(member, protocol="range"), 5)
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert made.ask(request, 9, actor="other").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert made.ask(heartbeat_request(member, instance="one"), 4).error_code == 0


def test_non_atomic_records_are_split_into_batches() -> None:
    made = LocalGroupHarness(offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    made.create_topic("t", 200)
    log = made.logs[0]
    log.max_batch_bytes = 4_000
    answer = made.ask(commit_request(1, count=200), 8)
    assert {one.error_code for one in answer.topics[0].partitions} == {0}
    assert len(log.batches) > 3
    assert max(map(len, log.batches)) <= 4_000
    deleted = made.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    assert deleted.results[0].error_code == 0
    assert not shard(made).coordinator.classic_groups


def test_a_group_record_above_the_batch_limit_fails(made: LocalGroupHarness) -> None:
    made.logs[0].max_batch_bytes = 400
    member = made.ask(join_request(), 3).member_id
    assert (
        made.ask(sync_request(member, assignments={member: bytes(500)}), 3).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    )


# ---- elections


@pytest.mark.parametrize(("epochs", "error"), [(1, ErrorCode.NONE), (2, ErrorCode.NOT_COORDINATOR)])
def test_a_leader_that_is_elected_again_keeps_its_groups(
    made: LocalGroupHarness, epochs: int, error: ErrorCode
) -> None:
    member = stable_group(made)
    made.send("other", join_request(), 3)
    assert made.take("other") is None, "it waits for the first member"
    made.runtime.on_election(0, shard(made).epoch + epochs)  # of two epochs, one may have been another leader's
    made.advance(10)
    assert made.ask(join_request(member=member), 3).error_code == 0
    joined: Any = made.take("other")
    assert joined.error_code == error


def test_a_shard_that_could_not_be_loaded_is_loaded_again_after_an_election(made: LocalGroupHarness) -> None:
    made.ask(commit_request(3), 8)
    damaged = BatchBuilder()
    damaged.append(0, b"\0\1", b"not a commit")
    made.logs[0].append(damaged.build())
    start_loading(made)
    made.advance(10)
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    made.logs[0].batches.pop()
    made.runtime.on_election(0, shard(made).epoch + 1)
    made.advance(10)
    assert committed(made) == 3


# ---- loading


def test_groups_and_offsets_are_loaded_after_a_restart(made: LocalGroupHarness) -> None:
    member = stable_group(made)
    made.ask(commit_request(5, member=member, generation=1), 8)
    made.ask(commit_request(6, group="simple"), 8)
    made.restart()
    beat = heartbeat_request(member)
    assert made.ask(beat, 4).error_code == 0
    sync = sync_request(member)
    assert made.ask(sync, 3).assignment == b"all"
    assert committed(made) == 5
    assert committed(made, "simple") == 6
    group = shard(made).coordinator.classic_groups["g"]
    assert (group.protocol_type, group.protocol_name, group.leader_id) == ("consumer", "range", member)
    made.advance(10_000)
    assert made.ask(beat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_to_a_loading_shard_get_load_in_progress(made: LocalGroupHarness) -> None:
    member = stable_group(made)
    start_loading(made)
    beat = heartbeat_request(member)

    def ask(request: Message, version: int) -> Any:
        """The response before the next slice is loaded."""
        made.send("x", request, version)
        return made.answers["x"].pop()

    assert ask(beat, 4).error_code == 0
    assert error_of(ask(commit_request(9), 8)) == 14
    assert ask(fetch_request(), 8).groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert ask(ListGroupsRequest(), 5).error_code == 14
    assert ask(join_request(), 5).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    made.advance(5)
    assert made.ask(beat, 4).error_code == 0


def test_a_long_partition_is_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.coordinators.runtime.loader.SLICE_BYTES", 1_000)
    made = harness()
    for offset in range(50):
        made.ask(commit_request(offset), 8)
    start_loading(made)
    steps = 0
    while made.runtime.is_loading:
        made.advance(1)
        steps += 1
    assert steps > 5
    assert committed(made) == 49


def test_a_partition_whose_last_batches_were_compacted_away_is_loaded(made: LocalGroupHarness) -> None:
    made.ask(commit_request(1), 8)
    made.ask(commit_request(2, "deleted"), 8)
    made.ask(DeleteGroupsRequest(groups_names=["deleted"]), 2)
    del made.logs[0].batches[1:]
    made.restart()
    assert committed(made) == 1


def test_batches_of_all_kinds_are_loaded(made: LocalGroupHarness) -> None:
    made.ask(commit_request(1), 8)
    (key, value) = _only_record(made.logs[0])
    long_key = b"\0\1" + b"\1\54" + b"x" * 300 + b"\0\1t" + b"\0\0\0\0"
    builder = BatchBuilder(compression=Compression.GZIP)
    builder.append(5_000_000_000, long_key, value, [("header", b"h" * 200)])
    builder.append(0, key, None)
    made.logs[0].append(builder.build())
    plain = BatchBuilder()
    plain.append(1, None, b"no key")
    plain.append(2, long_key.replace(b"x", b"y"), value, [("header", b"h" * 200)])
    plain.append(90_000, b"\0\x0awhatever", b"share group")
    plain.append(-70_000, b"\7", None)
    made.logs[0].append(plain.build())
    made.restart()
    assert committed(made) == -1
    assert committed(made, "x" * 300) == 1
    assert committed(made, "y" * 300) == 1


def _only_record(log: FakeLog) -> tuple[bytes, bytes]:
    batch = log.batches[-1]
    ((at, header),) = headers(batch)
    (record,) = records(batch, at, header, max_bytes=1_000_000)
    assert record.key is not None
    assert record.value is not None
    return record.key, record.value


@pytest.mark.parametrize("damage", [b"\0\2\0\1", b"\0\1\0\1g\0\1", b"\0\0\0\1g"])
def test_a_corrupt_partition_is_not_served(damage: bytes) -> None:
    made = harness(2)
    names = {abs_hash(name) % 2: name for name in ("a", "b", "c", "d")}
    made.ask(commit_request(1, group=names[0]), 8)
    made.ask(commit_request(2, group=names[1]), 8)
    builder = BatchBuilder()
    builder.append(1, damage, b"\0\3garbage")
    made.logs[0].append(builder.build())
    made.restart()
    assert made.ask(fetch_request(names[0]), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    assert committed(made, names[1]) == 2


def test_wrong_lengths_in_a_batch_are_detected(made: LocalGroupHarness) -> None:
    made.ask(commit_request(1), 8)
    whole = bytearray(made.logs[0].batches[-1])
    for position in range(61, len(whole)):
        for value in (0x7F, 0xFF, 0):
            broken = bytearray(whole)
            broken[position] = value
            made.logs[0].batches[-1] = bytes(broken)
            start_loading(made, 100 + position * 3 + value)
            made.advance(10)
            assert not made.runtime.is_loading


def test_topics_deleted_during_loading_lose_their_offsets(made: LocalGroupHarness) -> None:
    made.ask(commit_request(5), 8)
    start_loading(made)
    made.delete_topic("t")
    made.advance(5)
    assert committed(made) == -1
    made.restart()
    assert committed(made) == -1


def test_sessions_that_end_during_loading_end_after_it(
    monkeypatch: pytest.MonkeyPatch, made: LocalGroupHarness
) -> None:
    monkeypatch.setattr("broker.coordinators.group_coordinator.ITEMS_PER_STEP", 1)
    groups = [f"g{index}" for index in range(5)]
    for group in groups:
        stable_group(made, group)
    start_loading(made)
    made.advance(3)
    assert made.runtime.is_loading
    made.clock.now_mono_ms += 60_000
    made.advance(20_000)
    assert not made.runtime.is_loading
    assert {group: shard(made).coordinator.classic_groups[group].state for group in groups} == dict.fromkeys(
        groups, State.EMPTY
    )


# ---- resignation


def test_waiting_requests_get_not_coordinator_when_the_coordinator_moves(made: LocalGroupHarness) -> None:
    made.send("a", join_request("sync"), 3)
    first: Any = made.take("a")
    made.send("b", join_request("sync"), 3)
    assert made.take("b") is None
    member = first.member_id
    made.send("a", join_request("sync", member), 3)
    generation: Any = made.take("a")
    follower: Any = made.take("b")
    made.send("b", sync_request(follower.member_id, "sync", generation.generation_id), 3)
    assert made.take("b") is None
    made.send("c", join_request("join"), 3)
    made.take("c")
    made.send("d", join_request("join"), 3)
    assert made.take("d") is None
    made.logs[0].is_holding = True
    made.send("e", commit_request(1, group="other"), 8)
    made.runtime.on_resignation(0)
    answers: dict[str, Any] = {actor: made.take(actor) for actor in "bde"}
    assert answers["b"].error_code == ErrorCode.NOT_COORDINATOR
    assert answers["d"].error_code == ErrorCode.NOT_COORDINATOR
    assert error_of(answers["e"]) is ErrorCode.NOT_COORDINATOR
    made.logs[0].release()
    made.advance(600_000)
    assert len(made.clock.timers) == 0


def test_a_shard_is_reloaded_if_another_broker_may_have_been_the_leader(made: LocalGroupHarness) -> None:
    made.ask(commit_request(5), 8)
    old = shard(made)
    for epoch in (old.epoch, old.epoch + 1):
        made.runtime.on_election(0, epoch)
        assert shard(made) is old
        assert old.epoch == epoch
    made.runtime.on_election(0, old.epoch + 2)
    assert shard(made) is not old
    made.advance(5)
    assert committed(made) == 5


def test_leave_group_waits_for_the_record_of_the_empty_group(made: LocalGroupHarness) -> None:
    member = stable_group(made)
    made.logs[0].is_holding = True
    made.send("a", leave_request(member), 3)
    assert made.take("a") is None
    made.logs[0].release()
    answer: Any = made.take("a")
    assert answer.members[0].error_code == 0


def test_an_idle_coordinator_has_no_timers() -> None:
    made = harness(50)
    assert len(made.clock.timers) == 0
    made.ask(commit_request(5), 8)
    assert len(made.clock.timers) == 1


def test_atomic_records_are_not_split(made: LocalGroupHarness) -> None:
    made.logs[0].max_batch_bytes = 400
    several = commit_records("g", "t", [(partition, OffsetAndMetadata(1, -1, "x" * 100, 1)) for partition in range(5)])
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        shard(made).execute(CoordinatorDecision(several, None)).result()
    assert made.logs[0].batches == []
    assert committed(made) == -1
    assert shard(made).execute(CoordinatorDecision(several, None, is_atomic=False)).error is None
    assert len(made.logs[0].batches) > 1


@pytest.mark.parametrize("stretched", [1, 5])
def test_a_value_longer_than_its_record_is_detected(made: LocalGroupHarness, stretched: int) -> None:
    made.ask(commit_request(1), 8)
    key, value = _only_record(made.logs[0])
    builder = BatchBuilder()
    builder.append(1, key, value)
    builder.append(1, key, value)
    batch = bytes(builder.build())
    length = bytes([len(value) * 2])
    at = batch.index(length + value)
    made.logs[0].append(bytearray(batch[:at] + bytes([length[0] + 2 * stretched]) + batch[at + 1 :]))
    made.restart()
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_new_member_expires_after_five_minutes_of_rebalance(made: LocalGroupHarness) -> None:
    member = made.ask(join_request(session_ms=1_000_000, rebalance_ms=1_000_000), 3, actor="a").member_id
    second = join_request(rebalance_ms=1_000_000)
    made.send("b", second, 3)
    made.advance(299_999)
    assert made.take("b") is None
    made.advance(1)
    answer: Any = made.take("b")
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(shard(made).coordinator.classic_groups["g"].members) == [member]


def test_a_loaded_group_above_the_limit_is_rebalanced(made: LocalGroupHarness) -> None:
    for actor in ("a", "b"):
        made.send(actor, join_request(), 3)
    first: Any = made.take("a")
    second: Any = made.take("b")
    for member in (second.member_id, first.member_id):
        made.send(member, sync_request(member), 3)
    assert shard(made).coordinator.classic_groups["g"].state is State.STABLE
    made.restart()
    assert shard(made).coordinator.classic_groups["g"].state is State.STABLE
    made.settings = made.settings._replace(max_size=1)
    made.restart()
    assert shard(made).coordinator.classic_groups["g"].state is State.PREPARING_REBALANCE


def test_a_group_with_a_pending_member_is_not_expired(made: LocalGroupHarness) -> None:
    made.advance(595_000)
    request = join_request()
    made.ask(commit_request(1, group="other"), 8)  # the check for expired offsets begins with the first group
    made.advance(595_000)
    member = made.ask(request, 5).member_id
    made.advance(6_000)
    request.member_id = member
    assert made.ask(request, 5).error_code == 0

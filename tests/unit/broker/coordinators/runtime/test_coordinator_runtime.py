"""Shards: loading, committing, waiting, giving up."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.classic.classic_group import State
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.coordinator_runtime import Shard
from broker.coordinators.runtime.java_compat import abs_hash, java_hash
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.records import BatchBuilder, headers, records
from tests.support.group_harness import FakeLog, LocalWorld


def world(partitions: int = 1) -> LocalWorld:
    made = LocalWorld(offsets_partitions=partitions)
    made.create_topic(OFFSETS_TOPIC, partitions)
    made.create_topic("t", 3)
    return made


def shard(of: LocalWorld, partition: int = 0) -> Shard[Any]:
    return of.runtime.shards[partition]


def commit_request(
    offset: int, group: str = "g", partition: int = 0, member: str = "", generation: int = -1, count: int = 1
) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index in range(partition, partition + count)
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
    )


def fetch_request(group: str = "g", partition: int = 0) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[partition])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])


def committed(of: LocalWorld, group: str = "g", partition: int = 0) -> int:
    answer = of.ask(fetch_request(group, partition), 8)
    assert answer.groups[0].error_code == 0, answer
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def commit_error(answer: Any) -> ErrorCode:
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def join_request(group: str = "g", member: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def stable_group(of: LocalWorld, group: str = "g") -> str:
    """A group with one member that has its assignment; the member id."""
    member = str(of.ask(join_request(group), 3).member_id)
    of.ask(
        SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id=member,
            assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"all")],
        ),
        3,
    )
    return member


# ---- placing


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
    """java.py rule 1; the values are String.hashCode's."""
    assert java_hash(text) == value
    assert abs_hash(text) == (0 if value == -(2**31) else abs(value))


def test_a_broker_that_leads_no_partition_of_the_topic_is_no_coordinator() -> None:
    """NOT_COORDINATOR where the partition is led elsewhere, or the topic is not there."""
    bare = LocalWorld()
    assert bare.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4).error_code == 16
    made = world()
    made.runtime.resigned(0)
    assert made.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4).error_code == 16
    assert commit_error(made.ask(commit_request(1), 8)) is ErrorCode.NOT_COORDINATOR
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR


# ---- committing


def test_an_answer_waits_until_its_records_are_committed() -> None:
    """runtime.py rule 2: also the answer that only tells what others have written."""
    made = world()
    log = made.logs[0]
    log.is_holding = True
    made.send("writer", commit_request(7), 8)
    made.send("reader", fetch_request(), 8)
    assert made.take("writer") is None
    assert made.take("reader") is None
    log.release()
    assert commit_error(made.take("writer")) is ErrorCode.NONE
    reader: Any = made.take("reader")
    assert reader.groups[0].topics[0].partitions[0].committed_offset == 7
    log.is_holding = False
    assert committed(made) == 7


def test_what_the_log_refuses_changes_nothing() -> None:
    """runtime.py rule 3: the client is told that this is not its coordinator, or to try again."""
    made = world()
    made.ask(commit_request(7), 8)
    for refusal, told in (
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ):
        made.logs[0].refusal = refusal
        assert commit_error(made.ask(commit_request(8), 8)) is told
    made.logs[0].refusal = None
    assert committed(made) == 7


def test_a_commit_that_takes_too_long_is_answered_and_keeps_readers_waiting() -> None:
    """runtime.py rule 2: after offsets.commit.timeout.ms the writer is told to look for its coordinator again."""
    made = world()
    log = made.logs[0]
    log.is_holding = True
    made.send("writer", commit_request(7), 8)
    made.advance(4_999)
    assert made.take("writer") is None
    made.advance(1)
    assert commit_error(made.take("writer")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    log.release()
    log.is_holding = False
    assert committed(made) == 7


def test_an_assignment_that_cannot_be_recorded_begins_another_rebalance() -> None:
    """runtime.py rule 3: members are told the error, and the generation is void."""
    made = world()
    made.send("a", join_request(), 3)
    first: Any = made.take("a")
    log = made.logs[0]
    log.is_holding = True
    made.send("a", SyncGroupRequest(group_id="g", generation_id=1, member_id=first.member_id, assignments=[]), 3)
    assert made.take("a") is None
    log.release(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    answer: Any = made.take("a")
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shard(made).machine.groups["g"].state is State.PREPARING_REBALANCE


def test_a_group_whose_first_record_is_refused_has_never_been() -> None:
    """rebalance.py rule 4: a new group is recorded before anybody is told of it."""
    made = world()
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert made.ask(join_request(), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not shard(made).machine.groups
    made.logs[0].refusal = None
    made.advance(600_000)
    assert made.ask(ListGroupsRequest(), 5).groups == []


def test_a_static_member_whose_replacement_is_refused_keeps_its_place() -> None:
    """rebalance.py rule 4: the old member id counts again."""
    made = world()
    request = join_request()
    request.group_instance_id = "one"
    member = made.ask(request, 9).member_id
    made.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        ),
        5,
    )
    made.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert made.ask(request, 9, actor="other").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member, group_instance_id="one")
    assert made.ask(beat, 4).error_code == 0


def test_many_records_are_split_into_batches_that_the_log_takes() -> None:
    """Tombstones need not stand together; a deletion of 200 offsets does not fit into one batch here."""
    made = LocalWorld(offsets_partitions=1)
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
    assert not shard(made).machine.groups


def test_a_group_too_large_for_one_record_is_refused() -> None:
    """An atomic decision is not split: its members learn of an error, as from Kafka."""
    made = world()
    made.logs[0].max_batch_bytes = 400
    member = made.ask(join_request(), 3).member_id
    assignments = [SyncGroupRequestAssignment(member_id=member, assignment=bytes(500))]
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id=member, assignments=assignments)
    assert made.ask(request, 3).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


# ---- loading


def test_state_is_read_back_after_a_restart() -> None:
    """groups.py rule 4: a stable group keeps its generation, its members and their assignments."""
    made = world()
    member = stable_group(made)
    made.ask(commit_request(5, member=member, generation=1), 8)
    made.ask(commit_request(6, group="simple"), 8)
    made.restart()
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    assert made.ask(beat, 4).error_code == 0
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=member, assignments=[])
    assert made.ask(sync, 3).assignment == b"all"
    assert committed(made) == 5
    assert committed(made, "simple") == 6
    group = shard(made).machine.groups["g"]
    assert (group.protocol_type, group.protocol_name, group.leader_id) == ("consumer", "range", member)
    made.advance(10_000)
    assert made.ask(beat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_while_a_shard_loads_it_says_so() -> None:
    """runtime.py rule 1; a heartbeat is taken for good, since nobody knows better."""
    made = world()
    member = stable_group(made)
    made.runtime.resigned(0)
    made.runtime.elected(0, 7)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    assert made.handlers.heartbeat(_context(made, 4), beat).error_code == 0
    assert commit_error(made.offset_handlers.offset_commit(_context(made, 8), commit_request(9))) == 14
    fetched: Any = made.offset_handlers.offset_fetch(_context(made, 8), fetch_request())
    assert fetched.groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert made.handlers.list_groups(_context(made, 5), ListGroupsRequest()).error_code == 14
    joined: Any = made.handlers.join_group(_context(made, 5), join_request())
    assert joined.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    made.advance(5)
    assert made.ask(beat, 4).error_code == 0


def _context(made: LocalWorld, version: int) -> Any:
    from broker.handlers.router import RequestContext

    return RequestContext(0, version, 1, "x", made.connection, made.clock.mono_ms(), made.clock.wall_ms())


def test_a_long_partition_is_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """loading.py rule 1: the loop has its turn between two slices."""
    monkeypatch.setattr("broker.coordinators.runtime.loader.SLICE_BYTES", 1_000)
    made = world()
    for offset in range(50):
        made.ask(commit_request(offset), 8)
    made.runtime.resigned(0)
    made.runtime.elected(0, 7)
    steps = 0
    while made.runtime.is_loading:
        made.advance(1)
        steps += 1
    assert steps > 5
    assert committed(made) == 49


def test_records_are_read_from_every_shape_of_batch() -> None:
    """loading.py rule 3: compressed batches, long keys and values, headers, null keys, unknown types."""
    made = world()
    made.ask(commit_request(1), 8)
    (key, value) = _only_record(made.logs[0])
    long_key = b"\0\1" + b"\1\54" + b"x" * 300 + b"\0\1t" + b"\0\0\0\0"
    builder = BatchBuilder(compression=Compression.GZIP)
    builder.append(5_000_000_000, long_key, value, [("header", b"h" * 200)])
    builder.append(0, key, None)
    made.logs[0].append(builder.build(), lambda _: None)
    plain = BatchBuilder()
    plain.append(1, None, b"no key")
    plain.append(2, long_key.replace(b"x", b"y"), value, [("header", b"h" * 200)])
    plain.append(90_000, b"\0\x0awhatever", b"share group")
    plain.append(-70_000, b"\7", None)
    made.logs[0].append(plain.build(), lambda _: None)
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
def test_a_broken_partition_is_not_served_and_others_are(damage: bytes) -> None:
    """loading.py rule 4: NOT_COORDINATOR for its groups, and one line in the log."""
    made = world(2)
    names = {abs_hash(name) % 2: name for name in ("a", "b", "c", "d")}
    made.ask(commit_request(1, group=names[0]), 8)
    made.ask(commit_request(2, group=names[1]), 8)
    builder = BatchBuilder()
    builder.append(1, damage, b"\0\3garbage")
    made.logs[0].append(builder.build(), lambda _: None)
    made.restart()
    assert made.ask(fetch_request(names[0]), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    assert committed(made, names[1]) == 2


def test_a_batch_whose_records_lie_is_refused() -> None:
    """loading.py rule 4: lengths that run past the batch are found, whatever bytes follow."""
    made = world()
    made.ask(commit_request(1), 8)
    whole = bytearray(made.logs[0].batches[-1])
    for position in range(61, len(whole)):
        for value in (0x7F, 0xFF, 0):
            broken = bytearray(whole)
            broken[position] = value
            made.logs[0].batches[-1] = bytes(broken)
            made.runtime.resigned(0)
            made.runtime.elected(0, 100 + position * 3 + value)
            made.advance(10)
            assert not made.runtime.is_loading


def test_a_transaction_counts_when_its_marker_is_read() -> None:
    """offsets.py rule 4: committed, aborted, and still open."""
    from protocol.records import ControlType, end_txn_marker

    made = world()
    made.ask(commit_request(1), 8)
    key, value = _only_record(made.logs[0])
    for producer, group in ((1, b"c"), (2, b"a"), (3, b"o")):
        builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(1, key.replace(b"g", group), value)
        made.logs[0].append(builder.build(), lambda _: None)
    for producer, kind in ((1, ControlType.COMMIT), (2, ControlType.ABORT)):
        marker = end_txn_marker(kind, producer_id=producer, producer_epoch=0, coordinator_epoch=1, timestamp_ms=1)
        made.logs[0].append(marker, lambda _: None)
    made.restart()
    assert committed(made, "c") == 1
    assert committed(made, "a") == -1
    assert committed(made, "o") == -1
    request = fetch_request("o")
    request.require_stable = True
    unstable = made.ask(request, 8).groups[0].topics[0].partitions[0]
    assert unstable.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_topics_deleted_during_the_loading_are_forgotten_after_it() -> None:
    """runtime.py rule 1: news that come too early are not lost."""
    made = world()
    made.ask(commit_request(5), 8)
    made.runtime.resigned(0)
    made.runtime.elected(0, 7)
    made.delete_topic("t")
    made.advance(5)
    assert committed(made) == -1
    made.restart()
    assert committed(made) == -1


# ---- giving up


def test_who_waits_is_told_when_the_coordinator_moves() -> None:
    """runtime.py rule 4: joins, syncs and commits that wait are NOT_COORDINATOR, and no timer fires any more."""
    made = world()
    made.send("a", join_request("sync"), 3)
    first: Any = made.take("a")
    made.send("b", join_request("sync"), 3)
    assert made.take("b") is None
    member = first.member_id
    made.send("a", join_request("sync", member), 3)
    generation: Any = made.take("a")
    follower: Any = made.take("b")
    made.send(
        "b",
        SyncGroupRequest(
            group_id="sync", generation_id=generation.generation_id, member_id=follower.member_id, assignments=[]
        ),
        3,
    )
    assert made.take("b") is None
    made.send("c", join_request("join"), 3)
    made.take("c")
    made.send("d", join_request("join"), 3)
    assert made.take("d") is None
    made.logs[0].is_holding = True
    made.send("e", commit_request(1, group="other"), 8)
    made.runtime.resigned(0)
    answers: dict[str, Any] = {actor: made.take(actor) for actor in "bde"}
    assert answers["b"].error_code == ErrorCode.NOT_COORDINATOR
    assert answers["d"].error_code == ErrorCode.NOT_COORDINATOR
    assert commit_error(answers["e"]) is ErrorCode.NOT_COORDINATOR
    made.logs[0].release()
    made.advance(600_000)
    assert len(made.clock.deadlines) == 0


def test_a_newer_leader_epoch_reads_everything_again() -> None:
    """runtime.py rule 4: an older or equal epoch changes nothing."""
    made = world()
    made.ask(commit_request(5), 8)
    old = shard(made)
    made.runtime.elected(0, old.epoch)
    assert shard(made) is old
    made.runtime.elected(0, old.epoch + 1)
    assert shard(made) is not old
    made.advance(5)
    assert committed(made) == 5


def test_leaving_is_answered_when_the_empty_group_is_recorded() -> None:
    """rebalance.py rule 4, runtime.py rule 2."""
    made = world()
    member = stable_group(made)
    made.logs[0].is_holding = True
    made.send("a", LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member)]), 3)
    assert made.take("a") is None
    made.logs[0].release()
    answer: Any = made.take("a")
    assert answer.members[0].error_code == 0


def test_an_idle_coordinator_has_no_deadlines() -> None:
    """An idle broker does not wake up: expiry is only looked for where there are groups."""
    made = world(50)
    assert len(made.clock.deadlines) == 0
    made.ask(commit_request(5), 8)
    assert len(made.clock.deadlines) == 1


def test_records_that_belong_together_are_not_split() -> None:
    """An atomic decision that is too large for one batch is refused as a whole."""
    from broker.coordinators.classic.group_records import Committed, commit_records
    from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision

    made = world()
    made.logs[0].max_batch_bytes = 400
    several = commit_records("g", "t", [(partition, Committed(1, -1, "x" * 100, 1)) for partition in range(5)])
    assert shard(made).execute(CoordinatorDecision(several, None)).error is ErrorCode.MESSAGE_TOO_LARGE
    assert made.logs[0].batches == []
    assert committed(made) == -1
    assert shard(made).execute(CoordinatorDecision(several, None, is_atomic=False)).error is ErrorCode.NONE
    assert len(made.logs[0].batches) > 1


@pytest.mark.parametrize("stretched", [1, 5])
def test_a_value_that_runs_into_the_next_record_is_found(stretched: int) -> None:
    """loading.py rule 4: such bytes could be read as another commit."""
    made = world()
    made.ask(commit_request(1), 8)
    key, value = _only_record(made.logs[0])
    builder = BatchBuilder()
    builder.append(1, key, value)
    builder.append(1, key, value)
    batch = bytes(builder.build())
    length = bytes([len(value) * 2])
    at = batch.index(length + value)
    made.logs[0].append(bytearray(batch[:at] + bytes([length[0] + 2 * stretched]) + batch[at + 1 :]), lambda _: None)
    made.restart()
    assert made.ask(fetch_request(), 8).groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_new_member_is_given_up_after_five_minutes_of_rebalance() -> None:
    """It does not know its id and cannot send heartbeats; if it lives it will ask again."""
    made = world()
    first = join_request()
    first.rebalance_timeout_ms = first.session_timeout_ms = 1_000_000
    member = made.ask(first, 3, actor="a").member_id
    second = join_request()
    second.rebalance_timeout_ms = 1_000_000
    made.send("b", second, 3)
    made.advance(299_999)
    assert made.take("b") is None
    made.advance(1)
    answer: Any = made.take("b")
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(shard(made).machine.groups["g"].members) == [member]


def test_a_group_above_a_lowered_limit_is_rebalanced_when_it_is_read_back() -> None:
    """group.max.size counts from the next rebalance on, so there must be one."""
    made = world()
    for actor in ("a", "b"):
        made.send(actor, join_request(), 3)
    first: Any = made.take("a")
    second: Any = made.take("b")
    for member in (second.member_id, first.member_id):
        made.send(member, SyncGroupRequest(group_id="g", generation_id=1, member_id=member, assignments=[]), 3)
    assert shard(made).machine.groups["g"].state is State.STABLE
    made.restart()
    assert shard(made).machine.groups["g"].state is State.STABLE
    made.settings = made.settings._replace(max_size=1)
    made.restart()
    assert shard(made).machine.groups["g"].state is State.PREPARING_REBALANCE


def test_a_group_whose_first_member_is_on_its_way_is_not_expired() -> None:
    """groups.py: a member id that was given out keeps its empty group."""
    made = world()
    made.advance(595_000)
    request = join_request()
    made.ask(commit_request(1, group="other"), 8)  # the check for expired offsets begins with the first group
    made.advance(595_000)
    member = made.ask(request, 5).member_id
    made.advance(6_000)
    request.member_id = member
    assert made.ask(request, 5).error_code == 0

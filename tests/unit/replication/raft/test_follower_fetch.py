"""replication/raft/{following,pulling,serving,progress,voter_requests}.py: what is fetched, served, counted and asked for."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.cluster import AddRaftVoterRequest, AddRaftVoterResponse, RemoveRaftVoterRequest
from protocol.messages.produce_fetch import FetchRequest, SnapshotId
from protocol.messages.raft import FetchSnapshotRequest, UpdateRaftVoterRequest
from replication.raft.control_state_history import History
from replication.raft.follower_log_sync import ForkedLog
from replication.raft.leader_fetch import parting
from replication.raft.raft import Raft
from replication.raft.raft_log import Append, ElectionState, EpochEnd, KeepSnapshot, Send, Truncate
from replication.raft.replica_progress import Progress
from replication.raft.roles import Follower, Leader, Prospective
from replication.raft.rpc_messages import Who, fetch_request, snapshot_request, update_voter_response
from replication.raft.voters import Address, Voter, VoterSet, from_record, to_record
from tests.simulation.quorum.memory_log import Entry, MemoryLog
from tests.unit.replication.raft.replica import (
    CLUSTER,
    FOUR,
    LISTENER,
    ONE,
    THREE,
    TWO,
    VOTERS,
    answer,
    committing_leader,
    fetch,
    leader,
    log_of,
    node,
    replica,
    sent,
    settings_of,
    taken,
)


def log_with(*epochs: int, snapshot: EpochEnd | None = None) -> MemoryLog:
    """A log with a record of each of these epochs, durable, and perhaps a snapshot that it begins behind."""
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(epoch, value) for value, epoch in enumerate(epochs)])
    log.flush(len(epochs))
    if snapshot is not None:
        log.summarize(snapshot.offset)
    return log


def follower(own: Voter = TWO, *, epoch: int = 1, log: MemoryLog | None = None, **given: Any) -> tuple[Raft, Send]:
    """A replica that follows node 1 since time 0, and what it asks it first."""
    raft = replica(own, state=ElectionState(epoch, 1), log=log, **given)
    raft.tick(1)
    (ask,) = sent(raft)
    return raft, ask


def test_nothing_is_due_while_a_log_is_not_durable() -> None:
    """Rule 2: who looked at the clock only would look for ever at what cannot be asked yet."""
    log = log_with(1)
    log.append([Entry(1, 7)])
    raft = replica(TWO, state=ElectionState(2, 1), log=log)
    for now_ms in (1, 1999):
        raft.tick(now_ms)
        assert not raft.effects
        due_ms = raft.next_deadline_ms
        assert due_ms is not None
        assert due_ms > now_ms
    log.flush(2)
    raft.flushed(1999)
    assert sent(raft)


def answered(raft: Raft, ask: Send, now_ms: int = 2, **said: Any) -> None:
    """The leader answers a Fetch with this."""
    response: Any = leader_answer()
    partition = response.responses[0].partitions[0]
    partition.current_leader.leader_epoch = raft.epoch
    for name, value in said.items():
        setattr(partition, name, value)
    raft.answered(ask.to, ask.token, response, now_ms)


def test_followers_of_a_silent_leader_stand_for_election_one_after_another() -> None:
    """Each draws when: they heard the leader at the same moment last, and would split the vote."""
    for drawn in (0, 130):
        raft, ask = follower(jitter=lambda below, drawn=drawn: min(drawn, below - 1))
        answered(raft, ask, 6)
        raft.tick(2005 + drawn)
        assert isinstance(raft.role, Follower)
        raft.tick(2006 + drawn)
        assert isinstance(raft.role, Prospective)


def leader_answer() -> Any:
    """What a leader answers to who has all."""
    request = fetch_request(CLUSTER, TWO.key, epoch=1, end=EpochEnd(1, 2), high_watermark=0)
    return leader().receive(request, 1000)


# ---- serving -------------------------------------------------------------------------------------------------------


def test_what_a_replica_fetches_from_is_what_it_has() -> None:
    """Rule 1 of progress.py: with a majority it is committed, and everybody hears of it."""
    raft = leader()
    assert fetch(raft, TWO, 1001, EpochEnd(0, 0)).high_watermark == -1
    assert fetch(raft, TWO, 1002).high_watermark == 2
    assert raft.high_watermark == 2


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"fetch_offset": -5}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": 2}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_fetch_is_refused_as_kafka_does(given: dict[str, int], code: ErrorCode) -> None:
    """The leader and where it listens are told with every refusal."""
    request: Any = fetch_request(CLUSTER, TWO.key, epoch=1, end=EpochEnd(0, 0), high_watermark=0)
    for name, value in given.items():
        setattr(request if name == "max_wait_ms" else request.topics[0].partitions[0], name, value)
    response: Any = leader().receive(request, 1001)
    partition = response.responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (code, -1)
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 1)
    assert [(one.node_id, one.port) for one in response.node_endpoints] == [(1, 9001)]


def test_only_a_leader_serves() -> None:
    """Who follows says whom."""
    raft = replica(TWO, state=ElectionState(1, 1))
    assert fetch(raft, THREE, 5).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_has_all_waits_until_there_is_more_or_more_is_committed() -> None:
    """Not for an unknown watermark, not with max_wait_ms 0; an error never waits."""
    raft = leader()
    assert fetch(raft, TWO, 1001, EpochEnd(0, 0), may_wait=True).records
    request = fetch_request(CLUSTER, THREE.key, epoch=1, end=EpochEnd(1, 2), high_watermark=0x7FFF_FFFF)
    raft = leader()
    assert raft.receive(request, 1002, may_wait=True) is None
    known = fetch_request(CLUSTER, TWO.key, epoch=1, end=EpochEnd(1, 2), high_watermark=1)
    assert raft.receive(known, 1003, may_wait=True) is not None
    assert raft.receive(request, 1004, may_wait=True) is None
    request.max_wait_ms = 0
    assert raft.receive(request, 1005, may_wait=True) is not None
    request.max_wait_ms = 500
    raft.resign(1006)
    assert raft.receive(request, 1007, may_wait=True) is not None


def test_who_is_no_replica_is_not_counted_and_the_leader_does_not_fetch_from_itself() -> None:
    """A consumer has id -1."""
    raft = leader()
    fetch(raft, ONE._replace(key=ONE.key._replace(node_id=-1)), 1001)
    assert isinstance(raft.role, Leader)
    assert raft.role.progress.replicas == {}
    assert fetch(raft, node(1, 77), 1002).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (EpochEnd(3, 6), None),
        (EpochEnd(3, 5), None),
        (EpochEnd(3, 7), EpochEnd(3, 6)),
        (EpochEnd(2, 5), EpochEnd(2, 4)),
        (EpochEnd(5, 9), EpochEnd(3, 6)),
        (EpochEnd(0, 0), None),
        (EpochEnd(1, 2), None),
        (EpochEnd(1, 3), EpochEnd(1, 2)),
    ],
)
def test_a_log_that_parts_from_the_leaders_is_told_where(asked: EpochEnd, expected: EpochEnd | None) -> None:
    """Rule 1 of serving.py: the leader has epochs 1 1 2 2 3 3."""
    told = parting(log_with(1, 1, 2, 2, 3, 3), asked)
    found = told.diverging if told is not None else None
    assert (found and EpochEnd(found.epoch, found.end_offset)) == expected


@pytest.mark.parametrize(
    ("asked", "is_snapshot", "diverging"),
    [
        (EpochEnd(0, 0), True, None),
        (EpochEnd(1, 1), True, None),
        (EpochEnd(1, 2), True, None),
        (EpochEnd(2, 3), False, None),
        (EpochEnd(1, 3), True, None),
        (EpochEnd(1, 5), True, None),
        (EpochEnd(2, 5), False, EpochEnd(2, 4)),
        (EpochEnd(3, 5), False, None),
        (EpochEnd(4, 9), False, EpochEnd(3, 6)),
    ],
)
def test_who_is_before_the_logs_start_gets_the_newest_snapshot_named(
    asked: EpochEnd, is_snapshot: bool, diverging: EpochEnd | None
) -> None:
    """Rule 2 of serving.py: the log begins at offset 3 in epoch 2."""
    told = parting(log_with(1, 1, 2, 2, 3, 3, snapshot=EpochEnd(2, 3)), asked)
    assert (told is not None and told.snapshot == SnapshotId(end_offset=3, epoch=2)) is is_snapshot
    found = told.diverging if told is not None else None
    assert (found and EpochEnd(found.epoch, found.end_offset)) == diverging


def test_who_has_nothing_gets_a_snapshot_even_where_the_log_begins_at_0_but_never_the_checkpoint_there() -> None:
    """A snapshot is shorter than the log; what the checkpoint at offset 0 says stands in the log."""
    log = log_with(1, 1, 1)
    log.oldest_snapshot = EpochEnd(1, 2)
    told = parting(log, EpochEnd(0, 0))
    assert told is not None
    assert told.snapshot == SnapshotId(end_offset=2, epoch=1)
    log.oldest_snapshot = EpochEnd(0, 0)
    assert parting(log, EpochEnd(0, 0)) is None


@pytest.mark.parametrize(
    ("epoch", "snapshot", "position", "code"),
    [
        (1, EpochEnd(1, 2), 0, ErrorCode.NONE),
        (1, EpochEnd(1, 2), 1, ErrorCode.NONE),
        (1, EpochEnd(1, 2), 2, ErrorCode.POSITION_OUT_OF_RANGE),
        (1, EpochEnd(1, 2), -1, ErrorCode.POSITION_OUT_OF_RANGE),
        (1, EpochEnd(1, 1), 0, ErrorCode.SNAPSHOT_NOT_FOUND),
        (1, EpochEnd(0, 0), 0, ErrorCode.SNAPSHOT_NOT_FOUND),
        (0, EpochEnd(1, 2), 0, ErrorCode.FENCED_LEADER_EPOCH),
        (2, EpochEnd(1, 2), 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_pieces_of_snapshots_are_served(epoch: int, snapshot: EpochEnd, position: int, code: ErrorCode) -> None:
    """Size and position come back; what is wrong is refused as Kafka does."""
    raft = committing_leader()
    log_of(raft).summarize(2)
    request = snapshot_request(CLUSTER, FOUR.key, epoch=epoch, snapshot=snapshot, position=position)
    response: Any = raft.receive(request, 1010)
    partition = response.topics[0].partitions[0]
    assert (partition.error_code, partition.position) == (code, position)
    assert len(partition.unaligned_records) == (2 - position if code == ErrorCode.NONE else 0)
    assert partition.current_leader.leader_id == 1


def test_a_snapshot_of_something_else_is_unknown() -> None:
    """In the partition that was asked for, not as a whole."""
    request = snapshot_request(CLUSTER, FOUR.key, epoch=1, snapshot=EpochEnd(1, 2), position=0)
    request.topics[0].name = "other"
    response: Any = leader().receive(request, 1010)
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request.cluster_id = "other"
    response = leader().receive(request, 1010)
    assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_who_loads_a_snapshot_keeps_its_leader_leading() -> None:
    """A leader that no majority fetches from resigns; pieces of snapshots count."""
    raft = leader()
    log_of(raft).summarize(2)
    request = snapshot_request(CLUSTER, TWO.key, epoch=1, snapshot=EpochEnd(1, 2), position=0)
    raft.receive(request, 3000)
    raft.tick(4500)
    assert isinstance(raft.role, Leader)
    raft.tick(6000)
    assert not isinstance(raft.role, Leader)


# ---- counting ------------------------------------------------------------------------------------------------------


def test_records_of_older_epochs_are_not_committed_by_counting() -> None:
    """Raft, section 5.4.2: they may still be cut, until one of the leader's own epoch stands behind them."""
    progress = Progress(ONE.key, epoch_start_offset=10, mono_ms=0)
    progress.fetched(TWO.key, 10, leader_end=11, mono_ms=1)
    assert not progress.commit(VOTERS, 11)
    progress.fetched(TWO.key, 11, leader_end=11, mono_ms=2)
    assert progress.commit(VOTERS, 11)
    assert progress.high_watermark == 11


def test_a_high_watermark_does_not_go_back_when_a_follower_does() -> None:
    """It may have lost its log; what was committed stays it."""
    progress = Progress(ONE.key, epoch_start_offset=0, mono_ms=0)
    progress.fetched(TWO.key, 5, leader_end=5, mono_ms=1)
    assert progress.commit(VOTERS, 5)
    progress.fetched(TWO.key, 2, leader_end=5, mono_ms=2)
    assert not progress.commit(VOTERS, 5)
    assert progress.high_watermark == 5


def test_a_leader_without_a_vote_does_not_count_itself() -> None:
    """KIP-853: it may lead until its removal is committed."""
    progress = Progress(ONE.key, epoch_start_offset=0, mono_ms=0)
    others = VOTERS.without(1)
    progress.fetched(TWO.key, 5, leader_end=5, mono_ms=1)
    assert not progress.commit(others, 5)
    progress.fetched(THREE.key, 5, leader_end=5, mono_ms=1)
    assert progress.commit(others, 5)


def test_a_node_that_lost_its_disk_is_not_the_voter() -> None:
    """KIP-853: it votes and counts when its new directory has been added; in a static quorum it is, as it fetched last."""
    progress = Progress(ONE.key, epoch_start_offset=0, mono_ms=0)
    progress.fetched(node(2, 77).key, 5, leader_end=5, mono_ms=1)
    assert not progress.commit(VOTERS, 5)
    assert node(2, 77).key not in VOTERS
    static = settings_of(VOTERS)
    assert node(2, 77).key in static
    progress.fetched(TWO.key, 9, leader_end=9, mono_ms=0)
    assert progress.commit(static, 9)
    assert progress.high_watermark == 5


def test_a_replica_has_caught_up_when_it_had_all_that_there_was_when_it_asked() -> None:
    """Either all now, or all that the leader had at the fetch before; an observer that is silent is forgotten."""
    progress = Progress(ONE.key, epoch_start_offset=0, mono_ms=0)
    progress.fetched(FOUR.key, 0, leader_end=5, mono_ms=10)
    assert progress.replicas[FOUR.key].caught_up_ms is None
    progress.fetched(FOUR.key, 5, leader_end=9, mono_ms=20)
    assert progress.replicas[FOUR.key].caught_up_ms == 10
    progress.fetched(FOUR.key, 9, leader_end=9, mono_ms=30)
    assert progress.replicas[FOUR.key].caught_up_ms == 30
    progress.forget_silent_observers(VOTERS, 30 + 299_999)
    assert FOUR.key in progress.replicas
    progress.forget_silent_observers(VOTERS, 30 + 300_000)
    assert FOUR.key not in progress.replicas


# ---- following -----------------------------------------------------------------------------------------------------


def test_a_follower_says_what_it_has_and_appends_what_it_gets() -> None:
    """Nothing is asked for while it is written; the watermark follows as far as the log goes."""
    log = log_with(1)
    raft, ask = follower(log=log)
    asked: Any = ask.request
    partition = asked.topics[0].partitions[0]
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch) == (1, 1, 1)
    assert (ask.to, ask.address) == (1, ONE.addresses[0])
    records = [Entry(1, 7)]
    answered(raft, ask, records=records, high_watermark=9)
    assert taken(raft) == [Append(records, 1)]
    raft.tick(1000)
    assert sent(raft) == []
    log.append(records)
    raft.written(1001)
    assert raft.high_watermark == 2
    assert sent(raft) == [], "what it asks for next says that it has synced all before"
    log.flush(2)
    raft.flushed(1002)
    assert len(sent(raft)) == 1


def test_a_follower_cuts_its_log_where_the_leader_says_but_nothing_committed() -> None:
    """Rule 2 of pulling.py."""
    log = log_with(1, 1, 2)
    raft, ask = follower(epoch=3, log=log)
    other: Any = leader_answer().responses[0].partitions[0]
    other.diverging_epoch = parting(log_with(1, 1, 1), EpochEnd(2, 3)).diverging  # type: ignore[union-attr]
    answered(raft, ask, diverging_epoch=other.diverging_epoch)
    assert taken(raft) == [Truncate(2)]
    committed, ask = follower(epoch=3, log=log_with(1, 1, 2))
    answered(committed, ask, records=[], high_watermark=3)
    (ask,) = sent(committed)
    with pytest.raises(ForkedLog):
        answered(committed, ask, 3, diverging_epoch=other.diverging_epoch)


def piece(raft: Raft, ask: Send, now_ms: int = 3, **said: Any) -> None:
    """The leader answers a FetchSnapshot with this."""
    leading = committing_leader()
    log_of(leading).summarize(2)
    request = snapshot_request(CLUSTER, TWO.key, epoch=1, snapshot=EpochEnd(1, 2), position=0)
    response: Any = leading.receive(request, 1010)
    partition = response.topics[0].partitions[0]
    for name, value in said.items():
        setattr(partition, name, value)
    raft.answered(ask.to, ask.token, response, now_ms)


def loading() -> tuple[Raft, Send]:
    """A follower that asks for the first piece of the snapshot (1, 2)."""
    raft, ask = follower()
    answered(raft, ask, snapshot_id=SnapshotId(end_offset=2, epoch=1))
    (ask,) = sent(raft)
    assert isinstance(ask.request, FetchSnapshotRequest)
    return raft, ask


def test_pieces_are_kept_and_the_next_one_asked_for() -> None:
    """Until all is there."""
    raft, ask = loading()
    piece(raft, ask, size=5, unaligned_records=[Entry(1, 0)] * 3)
    assert taken(raft) == [KeepSnapshot(EpochEnd(1, 2), 0, [Entry(1, 0)] * 3, False)]
    raft.written(4)
    (ask,) = sent(raft)
    assert ask.request.topics[0].partitions[0].position == 3  # type: ignore[attr-defined]
    piece(raft, ask, 5, size=5, position=3, unaligned_records=[Entry(1, 0)] * 2)
    assert taken(raft) == [KeepSnapshot(EpochEnd(1, 2), 3, [Entry(1, 0)] * 2, True)]


@pytest.mark.parametrize(
    "said", [{"error_code": ErrorCode.SNAPSHOT_NOT_FOUND}, {"position": 1}, {"error_code": 0, "position": -1}]
)
def test_a_snapshot_that_is_gone_or_another_is_begun_anew(said: dict[str, int]) -> None:
    """With a Fetch: the leader names the newest then."""
    raft, ask = loading()
    piece(raft, ask, **said)
    raft.tick(100)
    assert [type(one.request) for one in sent(raft)] == [FetchRequest]


def test_half_a_snapshots_name_is_none() -> None:
    """An offset without an epoch, or the other way round."""
    for half in (SnapshotId(end_offset=-1, epoch=1), SnapshotId(end_offset=2, epoch=-1)):
        raft, ask = follower()
        answered(raft, ask, snapshot_id=half)
        raft.tick(100)
        assert [type(one.request) for one in sent(raft)] == [FetchRequest]


def test_a_follower_whose_leader_does_not_answer_asks_the_others_who_leads() -> None:
    """In turn, the bootstrap servers among them; then the leader again."""
    raft, ask = follower(bootstrap_servers=1)
    raft.answered(ask.to, ask.token, None, 10)
    (other,) = sent(raft)
    assert other.to in (3, -2)
    assert isinstance(other.request, FetchRequest)
    raft.answered(other.to, other.token, None, 50)
    assert [one.to for one in sent(raft)] == [1]


def test_who_knows_no_leader_asks_and_follows_whom_it_is_told_wherever_that_is() -> None:
    """An observer without any voters asks its bootstrap servers; the answer says where the leader listens."""
    raft = replica(FOUR, log=MemoryLog(VoterSet()), bootstrap_servers=1)
    raft.tick(1)
    (ask,) = sent(raft)
    assert (ask.to, ask.address) == (-2, None)
    answer(raft, ask, replica(TWO, state=ElectionState(1, 1)), 2)
    assert (type(raft.role), raft.leader_id, raft.epoch) == (Follower, 1, 1)
    (ask,) = sent(raft)
    assert (ask.to, ask.address) == (1, ONE.addresses[0])
    answer(raft, ask, leader(), 1003)
    assert any(isinstance(effect, Append) for effect in taken(raft))


def test_an_answer_of_an_older_epoch_is_dropped_and_one_of_a_newer_one_believed() -> None:
    """Whoever gives it."""
    raft, ask = follower(epoch=5)
    answer(raft, ask, replica(ONE, state=ElectionState(4, 3)), 2)
    assert (raft.epoch, raft.leader_id) == (5, 1)
    raft.tick(100)
    ask = sent(raft)[0]
    answer(raft, ask, replica(ONE, state=ElectionState(6, 3)), 101)
    assert (raft.epoch, raft.leader_id) == (6, 3)


def test_an_election_waits_until_what_is_written_is_durable() -> None:
    """Rule 3 of raft.py."""
    raft, ask = follower()
    answered(raft, ask, records=[Entry(1, 0)])
    taken(raft)
    assert raft.next_deadline_ms is None
    raft.tick(60_000)
    assert isinstance(raft.role, Follower)


# ---- a follower's own requests ---------------------------------------------------------------------------------------


def asked_after_a_fetch_timeout(raft: Raft, ask: Send) -> Send:
    """The first thing that is asked when a fetch timeout is over and the Fetch before it answered."""
    answered(raft, ask, 1500)
    (ask,) = sent(raft)
    answered(raft, ask, 2001)
    (ask,) = sent(raft)
    return ask


def test_a_voter_that_moved_tells_the_leader() -> None:
    """Once in a fetch timeout, until the log knows it so."""
    moved = TWO._replace(addresses=(Address(LISTENER, "elsewhere", 1),))
    raft, ask = follower(moved)
    asked = asked_after_a_fetch_timeout(raft, ask)
    assert isinstance(asked.request, UpdateRaftVoterRequest)
    raft.answered(asked.to, asked.token, update_voter_response(ErrorCode.NONE, Who(1, 1, ONE.addresses[0])), 2002)
    (ask,) = sent(raft)
    assert isinstance(ask.request, FetchRequest)
    log_of(raft).append([Entry(1, -2)])
    log_of(raft).flush(1)
    log_of(raft).voters.changed(0, VOTERS.with_voter(moved))
    answered(raft, ask, 4100)
    assert [type(one.request) for one in sent(raft)] == [FetchRequest]


def test_a_voter_that_is_known_as_it_is_says_nothing() -> None:
    """There is nothing to tell."""
    assert isinstance(asked_after_a_fetch_timeout(*follower()).request, FetchRequest)


def test_in_a_static_quorum_every_leader_is_told_once() -> None:
    """It does not stand in the log, and is needed to raise kraft.version; who is too old for it is left alone."""
    for code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
        raft, ask = follower(log=MemoryLog(settings_of(VOTERS)))
        asked = asked_after_a_fetch_timeout(raft, ask)
        assert isinstance(asked.request, UpdateRaftVoterRequest)
        raft.answered(asked.to, asked.token, update_voter_response(code, Who(1, 1, None)), 2002)
        (ask,) = sent(raft)
        answered(raft, ask, 3900)
        (ask,) = sent(raft)
        answered(raft, ask, 4100)
        assert [type(one.request) for one in sent(raft)] == [FetchRequest]


def test_an_answer_to_that_may_name_another_leader() -> None:
    """It is followed, as with any answer."""
    raft, ask = follower(log=MemoryLog(settings_of(VOTERS)))
    asked = asked_after_a_fetch_timeout(raft, ask)
    response = update_voter_response(ErrorCode.NOT_LEADER_OR_FOLLOWER, Who(3, 2, THREE.addresses[0]))
    raft.answered(asked.to, asked.token, response, 2002)
    assert (raft.leader_id, raft.epoch) == (3, 2)


def test_a_controller_that_may_join_asks_for_a_vote_after_that_of_its_lost_disk_is_taken_away() -> None:
    """KIP-853 and 4.2's controller.quorum.auto.join.enable; it does not wait until that is committed."""
    raft, ask = follower(node(3, 77), joins=True)
    asked = asked_after_a_fetch_timeout(raft, ask)
    assert isinstance(asked.request, RemoveRaftVoterRequest)
    assert asked.request.voter_directory_id == THREE.key.directory_id
    raft, ask = follower(FOUR, joins=True)
    asked = asked_after_a_fetch_timeout(raft, ask)
    assert isinstance(asked.request, AddRaftVoterRequest)
    assert not asked.request.ack_when_committed
    raft.answered(asked.to, asked.token, AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT), 2002)
    (ask,) = sent(raft)
    assert isinstance(ask.request, FetchRequest)


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_who_may_not_join_does_not(kraft_version: int) -> None:
    """By its settings, or because the voters are one."""
    log = MemoryLog(VOTERS, 1) if kraft_version else MemoryLog(settings_of(VOTERS))
    raft, ask = follower(FOUR, log=log, joins=not kraft_version)
    assert isinstance(asked_after_a_fetch_timeout(raft, ask).request, FetchRequest)


# ---- what control records say ----------------------------------------------------------------------------------------


def test_what_is_cut_off_the_log_says_nothing_any_more() -> None:
    """Voters count from the moment that they stand in the log, and only so long."""
    history = History(VOTERS)
    fewer = VOTERS.without(3)
    history.changed(7, fewer)
    assert history.latest == fewer
    assert history.at(7) == VOTERS
    assert history.at(8) == fewer
    history.truncated(7)
    assert history.latest == VOTERS


def test_a_snapshot_says_who_the_voters_are_where_it_ends() -> None:
    """What stands behind it counts on."""
    history = History(VOTERS)
    fewer = VOTERS.without(3)
    history.changed(7, fewer)
    history.begins_with(5, VOTERS)
    assert (history.latest, history.at(5)) == (fewer, VOTERS)
    history.begins_with(9, fewer)
    assert (history.latest, history.latest_offset) == (fewer, 8)


def test_voters_stand_in_their_record() -> None:
    """There and back."""
    assert from_record(to_record(VOTERS)) == VOTERS

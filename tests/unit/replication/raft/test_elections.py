"""replication/raft/{standing,voting}.py: who votes for whom, who leads, and what is remembered of it (KIP-595, 996)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.raft import BeginQuorumEpochRequest, EndQuorumEpochRequest, VoteRequest, VoteResponse
from replication.raft.raft import Raft
from replication.raft.raft_log import ElectionState, EpochEnd, Lead, Persist
from replication.raft.replica_state import QuorumTimes
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from replication.raft.rpc_messages import begin_epoch_request, end_epoch_request, fetch_request, only_partition
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog
from tests.unit.replication.raft.replica import (
    CLUSTER,
    FOUR,
    ONE,
    THREE,
    TWO,
    VOTERS,
    answer,
    fetch,
    leader,
    log_of,
    node,
    replica,
    sent,
    settings_of,
    taken,
    vote,
)

EMPTY = EpochEnd(0, 0)


def verdict(raft: Raft, request: VoteRequest, now_ms: int = 5) -> tuple[int, int, int, bool]:
    """The code, the leader, the epoch and the vote of an answer."""
    partition = only_partition(raft.receive(request, now_ms))
    return partition.error_code, partition.leader_id, partition.leader_epoch, partition.vote_granted


def following(own: Voter = TWO, *, has_fetched: bool = False) -> Raft:
    """A replica that follows node 1 in epoch 1."""
    raft = replica(own)
    raft.receive(begin_epoch_request(CLUSTER, ONE, own.key, 1), 5)
    if has_fetched:
        answer(raft, sent(raft)[-1], leader(), 6)
    taken(raft)
    return raft


# ---- the beginning -----------------------------------------------------------------------------------------------


def test_the_first_voter_asks_at_once_whether_it_would_be_elected_and_the_others_wait() -> None:
    """Rule 6 of standing.py: a new cluster does not wait for a leader that it never had."""
    first, second = replica(ONE), replica(TWO)
    for raft in (first, second):
        raft.tick(0)
    assert isinstance(first.role, Prospective)
    assert isinstance(second.role, Unattached)
    assert second.next_deadline_ms is not None
    assert second.next_deadline_ms >= QuorumTimes().election_timeout_ms


def test_who_led_before_it_was_started_stands_for_the_next_epoch_at_once() -> None:
    """Rule 6: those that followed it would have to miss it first."""
    raft = replica(TWO, state=ElectionState(3, TWO.key.node_id, TWO.key))
    raft.tick(0)
    assert isinstance(raft.role, Prospective)
    assert raft.epoch == 4


def test_the_only_voter_leads_when_it_is_started_and_writes_its_state_once() -> None:
    """Rule 4 of standing.py; what rests on nothing is not synced."""
    raft = replica(voters=VoterSet([ONE]))
    assert [type(effect) for effect in raft.effects] == [Persist, Lead]
    assert raft.effects[0] == Persist(ElectionState(1, 1, ONE.key))


@pytest.mark.parametrize(
    ("state", "epoch"),
    [
        (ElectionState(2, -1, ONE.key), 2),
        (ElectionState(2, 1, ONE.key), 3),
        (ElectionState(2, 2), 3),
        (ElectionState(), 1),
    ],
    ids=["candidate", "resigned", "follower", "new"],
)
def test_the_only_voter_leads_whatever_it_was(state: ElectionState, epoch: int) -> None:
    """A candidate in the epoch that it stood for; anybody else in the next one."""
    raft = replica(voters=VoterSet([ONE]), state=state)
    assert isinstance(raft.role, Leader)
    assert raft.epoch == epoch


def test_who_stood_for_an_epoch_before_its_restart_stands_for_it_again() -> None:
    """Rule 2 of standing.py: it has voted for nobody else in it."""
    raft = replica(state=ElectionState(2, -1, ONE.key))
    raft.tick(1)
    asks = [only_partition(ask.request) for ask in sent(raft)]
    assert [(ask.replica_epoch, ask.pre_vote) for ask in asks] == [(2, False), (2, False)]


def test_who_led_an_epoch_before_its_restart_does_not_lead_it_on_and_votes_for_nobody_in_it() -> None:
    """Rule 2 of standing.py: it may have lost what it wrote."""
    raft = replica(state=ElectionState(7, 1, ONE.key))
    assert isinstance(raft.role, Resigned)
    assert not verdict(raft, vote(TWO, ONE, 7, EpochEnd(6, 9)))[3]
    raft.tick(1000)
    assert (type(raft.role), raft.epoch) == (Prospective, 8)


def test_a_log_that_is_newer_than_the_state_has_its_epoch() -> None:
    """The state was not written for a follower that crashed between."""
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(5, 0)])
    raft = replica(state=ElectionState(2, 2), log=log)
    assert (raft.epoch, raft.leader_id) == (5, -1)


def test_a_leader_that_is_nowhere_known_is_not_followed_but_remembered() -> None:
    """Who asks is told; a voter stands for election in time."""
    raft = replica(state=ElectionState(2, 9))
    assert isinstance(raft.role, Unattached)
    assert raft.leader_id == 9
    raft.tick(1000)
    assert isinstance(raft.role, Prospective)
    assert raft.leader_id == 9


# ---- votes ---------------------------------------------------------------------------------------------------------


def test_a_vote_before_the_vote_changes_nothing_at_the_voter() -> None:
    """KIP-996."""
    voter = replica(TWO)
    assert verdict(voter, vote(ONE, TWO, 0, EMPTY, is_pre_vote=True)) == (0, -1, 0, True)
    assert not any(isinstance(effect, Persist) for effect in voter.effects)
    assert voter.epoch == 0


def roles() -> list[Any]:
    """A replica in every role, and what it says to a vote before the vote, and to a vote, in its epoch."""
    unattached = replica(TWO, state=ElectionState(1))
    voted = replica(TWO, state=ElectionState(1, -1, THREE.key))
    prospective = replica(TWO, state=ElectionState(1))
    prospective.tick(1000)
    deserted = replica(TWO, state=ElectionState(1, 3))
    deserted.tick(2000)
    resigned = leader()
    resigned.resign(1001)
    return [
        pytest.param(unattached, True, True, id="unattached"),
        pytest.param(voted, True, False, id="voted"),
        pytest.param(prospective, True, True, id="prospective"),
        pytest.param(deserted, True, False, id="prospective that knows a leader"),
        pytest.param(replica(TWO, state=ElectionState(1, -1, TWO.key)), True, False, id="candidate"),
        pytest.param(following(), True, False, id="follower"),
        pytest.param(following(has_fetched=True), False, False, id="follower that has fetched"),
        pytest.param(leader(), False, False, id="leader"),
        pytest.param(resigned, True, False, id="resigned"),
        pytest.param(replica(FOUR, state=ElectionState(1)), True, True, id="observer"),
    ]


@pytest.mark.parametrize(("raft", "pre_vote", "real"), roles())
def test_who_votes_depends_on_the_role(raft: Raft, pre_vote: bool, real: bool) -> None:
    """As in Apache Kafka, for a log that is long enough; observers vote and are voted for."""
    asker = ONE if raft._standing.own != ONE else TWO
    assert verdict(raft, vote(asker, None, 1, EpochEnd(1, 9), is_pre_vote=True))[3] is pre_vote
    assert verdict(raft, vote(asker, None, 1, EpochEnd(0, 9)))[3] is (real and log_of(raft).end.epoch == 0)
    assert raft.epoch == 1


@pytest.mark.parametrize(("raft", "_pre_vote", "_real"), roles())
def test_everybody_votes_in_a_newer_epoch(raft: Raft, _pre_vote: bool, _real: bool) -> None:
    """A leader, too, and the vote is durable before it leaves; an observer of the asker's as well."""
    request = vote(FOUR, None, 8, EpochEnd(7, 99))
    raft.effects.clear()
    assert verdict(raft, request, 3000) == (0, -1, 8, True)
    assert Persist(ElectionState(8, -1, FOUR.key)) in raft.effects


def test_a_second_candidate_of_an_epoch_gets_no_vote_not_even_after_a_restart() -> None:
    """Rule 1."""
    voter = replica(TWO)
    first, second = vote(ONE, TWO, 4, EMPTY), vote(THREE, TWO, 4, EpochEnd(3, 9))
    assert verdict(voter, first)[3]
    assert voter.effects[0] == Persist(ElectionState(4, -1, ONE.key))
    assert not verdict(voter, second)[3]
    again = replica(TWO, state=ElectionState(4, -1, ONE.key))
    assert not verdict(again, second)[3]
    assert verdict(again, first)[3]


def test_a_shorter_log_gets_no_vote() -> None:
    """Rule 1: by epoch, then by offset."""
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(1, 0), Entry(3, 1)])
    for end, is_granted in [
        (EpochEnd(2, 9), False),
        (EpochEnd(3, 1), False),
        (EpochEnd(3, 2), True),
        (EpochEnd(4, 1), True),
    ]:
        assert verdict(replica(TWO, log=log), vote(ONE, TWO, 5, end, is_pre_vote=True))[3] is is_granted
        assert verdict(replica(TWO, log=log), vote(ONE, TWO, 5, end))[3] is is_granted


def test_a_request_for_another_replica_is_refused_after_its_epoch_is_known() -> None:
    """Node or directory, whichever is wrong; who names nobody, or no directory, means this one."""
    raft = leader()
    elsewhere = node(9)
    assert verdict(raft, vote(TWO, elsewhere, 2, EpochEnd(1, 9))) == (ErrorCode.INVALID_VOTER_KEY, -1, 2, False)
    other_disk = node(1, 77)
    assert verdict(raft, vote(TWO, other_disk, 3, EpochEnd(1, 9))) == (ErrorCode.INVALID_VOTER_KEY, -1, 3, False)
    any_disk = Voter(ReplicaKey(1))
    assert verdict(raft, vote(TWO, any_disk, 4, EpochEnd(1, 9))) == (0, -1, 4, True)


def test_a_leader_that_begins_is_followed_even_where_it_is_mistaken_in_whom_it_tells() -> None:
    """Who it is says it, wherever it came from."""
    raft = replica(TWO)
    wrong: Any = raft.receive(begin_epoch_request(CLUSTER, THREE, node(9).key, 5), 5)
    partition = only_partition(wrong)
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (ErrorCode.INVALID_VOTER_KEY, 3, 5)
    assert raft.leader_id == 3


@pytest.mark.parametrize(
    ("epoch", "end", "is_pre_vote", "code"),
    [
        (6, EpochEnd(0, -5), False, ErrorCode.INVALID_REQUEST),
        (6, EpochEnd(-1, 0), False, ErrorCode.INVALID_REQUEST),
        (6, EpochEnd(6, 0), False, ErrorCode.INVALID_REQUEST),
        (6, EpochEnd(7, 0), True, ErrorCode.INVALID_REQUEST),
        (4, EpochEnd(1, 0), False, ErrorCode.FENCED_LEADER_EPOCH),
        (4, EpochEnd(1, 0), True, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_wrong_vote_is_refused_and_changes_nothing(
    epoch: int, end: EpochEnd, is_pre_vote: bool, code: ErrorCode
) -> None:
    """The codes of KafkaRaftClient; the leader that is known is told."""
    raft = replica(ONE, state=ElectionState(5, 2))
    response: Any = raft.receive(vote(TWO, ONE, epoch, end, is_pre_vote=is_pre_vote), 5)
    partition = only_partition(response)
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (code, 2, 5)
    assert [(one.node_id, one.host, one.port) for one in response.node_endpoints] == [(2, "host2", 9002)]
    assert isinstance(raft.role, Follower)


def whole_requests() -> list[Any]:
    """One of each, and where its cluster id stands."""
    return [
        vote(TWO, ONE, 1, EMPTY),
        begin_epoch_request(CLUSTER, TWO, ONE.key, 1),
        end_epoch_request(CLUSTER, TWO, 1, []),
        fetch_request(CLUSTER, TWO.key, epoch=0, end=EMPTY, high_watermark=0),
    ]


@pytest.mark.parametrize("request_", whole_requests(), ids=lambda request: type(request).__name__)
def test_a_request_of_another_cluster_or_for_another_topic_is_refused_as_a_whole(request_: Any) -> None:
    """A missing cluster id is accepted; only the metadata log is a matter of the quorum."""
    request_.cluster_id = "other"
    response: Any = replica(ONE).receive(request_, 5)
    assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    request_.cluster_id = None
    response = replica(ONE).receive(request_, 5)
    assert response.error_code == ErrorCode.NONE
    topic = request_.topics[0]
    if hasattr(topic, "topic_name"):
        topic.topic_name = "other"
    else:
        topic.topic_id = b"x" * 16
    response = replica(ONE).receive(request_, 5)
    assert response.error_code == ErrorCode.INVALID_REQUEST


# ---- elections -----------------------------------------------------------------------------------------------------


def test_votes_before_votes_are_asked_of_all_voters_and_then_votes() -> None:
    """An epoch begins only when a majority would vote (KIP-996)."""
    one = replica(ONE)
    one.tick(1000)
    asks = sent(one)
    assert [(ask.to, only_partition(ask.request).pre_vote) for ask in asks] == [(2, True), (3, True)]
    assert one.epoch == 0
    answer(one, asks[0], replica(TWO), 1000)
    assert isinstance(one.role, Candidate)
    assert one.effects[0] == Persist(ElectionState(1, -1, ONE.key))
    votes = sent(one)
    assert [only_partition(ask.request).pre_vote for ask in votes] == [False, False]
    answer(one, votes[0], replica(TWO), 1001)
    effects = taken(one)
    assert effects[0] == Persist(ElectionState(1, 1, ONE.key))
    assert isinstance(effects[1], Lead)
    assert effects[1].granting == [1, 2]


def test_an_answer_to_a_question_of_another_role_is_dropped() -> None:
    """A vote before the vote is not a vote; a late answer to what was asked again is none."""
    one = replica(ONE)
    one.tick(1000)
    first, second = sent(one)
    answer(one, first, replica(TWO), 1000)
    answer(one, second, replica(THREE), 1001)
    assert isinstance(one.role, Candidate)
    late = sent(one)[0]
    one.receive(begin_epoch_request(CLUSTER, THREE, ONE.key, 1), 1002)
    answer(one, late, replica(TWO), 1003)
    assert isinstance(one.role, Follower)


def test_who_does_not_answer_is_asked_again_after_a_moment() -> None:
    """The retry backoff; a late answer to the first question is dropped."""
    one = replica(ONE, VoterSet((ONE, TWO)))
    one.tick(1000)
    (first,) = sent(one)
    one.answered(first.to, first.token, None, 1100)
    assert sent(one) == []
    assert one.next_deadline_ms == 1120
    one.tick(1120)
    (again,) = sent(one)
    answer(one, first, replica(TWO, VoterSet((ONE, TWO))), 1121)
    assert isinstance(one.role, Prospective)
    answer(one, again, replica(TWO, VoterSet((ONE, TWO))), 1122)
    assert isinstance(one.role, Candidate)


def test_a_voter_too_old_for_votes_before_votes_is_asked_for_its_vote_at_once() -> None:
    """UNSUPPORTED_VERSION (KIP-996); to anything else it is a reason to wait."""
    one = replica(ONE)
    one.tick(1000)
    ask = sent(one)[0]
    one.answered(ask.to, ask.token, VoteResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 1001)
    assert isinstance(one.role, Candidate)
    ask = sent(one)[0]
    one.answered(ask.to, ask.token, VoteResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 1002)
    assert (type(one.role), one.epoch) == (Candidate, 1)


def test_a_candidate_that_lost_waits_until_its_time_is_over() -> None:
    """Then it asks before it begins another epoch; it asks nobody more meanwhile."""
    one = replica(ONE, state=ElectionState(2, -1, ONE.key))
    one.tick(0)
    for ask in sent(one):
        answer(one, ask, replica(node(ask.to), state=ElectionState(2, -1, FOUR.key)), 1)
    assert sent(one) == []
    one.tick(999)
    assert isinstance(one.role, Candidate)
    one.tick(1000)
    assert (type(one.role), one.epoch) == (Prospective, 2)
    assert one.role.ballot.granting == [1]


def test_a_prospective_that_would_lose_follows_the_leader_that_it_knows_or_nobody() -> None:
    """As soon as a majority says no, or its time is over."""
    one = replica(ONE, state=ElectionState(5, 2))
    one.tick(2000)
    assert isinstance(one.role, Prospective)
    for ask in sent(one):
        refusing = replica(node(ask.to), log=longer_log(), state=ElectionState(5))
        answer(one, ask, refusing, 2001)
    assert (type(one.role), one.leader_id) == (Follower, 2)
    nobody = replica(ONE, state=ElectionState(5))
    nobody.tick(1000)
    for ask in sent(nobody):
        answer(nobody, ask, replica(node(ask.to), log=longer_log(), state=ElectionState(5)), 1001)
    assert isinstance(nobody.role, Unattached)
    nobody.tick(2001)
    assert isinstance(nobody.role, Prospective)


def longer_log() -> MemoryLog:
    """A log that no other one has."""
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(4, 0)])
    return log


def test_whoever_is_told_of_a_leader_follows_it() -> None:
    """A candidate, who stands for election, who has resigned; in the epoch itself only who knows none."""
    for raft in (replica(TWO), replica(TWO, state=ElectionState(1, -1, TWO.key))):
        raft.tick(1000)
        raft.receive(begin_epoch_request(CLUSTER, ONE, TWO.key, 1), 1001)
        assert (type(raft.role), raft.leader_id) == (Follower, 1)
    led = leader()
    led.resign(1001)
    led.receive(begin_epoch_request(CLUSTER, TWO, ONE.key, 2), 1002)
    assert (type(led.role), led.leader_id) == (Follower, 2)
    assert only_partition(led.receive(begin_epoch_request(CLUSTER, THREE, ONE.key, 2), 1003)).error_code == (
        ErrorCode.INVALID_REQUEST
    )


# ---- leading and resigning -----------------------------------------------------------------------------------------


def test_a_leader_tells_the_voters_of_its_epoch_until_they_fetch() -> None:
    """Twice in a fetch timeout, and where it listens."""
    raft = leader()
    raft.tick(1000)
    asks = sent(raft)
    assert asks == []
    fetch(raft, TWO, 1900)
    raft.tick(2000)
    asks = sent(raft)
    assert [(ask.to, type(ask.request)) for ask in asks] == [(3, BeginQuorumEpochRequest)]
    assert [(one.name, one.port) for one in asks[0].request.leader_endpoints] == [("CONTROLLER", 9001)]  # type: ignore[attr-defined]


def test_a_leader_resigns_when_no_majority_fetched_for_one_and_a_half_fetch_timeouts() -> None:
    """The others are told whom to elect: the one that has most first."""
    raft = leader()
    fetch(raft, TWO, 1500, EpochEnd(0, 0))
    fetch(raft, THREE, 1400)
    raft.tick(4499)
    assert isinstance(raft.role, Leader)
    taken(raft)
    raft.tick(4500)
    assert isinstance(raft.role, Resigned)
    asks = [ask for ask in sent(raft) if isinstance(ask.request, EndQuorumEpochRequest)]
    assert {ask.to for ask in asks} <= {2, 3}
    assert raft.role.preferred == [THREE.key, TWO.key]


def test_a_piece_of_a_snapshot_is_a_sign_of_life_and_a_single_voter_needs_none() -> None:
    """Who loads a snapshot follows, too."""
    alone = replica(voters=VoterSet([ONE]))
    taken(alone)
    alone.tick(1_000_000)
    assert isinstance(alone.role, Leader)


def test_who_resigned_tells_the_others_until_they_confirm_and_serves_nobody() -> None:
    """After its time it goes on in the next epoch, and stands for election at once."""
    raft = leader()
    raft.resign(1001)
    asks = sent(raft)
    assert [type(ask.request) for ask in asks] == [EndQuorumEpochRequest] * 2
    answer(raft, asks[0], following(node(asks[0].to)), 1002)
    raft.answered(asks[1].to, asks[1].token, None, 1003)
    raft.tick(1023)
    assert [ask.to for ask in sent(raft)] == [asks[1].to]
    partition = fetch(raft, FOUR, 1024)
    assert (partition.error_code, partition.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
    raft.tick(2001)
    assert (type(raft.role), raft.epoch) == (Prospective, 2)


def test_who_resigned_and_is_started_again_has_led_that_epoch() -> None:
    """Rule 3 of standing.py: were it forgotten, it would stand for the same epoch again."""
    raft = leader()
    raft.resign(1001)
    assert not any(isinstance(effect, Persist) for effect in raft.effects)
    again = replica(state=ElectionState(1, 1, ONE.key), log=log_of(raft))
    assert isinstance(again.role, Resigned)


def test_the_preferred_successor_stands_for_election_at_once_the_others_wait_their_turn() -> None:
    """KIP-595: each next one twice as long as the one before; who is not named waits longest."""
    waits = {}
    order = [TWO.key, THREE.key, FOUR.key]
    voters = VoterSet((ONE, TWO, THREE, FOUR, node(5)))
    for own in (TWO, THREE, FOUR, node(5)):
        raft = replica(own, voters)
        raft.receive(begin_epoch_request(CLUSTER, ONE, own.key, 1), 10)
        raft.receive(end_epoch_request(CLUSTER, ONE, 1, order), 20)
        waits[own.key.node_id] = "now" if isinstance(raft.role, Prospective) else raft.role.deadline_ms - 20  # type: ignore[union-attr]
    assert waits == {2: "now", 3: 250, 4: 500, 5: 1000}


def test_an_epoch_that_ended_before_is_nobodys_matter() -> None:
    """A candidate and a leader of a newer one go on."""
    candidate = replica(state=ElectionState(3, -1, ONE.key))
    for raft in (candidate, leader()):
        role = raft.role
        told = only_partition(raft.receive(end_epoch_request(CLUSTER, TWO, 0, [ONE.key]), 900))
        assert told.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert raft.role is role


def test_an_observer_never_stands_for_election() -> None:
    """Neither when it follows somebody who is silent, nor when it knows nobody."""
    for state in (ElectionState(5, 2), ElectionState(5)):
        raft = replica(FOUR, state=state)
        for now_ms in (1000, 2000, 4000, 8000):
            raft.tick(now_ms)
        assert not any(isinstance(ask.request, VoteRequest) for ask in sent(raft))
        assert raft.epoch == 5


def test_a_static_quorum_elects_whatever_directory_its_voters_have() -> None:
    """Their keys leave it open."""
    log = MemoryLog(settings_of(VOTERS))
    raft = leader(log=log)
    fetch(raft, node(2, 77), 1001)
    raft.flushed(1001)
    assert raft.high_watermark == log.end.offset

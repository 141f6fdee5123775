"""Tests of elections: quorum_state.py and elections.py (KIP-595, KIP-996)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.raft import BeginQuorumEpochRequest, EndQuorumEpochRequest, VoteRequest, VoteResponse
from replication.raft.quorum_state import QuorumTimes
from replication.raft.raft_log import BecomeLeader, ElectionState, EpochEnd, Persist
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from replication.raft.rpc_messages import begin_epoch_request, end_epoch_request, fetch_request, single_partition
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog
from tests.unit.replication.raft.replica import (
    CLUSTER,
    FOUR,
    ONE,
    THREE,
    TWO,
    VOTERS,
    Replica,
    leader,
    node,
    static_voters,
    vote,
)

EMPTY = EpochEnd(0, 0)


def vote_result(raft: Replica, request: VoteRequest, now_ms: int = 5) -> tuple[int, int, int, bool]:
    """Error code, leader, epoch and vote of a response."""
    partition = single_partition(raft.handle_request(request, now_ms))
    return partition.error_code, partition.leader_id, partition.leader_epoch, partition.vote_granted


def follower(local: Voter = TWO, *, has_fetched: bool = False) -> Replica:
    """A replica that follows node 1 in epoch 1."""
    raft = Replica(local)
    raft.handle_request(begin_epoch_request(CLUSTER, ONE, local.key, 1), 5)
    if has_fetched:
        raft.respond(raft.take_requests()[-1], leader(), 6)
    raft.take_effects()
    return raft


# ---- startup -----------------------------------------------------------------------------------------------------


def test_the_voter_with_the_lowest_id_starts_a_pre_vote_at_startup() -> None:
    """A new cluster does not wait for an election timeout."""
    first, second = Replica(ONE), Replica(TWO)
    for raft in (first, second):
        raft.tick(0)
    assert isinstance(first.role, Prospective)
    assert isinstance(second.role, Unattached)
    assert second.next_deadline_ms is not None
    assert second.next_deadline_ms >= QuorumTimes().election_timeout_ms


def test_a_restarted_leader_starts_a_pre_vote_at_once() -> None:
    """Its followers would have to wait for their fetch timeout."""
    raft = Replica(TWO, state=ElectionState(3, TWO.key.node_id, TWO.key))
    raft.tick(0)
    assert isinstance(raft.role, Prospective)
    assert raft.epoch == 4


def test_a_single_voter_leads_at_startup_with_one_state_write() -> None:
    """Intermediate states are not written: no effect depends on them."""
    raft = Replica(voters=VoterSet([ONE]))
    assert [type(effect) for effect in raft.effects] == [Persist, BecomeLeader]
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
def test_a_single_voter_leads_from_every_stored_state(state: ElectionState, epoch: int) -> None:
    """A candidate in its epoch, otherwise in the next one."""
    raft = Replica(voters=VoterSet([ONE]), state=state)
    assert isinstance(raft.role, Leader)
    assert raft.epoch == epoch


def test_a_restarted_candidate_is_a_candidate_in_the_same_epoch() -> None:
    """It has voted for itself."""
    raft = Replica(state=ElectionState(2, -1, ONE.key))
    raft.tick(1)
    outgoing_requests = [single_partition(outgoing.request) for outgoing in raft.take_requests()]
    assert [(outgoing.replica_epoch, outgoing.pre_vote) for outgoing in outgoing_requests] == [(2, False), (2, False)]


def test_a_restarted_leader_resigns_its_epoch_and_grants_no_vote_in_it() -> None:
    """It may have lost records."""
    raft = Replica(state=ElectionState(7, 1, ONE.key))
    assert isinstance(raft.role, Resigned)
    assert not vote_result(raft, vote(TWO, ONE, 7, EpochEnd(6, 9)))[3]
    raft.tick(1000)
    assert (type(raft.role), raft.epoch) == (Prospective, 8)


def test_the_epoch_is_that_of_the_log_if_it_is_newer_than_the_state() -> None:
    """A follower may crash between the two writes."""
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(5, 0)])
    raft = Replica(state=ElectionState(2, 2), log=log)
    assert (raft.epoch, raft.leader_id) == (5, -1)


def test_a_leader_without_an_address_is_known_but_not_followed() -> None:
    raft = Replica(state=ElectionState(2, 9))
    assert isinstance(raft.role, Unattached)
    assert raft.leader_id == 9
    raft.tick(1000)
    assert isinstance(raft.role, Prospective)
    assert raft.leader_id == 9


# ---- votes ---------------------------------------------------------------------------------------------------------


def test_a_pre_vote_does_not_change_the_voter() -> None:
    """KIP-996."""
    voter = Replica(TWO)
    assert vote_result(voter, vote(ONE, TWO, 0, EMPTY, is_pre_vote=True)) == (0, -1, 0, True)
    assert not any(isinstance(effect, Persist) for effect in voter.effects)
    assert voter.epoch == 0


def roles() -> list[Any]:
    """A replica in each role, and whether it grants a pre-vote and a vote in its epoch."""
    unattached = Replica(TWO, state=ElectionState(1))
    voted_key = Replica(TWO, state=ElectionState(1, -1, THREE.key))
    prospective = Replica(TWO, state=ElectionState(1))
    prospective.tick(1000)
    deserted = Replica(TWO, state=ElectionState(1, 3))
    deserted.tick(2000)
    resigned = leader()
    resigned.resign(1001)
    return [
        pytest.param(unattached, True, True, id="unattached"),
        pytest.param(voted_key, True, False, id="voted"),
        pytest.param(prospective, True, True, id="prospective"),
        pytest.param(deserted, True, False, id="prospective that knows a leader"),
        pytest.param(Replica(TWO, state=ElectionState(1, -1, TWO.key)), True, False, id="candidate"),
        pytest.param(follower(), True, False, id="follower"),
        pytest.param(follower(has_fetched=True), False, False, id="follower that has fetched"),
        pytest.param(leader(), False, False, id="leader"),
        pytest.param(resigned, True, False, id="resigned"),
        pytest.param(Replica(FOUR, state=ElectionState(1)), True, True, id="observer"),
    ]


@pytest.mark.parametrize(("raft", "pre_vote", "real"), roles())
def test_granting_a_vote_depends_on_the_role(raft: Replica, pre_vote: bool, real: bool) -> None:
    """As in Apache Kafka, for an up-to-date log; observers grant votes and can receive them."""
    candidate = ONE if raft._quorum.local != ONE else TWO
    assert vote_result(raft, vote(candidate, None, 1, EpochEnd(1, 9), is_pre_vote=True))[3] is pre_vote
    assert vote_result(raft, vote(candidate, None, 1, EpochEnd(0, 9)))[3] is (real and raft.log.end.epoch == 0)
    assert raft.epoch == 1


@pytest.mark.parametrize(("raft", "_pre_vote", "_real"), roles())
def test_every_role_grants_a_vote_in_a_newer_epoch(raft: Replica, _pre_vote: bool, _real: bool) -> None:
    """The vote is durable before the response; an observer can receive it."""
    request = vote(FOUR, None, 8, EpochEnd(7, 99))
    raft.effects.clear()
    assert vote_result(raft, request, 3000) == (0, -1, 8, True)
    assert Persist(ElectionState(8, -1, FOUR.key)) in raft.effects


def test_a_replica_votes_once_per_epoch_also_over_a_restart() -> None:
    voter = Replica(TWO)
    first, second = vote(ONE, TWO, 4, EMPTY), vote(THREE, TWO, 4, EpochEnd(3, 9))
    assert vote_result(voter, first)[3]
    assert voter.effects[0] == Persist(ElectionState(4, -1, ONE.key))
    assert not vote_result(voter, second)[3]
    again = Replica(TWO, state=ElectionState(4, -1, ONE.key))
    assert not vote_result(again, second)[3]
    assert vote_result(again, first)[3]


def test_a_shorter_log_gets_no_vote() -> None:
    """The last epoch decides, then the end offset."""
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(1, 0), Entry(3, 1)])
    for end, is_granted in [
        (EpochEnd(2, 9), False),
        (EpochEnd(3, 1), False),
        (EpochEnd(3, 2), True),
        (EpochEnd(4, 1), True),
    ]:
        assert vote_result(Replica(TWO, log=log), vote(ONE, TWO, 5, end, is_pre_vote=True))[3] is is_granted
        assert vote_result(Replica(TWO, log=log), vote(ONE, TWO, 5, end))[3] is is_granted


def test_a_vote_request_for_another_replica_is_rejected_but_its_epoch_is_learned() -> None:
    """Node id or directory id; without them, any replica is the recipient."""
    raft = leader()
    moved = node(9)
    assert vote_result(raft, vote(TWO, moved, 2, EpochEnd(1, 9))) == (ErrorCode.INVALID_VOTER_KEY, -1, 2, False)
    other_disk = node(1, 77)
    assert vote_result(raft, vote(TWO, other_disk, 3, EpochEnd(1, 9))) == (ErrorCode.INVALID_VOTER_KEY, -1, 3, False)
    any_disk = Voter(ReplicaKey(1))
    assert vote_result(raft, vote(TWO, any_disk, 4, EpochEnd(1, 9))) == (0, -1, 4, True)


def test_begin_quorum_epoch_for_another_replica_is_rejected_but_its_leader_is_followed() -> None:
    raft = Replica(TWO)
    wrong: Any = raft.handle_request(begin_epoch_request(CLUSTER, THREE, node(9).key, 5), 5)
    partition = single_partition(wrong)
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
def test_an_invalid_vote_request_is_rejected_without_a_change(
    epoch: int, end: EpochEnd, is_pre_vote: bool, code: ErrorCode
) -> None:
    """The codes are those of KafkaRaftClient; the response names the leader."""
    raft = Replica(ONE, state=ElectionState(5, 2))
    response: Any = raft.handle_request(vote(TWO, ONE, epoch, end, is_pre_vote=is_pre_vote), 5)
    partition = single_partition(response)
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (code, 2, 5)
    assert [(one.node_id, one.host, one.port) for one in response.node_endpoints] == [(2, "host2", 9002)]
    assert isinstance(raft.role, Follower)


def requests() -> list[Any]:
    """One request of each type."""
    return [
        vote(TWO, ONE, 1, EMPTY),
        begin_epoch_request(CLUSTER, TWO, ONE.key, 1),
        end_epoch_request(CLUSTER, TWO, 1, []),
        fetch_request(CLUSTER, TWO.key, epoch=0, end=EMPTY, high_watermark=0),
    ]


@pytest.mark.parametrize("request_", requests(), ids=lambda request: type(request).__name__)
def test_requests_with_another_cluster_id_or_topic_are_rejected(request_: Any) -> None:
    """A missing cluster id is accepted."""
    request_.cluster_id = "other"
    response: Any = Replica(ONE).handle_request(request_, 5)
    assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    request_.cluster_id = None
    response = Replica(ONE).handle_request(request_, 5)
    assert response.error_code == ErrorCode.NONE
    topic = request_.topics[0]
    if hasattr(topic, "topic_name"):
        topic.topic_name = "other"
    else:
        topic.topic_id = b"x" * 16
    response = Replica(ONE).handle_request(request_, 5)
    assert response.error_code == ErrorCode.INVALID_REQUEST


# ---- elections -----------------------------------------------------------------------------------------------------


def test_an_election_is_a_pre_vote_and_then_a_vote() -> None:
    """The epoch starts when a majority grants the pre-vote (KIP-996)."""
    one = Replica(ONE)
    one.tick(1000)
    outgoing_requests = one.take_requests()
    assert [(outgoing.to, single_partition(outgoing.request).pre_vote) for outgoing in outgoing_requests] == [
        (2, True),
        (3, True),
    ]
    assert one.epoch == 0
    one.respond(outgoing_requests[0], Replica(TWO), 1000)
    assert isinstance(one.role, Candidate)
    assert one.effects[0] == Persist(ElectionState(1, -1, ONE.key))
    votes = one.take_requests()
    assert [single_partition(outgoing.request).pre_vote for outgoing in votes] == [False, False]
    one.respond(votes[0], Replica(TWO), 1001)
    effects = one.take_effects()
    assert effects[0] == Persist(ElectionState(1, 1, ONE.key))
    assert isinstance(effects[1], BecomeLeader)
    assert effects[1].granting_voters == [1, 2]


def test_a_vote_response_for_an_earlier_role_is_dropped() -> None:
    """A granted pre-vote is not a vote."""
    one = Replica(ONE)
    one.tick(1000)
    first, second = one.take_requests()
    one.respond(first, Replica(TWO), 1000)
    one.respond(second, Replica(THREE), 1001)
    assert isinstance(one.role, Candidate)
    late = one.take_requests()[0]
    one.handle_request(begin_epoch_request(CLUSTER, THREE, ONE.key, 1), 1002)
    one.respond(late, Replica(TWO), 1003)
    assert isinstance(one.role, Follower)


def test_a_vote_request_is_retried_after_the_backoff() -> None:
    """A late response to the first request is dropped."""
    one = Replica(ONE, VoterSet((ONE, TWO)))
    one.tick(1000)
    (first,) = one.take_requests()
    one.on_response(first.to, first.token, None, 1100)
    assert one.take_requests() == []
    assert one.next_deadline_ms == 1120
    one.tick(1120)
    (again,) = one.take_requests()
    one.respond(first, Replica(TWO, VoterSet((ONE, TWO))), 1121)
    assert isinstance(one.role, Prospective)
    one.respond(again, Replica(TWO, VoterSet((ONE, TWO))), 1122)
    assert isinstance(one.role, Candidate)


def test_a_voter_without_pre_vote_support_starts_the_election() -> None:
    """UNSUPPORTED_VERSION (KIP-996); in an election it causes a backoff."""
    one = Replica(ONE)
    one.tick(1000)
    outgoing = one.take_requests()[0]
    one.on_response(outgoing.to, outgoing.token, VoteResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 1001)
    assert isinstance(one.role, Candidate)
    outgoing = one.take_requests()[0]
    one.on_response(outgoing.to, outgoing.token, VoteResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 1002)
    assert (type(one.role), one.epoch) == (Candidate, 1)


def test_a_losing_candidate_waits_for_its_election_timeout() -> None:
    """It sends no requests meanwhile, then starts a pre-vote."""
    one = Replica(ONE, state=ElectionState(2, -1, ONE.key))
    one.tick(0)
    for outgoing in one.take_requests():
        one.respond(outgoing, Replica(node(outgoing.to), state=ElectionState(2, -1, FOUR.key)), 1)
    assert one.take_requests() == []
    one.tick(999)
    assert isinstance(one.role, Candidate)
    one.tick(1000)
    assert (type(one.role), one.epoch) == (Prospective, 2)
    assert one.role.tally.granting_voters == [1]


def test_a_lost_pre_vote_returns_to_the_known_leader_or_to_unattached() -> None:
    one = Replica(ONE, state=ElectionState(5, 2))
    one.tick(2000)
    assert isinstance(one.role, Prospective)
    for outgoing in one.take_requests():
        refusing = Replica(node(outgoing.to), log=longer_log(), state=ElectionState(5))
        one.respond(outgoing, refusing, 2001)
    assert (type(one.role), one.leader_id) == (Follower, 2)
    unattached = Replica(ONE, state=ElectionState(5))
    unattached.tick(1000)
    for outgoing in unattached.take_requests():
        unattached.respond(outgoing, Replica(node(outgoing.to), log=longer_log(), state=ElectionState(5)), 1001)
    assert isinstance(unattached.role, Unattached)
    unattached.tick(2001)
    assert isinstance(unattached.role, Prospective)


def longer_log() -> MemoryLog:
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(4, 0)])
    return log


def test_begin_quorum_epoch_makes_candidates_and_former_leaders_follow() -> None:
    """Within an epoch, the leader does not change."""
    for raft in (Replica(TWO), Replica(TWO, state=ElectionState(1, -1, TWO.key))):
        raft.tick(1000)
        raft.handle_request(begin_epoch_request(CLUSTER, ONE, TWO.key, 1), 1001)
        assert (type(raft.role), raft.leader_id) == (Follower, 1)
    led = leader()
    led.resign(1001)
    led.handle_request(begin_epoch_request(CLUSTER, TWO, ONE.key, 2), 1002)
    assert (type(led.role), led.leader_id) == (Follower, 2)
    assert single_partition(led.handle_request(begin_epoch_request(CLUSTER, THREE, ONE.key, 2), 1003)).error_code == (
        ErrorCode.INVALID_REQUEST
    )


# ---- leaders and resignation ---------------------------------------------------------------------------------------


def test_begin_quorum_epoch_is_repeated_until_the_voter_fetches() -> None:
    """Twice per fetch timeout, with the leader's endpoint."""
    raft = leader()
    raft.tick(1000)
    outgoing_requests = raft.take_requests()
    assert outgoing_requests == []
    raft.fetch(TWO, 1900)
    raft.tick(2000)
    outgoing_requests = raft.take_requests()
    assert [(outgoing.to, type(outgoing.request)) for outgoing in outgoing_requests] == [(3, BeginQuorumEpochRequest)]
    assert [(one.name, one.port) for one in outgoing_requests[0].request.leader_endpoints] == [("CONTROLLER", 9001)]  # type: ignore[attr-defined]


def test_a_leader_resigns_after_the_check_quorum_timeout() -> None:
    """EndQuorumEpoch lists the other voters by end offset."""
    raft = leader()
    raft.fetch(TWO, 1500, EpochEnd(0, 0))
    raft.fetch(THREE, 1400)
    raft.tick(4499)
    assert isinstance(raft.role, Leader)
    raft.take_effects()
    raft.tick(4500)
    assert isinstance(raft.role, Resigned)
    outgoing_requests = [
        outgoing for outgoing in raft.take_requests() if isinstance(outgoing.request, EndQuorumEpochRequest)
    ]
    assert {outgoing.to for outgoing in outgoing_requests} <= {2, 3}
    assert raft.role.preferred_successors == [THREE.key, TWO.key]


def test_a_single_voter_has_no_check_quorum_timeout() -> None:
    alone = Replica(voters=VoterSet([ONE]))
    alone.take_effects()
    alone.tick(1_000_000)
    assert isinstance(alone.role, Leader)


def test_a_resigned_leader_repeats_end_quorum_epoch_and_serves_no_fetch() -> None:
    """After its deadline it starts a pre-vote in the next epoch."""
    raft = leader()
    raft.resign(1001)
    outgoing_requests = raft.take_requests()
    assert [type(outgoing.request) for outgoing in outgoing_requests] == [EndQuorumEpochRequest] * 2
    raft.respond(outgoing_requests[0], follower(node(outgoing_requests[0].to)), 1002)
    raft.on_response(outgoing_requests[1].to, outgoing_requests[1].token, None, 1003)
    raft.tick(1023)
    assert [outgoing.to for outgoing in raft.take_requests()] == [outgoing_requests[1].to]
    partition = raft.fetch(FOUR, 1024)
    assert (partition.error_code, partition.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
    raft.tick(2001)
    assert (type(raft.role), raft.epoch) == (Prospective, 2)


def test_a_resigned_leader_stays_resigned_over_a_restart() -> None:
    """Otherwise it could become a candidate in the same epoch."""
    raft = leader()
    raft.resign(1001)
    assert not any(isinstance(effect, Persist) for effect in raft.effects)
    again = Replica(state=ElectionState(1, 1, ONE.key), log=raft.log)
    assert isinstance(again.role, Resigned)


def test_preferred_candidates_start_their_election_in_order() -> None:
    """The delay doubles for each (KIP-595); other voters wait longest."""
    waits = {}
    order = [TWO.key, THREE.key, FOUR.key]
    voters = VoterSet((ONE, TWO, THREE, FOUR, node(5)))
    for local in (TWO, THREE, FOUR, node(5)):
        raft = Replica(local, voters)
        raft.handle_request(begin_epoch_request(CLUSTER, ONE, local.key, 1), 10)
        raft.handle_request(end_epoch_request(CLUSTER, ONE, 1, order), 20)
        waits[local.key.node_id] = "now" if isinstance(raft.role, Prospective) else raft.role.deadline_ms - 20  # type: ignore[union-attr]
    assert waits == {2: "now", 3: 250, 4: 500, 5: 1000}


def test_end_quorum_epoch_of_an_older_epoch_is_fenced() -> None:
    candidate = Replica(state=ElectionState(3, -1, ONE.key))
    for raft in (candidate, leader()):
        role = raft.role
        response = single_partition(raft.handle_request(end_epoch_request(CLUSTER, TWO, 0, [ONE.key]), 900))
        assert response.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert raft.role is role


def test_an_observer_never_becomes_a_candidate() -> None:
    for state in (ElectionState(5, 2), ElectionState(5)):
        raft = Replica(FOUR, state=state)
        for now_ms in (1000, 2000, 4000, 8000):
            raft.tick(now_ms)
        assert not any(isinstance(outgoing.request, VoteRequest) for outgoing in raft.take_requests())
        assert raft.epoch == 5


def test_a_static_quorum_accepts_any_directory_id() -> None:
    log = MemoryLog(static_voters(VOTERS))
    raft = leader(log=log)
    raft.fetch(node(2, 77), 1001)
    raft.on_flushed(1001)
    assert raft.high_watermark == log.end.offset

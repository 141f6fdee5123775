"""replication/raft/: what is refused, what is counted, what is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.raft import VoteRequest
from protocol.messages.stored import VotersRecord
from replication.raft.letters import (
    begin_epoch_request,
    end_epoch_request,
    fetch_request,
    only_partition,
    snapshot_request,
    vote_request,
)
from replication.raft.progress import Progress
from replication.raft.raft import QuorumTimes, Raft
from replication.raft.replica_log import ElectionState, EpochEnd, Lead, Persist, Send
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from replication.raft.voters import Address, ReplicaKey, Voter, VoterHistory, VoterSet, from_record, to_record
from tests.simulation.quorum.memory_log import Entry, MemoryLog

CLUSTER = "c"
KEYS = [ReplicaKey(node_id, bytes([node_id] * 16)) for node_id in (1, 2, 3)]
ONE, TWO, THREE = KEYS
VOTERS = VoterSet(Voter(key) for key in KEYS)


def replica(own: ReplicaKey = ONE, voters: VoterSet = VOTERS, state: ElectionState | None = None) -> Raft:
    """A replica that begins at time 0, without any jitter."""
    log = MemoryLog(voters)
    return Raft(own, CLUSTER, log, state or ElectionState(), times=QuorumTimes(), jitter=lambda _below: 0, mono_ms=0)


def sent(raft: Raft) -> list[Send]:
    """What it asked since it was looked at last."""
    effects = [effect for effect in raft.effects if isinstance(effect, Send)]
    raft.effects.clear()
    return effects


def answer(raft: Raft, ask: Send, other: Raft, now_ms: int) -> None:
    """Another replica answers."""
    raft.answered(ask.to, ask.token, other.receive(ask.request, now_ms), now_ms)


def leader_of_three() -> tuple[Raft, Raft]:
    """Replica 1, which leads with the vote of replica 2."""
    one, two = replica(ONE), replica(TWO)
    one.tick(1000)
    answer(one, next(ask for ask in sent(one) if ask.to == 2), two, 1000)
    answer(one, next(ask for ask in sent(one) if ask.to == 2), two, 1001)
    return one, two


def test_the_only_voter_leads_at_its_first_deadline_and_writes_its_state_once() -> None:
    """A single node waits for nobody; what rests on nothing is not synced."""
    raft = replica(voters=VoterSet([Voter(ONE)]))
    raft.tick(1000)
    assert raft.effects == [Persist(ElectionState(1, 1, ONE)), Lead(1, [1])]


def test_a_vote_before_the_vote_changes_nothing_at_the_voter() -> None:
    """KIP-996."""
    voter = replica(TWO)
    request = vote_request(CLUSTER, ONE, TWO, epoch=0, end=EpochEnd(0, 0), is_pre_vote=True)
    given = only_partition(voter.receive(request, 5))
    assert given.vote_granted
    assert voter.effects == []
    assert voter.epoch == 0


def test_who_hears_from_a_leader_helps_nobody_to_an_election() -> None:
    """Rule 3."""
    leader, follower = leader_of_three()
    begin = begin_epoch_request(CLUSTER, 1, TWO, 1)
    follower.receive(begin, 1002)
    request = vote_request(CLUSTER, THREE, TWO, epoch=1, end=EpochEnd(1, 9), is_pre_vote=True)
    assert only_partition(follower.receive(request, 1003)).vote_granted
    answer(follower, sent(follower)[-1], leader, 1004)
    assert not only_partition(follower.receive(request, 1005)).vote_granted


def test_a_second_candidate_of_an_epoch_gets_no_vote_not_even_after_a_restart() -> None:
    """Rule 1."""
    voter = replica(TWO)
    first = vote_request(CLUSTER, ONE, TWO, epoch=4, end=EpochEnd(0, 0), is_pre_vote=False)
    second = vote_request(CLUSTER, THREE, TWO, epoch=4, end=EpochEnd(3, 9), is_pre_vote=False)
    assert only_partition(voter.receive(first, 5)).vote_granted
    assert voter.effects == [Persist(ElectionState(4, -1, ONE))]
    assert not only_partition(voter.receive(second, 6)).vote_granted
    again = replica(TWO, state=ElectionState(4, -1, ONE))
    assert not only_partition(again.receive(second, 7)).vote_granted
    assert only_partition(again.receive(first, 8)).vote_granted


def test_who_led_an_epoch_before_its_restart_does_not_lead_it_on() -> None:
    """Rule 5."""
    raft = replica(state=ElectionState(7, 1, ONE))
    assert isinstance(raft.role, Resigned)
    raft.tick(1000)
    assert (type(raft.role), raft.epoch) == (Unattached, 8)


def test_a_leader_resigns_when_no_majority_fetched_for_one_and_a_half_fetch_timeouts() -> None:
    """Rule 4; the others are told whom to elect."""
    leader, _ = leader_of_three()
    leader.tick(4000)
    assert isinstance(leader.role, Leader)
    leader.tick(4001)
    assert isinstance(leader.role, Resigned)


def test_the_preferred_successor_stands_for_election_at_once() -> None:
    """KIP-595: the others wait."""
    follower = replica(TWO)
    follower.receive(begin_epoch_request(CLUSTER, 1, TWO, 1), 10)
    follower.receive(end_epoch_request(CLUSTER, 1, 1, [TWO, THREE]), 20)
    assert isinstance(follower.role, Prospective)
    other = replica(THREE)
    other.receive(begin_epoch_request(CLUSTER, 1, THREE, 1), 10)
    other.receive(end_epoch_request(CLUSTER, 1, 1, [TWO, THREE]), 20)
    assert isinstance(other.role, Follower)
    assert other.role.deadline_ms == 60


def test_a_lost_election_is_followed_by_a_rest() -> None:
    """A candidate that two refuse does not ask again at once."""
    one, two = replica(ONE), replica(TWO)
    one.tick(1000)
    answer(one, next(ask for ask in sent(one) if ask.to == 2), two, 1000)
    assert isinstance(one.role, Candidate)
    for ask in sent(one):
        refusal = replica(KEYS[ask.to - 1], state=ElectionState(1, -1, THREE))
        answer(one, ask, refusal, 1001)
    assert isinstance(one.role, Prospective)


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda: vote_request("other", TWO, ONE, epoch=1, end=EpochEnd(0, 0), is_pre_vote=False), "whole"),
        (lambda: vote_request(CLUSTER, TWO, THREE, epoch=1, end=EpochEnd(0, 0), is_pre_vote=False), "voter"),
        (lambda: vote_request(CLUSTER, TWO, ONE, epoch=1, end=EpochEnd(1, 5), is_pre_vote=False), "invalid"),
        (lambda: vote_request(CLUSTER, TWO, ONE, epoch=-1, end=EpochEnd(-2, 0), is_pre_vote=False), "fenced"),
        (lambda: begin_epoch_request(CLUSTER, 2, THREE, 1), "voter"),
        (lambda: fetch_request(CLUSTER, TWO, epoch=0, end=EpochEnd(0, 0), high_watermark=0), "not leader"),
        (lambda: fetch_request(CLUSTER, TWO, epoch=5, end=EpochEnd(0, 0), high_watermark=0), "unknown epoch"),
        (lambda: snapshot_request(CLUSTER, TWO, epoch=0, snapshot=EpochEnd(1, 1), position=0), "not leader"),
    ],
)
def test_a_wrong_request_is_refused_as_kafka_does(request_of: Any, code: str) -> None:
    """The codes of KafkaRaftClient."""
    expected = {
        "whole": ErrorCode.INCONSISTENT_CLUSTER_ID,
        "voter": ErrorCode.INVALID_VOTER_KEY,
        "invalid": ErrorCode.INVALID_REQUEST,
        "fenced": ErrorCode.FENCED_LEADER_EPOCH,
        "not leader": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "unknown epoch": ErrorCode.UNKNOWN_LEADER_EPOCH,
    }[code]
    response: Any = replica(ONE).receive(request_of(), 5)
    found = response.error_code if code == "whole" else only_partition(response).error_code
    assert found == expected


def test_a_request_for_another_topic_is_invalid() -> None:
    """Only the metadata log is a matter of the quorum."""
    request = vote_request(CLUSTER, TWO, ONE, epoch=1, end=EpochEnd(0, 0), is_pre_vote=False)
    request.topics[0].topic_name = "other"
    response: Any = replica(ONE).receive(request, 5)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert isinstance(request, VoteRequest)


def test_records_of_older_epochs_are_not_committed_by_counting() -> None:
    """Raft, section 5.4.2: they may still be cut, until one of the leader's own epoch stands behind them."""
    progress = Progress(ONE, epoch_start_offset=10, mono_ms=0)
    progress.fetched(TWO, 10, leader_end=11, mono_ms=1)
    assert not progress.commit(VOTERS, 11)
    progress.fetched(TWO, 11, leader_end=11, mono_ms=2)
    assert progress.commit(VOTERS, 11)
    assert progress.high_watermark == 11


def test_a_leader_without_a_vote_does_not_count_itself() -> None:
    """KIP-853: it may lead until its removal is committed."""
    progress = Progress(ONE, epoch_start_offset=0, mono_ms=0)
    others = VOTERS.without(ONE)
    progress.fetched(TWO, 5, leader_end=5, mono_ms=1)
    assert not progress.commit(others, 5)
    progress.fetched(THREE, 5, leader_end=5, mono_ms=1)
    assert progress.commit(others, 5)


def test_a_node_that_lost_its_disk_is_not_the_voter() -> None:
    """KIP-853: it votes and counts when its new directory has been added."""
    progress = Progress(ONE, epoch_start_offset=0, mono_ms=0)
    progress.fetched(ReplicaKey(2, b"n" * 16), 5, leader_end=5, mono_ms=1)
    assert not progress.commit(VOTERS, 5)
    assert ReplicaKey(2, b"n" * 16) not in VOTERS
    assert ReplicaKey(2) in VOTERS


def test_voters_that_are_cut_off_the_log_are_voters_no_more() -> None:
    """They count from the moment that they stand in the log, and only so long."""
    history = VoterHistory(VOTERS)
    fewer = VOTERS.without(THREE)
    history.changed(7, fewer)
    assert history.latest == fewer
    assert history.at(7) == VOTERS
    assert history.at(8) == fewer
    history.truncated(7)
    assert history.latest == VOTERS


def test_voters_stand_in_their_record() -> None:
    """There and back."""
    voter = Voter(ONE, (Address("CONTROLLER", "one", 9093),), (0, 1))
    record = to_record(VoterSet([voter]))
    assert isinstance(record, VotersRecord)
    assert from_record(record) == VoterSet([voter])


def test_a_log_is_cut_behind_the_last_common_epoch() -> None:
    """What the follower has of epochs that the leader does not know goes."""
    log = MemoryLog(VOTERS)
    log.append([Entry(1, 0), Entry(1, 1), Entry(3, 2)])
    assert log.end_of_epoch(2) == EpochEnd(1, 2)

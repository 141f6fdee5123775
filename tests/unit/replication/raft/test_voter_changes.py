"""replication/raft/voter_changes.py: who is added, removed and known anew, and what a leader refuses (KIP-853)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.cluster import AddRaftVoterResponse, RemoveRaftVoterResponse
from protocol.messages.metadata import ApiVersionsRequest
from protocol.primitives import ZERO_UUID
from replication.raft.raft import Raft
from replication.raft.raft_log import Answer, EpochEnd, NameVoters
from replication.raft.roles import Leader, Resigned
from replication.raft.rpc_messages import update_voter_request
from replication.raft.voters import Address, ReplicaKey, VoterSet
from tests.simulation.quorum.memory_log import MemoryLog
from tests.unit.replication.raft.replica import (
    CLUSTER,
    FOUR,
    LISTENER,
    ONE,
    THREE,
    TWO,
    VOTERS,
    addition,
    answers,
    committing_leader,
    fetch,
    leader,
    log_of,
    node,
    removal,
    replica,
    says_what_it_supports,
    sent,
    settings_of,
    taken,
)


def code_of(raft: Raft, request: Any, now_ms: int = 1010) -> int:
    """The code of an answer that is there at once."""
    response: Any = raft.receive(request, now_ms)
    assert response is not None, "it would be done"
    return int(response.error_code)


def adding(raft: Raft, *, is_patient: bool = True) -> None:
    """Node 4 follows, and is to be added."""
    fetch(raft, FOUR, 1005)
    assert raft.receive(addition(FOUR, is_patient=is_patient), 1010) is None


def test_a_new_voter_is_asked_what_it_supports_counts_at_once_and_is_confirmed_when_committed() -> None:
    """Rules 2 and 3."""
    raft = committing_leader()
    adding(raft)
    ask = next(one for one in raft.effects if isinstance(getattr(one, "request", None), ApiVersionsRequest))
    assert (ask.to, ask.address) == (4, FOUR.addresses[0])  # type: ignore[union-attr]
    (naming,) = (one for one in says_what_it_supports(raft, 1020) if isinstance(one, NameVoters))
    assert naming.voters == VOTERS.with_voter(FOUR)
    assert FOUR.key in raft.voters
    fetch(raft, TWO, 1030)
    assert answers(raft) == []  # two of four
    fetch(raft, FOUR, 1040)
    assert answers(raft) == [AddRaftVoterResponse(error_code=ErrorCode.NONE)]


def test_who_does_not_want_to_wait_is_confirmed_when_the_record_is_appended() -> None:
    """AddRaftVoter 1, for who adds itself: its own vote may be needed; the next change waits until it is committed."""
    raft = committing_leader()
    adding(raft, is_patient=False)
    effects = says_what_it_supports(raft, 1020)
    assert [effect.response for effect in effects if isinstance(effect, Answer)] == [AddRaftVoterResponse(error_code=0)]
    assert code_of(raft, removal(THREE)) == ErrorCode.REQUEST_TIMED_OUT
    fetch(raft, TWO, 1030)
    fetch(raft, FOUR, 1030)
    assert answers(raft) == []
    assert raft.receive(removal(THREE), 1040) is None


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda: addition(FOUR, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (lambda: addition(FOUR._replace(key=ReplicaKey(4))), ErrorCode.INVALID_REQUEST),
        (lambda: addition(FOUR._replace(key=ReplicaKey(-1, b"d" * 16))), ErrorCode.INVALID_REQUEST),
        (lambda: addition(FOUR._replace(addresses=(Address("OTHER", "h", 1),))), ErrorCode.INVALID_REQUEST),
        (lambda: addition(TWO), ErrorCode.DUPLICATE_VOTER),
        (lambda: addition(node(2, 77)), ErrorCode.DUPLICATE_VOTER),
        (lambda: removal(THREE, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (lambda: removal(THREE._replace(key=ReplicaKey(3))), ErrorCode.INVALID_REQUEST),
        (lambda: removal(FOUR), ErrorCode.VOTER_NOT_FOUND),
        (lambda: removal(node(3, 77)), ErrorCode.VOTER_NOT_FOUND),
    ],
)
def test_what_cannot_be_is_refused_as_kafka_does(request_of: Any, code: ErrorCode) -> None:
    """Rule 6; nothing is appended."""
    raft = committing_leader()
    assert code_of(raft, request_of()) == code
    assert not any(isinstance(effect, NameVoters) for effect in taken(raft))


def test_only_a_leader_changes_voters() -> None:
    """Others say that they are none; a wrong cluster is told first."""
    follower = replica(TWO)
    for request in (addition(FOUR), removal(THREE)):
        assert code_of(follower, request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(follower, addition(FOUR, cluster_id="other")) == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_nothing_changes_before_something_of_the_epoch_is_committed() -> None:
    """Rule 1: what an older leader changed may still come to be."""
    raft = leader()
    for request in (addition(FOUR), removal(THREE), update_voter_request(CLUSTER, TWO, 1)):
        assert code_of(raft, request) == ErrorCode.REQUEST_TIMED_OUT


def test_there_is_one_change_at_a_time() -> None:
    """Rule 1, whichever came first."""
    raft = committing_leader()
    adding(raft)
    for request in (addition(node(5)), removal(THREE), update_voter_request(CLUSTER, TWO, 1)):
        assert code_of(raft, request) == ErrorCode.REQUEST_TIMED_OUT
    other = committing_leader()
    assert other.receive(removal(THREE), 1010) is None
    for request in (addition(FOUR), removal(TWO), update_voter_request(CLUSTER, TWO, 1)):
        assert code_of(other, request) == ErrorCode.REQUEST_TIMED_OUT


def test_a_static_quorum_is_not_changed() -> None:
    """Kraft.version 0: the voters are a setting."""
    raft = committing_leader(log=MemoryLog(settings_of(VOTERS)))
    assert code_of(raft, addition(FOUR)) == ErrorCode.UNSUPPORTED_VERSION
    assert code_of(raft, removal(THREE)) == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("versions", "code"), [(None, 0), ((0, 0), 0), ((2, 3), 0), ((0, 1), 35)])
def test_who_does_not_support_the_protocol_is_not_added(versions: tuple[int, int] | None, code: int) -> None:
    """Rule 3."""
    raft = committing_leader()
    adding(raft)
    effects = says_what_it_supports(raft, 1020, versions, code)
    (refusal,) = (effect.response for effect in effects if isinstance(effect, Answer))
    expected = ErrorCode.REQUEST_TIMED_OUT if code else ErrorCode.INVALID_REQUEST
    assert refusal.error_code == expected  # type: ignore[attr-defined]
    assert FOUR.key not in raft.voters


def test_who_never_had_all_of_the_log_is_not_added() -> None:
    """Rule 3: the quorum might stand still until it has."""
    raft = committing_leader()
    fetch(raft, FOUR, 1005, EpochEnd(1, 1))
    assert raft.receive(addition(FOUR), 1010) is None
    (refusal,) = (effect.response for effect in says_what_it_supports(raft, 1020) if isinstance(effect, Answer))
    assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT  # type: ignore[attr-defined]


def test_what_another_node_supports_is_nobodys_matter() -> None:
    """An answer of somebody else does not add the voter."""
    raft = committing_leader()
    adding(raft)
    (ask,) = (one for one in sent(raft) if isinstance(one.request, ApiVersionsRequest))
    raft.answered(3, ask.token, None, 1020)
    assert answers(raft) == []


def test_a_change_that_takes_too_long_is_given_up_but_may_come_to_be() -> None:
    """Rule 4."""
    raft = committing_leader()
    assert raft.receive(removal(THREE), 1010) is None
    taken(raft)
    raft.tick(3009)
    assert answers(raft) == []
    raft.tick(3010)
    assert answers(raft) == [RemoveRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)]
    assert THREE.key not in raft.voters
    assert code_of(raft, removal(TWO), 3011) == ErrorCode.REQUEST_TIMED_OUT  # not committed


def test_who_waits_is_told_when_the_leader_resigns() -> None:
    """It leads no longer; whether the change comes to be, the next leader knows."""
    raft = committing_leader()
    adding(raft)
    raft.resign(1020)
    assert AddRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER) in answers(raft)


def test_a_leader_that_removes_itself_resigns_when_that_is_committed() -> None:
    """Until then it leads, and does not count itself."""
    raft = committing_leader()
    assert raft.receive(removal(ONE), 1010) is None
    taken(raft)
    raft.flushed(1011)
    fetch(raft, TWO, 1020)
    assert isinstance(raft.role, Leader)
    fetch(raft, THREE, 1021)
    assert isinstance(raft.role, Resigned)
    assert RemoveRaftVoterResponse(error_code=ErrorCode.NONE) in answers(raft)
    raft.tick(9000)
    assert not isinstance(raft.role, Leader)


def test_the_last_voter_stays() -> None:
    """There would be nobody to lead."""
    raft = committing_leader(VoterSet([ONE]))
    assert code_of(raft, removal(ONE)) == ErrorCode.VOTER_NOT_FOUND


def test_a_voter_is_known_anew() -> None:
    """Rule 6: at once, and as a sign of life."""
    raft = committing_leader()
    moved = TWO._replace(addresses=(Address(LISTENER, "elsewhere", 1),))
    response: Any = raft.receive(update_voter_request(CLUSTER, moved, 1), 1010)
    assert (response.error_code, response.current_leader.leader_id, response.current_leader.port) == (0, 1, 9001)
    taken(raft)
    assert raft.voters.get(2) == moved


@pytest.mark.parametrize(
    ("voter", "epoch", "code"),
    [
        (TWO._replace(key=ReplicaKey(2, ZERO_UUID)), 1, ErrorCode.INVALID_REQUEST),
        (TWO._replace(addresses=()), 1, ErrorCode.INVALID_REQUEST),
        (TWO._replace(kraft_versions=(1, 0)), 1, ErrorCode.INVALID_REQUEST),
        (TWO._replace(kraft_versions=(0, 0)), 1, ErrorCode.INVALID_REQUEST),
        (node(2, 77), 1, ErrorCode.VOTER_NOT_FOUND),
        (FOUR, 1, ErrorCode.VOTER_NOT_FOUND),
        (TWO, 0, ErrorCode.FENCED_LEADER_EPOCH),
        (TWO, 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_who_cannot_be_known_so_is_refused(voter: Any, epoch: int, code: ErrorCode) -> None:
    """Rule 6."""
    assert code_of(committing_leader(), update_voter_request(CLUSTER, voter, epoch)) == code


def test_a_static_quorum_becomes_one_that_can_change_when_all_voters_support_it() -> None:
    """Rule 5: they tell the leader, and what they told stands in the log then."""
    raft = committing_leader(log=MemoryLog(settings_of(VOTERS)))
    refusal = raft.upgrade(1)
    assert refusal is not None
    assert refusal.code == ErrorCode.INVALID_UPDATE_VERSION
    for voter in (TWO, THREE):
        assert raft.upgrade(1) is not None
        assert code_of(raft, update_voter_request(CLUSTER, voter, 1)) == ErrorCode.NONE
    assert raft.upgrade(1, validate_only=True) is None
    assert not any(isinstance(effect, NameVoters) for effect in taken(raft))
    assert raft.upgrade(1) is None
    taken(raft)
    assert raft.voters == VOTERS
    assert log_of(raft).kraft_version.latest == 1
    assert raft.upgrade(1) is None
    assert raft.upgrade(0) is not None
    assert taken(raft) == []


def test_a_leader_whose_voters_were_never_in_the_log_or_otherwise_names_them() -> None:
    """After LeaderChange, in one batch: what the checkpoint at offset 0 says is not replicated."""
    raft = leader()
    assert [entry.naming is not None for entry in log_of(raft).entries] == [False, True]
    log = MemoryLog(VOTERS, 1)
    log.append(log_of(raft).entries)
    log.flush(2)
    again = replica(ONE, log=log)
    assert again.voters == VOTERS
    elsewhere = ONE._replace(addresses=(Address(LISTENER, "elsewhere", 1),))
    moved = leader(log=log)
    assert [entry.naming is not None for entry in log_of(moved).entries] == [False, True, False]
    other = replica(elsewhere, VoterSet([elsewhere]), log=MemoryLog(VoterSet([ONE]), 1))
    taken(other)
    assert other.voters == VoterSet([elsewhere])

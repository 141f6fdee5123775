"""Tests of voter_changes.py: adding, removing and updating voters, kraft.version (KIP-853)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.cluster import AddRaftVoterResponse, RemoveRaftVoterResponse
from protocol.messages.metadata import ApiVersionsRequest
from protocol.primitives import ZERO_UUID
from replication.raft.raft import Raft
from replication.raft.raft_log import AppendVoters, EpochEnd, SendResponse
from replication.raft.roles import Leader, Resigned
from replication.raft.rpc_messages import update_voter_request
from replication.raft.voters import ListenerAddress, ReplicaKey, VoterSet
from tests.simulation.quorum.memory_log import MemoryLog
from tests.unit.replication.raft.replica import (
    CLUSTER,
    FOUR,
    LISTENER,
    ONE,
    THREE,
    TWO,
    VOTERS,
    add_request,
    fetch,
    leader,
    leader_with_commit,
    log_of,
    node,
    remove_request,
    replica,
    respond_api_versions,
    static_voters,
    take_effects,
    take_requests,
    take_responses,
)


def code_of(raft: Raft, request: Any, now_ms: int = 1010) -> int:
    """The error code of an immediate response."""
    response: Any = raft.handle_request(request, now_ms)
    assert response is not None, "it would be done"
    return int(response.error_code)


def start_adding(raft: Raft, *, ack_when_committed: bool = True) -> None:
    """Node 4 is caught up and is being added."""
    fetch(raft, FOUR, 1005)
    assert raft.handle_request(add_request(FOUR, ack_when_committed=ack_when_committed), 1010) is None


def test_a_new_voter_counts_when_appended_and_is_acknowledged_when_committed() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    outgoing = next(one for one in raft.effects if isinstance(getattr(one, "request", None), ApiVersionsRequest))
    assert (outgoing.to, outgoing.address) == (4, FOUR.addresses[0])  # type: ignore[union-attr]
    (append_voters,) = (one for one in respond_api_versions(raft, 1020) if isinstance(one, AppendVoters))
    assert append_voters.voters == VOTERS.with_voter(FOUR)
    assert FOUR.key in raft.voters
    fetch(raft, TWO, 1030)
    assert take_responses(raft) == []  # two of four
    fetch(raft, FOUR, 1040)
    assert take_responses(raft) == [AddRaftVoterResponse(error_code=ErrorCode.NONE)]


def test_add_voter_without_waiting_is_acknowledged_when_appended() -> None:
    """AddRaftVoter version 1: the commit may need the new voter. The next change waits for it."""
    raft = leader_with_commit()
    start_adding(raft, ack_when_committed=False)
    effects = respond_api_versions(raft, 1020)
    assert [effect.response for effect in effects if isinstance(effect, SendResponse)] == [
        AddRaftVoterResponse(error_code=0)
    ]
    assert code_of(raft, remove_request(THREE)) == ErrorCode.REQUEST_TIMED_OUT
    fetch(raft, TWO, 1030)
    fetch(raft, FOUR, 1030)
    assert take_responses(raft) == []
    assert raft.handle_request(remove_request(THREE), 1040) is None


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda: add_request(FOUR, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (lambda: add_request(FOUR._replace(key=ReplicaKey(4))), ErrorCode.INVALID_REQUEST),
        (lambda: add_request(FOUR._replace(key=ReplicaKey(-1, b"d" * 16))), ErrorCode.INVALID_REQUEST),
        (lambda: add_request(FOUR._replace(addresses=(ListenerAddress("OTHER", "h", 1),))), ErrorCode.INVALID_REQUEST),
        (lambda: add_request(TWO), ErrorCode.DUPLICATE_VOTER),
        (lambda: add_request(node(2, 77)), ErrorCode.DUPLICATE_VOTER),
        (lambda: remove_request(THREE, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (lambda: remove_request(THREE._replace(key=ReplicaKey(3))), ErrorCode.INVALID_REQUEST),
        (lambda: remove_request(FOUR), ErrorCode.VOTER_NOT_FOUND),
        (lambda: remove_request(node(3, 77)), ErrorCode.VOTER_NOT_FOUND),
    ],
)
def test_invalid_voter_changes_are_rejected_as_in_kafka(request_of: Any, code: ErrorCode) -> None:
    raft = leader_with_commit()
    assert code_of(raft, request_of()) == code
    assert not any(isinstance(effect, AppendVoters) for effect in take_effects(raft))


def test_only_the_leader_changes_voters() -> None:
    """The cluster id is checked first."""
    follower = replica(TWO)
    for request in (add_request(FOUR), remove_request(THREE)):
        assert code_of(follower, request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(follower, add_request(FOUR, cluster_id="other")) == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_voter_changes_wait_for_a_commit_in_the_epoch() -> None:
    """A change of an earlier leader may still be committed."""
    raft = leader()
    for request in (add_request(FOUR), remove_request(THREE), update_voter_request(CLUSTER, TWO, 1)):
        assert code_of(raft, request) == ErrorCode.REQUEST_TIMED_OUT


def test_only_one_voter_change_is_in_progress() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    for request in (add_request(node(5)), remove_request(THREE), update_voter_request(CLUSTER, TWO, 1)):
        assert code_of(raft, request) == ErrorCode.REQUEST_TIMED_OUT
    other = leader_with_commit()
    assert other.handle_request(remove_request(THREE), 1010) is None
    for request in (add_request(FOUR), remove_request(TWO), update_voter_request(CLUSTER, TWO, 1)):
        assert code_of(other, request) == ErrorCode.REQUEST_TIMED_OUT


def test_static_voters_cannot_be_changed() -> None:
    raft = leader_with_commit(log=MemoryLog(static_voters(VOTERS)))
    assert code_of(raft, add_request(FOUR)) == ErrorCode.UNSUPPORTED_VERSION
    assert code_of(raft, remove_request(THREE)) == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("versions", "code"), [(None, 0), ((0, 0), 0), ((2, 3), 0), ((0, 1), 35)])
def test_a_voter_without_kraft_version_1_is_not_added(versions: tuple[int, int] | None, code: int) -> None:
    raft = leader_with_commit()
    start_adding(raft)
    effects = respond_api_versions(raft, 1020, versions, code)
    (refusal,) = (effect.response for effect in effects if isinstance(effect, SendResponse))
    expected = ErrorCode.REQUEST_TIMED_OUT if code else ErrorCode.INVALID_REQUEST
    assert refusal.error_code == expected  # type: ignore[attr-defined]
    assert FOUR.key not in raft.voters


def test_a_lagging_voter_is_not_added() -> None:
    """Commits would wait for it."""
    raft = leader_with_commit()
    fetch(raft, FOUR, 1005, EpochEnd(1, 1))
    assert raft.handle_request(add_request(FOUR), 1010) is None
    (refusal,) = (effect.response for effect in respond_api_versions(raft, 1020) if isinstance(effect, SendResponse))
    assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT  # type: ignore[attr-defined]


def test_api_versions_of_another_node_is_ignored() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    (outgoing,) = (one for one in take_requests(raft) if isinstance(one.request, ApiVersionsRequest))
    raft.on_response(3, outgoing.token, None, 1020)
    assert take_responses(raft) == []


def test_a_voter_change_times_out_but_may_still_be_committed() -> None:
    raft = leader_with_commit()
    assert raft.handle_request(remove_request(THREE), 1010) is None
    take_effects(raft)
    raft.tick(3009)
    assert take_responses(raft) == []
    raft.tick(3010)
    assert take_responses(raft) == [RemoveRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)]
    assert THREE.key not in raft.voters
    assert code_of(raft, remove_request(TWO), 3011) == ErrorCode.REQUEST_TIMED_OUT  # not committed


def test_a_pending_change_fails_when_the_leader_resigns() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    raft.resign(1020)
    assert AddRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER) in take_responses(raft)


def test_a_leader_that_removed_itself_resigns_after_the_commit() -> None:
    """Until then it leads, without counting itself."""
    raft = leader_with_commit()
    assert raft.handle_request(remove_request(ONE), 1010) is None
    take_effects(raft)
    raft.on_flushed(1011)
    fetch(raft, TWO, 1020)
    assert isinstance(raft.role, Leader)
    fetch(raft, THREE, 1021)
    assert isinstance(raft.role, Resigned)
    assert RemoveRaftVoterResponse(error_code=ErrorCode.NONE) in take_responses(raft)
    raft.tick(9000)
    assert not isinstance(raft.role, Leader)


def test_the_last_voter_cannot_be_removed() -> None:
    raft = leader_with_commit(VoterSet([ONE]))
    assert code_of(raft, remove_request(ONE)) == ErrorCode.VOTER_NOT_FOUND


def test_update_voter_replaces_the_endpoints() -> None:
    raft = leader_with_commit()
    moved = TWO._replace(addresses=(ListenerAddress(LISTENER, "elsewhere", 1),))
    response: Any = raft.handle_request(update_voter_request(CLUSTER, moved, 1), 1010)
    assert (response.error_code, response.current_leader.leader_id, response.current_leader.port) == (0, 1, 9001)
    take_effects(raft)
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
def test_invalid_voter_updates_are_rejected(voter: Any, epoch: int, code: ErrorCode) -> None:
    assert code_of(leader_with_commit(), update_voter_request(CLUSTER, voter, epoch)) == code


def test_kraft_version_1_needs_the_support_of_all_voters() -> None:
    """The voters report it to the leader; then it is in the log."""
    raft = leader_with_commit(log=MemoryLog(static_voters(VOTERS)))
    refusal = raft.upgrade_kraft_version(1)
    assert refusal is not None
    assert refusal.code == ErrorCode.INVALID_UPDATE_VERSION
    for voter in (TWO, THREE):
        assert raft.upgrade_kraft_version(1) is not None
        assert code_of(raft, update_voter_request(CLUSTER, voter, 1)) == ErrorCode.NONE
    assert raft.upgrade_kraft_version(1, validate_only=True) is None
    assert not any(isinstance(effect, AppendVoters) for effect in take_effects(raft))
    assert raft.upgrade_kraft_version(1) is None
    take_effects(raft)
    assert raft.voters == VOTERS
    assert log_of(raft).kraft_version.latest == 1
    assert raft.upgrade_kraft_version(1) is None
    assert raft.upgrade_kraft_version(0) is not None
    assert take_effects(raft) == []


def test_a_new_leader_appends_voters_that_the_log_lacks() -> None:
    """In one batch with LeaderChange: the bootstrap checkpoint is not replicated."""
    raft = leader()
    assert [entry.append_voters is not None for entry in log_of(raft).entries] == [False, True]
    log = MemoryLog(VOTERS, 1)
    log.append(log_of(raft).entries)
    log.flush(2)
    again = replica(ONE, log=log)
    assert again.voters == VOTERS
    assert [entry.append_voters is not None for entry in log_of(leader(log=log)).entries] == [False, True, False]
    moved = ONE._replace(addresses=(ListenerAddress(LISTENER, "elsewhere", 1),))
    other = replica(moved, VoterSet([moved]), log=MemoryLog(VoterSet([ONE]), 1))
    take_effects(other)
    assert other.voters == VoterSet([moved])

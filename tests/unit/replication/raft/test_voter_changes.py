"""Tests of voter_changes.py: adding, removing and updating voters, kraft.version (KIP-853)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.cluster import AddRaftVoterResponse, RemoveRaftVoterResponse
from protocol.messages.metadata import ApiVersionsRequest
from protocol.primitives import ZERO_UUID
from replication.raft.raft_log import AppendVoters, EpochEnd, SendResponse
from replication.raft.roles import Leader, Resigned
from replication.raft.rpc_messages import update_voter_request
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import MemoryLog
from tests.unit.replication.raft.replica import (
    CLUSTER,
    FOUR,
    LISTENER,
    ONE,
    THREE,
    TWO,
    VOTERS,
    Replica,
    add_request,
    leader,
    leader_with_commit,
    node,
    remove_request,
    respond_api_versions,
    static_voters,
)


def code_of(raft: Replica, request: Any, now_ms: int = 1010) -> int:
    """The error code of an immediate response."""
    response: Any = raft.handle_request(request, now_ms)
    assert response is not None, "it would be done"
    return int(response.error_code)


def start_adding(raft: Replica, *, ack_when_committed: bool = True) -> None:
    """Node 4 is caught up and is being added."""
    raft.fetch(FOUR, 1005)
    assert raft.handle_request(add_request(FOUR, ack_when_committed=ack_when_committed), 1010) is None


def test_a_new_voter_counts_when_appended_and_is_acknowledged_when_committed() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    outgoing = next(one for one in raft.effects if isinstance(getattr(one, "request", None), ApiVersionsRequest))
    assert (outgoing.to, outgoing.address) == (4, FOUR.addresses[0])  # type: ignore[union-attr]
    (append_voters,) = (one for one in respond_api_versions(raft, 1020) if isinstance(one, AppendVoters))
    assert append_voters.voters == VOTERS.with_voter(FOUR)
    assert FOUR.key in raft.voters
    raft.fetch(TWO, 1030)
    assert raft.take_responses() == []  # two of four
    raft.fetch(FOUR, 1040)
    assert raft.take_responses() == [AddRaftVoterResponse(error_code=ErrorCode.NONE)]


def test_add_voter_without_waiting_is_acknowledged_when_appended() -> None:
    """AddRaftVoter version 1: the commit may need the new voter. The next change waits for it."""
    raft = leader_with_commit()
    start_adding(raft, ack_when_committed=False)
    effects = respond_api_versions(raft, 1020)
    assert [effect.response for effect in effects if isinstance(effect, SendResponse)] == [
        AddRaftVoterResponse(error_code=0)
    ]
    assert code_of(raft, remove_request(THREE)) == ErrorCode.REQUEST_TIMED_OUT
    raft.fetch(TWO, 1030)
    raft.fetch(FOUR, 1030)
    assert raft.take_responses() == []
    assert raft.handle_request(remove_request(THREE), 1040) is None


def update(voter: Voter, epoch: int = 1) -> Any:
    return update_voter_request(CLUSTER, voter, epoch)


OTHER_LISTENER = (ListenerAddress("OTHER", "h", 1),)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (add_request(FOUR, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (add_request(FOUR._replace(key=ReplicaKey(4))), ErrorCode.INVALID_REQUEST),
        (add_request(FOUR._replace(key=ReplicaKey(-1, b"d" * 16))), ErrorCode.INVALID_REQUEST),
        (add_request(FOUR._replace(addresses=OTHER_LISTENER)), ErrorCode.INVALID_REQUEST),
        (add_request(TWO), ErrorCode.DUPLICATE_VOTER),
        (add_request(node(2, 77)), ErrorCode.DUPLICATE_VOTER),
        (remove_request(THREE, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (remove_request(THREE._replace(key=ReplicaKey(3))), ErrorCode.INVALID_REQUEST),
        (remove_request(FOUR), ErrorCode.VOTER_NOT_FOUND),
        (remove_request(node(3, 77)), ErrorCode.VOTER_NOT_FOUND),
        (update(TWO._replace(key=ReplicaKey(2, ZERO_UUID))), ErrorCode.INVALID_REQUEST),
        (update(TWO._replace(addresses=())), ErrorCode.INVALID_REQUEST),
        (update(TWO._replace(kraft_versions=(1, 0))), ErrorCode.INVALID_REQUEST),
        (update(TWO._replace(kraft_versions=(0, 0))), ErrorCode.INVALID_REQUEST),
        (update(node(2, 77)), ErrorCode.VOTER_NOT_FOUND),
        (update(FOUR), ErrorCode.VOTER_NOT_FOUND),
        (update(TWO, epoch=0), ErrorCode.FENCED_LEADER_EPOCH),
        (update(TWO, epoch=2), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_an_invalid_voter_change_is_rejected_as_in_kafka(request_: Any, code: ErrorCode) -> None:
    raft = leader_with_commit()
    assert code_of(raft, request_) == code
    assert not any(isinstance(effect, AppendVoters) for effect in raft.take_effects())


def test_only_the_leader_changes_voters() -> None:
    """The cluster id is checked first."""
    follower = Replica(TWO)
    for request in (add_request(FOUR), remove_request(THREE)):
        assert code_of(follower, request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(follower, add_request(FOUR, cluster_id="other")) == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_voter_changes_wait_for_a_commit_in_the_epoch() -> None:
    """A change of an earlier leader may still be committed."""
    raft = leader()
    for request in (add_request(FOUR), remove_request(THREE), update(TWO)):
        assert code_of(raft, request) == ErrorCode.REQUEST_TIMED_OUT


def test_only_one_voter_change_is_in_progress() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    for request in (add_request(node(5)), remove_request(THREE), update(TWO)):
        assert code_of(raft, request) == ErrorCode.REQUEST_TIMED_OUT
    other = leader_with_commit()
    assert other.handle_request(remove_request(THREE), 1010) is None
    for request in (add_request(FOUR), remove_request(TWO), update(TWO)):
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
    raft.fetch(FOUR, 1005, EpochEnd(1, 1))
    assert raft.handle_request(add_request(FOUR), 1010) is None
    (refusal,) = (effect.response for effect in respond_api_versions(raft, 1020) if isinstance(effect, SendResponse))
    assert refusal.error_code == ErrorCode.REQUEST_TIMED_OUT  # type: ignore[attr-defined]


def test_api_versions_of_another_node_is_ignored() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    (outgoing,) = (one for one in raft.take_requests() if isinstance(one.request, ApiVersionsRequest))
    raft.on_response(3, outgoing.token, None, 1020)
    assert raft.take_responses() == []


def test_a_voter_change_times_out_but_may_still_be_committed() -> None:
    raft = leader_with_commit()
    assert raft.handle_request(remove_request(THREE), 1010) is None
    raft.take_effects()
    raft.tick(3009)
    assert raft.take_responses() == []
    raft.tick(3010)
    assert raft.take_responses() == [RemoveRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)]
    assert THREE.key not in raft.voters
    assert code_of(raft, remove_request(TWO), 3011) == ErrorCode.REQUEST_TIMED_OUT  # not committed


def test_a_pending_change_fails_when_the_leader_resigns() -> None:
    raft = leader_with_commit()
    start_adding(raft)
    raft.resign(1020)
    assert AddRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER) in raft.take_responses()


def test_a_leader_that_removed_itself_resigns_after_the_commit() -> None:
    """Until then it leads, without counting itself."""
    raft = leader_with_commit()
    assert raft.handle_request(remove_request(ONE), 1010) is None
    raft.take_effects()
    raft.on_flushed(1011)
    raft.fetch(TWO, 1020)
    assert isinstance(raft.role, Leader)
    raft.fetch(THREE, 1021)
    assert isinstance(raft.role, Resigned)
    assert RemoveRaftVoterResponse(error_code=ErrorCode.NONE) in raft.take_responses()
    raft.tick(9000)
    assert not isinstance(raft.role, Leader)


def test_the_last_voter_cannot_be_removed() -> None:
    raft = leader_with_commit(VoterSet([ONE]))
    assert code_of(raft, remove_request(ONE)) == ErrorCode.VOTER_NOT_FOUND


def test_update_voter_replaces_the_endpoints() -> None:
    raft = leader_with_commit()
    moved = TWO._replace(addresses=(ListenerAddress(LISTENER, "elsewhere", 1),))
    response: Any = raft.handle_request(update(moved), 1010)
    assert (response.error_code, response.current_leader.leader_id, response.current_leader.port) == (0, 1, 9001)
    raft.take_effects()
    assert raft.voters.get(2) == moved


def test_kraft_version_1_needs_the_support_of_all_voters() -> None:
    """The voters report it to the leader; then it is in the log."""
    raft = leader_with_commit(log=MemoryLog(static_voters(VOTERS)))
    refusal = raft.upgrade_kraft_version(1)
    assert refusal is not None
    assert refusal.code == ErrorCode.INVALID_UPDATE_VERSION
    for voter in (TWO, THREE):
        assert raft.upgrade_kraft_version(1) is not None
        assert code_of(raft, update(voter)) == ErrorCode.NONE
    assert raft.upgrade_kraft_version(1, validate_only=True) is None
    assert not any(isinstance(effect, AppendVoters) for effect in raft.take_effects())
    assert raft.upgrade_kraft_version(1) is None
    raft.take_effects()
    assert raft.voters == VOTERS
    assert raft.log.kraft_version.latest == 1
    assert raft.upgrade_kraft_version(1) is None
    assert raft.upgrade_kraft_version(0) is not None
    assert raft.take_effects() == []


def test_a_new_leader_appends_voters_that_the_log_lacks() -> None:
    """In one batch with LeaderChange: the bootstrap checkpoint is not replicated."""
    raft = leader()
    assert [entry.append_voters is not None for entry in raft.log.entries] == [False, True]
    log = MemoryLog(VOTERS, 1)
    log.append(raft.log.entries)
    log.flush(2)
    again = Replica(ONE, log=log)
    assert again.voters == VOTERS
    assert [entry.append_voters is not None for entry in leader(log=log).log.entries] == [False, True, False]
    moved = ONE._replace(addresses=(ListenerAddress(LISTENER, "elsewhere", 1),))
    other = Replica(moved, VoterSet([moved]), log=MemoryLog(VoterSet([ONE]), 1))
    other.take_effects()
    assert other.voters == VoterSet([moved])

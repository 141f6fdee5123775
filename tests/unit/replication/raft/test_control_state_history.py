"""Tests of control_state_history.py."""

from __future__ import annotations

from replication.raft.control_state_history import ControlStateHistory
from replication.raft.voters import ReplicaKey, Voter, VoterSet

VOTERS = VoterSet(Voter(ReplicaKey(node_id)) for node_id in (1, 2, 3))


def test_truncation_restores_the_previous_voters() -> None:
    """Voters are effective while their record is in the log."""
    history = ControlStateHistory(VOTERS)
    fewer = VOTERS.without(3)
    history.append(7, fewer)
    assert history.latest == fewer
    assert history.at(7) == VOTERS
    assert history.at(8) == fewer
    history.truncate_to(7)
    assert history.latest == VOTERS


def test_a_snapshot_replaces_the_voters_before_its_end() -> None:
    """Later records stay effective."""
    history = ControlStateHistory(VOTERS)
    fewer = VOTERS.without(3)
    history.append(7, fewer)
    history.reset_to(5, VOTERS)
    assert (history.latest, history.at(5)) == (fewer, VOTERS)
    history.reset_to(9, fewer)
    assert (history.latest, history.latest_offset) == (fewer, 8)

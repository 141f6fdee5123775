"""Planted bugs of the Raft implementation: the simulator must find each.

NOT HERE The number of seeds (tests/simulation/test_planted_bugs.py).
"""

from __future__ import annotations

from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

from protocol.errors import ErrorCode
from replication.raft import elections, leader_fetch, quorum_state, voter_changes
from replication.raft.events import Persist
from replication.raft.follower_log_sync import FollowerLogSync
from replication.raft.quorum_state import QuorumState
from replication.raft.raft_log import ElectionState, EpochEnd
from replication.raft.replica_progress import ReplicaProgress
from replication.raft.request_tracker import RequestTracker
from replication.raft.roles import Leader, Resigned, VoteTally
from replication.raft.rpc_messages import Vote, VoteResponse
from replication.raft.voters import VoterSet
from tests.simulation.quorum.memory_log import MemoryLog
from tests.simulation.quorum.node import Node


def votes_are_not_persisted(patch: MonkeyPatch) -> None:
    """The election state does not contain the vote."""
    patch.setattr(
        quorum_state,
        "ElectionState",
        lambda epoch, leader_id, _on_vote: ElectionState(epoch, leader_id),
    )


def votes_are_sent_before_they_are_durable(patch: MonkeyPatch) -> None:
    """Responses do not wait for the election state."""
    carry_out = Node._run_effects

    def planted(self: Node) -> None:
        written = [effect for effect in self._queue if isinstance(effect, Persist)]
        rest = [effect for effect in self._queue if not isinstance(effect, Persist)]
        if not self._is_busy:
            self._queue.clear()
            self._queue.extend([*rest, *written])
        carry_out(self)

    patch.setattr(Node, "_run_effects", planted)


def votes_are_granted_to_shorter_logs(patch: MonkeyPatch) -> None:
    """The first candidate gets the vote."""
    may_grant = elections._may_grant
    patch.setattr(
        elections, "_may_grant", lambda state, vote: may_grant(state, vote._replace(end=max(vote.end, state.log.end)))
    )


def logs_are_compared_by_offset_only(patch: MonkeyPatch) -> None:
    """A longer log of an older epoch wins."""
    on_vote = elections.on_vote

    def planted(state: QuorumState, vote: Vote) -> VoteResponse:
        end = state.log.end
        if vote.end.offset >= end.offset and end.epoch < vote.epoch:
            vote = vote._replace(end=EpochEnd(max(vote.end.epoch, end.epoch), vote.end.offset))
        return on_vote(state, vote)

    patch.setattr(elections, "on_vote", planted)


def a_minority_elects(patch: MonkeyPatch) -> None:
    """One vote less than a majority is enough."""
    patch.setattr(VoteTally, "is_won", property(lambda self: len(self._granted) >= max(1, self._voters.majority - 1)))


def a_minority_commits(patch: MonkeyPatch) -> None:
    """One replica less than a majority is enough."""
    commit = ReplicaProgress.update_high_watermark

    class Fewer(VoterSet):
        majority = property(lambda self: max(1, len(self) // 2))

    patch.setattr(
        ReplicaProgress, "update_high_watermark", lambda self, voters, flushed: commit(self, Fewer(voters), flushed)
    )


def the_leader_counts_unflushed_records(patch: MonkeyPatch) -> None:
    """The leader counts its log end instead of its flushed offset."""
    commit = leader_fetch.update_high_watermark

    def planted(state: QuorumState, role: Leader) -> None:
        log = state.log
        assert isinstance(log, MemoryLog)
        flushed, log.flushed_offset = log.flushed_offset, log.end.offset
        commit(state, role)
        log.flushed_offset = flushed

    patch.setattr(leader_fetch, "update_high_watermark", planted)


def followers_fetch_before_they_flush(patch: MonkeyPatch) -> None:
    """Fetched records are not durable at the next fetch."""
    flush = MemoryLog.flush

    def planted(self: MemoryLog, end_offset: int) -> None:
        flush(self, end_offset - 3)

    patch.setattr(MemoryLog, "flush", planted)


def epoch_ends_are_not_compared(patch: MonkeyPatch) -> None:
    """A log agrees with the leader's if the leader knows its last epoch, whatever its end offset."""
    validate_offset_and_epoch = leader_fetch.validate_offset_and_epoch

    def planted(log: Any, requested: EpochEnd) -> Any:
        is_known = log.end_of_epoch(requested.epoch).epoch == requested.epoch and requested.offset >= log.start_offset
        return None if is_known else validate_offset_and_epoch(log, requested)

    patch.setattr(leader_fetch, "validate_offset_and_epoch", planted)


def the_high_watermark_exceeds_the_log(patch: MonkeyPatch) -> None:
    """The leader's high watermark is not limited to the local log end."""

    def follow(self: FollowerLogSync) -> None:
        self.high_watermark = max(self.high_watermark, self._leader_high_watermark)

    patch.setattr(FollowerLogSync, "_update_high_watermark", follow)


def a_restarted_leader_keeps_its_epoch(patch: MonkeyPatch) -> None:
    """It leads its epoch again, with a log that may be shorter."""
    init = QuorumState.__init__

    def planted(self: QuorumState, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        if isinstance(self.role, Resigned) and self.is_voter:
            self.become_leader(VoteTally(self.voters, self.local.key))

    patch.setattr(QuorumState, "__init__", planted)


def fetch_epochs_are_not_compared(patch: MonkeyPatch) -> None:
    """A diverged log counts as the leader's."""
    validate_offset_and_epoch = leader_fetch.validate_offset_and_epoch
    patch.setattr(
        leader_fetch,
        "validate_offset_and_epoch",
        lambda log, requested: (
            validate_offset_and_epoch(log, requested) if requested.offset < log.start_offset else None
        ),
    )


def responses_to_earlier_requests_are_accepted(patch: MonkeyPatch) -> None:
    """A vote for an earlier candidacy counts for the current one."""

    def keep_in_flight(self: RequestTracker) -> None:
        self.backoff_until_ms.clear()

    def complete_any(self: RequestTracker, peer: int, token: int) -> Any:
        in_flight = self.in_flight.pop(peer, None)
        return None if in_flight is None else in_flight.request

    count = elections.on_vote_response

    def count_any_epoch(state: QuorumState, peer: int, response: VoteResponse) -> None:
        count(state, peer, response._replace(leader=response.leader._replace(epoch=state.epoch)))

    patch.setattr(RequestTracker, "reset", keep_in_flight)
    patch.setattr(RequestTracker, "complete", complete_any)
    patch.setattr(elections, "on_vote_response", count_any_epoch)


def voter_changes_overlap(patch: MonkeyPatch) -> None:
    """Consecutive voter sets may not share a majority."""

    def expire(state: QuorumState, role: Leader) -> None:
        if role.change is not None and role.change.new_voter is None:
            voter_changes._complete(state, role, ErrorCode.REQUEST_TIMED_OUT, None)

    patch.setattr(voter_changes, "_is_uncommitted", voter_changes._is_appending_voters)
    patch.setattr(voter_changes, "expire", expire)

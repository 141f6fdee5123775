"""Mistakes that an implementation of Raft could make, to be planted: the simulation has to find each.

NOT HERE How many histories that may take (test_quorum.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import replication.raft.leader_fetch
import replication.raft.replica_state
from protocol.errors import ErrorCode
from replication.raft.elections import Voting
from replication.raft.follower_log_sync import Pull
from replication.raft.leader_fetch import Serving
from replication.raft.raft_log import ElectionState, EpochEnd, Persist
from replication.raft.replica_progress import Progress
from replication.raft.replica_state import Standing
from replication.raft.request_tracker import Asking
from replication.raft.roles import Ballot, Leader, Resigned
from replication.raft.voter_changes import VoterChanges
from replication.raft.voters import VoterSet
from tests.simulation.quorum.memory_log import MemoryLog
from tests.simulation.quorum.node import Node

Plant = Callable[[MonkeyPatch], None]


def votes_that_are_forgotten(patch: MonkeyPatch) -> None:
    """The file does not say for whom this replica voted."""
    patch.setattr(
        replication.raft.replica_state,
        "ElectionState",
        lambda epoch, leader_id, _voted: ElectionState(epoch, leader_id),
    )


def votes_that_leave_before_they_are_durable(patch: MonkeyPatch) -> None:
    """Answers do not wait for the file."""
    carry_out = Node._carry_out

    def hasty(self: Node) -> None:
        written = [effect for effect in self._queue if isinstance(effect, Persist)]
        rest = [effect for effect in self._queue if not isinstance(effect, Persist)]
        if not self._is_busy:
            self._queue.clear()
            self._queue.extend([*rest, *written])
        carry_out(self)

    patch.setattr(Node, "_carry_out", hasty)


def votes_for_shorter_logs(patch: MonkeyPatch) -> None:
    """Whoever asks first gets the vote."""
    may_grant = Voting._may_grant
    patch.setattr(
        Voting,
        "_may_grant",
        lambda self, key, *, is_as_long, is_pre_vote: may_grant(self, key, is_as_long=True, is_pre_vote=is_pre_vote),
    )


def logs_compared_by_offset_only(patch: MonkeyPatch) -> None:
    """A longer log of an older epoch wins."""
    vote = Voting.vote

    def compare(self: Voting, request: Any, asked: Any, mono_ms: int) -> Any:
        end = self._standing.log.end
        if asked.last_offset >= end.offset and end.epoch < asked.replica_epoch:
            asked.last_offset_epoch = max(asked.last_offset_epoch, end.epoch)
        return vote(self, request, asked, mono_ms)

    patch.setattr(Voting, "vote", compare)


def a_minority_that_elects(patch: MonkeyPatch) -> None:
    """One vote less than a majority is enough."""
    patch.setattr(Ballot, "is_won", property(lambda self: len(self._granted) >= max(1, self._voters.majority - 1)))


def a_minority_that_commits(patch: MonkeyPatch) -> None:
    """One replica less than a majority is enough."""
    commit = Progress.commit

    class Fewer(VoterSet):
        majority = property(lambda self: max(1, len(self) // 2))

    patch.setattr(Progress, "commit", lambda self, voters, flushed: commit(self, Fewer(voters), flushed))


def a_leader_that_counts_what_it_did_not_sync(patch: MonkeyPatch) -> None:
    """Its log's end instead of what is durable."""
    commit = Serving.commit

    def by_end(self: Serving, role: Leader, mono_ms: int) -> None:
        log = self._standing.log
        assert isinstance(log, MemoryLog)
        flushed, log.flushed_offset = log.flushed_offset, log.end.offset
        commit(self, role, mono_ms)
        log.flushed_offset = flushed

    patch.setattr(Serving, "commit", by_end)


def a_follower_that_asks_before_it_synced(patch: MonkeyPatch) -> None:
    """What it fetched is not durable when its next fetch says so."""
    flush = MemoryLog.flush

    def lazy(self: MemoryLog, end_offset: int) -> None:
        flush(self, end_offset - 3)

    patch.setattr(MemoryLog, "flush", lazy)


def ends_of_epochs_not_compared(patch: MonkeyPatch) -> None:
    """A log whose last epoch the leader knows counts as the leader's, however much of that epoch it has."""
    parting = replication.raft.leader_fetch.parting

    def by_epoch(log: Any, asked: EpochEnd) -> Any:
        is_known = log.end_of_epoch(asked.epoch).epoch == asked.epoch and asked.offset >= log.start_offset
        return None if is_known else parting(log, asked)

    patch.setattr(replication.raft.leader_fetch, "parting", by_epoch)


def a_watermark_beyond_the_own_log(patch: MonkeyPatch) -> None:
    """The leader's is taken as it is."""

    def follow(self: Pull) -> None:
        self.high_watermark = max(self.high_watermark, self._leader_watermark)

    patch.setattr(Pull, "_follow_watermark", follow)


def a_leader_that_goes_on_after_its_restart(patch: MonkeyPatch) -> None:
    """It leads the epoch that it led before it crashed, with a log that may be shorter."""
    begin = Standing.__init__

    def leading(self: Standing, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        if isinstance(self.role, Resigned) and self.is_voter:
            self.lead(Ballot(self.voters, self.own.key), named["mono_ms"])

    patch.setattr(Standing, "__init__", leading)


def epochs_not_compared_when_followers_fetch(patch: MonkeyPatch) -> None:
    """A log of another history counts as the leader's."""
    parting = replication.raft.leader_fetch.parting
    patch.setattr(
        replication.raft.leader_fetch,
        "parting",
        lambda log, asked: parting(log, asked) if asked.offset < log.start_offset else None,
    )


def answers_to_older_questions(patch: MonkeyPatch) -> None:
    """A vote that was given to a candidate counts for what it stands for now."""

    def forget_nothing(self: Asking) -> None:
        self._retry_ms.clear()

    def take_any(self: Asking, peer: int, token: int) -> Any:
        asked = self._asked.pop(peer, None)
        return None if asked is None else asked[1]

    count = Voting.vote_answered

    def of_any_epoch(self: Voting, peer: int, partition: Any, mono_ms: int) -> None:
        partition.leader_epoch = self._standing.epoch
        count(self, peer, partition, mono_ms)

    patch.setattr(Asking, "forget_all", forget_nothing)
    patch.setattr(Asking, "answered", take_any)
    patch.setattr(Voting, "vote_answered", of_any_epoch)


def changes_before_the_one_before_is_committed(patch: MonkeyPatch) -> None:
    """Two sets of voters need not share a majority then."""

    def forget(self: VoterChanges, role: Leader, _mono_ms: int) -> None:
        if role.change is not None and role.change.new is None:
            self._end(role, ErrorCode.REQUEST_TIMED_OUT, None)

    patch.setattr(VoterChanges, "_is_uncommitted", lambda self, role: self._is_naming(role))
    patch.setattr(VoterChanges, "expire", forget)


MISTAKES: tuple[Plant, ...] = (
    votes_that_are_forgotten,
    votes_that_leave_before_they_are_durable,
    votes_for_shorter_logs,
    logs_compared_by_offset_only,
    a_minority_that_elects,
    a_minority_that_commits,
    a_leader_that_counts_what_it_did_not_sync,
    a_follower_that_asks_before_it_synced,
    ends_of_epochs_not_compared,
    a_watermark_beyond_the_own_log,
    a_leader_that_goes_on_after_its_restart,
    epochs_not_compared_when_followers_fetch,
    answers_to_older_questions,
    changes_before_the_one_before_is_committed,
)

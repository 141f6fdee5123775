"""Mistakes that an implementation of Raft could make, to be planted: the simulation has to find each.

NOT HERE How many histories that may take (test_mistakes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import replication.raft.raft
from replication.raft.progress import Progress
from replication.raft.pulling import Pull
from replication.raft.raft import Raft
from replication.raft.replica_log import ElectionState, EpochEnd, Persist
from replication.raft.roles import Ballot, Leader
from replication.raft.voters import ReplicaKey, VoterSet
from tests.simulation.quorum.memory_log import MemoryLog
from tests.simulation.quorum.node import Node

Plant = Callable[[MonkeyPatch], None]


def votes_that_are_forgotten(patch: MonkeyPatch) -> None:
    """The file does not say for whom this replica voted."""
    patch.setattr(
        replication.raft.raft, "ElectionState", lambda epoch, leader_id, _voted: ElectionState(epoch, leader_id)
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
    may_grant = Raft._may_grant
    patch.setattr(
        Raft,
        "_may_grant",
        lambda self, key, *, is_as_long, is_pre_vote: may_grant(self, key, is_as_long=True, is_pre_vote=is_pre_vote),
    )


def logs_compared_by_offset_only(patch: MonkeyPatch) -> None:
    """A longer log of an older epoch wins."""
    vote = Raft._vote

    def compare(self: Raft, request: Any, asked: Any, mono_ms: int) -> Any:
        end = self._log.end
        if asked.last_offset >= end.offset:
            asked.last_offset_epoch = max(asked.last_offset_epoch, end.epoch)
        return vote(self, request, asked, mono_ms)

    patch.setattr(Raft, "_vote", compare)


def a_minority_that_elects(patch: MonkeyPatch) -> None:
    """One vote less than a majority is enough."""
    patch.setattr(Ballot, "is_won", property(lambda self: len(self._granted) >= max(1, self._voters.majority - 1)))


def a_minority_that_commits(patch: MonkeyPatch) -> None:
    """One replica less than a majority is enough."""
    commit = Progress.commit

    class Fewer(VoterSet):
        majority = property(lambda self: max(1, len(self) // 2))  # type: ignore[assignment]

    patch.setattr(Progress, "commit", lambda self, voters, flushed: commit(self, Fewer(voters), flushed))


def a_leader_that_counts_what_it_did_not_sync(patch: MonkeyPatch) -> None:
    """Its log's end instead of what is durable."""
    commit = Raft._commit

    def by_end(self: Raft, role: Leader, mono_ms: int) -> None:
        assert isinstance(self._log, MemoryLog)
        flushed, self._log.flushed_offset = self._log.flushed_offset, self._log.end.offset
        commit(self, role, mono_ms)
        self._log.flushed_offset = flushed

    patch.setattr(Raft, "_commit", by_end)


def a_follower_that_asks_before_it_synced(patch: MonkeyPatch) -> None:
    """What it fetched is not durable when its next fetch says so."""
    flush = MemoryLog.flush

    def lazy(self: MemoryLog, end_offset: int) -> None:
        flush(self, end_offset - 3)

    patch.setattr(MemoryLog, "flush", lazy)


def ends_of_epochs_not_compared(patch: MonkeyPatch) -> None:
    """A log whose last epoch the leader knows counts as the leader's, however much of that epoch it has."""
    parting = replication.raft.raft.parting

    def by_epoch(log: Any, asked: EpochEnd) -> Any:
        return None if log.end_of_epoch(asked.epoch).epoch == asked.epoch else parting(log, asked)

    patch.setattr(replication.raft.raft, "parting", by_epoch)


def a_watermark_beyond_the_own_log(patch: MonkeyPatch) -> None:
    """The leader's is taken as it is."""

    def follow(self: Pull) -> None:
        self.high_watermark = max(self.high_watermark, self._leader_watermark)

    patch.setattr(Pull, "_follow_watermark", follow)


def a_leader_that_goes_on_after_its_restart(patch: MonkeyPatch) -> None:
    """It leads the epoch that it led before it crashed, with a log that may be shorter."""
    begin = Raft.__init__

    def leading(self: Raft, own: ReplicaKey, cluster_id: str, log: Any, state: ElectionState, **given: Any) -> None:
        begin(self, own, cluster_id, log, state, **given)
        if state.leader_id == own.node_id and state.epoch == self.epoch:
            self._lead(Ballot(self.voters, own), given["mono_ms"])

    patch.setattr(Raft, "__init__", leading)


def epochs_not_compared_when_followers_fetch(patch: MonkeyPatch) -> None:
    """A log of another history counts as the leader's."""
    patch.setattr(replication.raft.raft, "parting", lambda _log, _asked: None)


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
)

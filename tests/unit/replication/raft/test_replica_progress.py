"""Tests of replica_progress.py: fetch positions, the high watermark, observers."""

from __future__ import annotations

from replication.raft.replica_progress import ReplicaProgress
from replication.raft.voters import ReplicaKey, Voter, VoterSet


def key(node_id: int, directory: int = 0) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([directory or node_id] * 16))


ONE, TWO, THREE, FOUR = (key(node_id) for node_id in (1, 2, 3, 4))
VOTERS = VoterSet(Voter(one) for one in (ONE, TWO, THREE))


def test_records_of_older_epochs_are_committed_only_with_a_record_of_the_own_epoch() -> None:
    """Raft, section 5.4.2."""
    progress = ReplicaProgress(ONE, epoch_start_offset=10, mono_ms=0)
    progress.on_fetch(TWO, 10, leader_end=11, mono_ms=1)
    assert not progress.update_high_watermark(VOTERS, 11)
    progress.on_fetch(TWO, 11, leader_end=11, mono_ms=2)
    assert progress.update_high_watermark(VOTERS, 11)
    assert progress.high_watermark == 11


def test_the_high_watermark_does_not_decrease() -> None:
    """The follower may have lost its log."""
    progress = ReplicaProgress(ONE, epoch_start_offset=0, mono_ms=0)
    progress.on_fetch(TWO, 5, leader_end=5, mono_ms=1)
    assert progress.update_high_watermark(VOTERS, 5)
    progress.on_fetch(TWO, 2, leader_end=5, mono_ms=2)
    assert not progress.update_high_watermark(VOTERS, 5)
    assert progress.high_watermark == 5


def test_the_leader_publishes_only_what_it_has_flushed() -> None:
    progress = ReplicaProgress(ONE, epoch_start_offset=0, mono_ms=0)
    for other in (TWO, THREE):
        progress.on_fetch(other, 5, leader_end=5, mono_ms=1)
    assert progress.update_high_watermark(VOTERS, 3)
    assert progress.high_watermark == 3


def test_a_leader_without_a_vote_does_not_count_itself() -> None:
    """It leads until its removal is committed (KIP-853)."""
    progress = ReplicaProgress(ONE, epoch_start_offset=0, mono_ms=0)
    others = VOTERS.without(1)
    progress.on_fetch(TWO, 5, leader_end=5, mono_ms=1)
    assert not progress.update_high_watermark(others, 5)
    progress.on_fetch(THREE, 5, leader_end=5, mono_ms=1)
    assert progress.update_high_watermark(others, 5)


def test_a_replica_with_another_directory_is_not_the_voter() -> None:
    """In a static quorum, the replica of the node that fetched last counts (KIP-853)."""
    progress = ReplicaProgress(ONE, epoch_start_offset=0, mono_ms=0)
    progress.on_fetch(key(2, 77), 5, leader_end=5, mono_ms=1)
    assert not progress.update_high_watermark(VOTERS, 5)
    assert key(2, 77) not in VOTERS
    static = VoterSet(Voter(ReplicaKey(node_id)) for node_id in VOTERS.node_ids)
    assert key(2, 77) in static
    progress.on_fetch(TWO, 9, leader_end=9, mono_ms=0)
    assert progress.update_high_watermark(static, 9)
    assert progress.high_watermark == 5


def test_a_replica_is_caught_up_at_the_log_end_of_its_previous_fetch() -> None:
    """An observer without a fetch in five minutes is removed."""
    progress = ReplicaProgress(ONE, epoch_start_offset=0, mono_ms=0)
    progress.on_fetch(FOUR, 0, leader_end=5, mono_ms=10)
    assert progress.replicas[FOUR].caught_up_ms is None
    progress.on_fetch(FOUR, 5, leader_end=9, mono_ms=20)
    assert progress.replicas[FOUR].caught_up_ms == 10
    progress.on_fetch(FOUR, 9, leader_end=9, mono_ms=30)
    assert progress.replicas[FOUR].caught_up_ms == 30
    progress.expire_observers(VOTERS, 30 + 299_999)
    assert FOUR in progress.replicas
    progress.expire_observers(VOTERS, 30 + 300_000)
    assert FOUR not in progress.replicas

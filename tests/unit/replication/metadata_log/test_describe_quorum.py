"""The DescribeQuorum response (replication/metadata_log/describe_quorum.py)."""

from __future__ import annotations

from protocol.primitives import ZERO_UUID
from replication.metadata.image import MetadataImage
from replication.metadata_log.describe_quorum import describe_quorum
from replication.raft.quorum_state import QuorumState, QuorumTimes
from replication.raft.raft_log import ElectionState
from replication.raft.replica_progress import ReplicaProgress
from replication.raft.roles import Leader
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import MemoryLog

ONE, TWO = (Voter(ReplicaKey(node_id, b"%d" % node_id * 16), (), (0, 1)) for node_id in (1, 2))
NEW_TWO = ReplicaKey(2, b"n" * 16)
Rows = list[tuple[int, bytes, int]]


def described(voters: VoterSet) -> tuple[Rows, Rows]:
    """Voters and observers; node 2 has fetched, then it came back with another directory and fetched again."""
    state = QuorumState(
        ONE, MemoryLog(voters, 1), ElectionState(), times=QuorumTimes(), jitter=lambda _below: 0, mono_ms=0
    )
    progress = ReplicaProgress(ONE.key, epoch_start_offset=0, mono_ms=0)
    state.role = Leader(progress, [1], voters)
    progress.on_fetch(TWO.key, 7, leader_end=7, mono_ms=1)
    progress.on_fetch(NEW_TWO, 3, leader_end=7, mono_ms=2)
    (topic,) = describe_quorum(state, MetadataImage("c"), mono_ms=5, wall_ms=5).topics
    (quorum,) = topic.partitions
    voter_rows, observer_rows = (
        [(one.replica_id, one.replica_directory_id, one.log_end_offset) for one in replicas]
        for replicas in (quorum.current_voters, quorum.observers)
    )
    return voter_rows, observer_rows


def test_a_voter_with_a_new_directory_is_an_observer_beside_the_old_voter() -> None:
    """An operator needs its directory id to make a voter of it."""
    voters, observers = described(VoterSet((ONE, TWO)))
    assert voters == [(1, ONE.key.directory_id, 0), (2, TWO.key.directory_id, 7)]
    assert observers == [(2, NEW_TWO.directory_id, 3)]


def test_static_voters_are_the_replicas_of_their_nodes() -> None:
    voters, observers = described(VoterSet(Voter(ReplicaKey(node_id)) for node_id in (1, 2)))
    assert voters == [(1, ZERO_UUID, 0), (2, ZERO_UUID, 3)]
    assert not observers

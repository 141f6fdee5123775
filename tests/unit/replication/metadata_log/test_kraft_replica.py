"""The order of the events that a `KRaftReplica` reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replication.completion import completed
from replication.metadata_log.kraft_replica import Dependencies, KRaftReplica
from replication.raft.events import BecomeLeader, Signal
from replication.raft.quorum_state import QuorumState, QuorumTimes
from replication.raft.raft import Raft
from replication.raft.raft_log import ElectionState
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from replication.timer_queue import TimerQueue
from tests.simulation.quorum.memory_log import Entry, MemoryLog

ONE = Voter(ReplicaKey(1, b"1" * 16), (), (0, 1))


class Rig:
    """The only voter, whose log is durable as soon as it is written."""

    is_truncating = False

    def __init__(self) -> None:
        self.events: list[str] = []
        self.log = MemoryLog(VoterSet((ONE,)), 1)
        state = QuorumState(ONE, self.log, ElectionState(), times=QuorumTimes(), jitter=lambda _below: 0, mono_ms=0)
        self.raft = Raft(state)
        unused: Any = self
        dependencies = Dependencies(unused, unused, TimerQueue(), self, lambda _below: 0, unused)
        self.quorum = KRaftReplica(self.raft, "c", unused, self, lambda _: completed(None), dependencies)
        self.quorum.on_leader_changed = lambda leader_id: self.events.append(f"node {leader_id} leads")

    def mono_ms(self) -> int:
        return 1

    def wall_ms(self) -> int:
        return 1

    def on_become_leader(self, effect: BecomeLeader) -> None:
        """Write the epoch's first record, which is durable at once, and another."""
        self.events.append("begins to lead")
        log = self.log
        for value in (-1, 0):
            log.append([Entry(effect.epoch, value)])
            log.flush(log.end.offset)
            self.quorum.step(Signal.LOG_FLUSHED)
        self.events.append("has begun")

    def run_when_idle(self, action: Callable[[], None]) -> None:
        """Run it at once: no write is pending."""
        action()

    def on_leadership_lost(self) -> None:
        self.events.append("leads no longer")

    def on_commit(self, high_watermark: int, wall_ms: int = 0) -> None:
        self.events.append(f"{high_watermark} is committed")

    def on_failed(self, sentence: str) -> None:
        raise AssertionError(sentence)


def test_a_leader_is_announced_after_its_first_records_are_written() -> None:
    rig = Rig()
    rig.quorum.start()
    events = [what for what in rig.events if "committed" not in what]
    assert events == ["begins to lead", "has begun", "node 1 leads"]

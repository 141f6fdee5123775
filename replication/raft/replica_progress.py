"""The leader's view of all replicas: fetch positions, the high watermark, and check quorum (Kafka: LeaderState).

RULES    1. A fetch offset acknowledges all records before it: a replica flushes before it fetches on.
         2. A record is committed when a majority of the voters has it, and a record of the leader's own epoch is among
            them (Raft, section 5.4.2), and the leader has flushed it: what it publishes survives a loss of its power.
         3. The high watermark does not decrease.
         4. A leader that no majority fetched from for some time cannot know whether a newer leader exists (KIP-595).
         5. An observer that has not fetched for five minutes is removed.
NOT HERE When to resign (`raft.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.primitives import ZERO_UUID
from replication.raft.voters import ReplicaKey, VoterSet

OBSERVER_SESSION_MS = 300_000


@dataclass(slots=True)
class ReplicaFetchState:
    """The fetch state of one other replica."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    caught_up_ms: int | None
    """The last time it had the whole log of the leader; None if never."""
    leader_end_at_fetch: int
    """The leader's log end offset at its last fetch."""


class ReplicaProgress:
    """All replicas in one leader epoch."""

    def __init__(self, local: ReplicaKey, *, epoch_start_offset: int, mono_ms: int) -> None:
        self._local = local
        self._epoch_start_ms = mono_ms
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = 0
        """0 until a record of this epoch is committed."""
        self.replicas: dict[ReplicaKey, ReplicaFetchState] = {}

    def on_fetch(self, key: ReplicaKey, offset: int, *, leader_end: int, mono_ms: int) -> None:
        """Record a fetch: the replica has all records before `offset`."""
        known = self.replicas.get(key)
        if known is None:
            known = self.replicas[key] = ReplicaFetchState(key, offset, mono_ms, None, 0)
        if offset >= leader_end:
            known.caught_up_ms = mono_ms
        elif 0 < known.leader_end_at_fetch <= offset:  # the leader's log end at the previous fetch
            known.caught_up_ms = max(known.caught_up_ms or 0, known.last_fetch_ms)
        known.end_offset, known.last_fetch_ms, known.leader_end_at_fetch = offset, mono_ms, leader_end

    def on_contact(self, key: ReplicaKey, mono_ms: int) -> None:
        """Record a request other than a Fetch."""
        known = self.replicas.setdefault(key, ReplicaFetchState(key, 0, mono_ms, None, 0))
        known.last_fetch_ms = mono_ms

    def is_caught_up(self, key: ReplicaKey, since_ms: int) -> bool:
        """Whether a replica has been caught up and fetched after `since_ms`."""
        found = self.replicas.get(key)
        return found is not None and found.caught_up_ms is not None and found.last_fetch_ms > since_ms

    def update_high_watermark(self, voters: VoterSet, local_flushed_offset: int) -> bool:
        """Advance the high watermark by rules 1 to 3; returns whether it moved."""
        ends = sorted((self._end_offset(voter.key, local_flushed_offset) for voter in voters), reverse=True)
        committed = min(ends[voters.majority - 1], local_flushed_offset)
        if committed <= self.epoch_start_offset or committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def majority_fetch_ms(self, voters: VoterSet) -> int | None:
        """The latest time since when a majority, with this replica, has fetched; None if no other voter is needed."""
        others = [voter.key for voter in voters if not voter.key.matches(self._local)]
        needed = voters.majority - (len(others) < len(voters))
        if needed == 0:
            return None
        fetch_times_ms = sorted((self._last_fetch_ms(key) for key in others), reverse=True)
        return fetch_times_ms[needed - 1]

    def has_fetched(self, key: ReplicaKey, since_ms: int) -> bool:
        """Whether a replica fetched since then."""
        found = self._find(key)
        return found is not None and found.last_fetch_ms >= since_ms

    def by_end_offset(self, voters: VoterSet) -> list[ReplicaKey]:
        """The other voters, the highest end offset first."""
        others = [voter.key for voter in voters if not voter.key.matches(self._local)]
        return sorted(others, key=lambda key: (-self._end_offset(key, 0), key.node_id))

    def expire_observers(self, voters: VoterSet, mono_ms: int) -> None:
        """Remove observers without a fetch in five minutes (rule 5)."""
        for key, replica in list(self.replicas.items()):
            if key not in voters and mono_ms - replica.last_fetch_ms >= OBSERVER_SESSION_MS:
                del self.replicas[key]

    def _find(self, key: ReplicaKey) -> ReplicaFetchState | None:
        """The state of a voter; for a key without a directory id, the replica of that node that fetched last."""
        found = self.replicas.get(key)
        if found is not None or key.directory_id != ZERO_UUID:
            return found
        nodes = [replica for replica in self.replicas.values() if key.matches(replica.key)]
        return max(nodes, key=lambda replica: replica.last_fetch_ms, default=None)

    def _end_offset(self, key: ReplicaKey, local_flushed_offset: int) -> int:
        if key.matches(self._local):
            return local_flushed_offset
        found = self._find(key)
        return found.end_offset if found is not None else 0

    def _last_fetch_ms(self, key: ReplicaKey) -> int:
        found = self._find(key)
        return found.last_fetch_ms if found is not None else self._epoch_start_ms

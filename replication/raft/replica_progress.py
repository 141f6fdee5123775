"""How far the replicas of the metadata log have come, as their leader sees it: what is committed, and whether it still leads.

RULES    1. A replica has what lies before the offset that it fetches from: it synced that before it asked (D12b).
         2. Committed is what a majority of the voters has, the leader among them with what it has synced, and only when that
            holds a record of the leader's own epoch (Raft, section 5.4.2).
         3. The high watermark does not go back.
         4. A leader that no majority fetched from for some time does not know whether there is another one (KIP-595).
         5. An observer that is silent for five minutes is forgotten.
NOT HERE When to resign (`raft.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.primitives import ZERO_UUID
from replication.raft.voters import ReplicaKey, VoterSet

OBSERVER_SESSION_MS = 300_000


@dataclass(slots=True)
class Replica:
    """What is known of one other replica."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    caught_up_ms: int | None
    """When it last had all that the leader had; None: it never had."""
    leader_end_at_fetch: int
    """Where the leader's log ended at its last fetch."""


class Progress:
    """The replicas of one leader's epoch."""

    def __init__(self, own: ReplicaKey, *, epoch_start_offset: int, mono_ms: int) -> None:
        self._own = own
        self._began_ms = mono_ms
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = 0
        """0: nothing of this epoch is committed yet."""
        self.replicas: dict[ReplicaKey, Replica] = {}

    def fetched(self, key: ReplicaKey, offset: int, *, leader_end: int, mono_ms: int) -> None:
        """A replica asks for what begins at `offset`: it has all before it."""
        known = self.replicas.get(key)
        if known is None:
            known = self.replicas[key] = Replica(key, offset, mono_ms, None, 0)
        if offset >= leader_end:
            known.caught_up_ms = mono_ms
        elif 0 < known.leader_end_at_fetch <= offset:  # all that the leader had when it asked before
            known.caught_up_ms = max(known.caught_up_ms or 0, known.last_fetch_ms)
        known.end_offset, known.last_fetch_ms, known.leader_end_at_fetch = offset, mono_ms, leader_end

    def heard_of(self, key: ReplicaKey, mono_ms: int) -> None:
        """A replica asked for something else than the log."""
        known = self.replicas.setdefault(key, Replica(key, 0, mono_ms, None, 0))
        known.last_fetch_ms = mono_ms

    def has_followed(self, key: ReplicaKey, since_ms: int) -> bool:
        """Whether a replica has had all that the leader had, and fetched since then."""
        found = self.replicas.get(key)
        return found is not None and found.caught_up_ms is not None and found.last_fetch_ms > since_ms

    def commit(self, voters: VoterSet, own_flushed_offset: int) -> bool:
        """Move the high watermark as far as rules 1 to 3 allow; whether it moved."""
        ends = sorted((self._end_of(voter.key, own_flushed_offset) for voter in voters), reverse=True)
        common = ends[voters.majority - 1]
        if common <= self.epoch_start_offset or common <= self.high_watermark:
            return False
        self.high_watermark = common
        return True

    def majority_heard_ms(self, voters: VoterSet) -> int | None:
        """Since when a majority of the voters, this one among them, is known to follow; None: it needs nobody else."""
        others = [voter.key for voter in voters if not voter.key.matches(self._own)]
        needed = voters.majority - (len(others) < len(voters))
        if needed == 0:
            return None
        heard = sorted((self._heard_ms(key) for key in others), reverse=True)
        return heard[needed - 1]

    def has_fetched(self, key: ReplicaKey, since_ms: int) -> bool:
        """Whether a replica fetched since then."""
        found = self._find(key)
        return found is not None and found.last_fetch_ms >= since_ms

    def by_end_offset(self, voters: VoterSet) -> list[ReplicaKey]:
        """The other voters, the one that has most first."""
        others = [voter.key for voter in voters if not voter.key.matches(self._own)]
        return sorted(others, key=lambda key: (-self._end_of(key, 0), key.node_id))

    def forget_silent_observers(self, voters: VoterSet, mono_ms: int) -> None:
        """Rule 5."""
        for key, replica in list(self.replicas.items()):
            if key not in voters and mono_ms - replica.last_fetch_ms >= OBSERVER_SESSION_MS:
                del self.replicas[key]

    def _find(self, key: ReplicaKey) -> Replica | None:
        """What is known of a voter, whose key may leave its directory open: it is then who fetched last."""
        found = self.replicas.get(key)
        if found is not None or key.directory_id != ZERO_UUID:
            return found
        nodes = [replica for replica in self.replicas.values() if key.matches(replica.key)]
        return max(nodes, key=lambda replica: replica.last_fetch_ms, default=None)

    def _end_of(self, key: ReplicaKey, own_flushed_offset: int) -> int:
        if key.matches(self._own):
            return own_flushed_offset
        found = self._find(key)
        return found.end_offset if found is not None else 0

    def _heard_ms(self, key: ReplicaKey) -> int:
        found = self._find(key)
        return found.last_fetch_ms if found is not None else self._began_ms

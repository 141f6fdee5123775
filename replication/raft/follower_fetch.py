"""Whom a replica asks for what follows in the metadata log, and what it does with the answer.

RULES    1. A follower asks its leader. Who knows no leader, or does not reach it, asks the others in turn: one of them knows.
         2. One question at a time, and none while something is being written (`follower_log_sync.py`) or not durable yet: what a replica
            wrote as leader, or its process before this one. Who knows no leader pauses between two that did not know one
            either.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.raft import FetchSnapshotPartitionResponse
from replication.raft.raft_log import Effect
from replication.raft.replica_state import Standing
from replication.raft.roles import Follower, Unattached
from replication.raft.voter_requests import VoterRequests


class Following:
    """The follower's side of the metadata log."""

    def __init__(self, standing: Standing, requests: VoterRequests, bootstrap_servers: int) -> None:
        self._standing = standing
        self._requests = requests
        self._bootstrap_servers = bootstrap_servers
        self._turn = 0

    def ask(self, role: Follower | Unattached, mono_ms: int) -> None:
        """Ask for what comes next (rules 1 and 2)."""
        standing = self._standing
        is_resting = isinstance(role, Unattached) and standing.asking.is_anybody_resting
        if is_resting or not self.is_free:
            return
        is_following = isinstance(role, Follower) and not standing.asking.is_backing_off(role.leader_id)
        if isinstance(role, Follower) and is_following:
            if self._requests.ask_if_due(role, mono_ms):
                return
            peer, request = role.leader_id, standing.pull.request(standing.cluster_id, standing.own.key, standing.epoch)
        else:
            peer, request = self._somebody(), standing.pull.fetch(standing.cluster_id, standing.own.key, standing.epoch)
        if peer != -1 and standing.asking.may_ask(peer):
            standing.asking.ask(peer, standing.address_of(peer) if peer >= 0 else None, request)

    @property
    def is_free(self) -> bool:
        """Whether a question may leave (rule 2)."""
        standing = self._standing
        is_durable = standing.log.flushed_offset >= standing.log.end.offset
        return is_durable and not standing.pull.is_writing and not standing.asking.is_waiting

    def _somebody(self) -> int:
        """Who may know the leader: a voter, or a bootstrap server; -1: nobody is known."""
        standing = self._standing
        servers = [node_id for node_id in standing.voters.node_ids if node_id != standing.own.key.node_id]
        servers += [-2 - index for index in range(self._bootstrap_servers)]
        return servers[self._turn % len(servers)] if servers else -1

    def failed(self) -> None:
        """Whoever was asked did not help: the next one may."""
        self._turn += 1

    def answered(self, peer: int, partition: Any, mono_ms: int) -> None:
        """Somebody answered a Fetch or a FetchSnapshot."""
        standing, role = self._standing, self._standing.role
        leader = partition.current_leader
        is_leader = leader is not None and (leader.leader_epoch, leader.leader_id) == (
            standing.epoch,
            standing.leader_id,
        )
        if partition.error_code == ErrorCode.SNAPSHOT_NOT_FOUND:
            standing.pull.forget_snapshot()
        if not isinstance(role, Follower) or not is_leader or partition.error_code != ErrorCode.NONE:
            standing.asking.back_off(peer, mono_ms)
            self.failed()
            return
        role.has_fetched = True
        role.deadline_ms = standing.fetch_deadline(mono_ms)
        effect = self._taken(partition)
        if effect is not None:
            standing.effects.append(effect)

    def _taken(self, partition: Any) -> Effect | None:
        pull = self._standing.pull
        if isinstance(partition, FetchSnapshotPartitionResponse):
            return pull.took_piece(partition)
        return pull.took(partition, self._standing.epoch)

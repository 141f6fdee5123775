"""The fetchers from all leaders that this broker follows: num.replica.fetchers per leader (Kafka: ReplicaFetcherManager).

RULES    1. The image determines the leader of a partition: every change moves the partition to another fetcher, or to none.
         2. With several fetchers per leader, a partition always has the same one: each handles one request at a time, so a
            slow one delays no partition of the others.
         3. If the number of fetchers changes, partitions that get another fetcher are opened there again: writes of the
            previous one are over before the first fetch.
NOT HERE Fetch requests and responses (`replication/partition/replica_fetcher.py`), connections (`network/peer.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from broker.config.broker_config import BrokerConfig
from broker.network.peer import Response
from broker.peers.broker_lifecycle import BrokerLifecycle
from protocol.schema import Message
from replication.cooperative_tasks import CallSoon
from replication.metadata.image import NO_LEADER
from replication.partition.follower_log import FollowerLog
from replication.partition.partition import Partition
from replication.partition.replica_fetcher import ReplicaFetcher
from replication.timer_queue import Clock, Timer, TimerQueue

FetcherKey = tuple[int, int]
"""The leader's id and the index of the fetcher."""


class LeaderConnections(Protocol):
    """One connection to each leader, only for fetching, since a waiting Fetch delays later requests."""

    def send_request(self, node_id: int, request: Message) -> Response:
        """Sends a request to a leader."""

    def close(self) -> None:
        """Closes the connections; pending and later requests fail."""


@dataclass(eq=False)
class _Leader:
    """A fetcher, its connection, and the timer of its next request."""

    fetcher: ReplicaFetcher
    connections: LeaderConnections
    wake: Timer | None = None


@dataclass(eq=False)
class ReplicaFetcherManager:
    """All fetchers of this broker; it has none before the first `resize`, which must precede the first partition."""

    _soon: CallSoon
    _config: BrokerConfig
    _lifecycle: BrokerLifecycle
    _connect: Callable[[], LeaderConnections]
    _follower_log: FollowerLog
    _timers: TimerQueue
    _clock: Clock
    _connections: list[LeaderConnections] = field(default_factory=list, init=False)
    """One for each fetcher of a leader."""
    _leaders: dict[FetcherKey, _Leader] = field(default_factory=dict, init=False)
    _by_partition: dict[Partition, FetcherKey] = field(default_factory=dict, init=False)
    _is_closed: bool = field(default=False, init=False)

    def resize(self, count: int) -> None:
        """Uses `count` fetchers per leader, at least one (rule 3)."""
        if count == len(self._connections):
            return
        removed = self._connections[count:]
        self._connections = self._connections[:count]
        self._connections += [self._connect() for _ in range(count - len(self._connections))]
        for partition in list(self._by_partition):
            self.follow(partition)
        for connections in removed:
            connections.close()
        self._leaders = {key: leader for key, leader in self._leaders.items() if key[1] < count}

    def follow(self, partition: Partition) -> None:
        """The leader of a partition may have changed (rule 1)."""
        key = self._key_of(partition)
        before = self._by_partition.get(partition)
        if before not in (None, key):
            self.forget(partition)
        if key is not None:
            self._by_partition[partition] = key
            self._leader(key).fetcher.add(partition)

    def forget(self, partition: Partition) -> None:
        """Stops fetching a partition."""
        before = self._by_partition.pop(partition, None)
        if before is not None:
            self._leaders[before].fetcher.remove(partition)

    def _key_of(self, partition: Partition) -> FetcherKey | None:
        """The fetcher of a partition (rule 2); None if it is not fetched."""
        leader_id = partition.leader_id
        if partition.is_leader or partition.is_offline or leader_id in (NO_LEADER, self._config.node_id):
            return None
        assert partition.topic_id is not None, "a followed partition is in the image"
        return leader_id, (int.from_bytes(partition.topic_id[-4:], "big") + partition.index) % len(self._connections)

    def close(self) -> None:
        """Stops all fetching."""
        self._is_closed = True
        for connections in self._connections:
            connections.close()

    def _leader(self, key: FetcherKey) -> _Leader:
        known = self._leaders.get(key)
        if known is not None:
            return known
        leader_id, number = key
        settings, node_id = self._config.fetch_settings(), self._config.node_id
        fetcher = ReplicaFetcher(leader_id, node_id, lambda: self._lifecycle.epoch, self._follower_log, settings)
        leader = self._leaders[key] = _Leader(fetcher, self._connections[number])

        def ask_soon() -> None:
            self._soon(partial(self._send_request, leader))  # several callbacks in one iteration become one request

        fetcher.on_ready = ask_soon
        return leader

    def _send_request(self, leader: _Leader) -> None:
        if self._is_closed:
            return
        request = leader.fetcher.next_request(self._clock.mono_ms())
        if request is not None:
            leader.connections.send_request(leader.fetcher.leader_id, request).then(partial(self._on_response, leader))
            return
        due_ms = leader.fetcher.next_deadline_ms
        if due_ms is not None:
            if leader.wake is not None:
                leader.wake.cancel()
            leader.wake = self._timers.schedule(due_ms, partial(self._send_request, leader))

    def _on_response(self, leader: _Leader, response: Response) -> None:
        leader.fetcher.on_response(response.result(), self._clock.mono_ms(), self._clock.wall_ms())

"""The fetchers from all leaders that this broker follows: num.replica.fetchers per leader (Kafka: ReplicaFetcherManager).

RULES    1. The image determines the leader of a partition: every change moves the partition to another fetcher, or to none.
         2. With several fetchers per leader, a partition always has the same one: each handles one request at a time, so a
            slow one delays no partition of the others.
NOT HERE Fetch requests and responses (`replication/partition/replica_fetcher.py`), connections (`broker_peers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from protocol.schema import Message
from replication.cooperative_tasks import CallSoon
from replication.metadata.image import NO_LEADER
from replication.partition.follower_log import FollowerLog
from replication.partition.partition import Partition
from replication.partition.replica_fetcher import FetchSettings, ReplicaFetcher
from replication.timer_queue import Clock, Timer, TimerQueue

SendRequest = Callable[[int, Message, Callable[[Message | None], None]], None]
"""Sends a request to a broker by id; the callback gets the response or None."""
FetcherKey = tuple[int, int]
"""The leader's id and the index of the fetcher."""


class _Leader:
    """A fetcher, its connection, and the timer of its next request."""

    def __init__(self, fetcher: ReplicaFetcher, send_request: SendRequest) -> None:
        self.fetcher = fetcher
        self.send_request = send_request
        self.wake: Timer | None = None


class ReplicaFetcherManager:
    """All fetchers of this broker."""

    def __init__(
        self,
        soon: CallSoon,
        node_id: int,
        broker_epoch: Callable[[], int],
        connections: Sequence[SendRequest],
        follower_log: FollowerLog,
        settings: FetchSettings,
        timers: TimerQueue,
        clock: Clock,
    ) -> None:
        """`connections`: one per fetcher of a leader, only for fetching, since a waiting Fetch delays later requests."""
        self._soon = soon
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._connections = connections
        self._follower_log = follower_log
        self._settings = settings
        self._timers = timers
        self._clock = clock
        self._leaders: dict[FetcherKey, _Leader] = {}
        self._by_partition: dict[Partition, FetcherKey] = {}
        self._is_closed = False

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
        if partition.is_leader or partition.is_offline or leader_id in (NO_LEADER, self._node_id):
            return None
        assert partition.topic_id is not None, "a followed partition is in the image"
        return leader_id, (int.from_bytes(partition.topic_id[-4:], "big") + partition.index) % len(self._connections)

    def close(self) -> None:
        """Stops all fetching."""
        self._is_closed = True

    def _leader(self, key: FetcherKey) -> _Leader:
        known = self._leaders.get(key)
        if known is not None:
            return known
        leader_id, number = key
        fetcher = ReplicaFetcher(leader_id, self._node_id, self._broker_epoch, self._follower_log, self._settings)
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
            leader.send_request(leader.fetcher.leader_id, request, partial(self._on_response, leader))
            return
        due_ms = leader.fetcher.next_deadline_ms
        if due_ms is not None:
            if leader.wake is not None:
                leader.wake.cancel()
            leader.wake = self._timers.schedule(due_ms, partial(self._send_request, leader))

    def _on_response(self, leader: _Leader, response: Message | None) -> None:
        leader.fetcher.on_response(response, self._clock.mono_ms(), self._clock.wall_ms())

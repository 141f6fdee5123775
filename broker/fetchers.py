"""The fetching from all leaders that this broker follows: a fetcher and a connection for each.

RULES    1. Who leads a partition is what the image says: with every change it goes to another fetcher, or to none.
NOT HERE What is asked and what the answers mean (`replication/fetcher.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from broker.brokers import Brokers
from broker.network.peer import Peer
from broker.timer import SystemClock
from protocol.schema import Message
from replication.deadlines import Deadline, Deadlines
from replication.fetcher import Fetcher, FetchSettings
from replication.following import Following
from replication.partition import Partition


class _Leader:
    """One leader: its fetcher and the way to it."""

    def __init__(self, fetcher: Fetcher, peer: Peer) -> None:
        self.fetcher = fetcher
        self.peer = peer
        self.wake: Deadline | None = None


class Fetchers:
    """All of them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        own_id: int,
        broker_epoch: Callable[[], int],
        brokers: Brokers,
        following: Following,
        settings: FetchSettings,
        deadlines: Deadlines,
        clock: SystemClock,
    ) -> None:
        """Follow nobody yet.

        Args:
            loop: the event loop.
            own_id: this broker.
            broker_epoch: of its registration.
            brokers: connections for fetching and nothing else: a Fetch that waits holds up what comes behind it.
            following: who writes.
            settings: how much, and how patiently.
            deadlines: where waits are.
            clock: the time.
        """
        self._loop = loop
        self._own_id = own_id
        self._broker_epoch = broker_epoch
        self._brokers = brokers
        self._following = following
        self._settings = settings
        self._deadlines = deadlines
        self._clock = clock
        self._leaders: dict[int, _Leader] = {}
        self._by_partition: dict[Partition, int] = {}
        self._is_closed = False

    def follow(self, partition: Partition) -> None:
        """A partition's role may have changed (rule 1)."""
        is_here = not partition.is_leader and not partition.is_offline and partition.leader_id >= 0
        leader_id = partition.leader_id if is_here else -1
        before = self._by_partition.pop(partition, -1)
        if before not in (-1, leader_id):
            self._leaders[before].fetcher.forget(partition)
        if leader_id >= 0 and leader_id != self._own_id:
            self._by_partition[partition] = leader_id
            self._leader(leader_id).fetcher.follow(partition)

    def forget(self, partition: Partition) -> None:
        """A partition is no longer of this broker."""
        before = self._by_partition.pop(partition, -1)
        if before >= 0:
            self._leaders[before].fetcher.forget(partition)

    def close(self) -> None:
        """Fetch no more."""
        self._is_closed = True
        self._brokers.close()

    def _leader(self, leader_id: int) -> _Leader:
        known = self._leaders.get(leader_id)
        if known is not None:
            return known
        fetcher = Fetcher(leader_id, self._own_id, self._broker_epoch, self._following, self._settings)
        leader = self._leaders[leader_id] = _Leader(fetcher, self._brokers.connection(leader_id))
        fetcher.on_ready = lambda: _soon(self._loop, partial(self._ask, leader))
        return leader

    def _ask(self, leader: _Leader) -> None:
        if self._is_closed:
            return
        request = leader.fetcher.next_request(self._clock.mono_ms())
        if request is not None:
            leader.peer.ask(request, partial(self._answered, leader))
            return
        due_ms = leader.fetcher.next_deadline_ms
        if due_ms is not None:
            if leader.wake is not None:
                leader.wake.cancel()
            leader.wake = self._deadlines.schedule(due_ms, partial(self._ask, leader))

    def _answered(self, leader: _Leader, answer: Message | None) -> None:
        leader.fetcher.received(answer, self._clock.mono_ms(), self._clock.wall_ms())


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """In one of the next turns: whoever says that there is something to ask is in the midst of saying more."""
    loop.call_soon(act)

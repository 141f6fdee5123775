"""The fetching from all leaders that this broker follows: a fetcher for each.

RULES    1. Who leads a partition is what the image says: with every change it goes to another fetcher, or to none.
NOT HERE What is asked and what the answers mean (`replication/fetcher.py`), connections (`brokers.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.schema import Message
from replication.deadlines import Deadline, Deadlines
from replication.fetcher import Fetcher, FetchSettings
from replication.following import Following
from replication.partition import Partition
from replication.quorum import Clock
from replication.turns import Soon

Ask = Callable[[int, Message, Callable[[Message | None], None]], None]
"""Asks a broker, by its id; None is the answer that did not come."""


class _Leader:
    """One leader: its fetcher, and when it has to be looked at again."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self.wake: Deadline | None = None


class Fetchers:
    """All of them."""

    def __init__(
        self,
        soon: Soon,
        own_id: int,
        broker_epoch: Callable[[], int],
        ask: Ask,
        following: Following,
        settings: FetchSettings,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        """Follow nobody yet.

        Args:
            soon: calls something in one of the next turns.
            own_id: this broker.
            broker_epoch: of its registration.
            ask: asks a broker, over a connection for nothing but fetching: a Fetch that waits holds up what comes behind it.
            following: who writes.
            settings: how much, and how patiently.
            deadlines: where waits are.
            clock: the time.
        """
        self._soon = soon
        self._own_id = own_id
        self._broker_epoch = broker_epoch
        self._ask_broker = ask
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

    def _leader(self, leader_id: int) -> _Leader:
        known = self._leaders.get(leader_id)
        if known is not None:
            return known
        fetcher = Fetcher(leader_id, self._own_id, self._broker_epoch, self._following, self._settings)
        leader = self._leaders[leader_id] = _Leader(fetcher)

        def ask_soon() -> None:
            self._soon(partial(self._ask, leader))  # whoever says that there is something to ask may say more

        fetcher.on_ready = ask_soon
        return leader

    def _ask(self, leader: _Leader) -> None:
        if self._is_closed:
            return
        request = leader.fetcher.next_request(self._clock.mono_ms())
        if request is not None:
            self._ask_broker(leader.fetcher.leader_id, request, partial(self._answered, leader))
            return
        due_ms = leader.fetcher.next_deadline_ms
        if due_ms is not None:
            if leader.wake is not None:
                leader.wake.cancel()
            leader.wake = self._deadlines.schedule(due_ms, partial(self._ask, leader))

    def _answered(self, leader: _Leader, answer: Message | None) -> None:
        leader.fetcher.received(answer, self._clock.mono_ms(), self._clock.wall_ms())

"""The fetching from all leaders that this broker follows: num.replica.fetchers for each.

RULES    1. Who leads a partition is what the image says: with every change it goes to another fetcher, or to none.
         2. Where there are several fetchers for a leader, a partition always goes to the same of them: each does one thing
            at a time, so what is slow in one holds up no partition of the others.
NOT HERE What is asked and what the answers mean (`replication/partition/replica_fetcher.py`), connections (`broker_peers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from protocol.schema import Message
from replication.cooperative_tasks import Soon
from replication.metadata_log.kraft_replica import Clock
from replication.partition.follower_log import Following
from replication.partition.partition import Partition
from replication.partition.replica_fetcher import Fetcher, FetchSettings
from replication.timer_queue import Deadline, Deadlines

Ask = Callable[[int, Message, Callable[[Message | None], None]], None]
"""Asks a broker, by its id; None is the answer that did not come."""
Place = tuple[int, int]
"""A leader, and which of the fetchers that fetch from it."""
NOBODY: Final = -1


class _Leader:
    """One leader: its fetcher, or one of them, and when it has to be looked at again."""

    def __init__(self, fetcher: Fetcher, ask: Ask) -> None:
        self.fetcher = fetcher
        self.ask = ask
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
        further: Sequence[Ask] = (),
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
            further: as `ask`, for the second fetcher of each leader and so on.
        """
        self._soon = soon
        self._own_id = own_id
        self._broker_epoch = broker_epoch
        self._asks = (ask, *further)
        self._following = following
        self._settings = settings
        self._deadlines = deadlines
        self._clock = clock
        self._leaders: dict[Place, _Leader] = {}
        self._by_partition: dict[Partition, Place] = {}
        self._is_closed = False

    def follow(self, partition: Partition) -> None:
        """A partition's role may have changed (rule 1)."""
        place = self._place_of(partition)
        before = self._by_partition.get(partition)
        if before not in (None, place):
            self.forget(partition)
        if place is not None:
            self._by_partition[partition] = place
            self._leader(place).fetcher.follow(partition)

    def forget(self, partition: Partition) -> None:
        """It is to be fetched no more."""
        before = self._by_partition.pop(partition, None)
        if before is not None:
            self._leaders[before].fetcher.forget(partition)

    def _place_of(self, partition: Partition) -> Place | None:
        """From whom to fetch it, and by which fetcher (rule 2); None: from nobody."""
        leader_id = partition.leader_id
        if partition.is_leader or partition.is_offline or leader_id in (NOBODY, self._own_id):
            return None
        assert partition.topic_id is not None, "what is followed is in the image, by its id"
        return leader_id, (int.from_bytes(partition.topic_id[-4:], "big") + partition.index) % len(self._asks)

    def close(self) -> None:
        """Fetch no more."""
        self._is_closed = True

    def _leader(self, place: Place) -> _Leader:
        known = self._leaders.get(place)
        if known is not None:
            return known
        leader_id, number = place
        fetcher = Fetcher(leader_id, self._own_id, self._broker_epoch, self._following, self._settings)
        leader = self._leaders[place] = _Leader(fetcher, self._asks[number])

        def ask_soon() -> None:
            self._soon(partial(self._ask, leader))  # whoever says that there is something to ask may say more

        fetcher.on_ready = ask_soon
        return leader

    def _ask(self, leader: _Leader) -> None:
        if self._is_closed:
            return
        request = leader.fetcher.next_request(self._clock.mono_ms())
        if request is not None:
            leader.ask(leader.fetcher.leader_id, request, partial(self._answered, leader))
            return
        due_ms = leader.fetcher.next_deadline_ms
        if due_ms is not None:
            if leader.wake is not None:
                leader.wake.cancel()
            leader.wake = self._deadlines.schedule(due_ms, partial(self._ask, leader))

    def _answered(self, leader: _Leader, answer: Message | None) -> None:
        leader.fetcher.received(answer, self._clock.mono_ms(), self._clock.wall_ms())

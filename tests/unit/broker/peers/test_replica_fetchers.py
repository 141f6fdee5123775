"""The fetchers of a broker (broker/peers/replica_fetchers.py)."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from broker.config.broker_config import BrokerConfig
from broker.peers.replica_fetchers import ReplicaFetcherManager
from protocol.messages.produce_fetch import FetchRequest
from replication.completion import Completion, completed
from replication.partition.replication_quota import ReplicationQuotaManager
from replication.timer_queue import TimerQueue

OWN = 1
CONNECTIONS = 3


def partition(index: int, leader: int) -> Any:
    opened = SimpleNamespace(epochs=SimpleNamespace(latest=-1))
    log = SimpleNamespace(log_end_offset=0, log_start_offset=0, opened=opened, name=f"t-{index}")

    class Followed(SimpleNamespace):
        __hash__: ClassVar[Any] = object.__hash__

    return Followed(
        topic="t", topic_id=bytes(16), index=index, leader_epoch=0, leader_id=leader, is_leader=leader == OWN,
        is_offline=False, log=log,
    )  # fmt: skip


class Rig:
    """Fetchers whose leaders never answer."""

    def __init__(self) -> None:
        self.turns: list[Any] = []
        self.requested: dict[tuple[int, int], list[int]] = {}
        self.closed: list[int] = []
        self.numbers = count()
        following: Any = SimpleNamespace(
            open=lambda partition: completed(True),
            throttle=ReplicationQuotaManager("follower", OWN, lambda topic: {}),
        )
        clock: Any = SimpleNamespace(mono_ms=lambda: 0, wall_ms=lambda: 0)
        lifecycle: Any = SimpleNamespace(epoch=7)
        config = BrokerConfig({"node.id": str(OWN)})
        self.fetchers = ReplicaFetcherManager(
            self.turns.append, config, lifecycle, self._connect, following, TimerQueue(), clock
        )
        self.fetchers.resize(CONNECTIONS)

    def _connect(self) -> Any:
        number = next(self.numbers)

        def send_request(broker_id: int, request: FetchRequest) -> Completion[Any]:
            indexes = [one.partition for topic in request.topics for one in topic.partitions]
            self.requested[broker_id, number] = sorted(indexes)
            return Completion()

        return SimpleNamespace(send_request=send_request, close=lambda: self.closed.append(number))

    def run(self) -> dict[tuple[int, int], list[int]]:
        """The requested partitions by leader and connection."""
        while self.turns:
            self.turns.pop(0)()
        requested, self.requested = self.requested, {}
        return requested


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_partition_always_uses_the_same_connection(rig: Rig) -> None:
    for index in range(7):
        rig.fetchers.follow(partition(index, 2 + index % 2))
    assert rig.run() == {(2, 0): [0, 6], (3, 1): [1], (2, 2): [2], (3, 0): [3], (2, 1): [4], (3, 2): [5]}


def test_partitions_are_fetched_from_their_leader_if_it_is_another_broker(rig: Rig) -> None:
    followed = partition(0, -1)
    rig.fetchers.follow(followed)
    assert rig.run() == {}
    followed.leader_id = 3
    rig.fetchers.follow(followed)
    assert rig.run() == {(3, 0): [0]}
    followed.leader_id = 2
    rig.fetchers.follow(followed)
    assert rig.run() == {(2, 0): [0]}
    for leader, is_offline in ((OWN, False), (4, True)):
        other = partition(0, leader)
        other.is_offline = is_offline
        rig.fetchers.follow(other)
    assert rig.run() == {}


def test_more_or_fewer_fetchers_take_over_the_partitions_that_they_get(rig: Rig) -> None:
    for index in range(4):
        rig.fetchers.follow(partition(index, 2))
    assert rig.run() == {(2, 0): [0, 3], (2, 1): [1], (2, 2): [2]}
    rig.fetchers.resize(4)
    assert rig.run() == {(2, 3): [3]}, "the other partitions stay where they are"
    rig.fetchers.resize(2)
    assert rig.closed == [2, 3]
    rig.fetchers.resize(1)
    assert rig.closed == [2, 3, 1]
    rig.fetchers.resize(2)
    assert rig.run() == {(2, 4): [1, 3]}, "the first fetcher still waits for an answer"
    rig.fetchers.close()
    assert rig.closed == [2, 3, 1, 0, 4]

"""Replica placement for new partitions, striped over racks and brokers (Kafka: StripedReplicaPlacer).

RULES    1. Leaders are spread evenly over the unfenced brokers, the other replicas over the remaining brokers.
         2. The replicas of a partition are in different racks while there are enough racks.
         3. After every broker has led once, all are shuffled and can be used again. (Apache Kafka skips a rack that was tried
            for the first partition only, so some brokers lead more partitions.)
         4. Fenced brokers are used after the others of their rack, and never as leaders. Brokers in controlled shutdown or
            with only cordoned log directories are not used.
NOT HERE Reassignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from protocol.errors import ErrorCode, KafkaError
from replication.metadata.image import BrokerImage

RandomBelow = Callable[[int], int]
_NONE = -1


class _Ring:
    """Brokers in rotation; each partition starts one broker further."""

    def __init__(self, brokers: list[int], random_below: RandomBelow) -> None:
        self._brokers = sorted(brokers)
        self._round = 0
        self._used = 0
        self._offset = random_below(len(brokers)) if len(brokers) > 1 else 0

    def shuffle(self, random_below: RandomBelow) -> None:
        """Shuffle the brokers and restart the rotation."""
        shuffle(self._brokers, random_below)
        self._round = _NONE

    def next(self, round_: int) -> int | None:
        """The next broker for the partition with number `round_`; None if all are used."""
        count = len(self._brokers)
        if not count:
            return None
        if self._round != round_:
            self._round = round_
            self._used = 0
            self._offset = (self._offset + 1) % count
        if self._used >= count:
            return None
        self._used += 1
        return self._brokers[(self._used - 1 + self._offset) % count]


def shuffle(elements: list[Any], random_below: RandomBelow) -> None:
    """Shuffle a list in place."""
    for last in range(len(elements) - 1, 0, -1):
        other = random_below(last + 1)
        elements[last], elements[other] = elements[other], elements[last]


class _Rack:
    def __init__(self, brokers: list[BrokerImage], random_below: RandomBelow) -> None:
        self.unfenced = _Ring([b.broker_id for b in brokers if not b.is_fenced], random_below)
        self._fenced = _Ring([b.broker_id for b in brokers if b.is_fenced], random_below)

    def shuffle(self, random_below: RandomBelow) -> None:
        self.unfenced.shuffle(random_below)
        self._fenced.shuffle(random_below)

    def next(self, round_: int) -> int | None:
        broker = self.unfenced.next(round_)
        return self._fenced.next(round_) if broker is None else broker


def _takes_replicas(broker: BrokerImage) -> bool:
    """Whether a broker is not shutting down and has a log directory that is not cordoned."""
    cordoned = broker.cordoned_directories
    is_cordoned = bool(cordoned) and set(broker.directories) <= set(cordoned or ())
    is_leaving = broker.is_shutting_down and not broker.is_fenced
    return not is_leaving and not is_cordoned


class Placer:
    """Places the partitions of one topic in order."""

    def __init__(self, brokers: Iterable[BrokerImage], random_below: RandomBelow) -> None:
        taking = [broker for broker in brokers if _takes_replicas(broker)]
        self._count = len(taking)
        self._unfenced = sum(not broker.is_fenced for broker in taking)
        by_rack: dict[str, list[BrokerImage]] = {}
        for broker in taking:
            by_rack.setdefault(broker.rack or "", []).append(broker)
        self._racks = [_Rack(by_rack[name], random_below) for name in sorted(by_rack)]
        self._random_below = random_below
        self._round = 0
        self._first = random_below(len(by_rack)) if len(by_rack) > 1 else 0

    def _shuffle(self) -> None:
        shuffle(self._racks, self._random_below)
        for rack in self._racks:
            rack.shuffle(self._random_below)
        self._round = 0

    def place(self, replication_factor: int) -> list[int]:
        """The replicas of the next partition, the leader first.

        Raises:
            KafkaError: INVALID_REPLICATION_FACTOR if there are not enough brokers.
        """
        if not self._unfenced:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "All brokers are currently fenced, or have all their log directories cordoned.",
            )
        if replication_factor > self._count:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The target replication factor of {replication_factor} cannot be reached because only {self._count} "
                "broker(s) are registered or some brokers have all their log directories cordoned.",
            )
        if self._round == self._unfenced > 1:  # every broker has led once
            self._shuffle()
        racks, first = self._racks, self._first % len(self._racks)
        leader_rack = first
        while (leader := racks[leader_rack].unfenced.next(self._round)) is None:
            leader_rack = (leader_rack + 1) % len(racks)
        replicas = [leader]
        rack = first
        skipped = False
        while len(replicas) < replication_factor:
            if rack == leader_rack and not skipped:  # the leader's rack is used last
                skipped = True
            else:
                replica = racks[rack].next(self._round)
                if replica is not None:
                    replicas.append(replica)
            rack = (rack + 1) % len(racks)
        self._round += 1
        self._first += 1
        return replicas

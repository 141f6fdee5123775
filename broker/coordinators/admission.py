"""Lets a producer's first records into a partition only while their transaction is open (KIP-890).

RULES    1. Where a partition has records of the transaction already, nothing is asked. Else the coordinator must know the
            partition as part of the transaction, or is told that it becomes one (producers of version 2).
         2. A marker that is written while the coordinator is being asked ends the admission: what came after it would
            never be ended itself.
         3. What one producer asks is answered in the order in which it asked, or its records would change places.
         4. Errors that older producers do not know are told as some that make them try again.
NOT HERE What the coordinator decides (`transactions.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from broker.coordinators.runtime import Clock, CoordinatorRuntime, Shard, coordinator_error
from broker.coordinators.transaction import WITH_BUMPS, Expected, TopicPartition
from broker.coordinators.transactions import Identity, TransactionCoordinator
from protocol.errors import ErrorCode
from replication.deadlines import Deadlines
from replication.replica_manager import ReplicaManager

_NONE: Final = ErrorCode.NONE


class Support(IntEnum):
    """What a producer knows of transactions, seen by the version of its request."""

    OLD = 0
    """It adds partitions itself and does not know TRANSACTION_ABORTABLE."""
    ABORTABLE = 1
    IMPLICIT = 2
    """Its partitions are added by its records."""


Refusals = dict[TopicPartition, ErrorCode]
Done = Callable[[Refusals], None]


class _Asking:
    """One admission that waits for the coordinator."""

    __slots__ = ("done", "ended", "partitions", "producer", "support", "transactional_id", "until_mono_ms")

    def __init__(
        self,
        transactional_id: str,
        producer: Expected,
        partitions: list[TopicPartition],
        support: Support,
        done: Done,
        until_mono_ms: int,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.support = support
        self.done = done
        self.until_mono_ms = until_mono_ms
        self.ended: set[TopicPartition] = set()


class Admission:
    """Asks the coordinator for everybody who wants to write as part of a transaction."""

    def __init__(
        self,
        replicas: ReplicaManager,
        coordinator: CoordinatorRuntime[TransactionCoordinator],
        deadlines: Deadlines,
        clock: Clock,
        *,
        does_verify: bool = True,
        retry_ms: int = 20,
        patience_ms: int = 100,
    ) -> None:
        """Let partitions of `replicas` be written to.

        Without `does_verify` old producers are believed. A producer of version 2 waits for the end of its last
        transaction for `patience_ms`, looking every `retry_ms`.
        """
        self._replicas = replicas
        self._coordinator = coordinator
        self._deadlines = deadlines
        self._clock = clock
        self._does_verify = does_verify
        self._retry_ms = retry_ms
        self._patience_ms = patience_ms
        self._asking: dict[int, deque[_Asking]] = {}  # by producer id; the first of each is being answered

    def admit(
        self,
        transactional_id: str,
        producer: Expected,
        partitions: Iterable[TopicPartition],
        support: Support,
        done: Done,
    ) -> None:
        """Call `done`, perhaps at once, with the partitions that may not be written to, and why."""
        unknown = [partition for partition in partitions if not self._is_open(partition, producer)]
        if not unknown or (support < Support.IMPLICIT and not self._does_verify):
            done({})
            return
        until_mono_ms = self._clock.mono_ms() + self._patience_ms
        asking = _Asking(transactional_id, producer, unknown, support, done, until_mono_ms)
        waiting = self._asking.setdefault(producer.producer_id, deque())
        waiting.append(asking)
        if len(waiting) == 1:
            self._ask(asking)

    def ends(self, partition: TopicPartition, producer_id: int) -> None:
        """A marker is about to be appended (rule 2)."""
        for asking in self._asking.get(producer_id, ()):
            asking.ended.add(partition)

    def _is_open(self, key: TopicPartition, producer: Expected) -> bool:
        partition = self._replicas.partitions.get(key)
        if partition is None or not partition.log.is_open:
            return False
        known = partition.log.producers.producers.get(producer.producer_id)
        return known is not None and known.txn_first_offset >= 0 and known.epoch == producer.epoch

    def _ask(self, asking: _Asking) -> None:
        asking.ended.clear()  # what ended before is not what is asked for
        shard = self._coordinator.find(asking.transactional_id)
        if not isinstance(shard, Shard):
            self._answered(asking, dict.fromkeys(asking.partitions, shard))
            return
        name, producer, partitions = asking.transactional_id, asking.producer, asking.partitions
        if asking.support is not Support.IMPLICIT:
            self._answered(asking, shard.machine.verify(name, producer, partitions))
            return
        decision = shard.machine.add(name, producer, partitions, WITH_BUMPS)
        shard.execute(decision).then(lambda error: self._added(asking, decision.reply, error))

    def _added(self, asking: _Asking, reply: Identity, error: ErrorCode) -> None:
        verdict = reply.error if error is _NONE else coordinator_error(error)
        if verdict is ErrorCode.CONCURRENT_TRANSACTIONS and self._clock.mono_ms() < asking.until_mono_ms:
            self._deadlines.schedule(self._clock.mono_ms() + self._retry_ms, lambda: self._ask(asking))
            return
        self._answered(asking, dict.fromkeys(asking.partitions, verdict))

    def _answered(self, asking: _Asking, verdicts: Refusals) -> None:
        refusals = {
            partition: _told(verdict, asking.support) for partition, verdict in verdicts.items() if verdict is not _NONE
        }
        for partition in asking.ended.intersection(asking.partitions):
            refusals.setdefault(partition, ErrorCode.INVALID_TXN_STATE)
        asking.done(refusals)
        producer_id = asking.producer.producer_id
        waiting = self._asking[producer_id]
        waiting.popleft()
        if waiting:
            self._ask(waiting[0])
        else:
            del self._asking[producer_id]


def _told(verdict: ErrorCode, support: Support) -> ErrorCode:
    """Rule 4."""
    if verdict is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if verdict is ErrorCode.TRANSACTION_ABORTABLE and support is Support.OLD:
        return ErrorCode.INVALID_TXN_STATE
    if verdict is ErrorCode.CONCURRENT_TRANSACTIONS and support is Support.IMPLICIT:
        return verdict
    return ErrorCode.NOT_ENOUGH_REPLICAS if verdict in _FOR_A_WHILE else verdict


_FOR_A_WHILE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

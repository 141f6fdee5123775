"""Lets a producer's first records into a partition only while their transaction is open (KIP-890).

RULES    1. Where a partition has records of the transaction already, nothing is asked. Else the coordinator must know the
            partition as part of the transaction, or is told that it becomes one (producers of version 2).
         2. A marker that is written while the coordinator is being asked ends the admission: what came after it would
            never be ended itself. Not so the marker of the transaction before, which has the epoch of the next one since
            version 2: it comes while the question waits to be sent to a coordinator on another broker.
         3. What one producer asks is answered in the order in which it asked, or its records would change places. Where
            its records have been turned away, later ones wait for them; unless others have led meanwhile, who may have
            let them in.
         4. Errors that older producers do not know are told as some that make them try again.
         5. A partition that knows a later epoch of the producer says so itself.
NOT HERE What the coordinator decides (`transaction_coordinator.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from broker.coordinators.runtime.coordinator_runtime import Clock, CoordinatorRuntime, Shard, coordinator_error
from broker.coordinators.transactions.remote_verification import TransactionLookup
from broker.coordinators.transactions.transaction import WITH_BUMPS, Expected, TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Identity, Marker, TransactionCoordinator
from protocol.errors import ErrorCode, KafkaError
from protocol.records import NO_SEQUENCE
from replication.partition.partition import NO_EPOCH
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Deadlines
from storage.log.producer_state import Producer

_NONE: Final = ErrorCode.NONE


class Support(IntEnum):
    """What a producer knows of transactions, seen by the version of its request."""

    OLD = 0
    """It adds partitions itself and does not know TRANSACTION_ABORTABLE."""
    ABORTABLE = 1
    IMPLICIT = 2
    """Its partitions are added by its records."""


REMEMBERED: Final = 10_000
"""So many partitions in which records have been turned away are remembered."""

Refusals = dict[TopicPartition, KafkaError]
Sequences = Mapping[TopicPartition, int]
"""Partitions, and the first sequence of what is to be written there."""
Done = Callable[[Refusals], None]


class _TurnedAway(NamedTuple):
    """Records of one producer that did not come in."""

    epoch: int
    lowest: int
    """Of their first sequences."""
    leader_epoch: int


class _Asking:
    """One admission that waits for the coordinator."""

    __slots__ = ("done", "ended", "partitions", "producer", "refusals", "support", "transactional_id", "until_mono_ms")

    def __init__(
        self,
        transactional_id: str,
        producer: Expected,
        partitions: Sequences,
        support: Support,
        done: Done,
        until_mono_ms: int,
        refusals: Refusals,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.support = support
        self.done = done
        self.until_mono_ms = until_mono_ms
        self.refusals = refusals
        self.ended: set[TopicPartition] = set()


class Admission:
    """Asks the coordinator for everybody who wants to write as part of a transaction."""

    def __init__(
        self,
        replicas: ReplicaManager,
        coordinator: CoordinatorRuntime[TransactionCoordinator],
        deadlines: Deadlines,
        clock: Clock,
        lookup: TransactionLookup | None = None,
        *,
        does_verify: bool = True,
        retry_ms: int = 20,
        patience_ms: int = 100,
    ) -> None:
        """Let partitions of `replicas` be written to.

        `lookup` asks coordinators on other brokers; None: there are none. Without `does_verify` old producers are
        believed. A producer of version 2 waits for the end of its last transaction for `patience_ms`, looking every
        `retry_ms`.
        """
        self._replicas = replicas
        self._coordinator = coordinator
        self._deadlines = deadlines
        self._clock = clock
        self._lookup = lookup
        self.does_verify = does_verify
        """Whether old producers are looked for; may change."""
        self._retry_ms = retry_ms
        self._patience_ms = patience_ms
        self._asking: dict[int, deque[_Asking]] = {}  # by producer id; the first of each is being answered
        self._turned_away: dict[tuple[TopicPartition, int], _TurnedAway] = {}
        """By partition and producer id: records that are to come again."""

    def admit(
        self,
        transactional_id: str,
        producer: Expected,
        partitions: Sequences,
        support: Support,
        done: Done,
    ) -> None:
        """Call `done`, perhaps at once, with the partitions that may not be written to, and why."""
        if support < Support.IMPLICIT and not self.does_verify:
            done({})
            return
        refusals: Refusals = {}
        unknown: dict[TopicPartition, int] = {}
        for key, sequence in partitions.items():
            known = self._known(key, producer)
            if known is not None and known.epoch > producer.epoch:
                refusals[key] = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
            elif known is None or known.txn_first_offset < 0 or known.epoch != producer.epoch:
                unknown[key] = sequence
        if not unknown:
            done(refusals)
            return
        until_mono_ms = self._clock.mono_ms() + self._patience_ms
        asking = _Asking(transactional_id, producer, unknown, support, done, until_mono_ms, refusals)
        waiting = self._asking.setdefault(producer.producer_id, deque())
        waiting.append(asking)
        if len(waiting) == 1:
            self._ask(asking)

    def ends(self, partition: TopicPartition, marker: Marker) -> None:
        """A marker is about to be appended (rule 2)."""
        producer_id = marker.producer_id
        for asking in self._asking.get(producer_id, ()):
            if not _ends_the_one_before(marker, asking.producer.epoch):
                asking.ended.add(partition)
        turned_away = self._turned_away.get((partition, producer_id))
        if turned_away is not None and not _ends_the_one_before(marker, turned_away.epoch):
            del self._turned_away[partition, producer_id]

    def _known(self, key: TopicPartition, producer: Expected) -> Producer | None:
        """What a partition knows of a producer, if that is at hand."""
        partition = self._replicas.partitions.get(key)
        if partition is None or not partition.log.is_open:
            return None
        return partition.log.producers.producers.get(producer.producer_id)

    def _ask(self, asking: _Asking) -> None:
        asking.ended.clear()  # what ended before is not what is asked for
        lookup = self._lookup
        elsewhere = -1 if lookup is None else lookup.coordinator_of(asking.transactional_id)
        if lookup is not None and elsewhere >= 0:
            self._ask_there(lookup, elsewhere, asking)
            return
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

    def _ask_there(self, lookup: TransactionLookup, coordinator_id: int, asking: _Asking) -> None:
        """The coordinator is on another broker."""
        is_added = asking.support is Support.IMPLICIT

        def answered(verdicts: Mapping[TopicPartition, ErrorCode]) -> None:
            if not is_added or not self._asks_again(asking, verdicts.values()):
                self._answered(asking, verdicts)

        lookup.ask(
            coordinator_id, asking.transactional_id, asking.producer, asking.partitions, answered, is_added=is_added
        )

    def _added(self, asking: _Asking, reply: Identity, error: ErrorCode) -> None:
        verdict = reply.error if error is _NONE else coordinator_error(error)
        if not self._asks_again(asking, [verdict]):
            self._answered(asking, dict.fromkeys(asking.partitions, verdict))

    def _asks_again(self, asking: _Asking, verdicts: Iterable[ErrorCode]) -> bool:
        """Whether the end of the last transaction is waited for; then it will be asked again."""
        now_ms = self._clock.mono_ms()
        if now_ms >= asking.until_mono_ms or ErrorCode.CONCURRENT_TRANSACTIONS not in verdicts:
            return False
        self._deadlines.schedule(now_ms + self._retry_ms, lambda: self._ask(asking))
        return True

    def _answered(self, asking: _Asking, verdicts: Mapping[TopicPartition, ErrorCode]) -> None:
        refusals = asking.refusals
        for key, sequence in asking.partitions.items():
            verdict = verdicts[key]
            if verdict is _NONE and key in asking.ended:
                verdict = ErrorCode.INVALID_TXN_STATE
            if verdict is _NONE and not self._is_in_order(asking.producer, key, sequence):
                verdict = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if verdict is not _NONE:
                refusals[key] = _told(verdict, asking.support)
                self._remember(asking.producer, key, sequence)
        asking.done(refusals)
        producer_id = asking.producer.producer_id
        waiting = self._asking[producer_id]
        waiting.popleft()
        if waiting:
            self._ask(waiting[0])
        else:
            del self._asking[producer_id]

    # ---- rule 3: what was turned away comes first

    def _is_in_order(self, producer: Expected, key: TopicPartition, sequence: int) -> bool:
        """Whether no records before these are missing; these may be written then."""
        if sequence > self._lowest(producer, key, sequence):
            return False
        self._turned_away.pop((key, producer.producer_id), None)
        return True

    def _lowest(self, producer: Expected, key: TopicPartition, sequence: int) -> int:
        """The first sequence of all that is still to come in this epoch of the producer and of the leader, with these."""
        known = self._turned_away.get((key, producer.producer_id))
        if known is None or (known.epoch, known.leader_epoch) != (producer.epoch, self._leader_epoch(key)):
            return sequence
        return min(known.lowest, sequence)

    def _remember(self, producer: Expected, key: TopicPartition, sequence: int) -> None:
        place = key, producer.producer_id
        known = self._turned_away.get(place)
        if sequence == NO_SEQUENCE or (known is not None and known.epoch > producer.epoch):
            return
        lowest = self._lowest(producer, key, sequence)
        self._turned_away[place] = _TurnedAway(producer.epoch, lowest, self._leader_epoch(key))
        if len(self._turned_away) > REMEMBERED:
            del self._turned_away[next(iter(self._turned_away))]

    def _leader_epoch(self, key: TopicPartition) -> int:
        partition = self._replicas.partitions.get(key)
        return NO_EPOCH if partition is None else partition.leader_epoch


def _ends_the_one_before(marker: Marker, epoch: int) -> bool:
    """Whether records with this epoch belong to the transaction after the marker's."""
    return marker.version >= WITH_BUMPS and epoch == marker.epoch


def _told(verdict: ErrorCode, support: Support) -> KafkaError:
    """Rule 4."""
    if verdict is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    is_for_a_while = verdict in _FOR_A_WHILE
    if verdict is ErrorCode.CONCURRENT_TRANSACTIONS and support is Support.IMPLICIT:
        is_for_a_while = False
    if is_for_a_while:
        text = f"Unable to verify the partition has been added to the transaction. Underlying error: {verdict.name}"
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    if verdict is ErrorCode.TRANSACTION_ABORTABLE and support is Support.OLD:
        verdict = ErrorCode.INVALID_TXN_STATE
    if verdict is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(verdict, "Partition was not added to the transaction")
    return KafkaError(verdict)


_FOR_A_WHILE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

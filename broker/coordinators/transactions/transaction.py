"""One transactional id: who uses it now, how its transaction stands, and the steps from one state to the next.

RULES    1. A step is a new value; nothing here changes, waits or fails: whoever asks for a step has checked that it is
            allowed (`transaction_coordinator.py`).
         2. The states and the ways between them are Kafka's: Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing,
            the same with abort, and every Complete or Empty -> Empty when a producer begins anew.
         3. With transactions of version 2 (KIP-890) every end raises the epoch, so that nothing late of one transaction
            can touch the next; the epoch before is remembered for a producer that did not hear of it.
         4. Epochs of one producer id end below 32767, which fences and is given to nobody: where the last one is raised,
            by the producer, by its successor or because its time is over, another id follows. It stands in
            `next_producer_id` until the markers are written. Before version 2 the successor asks for it.
         5. `last_epoch` is not stored, as in Kafka: after another broker has taken over, nobody comes back with it.
NOT HERE Records (`transaction_records.py`), markers (`txn_marker_writer.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 32766
"""The last epoch that a producer is given; one more is needed to fence it."""
FENCING_EPOCH: Final = LAST_EPOCH + 1

WITHOUT_BUMPS: Final = 0
WITH_BUMPS: Final = 2
"""Versions of transactions: from this one on every end raises the epoch."""

TopicPartition = tuple[str, int]


class State(IntEnum):
    """How a transaction stands, with Kafka's numbers; the last two are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """What administrators call it: "PrepareCommit"."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
BY_LABEL: Final = {state.label: state for state in State}


class Expected(NamedTuple):
    """Who a producer says that it has been."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """All that is known of one transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    updated_wall_ms: int
    started_wall_ms: int = NO_TIME
    partitions: frozenset[TopicPartition] = frozenset()
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    client_version: int = WITHOUT_BUMPS
    """The version of transactions that the last step was made with."""

    @property
    def is_exhausted(self) -> bool:
        """Whether its producer id has no epoch left to give."""
        return self.epoch >= LAST_EPOCH

    @property
    def is_commit(self) -> bool:
        """Whether it was, or is being, committed."""
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    def was(self, expected: Expected) -> bool:
        """Whether a producer may be the one that used this transactional id last."""
        return expected.producer_id == self.producer_id or (
            expected.producer_id == self.previous_producer_id and expected.epoch >= LAST_EPOCH
        )

    def needs_producer_id(self, expected: Expected | None) -> bool:
        """Whether a producer that begins anew must get another id."""
        return self.is_exhausted and (expected is None or expected.epoch == self.epoch)

    # ---- steps

    def initialized(
        self, timeout_ms: int, expected: Expected | None, new_producer_id: int, wall_ms: int
    ) -> Transaction | None:
        """A producer begins anew: with the next epoch, or with another id; None when it is not the last one."""
        last_epoch = NO_EPOCH if expected is None else self.epoch
        producer_id, epoch = self.producer_id, self.epoch + 1
        if self.needs_producer_id(expected):
            producer_id, epoch = new_producer_id, 0
        elif expected is not None and expected.epoch != self.epoch:
            if expected.epoch != self.last_epoch:
                return None
            epoch, last_epoch = self.epoch, self.last_epoch  # it has not heard of the epoch that it has already
        return self._replace(
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=State.EMPTY,
            updated_wall_ms=wall_ms,
            started_wall_ms=NO_TIME,
            partitions=frozenset(),
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def extended(self, partitions: frozenset[TopicPartition], version: int, wall_ms: int) -> Transaction:
        """Partitions become part of it; the first ones begin it."""
        is_begun = self.state is State.ONGOING
        return self._replace(
            state=State.ONGOING,
            partitions=self.partitions | partitions,
            started_wall_ms=self.started_wall_ms if is_begun else wall_ms,
            updated_wall_ms=wall_ms,
            previous_producer_id=self.producer_id,
            client_version=version,
        )

    def fenced(self) -> Transaction:
        """The producer is shut out, to abort what it left; only where ending alone does not raise the epoch."""
        return self._replace(epoch=self.epoch + 1, last_epoch=NO_EPOCH)

    def prepared(self, *, is_commit: bool, version: int, wall_ms: int, new_producer_id: int) -> Transaction:
        """It is decided; what was never begun begins now, for Kafka wants a time."""
        is_begun = self.state is State.ONGOING
        does_bump = version >= WITH_BUMPS
        return self._replace(
            state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
            epoch=min(self.epoch + 1, FENCING_EPOCH) if does_bump else self.epoch,
            last_epoch=self.epoch if does_bump else self.last_epoch,
            started_wall_ms=self.started_wall_ms if is_begun else wall_ms,
            updated_wall_ms=wall_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=new_producer_id,
            client_version=version,
        )

    def completed(self, wall_ms: int) -> Transaction:
        """All markers are written."""
        is_rotated = self.next_producer_id != NO_PRODUCER_ID
        return self._replace(
            state=State.COMPLETE_COMMIT if self.is_commit else State.COMPLETE_ABORT,
            producer_id=self.next_producer_id if is_rotated else self.producer_id,
            epoch=0 if is_rotated else self.epoch,
            updated_wall_ms=wall_ms,
            partitions=frozenset(),
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )


def first(transactional_id: str, producer_id: int, timeout_ms: int, wall_ms: int) -> Transaction:
    """What the first producer of a transactional id begins with."""
    return Transaction(
        transactional_id, producer_id, 0, timeout_ms, State.EMPTY, wall_ms, previous_producer_id=producer_id
    )

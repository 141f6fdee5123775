"""The state of one transactional id and its transitions (Kafka: TransactionMetadata).

RULES    1. A transition returns a new value and never fails: the caller has checked that it is allowed
            (`transaction_coordinator.py`).
         2. States and transitions are Kafka's: Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing,
            the same with abort, and every Complete or Empty -> Empty on InitProducerId.
         3. From transaction version 2 on (KIP-890) every end increments the epoch, so late requests of one transaction
            cannot affect the next. `last_epoch` accepts a retry of a producer that missed the response.
         4. The last epoch given to a producer is 32766; 32767 only fences. At the last epoch InitProducerId, EndTxn or the
            abort after a timeout switches to a new producer id. It is kept in `next_producer_id` until the markers are
            written. Before version 2 only InitProducerId switches.
         5. `last_epoch` is not stored, as in Kafka: after a change of the coordinator such a retry fails.
NOT HERE Records (`transaction_records.py`), markers (`txn_marker_writer.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 32766
"""The last epoch given to a producer; the next one fences it."""
FENCING_EPOCH: Final = LAST_EPOCH + 1

TV_0: Final = 0
TV_2: Final = 2
"""From this transaction version on every end increments the epoch."""

TopicPartition = tuple[str, int]


class State(IntEnum):
    """State of a transaction, with Kafka's numbers; the last two are never written."""

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
        """Kafka's name, such as "PrepareCommit"."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
BY_LABEL: Final = {state.label: state for state in State}


class ProducerIdAndEpoch(NamedTuple):
    """The producer id and epoch that a request contains."""

    producer_id: int
    epoch: int


class TransactionMetadata(NamedTuple):
    """The state of one transactional id."""

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
    client_version: int = TV_0
    """The transaction version of the last transition."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left."""
        return self.epoch >= LAST_EPOCH

    @property
    def is_commit(self) -> bool:
        """Whether the transaction is committed or being committed."""
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    def is_valid_producer(self, expected: ProducerIdAndEpoch) -> bool:
        """Whether a producer may be the last user of this transactional id."""
        return expected.producer_id == self.producer_id or (
            expected.producer_id == self.previous_producer_id and expected.epoch >= LAST_EPOCH
        )

    def needs_producer_id(self, expected: ProducerIdAndEpoch | None) -> bool:
        """Whether InitProducerId needs a new producer id."""
        return self.is_exhausted and (expected is None or expected.epoch == self.epoch)

    # ---- steps

    def initialized(
        self, timeout_ms: int, expected: ProducerIdAndEpoch | None, new_producer_id: int, wall_ms: int
    ) -> TransactionMetadata | None:
        """InitProducerId: the next epoch, or a new producer id. None if the producer is not the last one."""
        last_epoch = NO_EPOCH if expected is None else self.epoch
        producer_id, epoch = self.producer_id, self.epoch + 1
        if self.needs_producer_id(expected):
            producer_id, epoch = new_producer_id, 0
        elif expected is not None and expected.epoch != self.epoch:
            if expected.epoch != self.last_epoch:
                return None
            epoch, last_epoch = self.epoch, self.last_epoch  # it missed the response with its current epoch
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

    def with_partitions(self, partitions: frozenset[TopicPartition], version: int, wall_ms: int) -> TransactionMetadata:
        """Add partitions; the first ones begin the transaction."""
        is_ongoing = self.state is State.ONGOING
        return self._replace(
            state=State.ONGOING,
            partitions=self.partitions | partitions,
            started_wall_ms=self.started_wall_ms if is_ongoing else wall_ms,
            updated_wall_ms=wall_ms,
            previous_producer_id=self.producer_id,
            client_version=version,
        )

    def fenced(self) -> TransactionMetadata:
        """Increment the epoch before an abort; only where the end itself does not."""
        return self._replace(epoch=min(self.epoch + 1, FENCING_EPOCH), last_epoch=NO_EPOCH)

    def prepared(self, *, is_commit: bool, version: int, wall_ms: int, new_producer_id: int) -> TransactionMetadata:
        """The transaction is decided; Kafka's format requires a start time even if it has not begun."""
        is_ongoing = self.state is State.ONGOING
        bumps_epoch = version >= TV_2
        return self._replace(
            state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
            epoch=min(self.epoch + 1, FENCING_EPOCH) if bumps_epoch else self.epoch,
            last_epoch=self.epoch if bumps_epoch else self.last_epoch,
            started_wall_ms=self.started_wall_ms if is_ongoing else wall_ms,
            updated_wall_ms=wall_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=new_producer_id,
            client_version=version,
        )

    def completed(self, wall_ms: int) -> TransactionMetadata:
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


def new_transaction(transactional_id: str, producer_id: int, timeout_ms: int, wall_ms: int) -> TransactionMetadata:
    """The initial state for the first producer of a transactional id."""
    return TransactionMetadata(
        transactional_id, producer_id, 0, timeout_ms, State.EMPTY, wall_ms, previous_producer_id=producer_id
    )

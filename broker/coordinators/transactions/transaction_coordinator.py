"""The transaction coordinator of one partition of `__transaction_state`.

RULES    1. A transaction is decided when its Prepare record is committed. The markers are written after that, the
            Complete record after all markers.
         2. Between Prepare and Complete every request gets CONCURRENT_TRANSACTIONS; the client retries. Only EndTxn before
            version 5 rejects another producer first.
         3. An older producer epoch is fenced. A repeated request gets the same response again.
         4. InitProducerId during an open transaction aborts it first and returns CONCURRENT_TRANSACTIONS.
         5. A transaction that is prepared after loading, or whose Prepare record was not committed in time, is written
            once more and continues from there, wherever the previous coordinator was interrupted.
         6. A transaction that is open longer than its timeout is aborted at the next check; an idle transactional id is
            deleted after transactional.id.expiration.ms.
NOT HERE The state transitions (`transaction.py`), writing markers (`txn_marker_writer.py`), appending and loading
         (`coordinator_runtime.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from broker.coordinators.runtime.coordinator_runtime import (
    Commit,
    CoordinatorDecision,
    Replies,
    Reply,
    ShardContext,
    error_code,
)
from broker.coordinators.runtime.stored_records import StoredRecord
from broker.coordinators.transactions.transaction import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TV_2,
    ProducerIdAndEpoch,
    State,
    TopicPartition,
    TransactionMetadata,
    new_transaction,
)
from broker.coordinators.transactions.transaction_records import (
    TRANSACTION_LOG,
    TransactionRecord,
    is_known_version,
    read_transaction,
    read_transactional_id,
    transaction_record,
    transaction_tombstone,
)
from protocol.errors import ErrorCode
from replication.completion import Completion, completed
from replication.timer_queue import Timer

_log = logging.getLogger("barnabas.transactions")

TRANSACTIONS_TOPIC: Final = "__transaction_state"
TRANSACTION_VERSION: Final = "transaction.version"
"""The feature whose level is the cluster's transaction version."""
RETRY_MS: Final = 100
"""Delay before a failed write is retried."""
ITEMS_PER_STEP: Final = 2000
"""Transactions decoded in one loading step."""

_NONE: Final = ErrorCode.NONE
_COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
_IDLE: Final = _COMPLETE | {State.EMPTY}


class Marker(NamedTuple):
    """A transaction marker (Kafka: TxnMarkerEntry)."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    version: int
    """The transaction version; from 2 on the marker's epoch is above that of the records (KIP-1228)."""


WrittenMarkers = dict[TopicPartition, Commit]


class MarkerSender(Protocol):
    """Writes markers into partitions of any leader."""

    def write(self, marker: Marker, partitions: Iterable[TopicPartition]) -> WrittenMarkers:
        """Write a marker into some partitions; returns the result of each."""


class TransactionSettings(NamedTuple):
    """Settings of transactions."""

    abort_interval_ms: int = 10_000
    expiration_ms: int = 604_800_000
    expiry_interval_ms: int = 3_600_000


class ProducerIdResult(NamedTuple):
    """The reply to a producer: an error, or its producer id and epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


TransactionDecision = CoordinatorDecision[ProducerIdResult]
GenerateProducerId = Callable[[], Completion[int]]
"""A new producer id at a wall time in milliseconds, or a KafkaError if there is none now."""


class TransactionCoordinator:
    """The state machine of one shard."""

    def __init__(
        self,
        context: ShardContext,
        settings: TransactionSettings,
        markers: MarkerSender,
        version: Callable[[], int],
        generate_producer_id: GenerateProducerId,
    ) -> None:
        """Create a coordinator without transactions; `version` returns the cluster's transaction version."""
        self.transactions: dict[str, TransactionMetadata] = {}
        self._remaining_partitions: dict[str, set[TopicPartition]] = {}
        """The partitions of prepared transactions that have no marker yet."""
        self._context = context
        self._settings = settings
        self._markers = markers
        self._version = version
        self._generate_producer_id = generate_producer_id
        self._undecoded: dict[bytes, bytes | None] = {}
        self._abort_deadline: Timer | None = None
        self._expiry_deadline: Timer | None = None

    # ---- InitProducerId

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> TransactionDecision:
        """InitProducerId: give the next epoch to this producer, which fences the previous one."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            needs_producer_id = True
        elif transaction.state is State.ONGOING:
            needs_producer_id = self._aborts_with_new_id(transaction)
        else:
            needs_producer_id = transaction.state in _IDLE and transaction.needs_producer_id(expected)
        initialize = partial(self._initialize, transactional_id, timeout_ms, expected)
        return self._with_producer_id(initialize) if needs_producer_id else initialize(NO_PRODUCER_ID)

    def _with_producer_id(self, decide: Callable[[int], TransactionDecision]) -> TransactionDecision:
        """Generate a new producer id, possibly later, and decide with it."""
        generated = self._generate_producer_id()
        return CoordinatorDecision((), self._context.run_after(generated, lambda done: decide(done.result())))

    def _initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, new_producer_id: int
    ) -> TransactionDecision:
        transaction = self.transactions.get(transactional_id)
        wall_ms = self._context.wall_ms()
        if transaction is None:
            return self._decide(new_transaction(transactional_id, new_producer_id, timeout_ms, wall_ms))
        if transaction.state in PREPARED:
            return _error(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not transaction.is_valid_producer(expected):
            return _error(ErrorCode.PRODUCER_FENCED)
        if transaction.state is State.ONGOING:
            decision = self._abort(transaction, new_producer_id)
            decision.reply = ProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
            return decision
        next_state = transaction.initialized(timeout_ms, expected, new_producer_id, wall_ms)
        return _error(ErrorCode.PRODUCER_FENCED) if next_state is None else self._decide(next_state)

    # ---- AddPartitionsToTxn

    def add(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition], version: int
    ) -> TransactionDecision:
        """AddPartitionsToTxn and AddOffsetsToTxn, or the implicit addition of version 2."""
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.state in PREPARED:
            return _error(ErrorCode.CONCURRENT_TRANSACTIONS)
        error = _check_producer(transaction, producer)
        if transaction is None or error is not _NONE:
            return _error(error)
        new_partitions = frozenset(partitions)
        if transaction.state is State.ONGOING and new_partitions <= transaction.partitions:
            return _error(_NONE)
        return self._decide(transaction.with_partitions(new_partitions, version, self._context.wall_ms()))

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """The error of each partition: NONE if it is part of the producer's transaction."""
        transaction = self.transactions.get(transactional_id)
        error = _check_producer(transaction, producer)
        if error is _NONE and transaction is not None and transaction.state in PREPARED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction is None or error is not _NONE:
            return dict.fromkeys(partitions, error)
        return {
            partition: _NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    # ---- EndTxn

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, version: int, *, is_commit: bool
    ) -> TransactionDecision:
        """EndTxn; from version 2 on the reply contains the producer id and epoch of the next transaction."""
        transaction = self.transactions.get(transactional_id)
        end = partial(self._end, transactional_id, producer, version, is_commit=is_commit)
        if version >= TV_2 and transaction is not None and transaction.is_exhausted:
            return self._with_producer_id(end)
        return end(NO_PRODUCER_ID)

    def _end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: int,
        new_producer_id: int,
        *,
        is_commit: bool,
    ) -> TransactionDecision:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return _error(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if version >= TV_2:
            error_code = _check_end_tv2(transaction, producer, is_commit=is_commit)
        else:
            error_code = _check_end_tv0(transaction, producer, is_commit=is_commit)
        if error_code is _NONE:
            return CoordinatorDecision((), ProducerIdResult(_NONE, transaction.producer_id, transaction.epoch))
        if error_code is not None:
            return _error(error_code)
        wall_ms = self._context.wall_ms()
        if not transaction.is_exhausted:
            new_producer_id = NO_PRODUCER_ID
        prepared = transaction.prepared(
            is_commit=is_commit, version=version, wall_ms=wall_ms, new_producer_id=new_producer_id
        )
        next_state = prepared.completed(wall_ms)
        return self._prepare(prepared, ProducerIdResult(_NONE, next_state.producer_id, next_state.epoch))

    def _aborts_with_new_id(self, transaction: TransactionMetadata) -> bool:
        """Whether `_abort` needs a new producer id."""
        return transaction.is_exhausted and self._version() >= TV_2

    def _abort(self, transaction: TransactionMetadata, new_producer_id: int) -> TransactionDecision:
        """Abort the open transaction and fence its producer."""
        version = self._version()
        if not self._aborts_with_new_id(transaction):
            new_producer_id = NO_PRODUCER_ID
        if version < TV_2:
            transaction = transaction.fenced()
        prepared = transaction.prepared(
            is_commit=False, version=version, wall_ms=self._context.wall_ms(), new_producer_id=new_producer_id
        )
        return self._prepare(prepared, ProducerIdResult(_NONE))

    def _prepare(self, prepared: TransactionMetadata, reply: Reply) -> CoordinatorDecision[Reply]:
        """Write the Prepare record; the markers follow after its commit."""
        return CoordinatorDecision([self._record(prepared)], reply, on_commit=partial(self._on_prepared, prepared))

    def _on_prepared(self, prepared: TransactionMetadata, error: ErrorCode) -> CoordinatorDecision[None] | None:
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return None  # the append failed
        if error is not _NONE:
            self._context.schedule(RETRY_MS, lambda: self._retry_prepare(prepared))
            return None
        partitions = prepared.partitions
        self._remaining_partitions[prepared.transactional_id] = set(partitions)
        if not partitions:
            return self._complete(prepared)
        self._write_markers(prepared, partitions)
        return None

    def _retry_prepare(self, prepared: TransactionMetadata) -> CoordinatorDecision[None] | None:
        """Write the Prepare record again (rule 5)."""
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return None
        return self._prepare(prepared, None)

    # ---- markers

    def _write_markers(self, prepared: TransactionMetadata, partitions: Iterable[TopicPartition]) -> None:
        marker = Marker(
            prepared.producer_id, prepared.epoch, prepared.is_commit, self._context.epoch, prepared.client_version
        )
        for partition, written in self._markers.write(marker, partitions).items():
            self._context.run_after(written, partial(self._on_marker_written, prepared, partition))

    def _on_marker_written(
        self, prepared: TransactionMetadata, partition: TopicPartition, written: Commit
    ) -> CoordinatorDecision[None] | None:
        error = error_code(written)
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return None
        if error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            _log.warning(
                "transaction of %s is completed by another coordinator; its markers are no longer written here",
                prepared.transactional_id,
            )
            return None
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:
            # An administrator ended it in this partition (kafka-transactions.sh).
            _log.warning(
                "marker skipped: %s-%d has a later producer epoch than the transaction of %s",
                *partition,
                prepared.transactional_id,
            )
        elif error is not _NONE:
            self._context.schedule(RETRY_MS, lambda: self._retry_marker(prepared, partition))
            return None
        remaining = self._remaining_partitions[prepared.transactional_id]
        remaining.discard(partition)
        return None if remaining else self._complete(prepared)

    def _retry_marker(self, prepared: TransactionMetadata, partition: TopicPartition) -> None:
        if self.transactions.get(prepared.transactional_id) is prepared:
            self._write_markers(prepared, [partition])

    def _complete(self, prepared: TransactionMetadata) -> CoordinatorDecision[None] | None:
        """Write the Complete record, again after a failed append."""

        def on_commit(_: ErrorCode) -> None:
            if self.transactions.get(prepared.transactional_id) is prepared:  # the append failed
                self._context.schedule(RETRY_MS, lambda: self._complete(prepared))

        if self.transactions.get(prepared.transactional_id) is not prepared:
            return None
        record = self._record(prepared.completed(self._context.wall_ms()))
        return CoordinatorDecision([record], None, on_commit=on_commit)

    # ---- describing

    def remaining_partitions(self, transaction: TransactionMetadata) -> Iterable[TopicPartition]:
        """The partitions of a transaction; if it is prepared, those without a marker."""
        if transaction.state in PREPARED:
            return self._remaining_partitions.get(transaction.transactional_id, transaction.partitions)
        return transaction.partitions

    # ---- timeouts

    def _schedule_checks(self) -> None:
        """Schedule the checks for timeouts and expiration while there are transactions."""
        if self._abort_deadline is None and self.transactions:
            self._abort_deadline = self._context.schedule(self._settings.abort_interval_ms, self._abort_timed_out)
        if self._expiry_deadline is None and self.transactions:
            self._expiry_deadline = self._context.schedule(self._settings.expiry_interval_ms, self._expire)

    def _abort_timed_out(self) -> None:
        """Abort transactions that are open longer than their timeout."""
        self._abort_deadline = None
        wall_ms = self._context.wall_ms()
        for transaction in list(self.transactions.values()):
            if transaction.state is State.ONGOING and transaction.started_wall_ms + transaction.timeout_ms < wall_ms:
                _log.info("aborting the transaction of %s: its timeout has passed", transaction.transactional_id)
                new_producer_id: Completion[int] = completed(NO_PRODUCER_ID)
                if self._aborts_with_new_id(transaction):
                    new_producer_id = self._generate_producer_id()
                self._context.run_after(new_producer_id, partial(self._abort_with, transaction))
        self._schedule_checks()

    def _abort_with(
        self, transaction: TransactionMetadata, new_producer_id: Completion[int]
    ) -> TransactionDecision | None:
        """Abort if the transaction has not changed; without a producer id the next check retries."""
        if self.transactions.get(transaction.transactional_id) is not transaction:
            return None
        return self._abort(transaction, new_producer_id.result())

    def _expire(self) -> CoordinatorDecision[None]:
        """Delete transactional ids that were idle for too long."""
        self._expiry_deadline = None
        before_wall_ms = self._context.wall_ms() - self._settings.expiration_ms
        expired = [
            transaction_tombstone(transaction.transactional_id)
            for transaction in self.transactions.values()
            if transaction.state in _IDLE and transaction.updated_wall_ms <= before_wall_ms
        ]
        self._schedule_checks()
        return CoordinatorDecision(expired, None, is_atomic=False)

    # ---- records

    def _decide(self, next_state: TransactionMetadata) -> TransactionDecision:
        reply = ProducerIdResult(_NONE, next_state.producer_id, next_state.epoch)
        return CoordinatorDecision([self._record(next_state)], reply)

    def _record(self, transaction: TransactionMetadata) -> TransactionRecord:
        return transaction_record(transaction, has_versions=self._version() > 0)

    def apply(self, record: StoredRecord, _producer_id: int) -> None:
        """Replay a record."""
        assert isinstance(record, TransactionRecord)
        transaction = record.transaction
        if transaction is None:
            transactional_id = record.key.transactional_id
            self.transactions.pop(transactional_id, None)
            return
        self.transactions[transaction.transactional_id] = transaction
        if transaction.state not in PREPARED:
            self._remaining_partitions.pop(transaction.transactional_id, None)
        self._schedule_checks()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """No record here is part of a transaction."""

    def load(self, key: bytes, value: bytes | None, _producer_id: int) -> None:
        """Keep the latest record of each transactional id; `finish_loading` decodes them."""
        if int.from_bytes(key[:2], "big") != TRANSACTION_LOG:
            _log.warning("skipping a record of unknown type %s in %s", key[:2].hex(), TRANSACTIONS_TOPIC)
        elif value is not None and not is_known_version(value):
            _log.warning("skipping a value of unknown version %s in %s", value[:2].hex(), TRANSACTIONS_TOPIC)
        else:
            self._undecoded[key] = value

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """No record here is part of a transaction."""

    def finish_loading(self) -> Iterator[None]:
        """Decode the loaded records and continue prepared transactions."""
        unread, self._undecoded = self._undecoded, {}
        for count, (key, value) in enumerate(unread.items(), 1):
            if value is not None:
                transactional_id = read_transactional_id(key)
                self.transactions[transactional_id] = read_transaction(transactional_id, value)
            if count % ITEMS_PER_STEP == 0:
                yield
        for transaction in self.transactions.values():
            if transaction.state in PREPARED:
                self._context.schedule(0, partial(self._retry_prepare, transaction))
        self._schedule_checks()

    def on_topics_deleted(self, _deleted: Mapping[str, bytes]) -> None:
        """Nothing to do: the marker writer skips deleted partitions."""

    def unload(self) -> Replies:
        """Another broker is the coordinator now."""
        for deadline in (self._abort_deadline, self._expiry_deadline):
            if deadline is not None:
                deadline.cancel()
        self.transactions.clear()
        self._remaining_partitions.clear()
        return ()


def _error(error: ErrorCode) -> TransactionDecision:
    """A decision without records; with NONE there is nothing to do."""
    return CoordinatorDecision((), ProducerIdResult(error))


def _check_producer(transaction: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> ErrorCode:
    if transaction is None or transaction.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return _NONE if transaction.epoch == producer.epoch else ErrorCode.PRODUCER_FENCED


def _check_end_tv0(
    transaction: TransactionMetadata, producer: ProducerIdAndEpoch, *, is_commit: bool
) -> ErrorCode | None:
    """The error of EndTxn before version 5. None: do it; NONE: it is already done."""
    error = _check_producer(transaction, producer)
    if error is not _NONE:
        return error
    if transaction.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction.state is State.ONGOING:
        return None
    is_done = transaction.state is not State.EMPTY and transaction.is_commit is is_commit
    return _NONE if is_done else ErrorCode.INVALID_TXN_STATE


def _check_end_tv2(
    transaction: TransactionMetadata, producer: ProducerIdAndEpoch, *, is_commit: bool
) -> ErrorCode | None:
    """The error of EndTxn from version 5 on; an epoch one behind repeats a request that is already done."""
    if transaction.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_rotated = (
        producer.producer_id == transaction.previous_producer_id != transaction.producer_id
        and producer.epoch == LAST_EPOCH
        and transaction.epoch == 0
    )
    if producer.producer_id != transaction.producer_id and not is_rotated:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_repeated = transaction.state in _COMPLETE and (is_rotated or producer.epoch + 1 == transaction.epoch)
    if not is_repeated and producer.epoch != transaction.epoch:
        return ErrorCode.PRODUCER_FENCED
    if transaction.state is State.ONGOING:
        return None
    if is_repeated:
        return _NONE if transaction.is_commit is is_commit else ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_TXN_STATE if is_commit else None

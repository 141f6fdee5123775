"""The transaction coordinator of one partition of `__transaction_state`: its transactional ids and their transactions.

RULES    1. A transaction is committed, or aborted, when its Prepare record is; from then on nothing can change that. Its
            markers are written after that record is committed, its Complete record after all markers.
         2. Until then whoever asks for more is told CONCURRENT_TRANSACTIONS, whoever it is, and tries again.
         3. Who comes with an older epoch is fenced. A request that was answered and is repeated gets the same answer.
         4. A producer that begins anew while its transaction is open has that aborted first: it is told to try again.
         5. What is prepared when a shard is loaded, or was not committed in time, is recorded once more, and goes on from
            there: so nothing depends on when a coordinator was interrupted.
         6. A transaction that has been open for longer than its producer allowed is aborted at the next look; an
            idle transactional id is forgotten after the expiry time.
NOT HERE The steps themselves (`transaction.py`), writing markers (`txn_marker_writer.py`), appending and loading (`coordinator_runtime.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host, StoredRecord
from broker.coordinators.transactions.transaction import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    WITH_BUMPS,
    Expected,
    State,
    TopicPartition,
    Transaction,
    first,
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
from replication.timer_queue import Deadline

_log = logging.getLogger("barnabas.transactions")

TRANSACTIONS_TOPIC: Final = "__transaction_state"
TRANSACTION_VERSION: Final = "transaction.version"
"""The feature that says which version of transactions a cluster works with."""
RETRY_MS: Final = 100
"""How long to wait before what could not be written is tried again."""
STEP: Final = 2000
"""So many transactions are decoded in one step."""

_NONE: Final = ErrorCode.NONE
_COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
_IDLE: Final = _COMPLETE | {State.EMPTY}


class Marker(NamedTuple):
    """What a partition is told at the end of a transaction."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    version: int
    """Of transactions: whether the epoch must be above that of the records (KIP-1228)."""


MarkerDone = Callable[[TopicPartition, ErrorCode], None]


class Markers(Protocol):
    """Whoever writes markers."""

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], done: MarkerDone) -> None:
        """Write a marker into some partitions; `done` is called once for each of them, perhaps at once."""


class TransactionSettings(NamedTuple):
    """What the broker's settings say about transactions."""

    abort_interval_ms: int = 10_000
    expiration_ms: int = 604_800_000
    expiry_interval_ms: int = 3_600_000


class Identity(NamedTuple):
    """What a producer is told about itself: an error, or its id and epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


Decided = CoordinatorDecision[Identity]
TakeProducerId = Callable[[int, Callable[[int | None], None]], None]
"""Gives out a new producer id, or None when there is none now: (wall_ms, give)."""


class TransactionCoordinator:
    """The state machine of one shard."""

    def __init__(
        self,
        host: Host,
        settings: TransactionSettings,
        markers: Markers,
        version: Callable[[], int],
        take_producer_id: TakeProducerId,
    ) -> None:
        """Coordinate nothing yet; `version` gives the version of transactions that the cluster works with."""
        self.transactions: dict[str, Transaction] = {}
        self._left: dict[str, set[TopicPartition]] = {}  # partitions of prepared ones that have no marker yet
        self._host = host
        self._settings = settings
        self._markers = markers
        self._version = version
        self._take_producer_id = take_producer_id
        self._unread: dict[bytes, bytes | None] = {}
        self._abortions: Deadline | None = None
        self._expiry: Deadline | None = None

    # ---- a producer begins

    def needs_producer_id(self, transactional_id: str, expected: Expected | None) -> bool:
        """Whether `initialize` will need a new producer id."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return True
        if known.state is State.ONGOING:
            return self._aborts_with_new_id(known)
        return known.state in _IDLE and known.needs_producer_id(expected)

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: Expected | None, new_producer_id: int
    ) -> Decided:
        """InitProducerId: the next epoch for whoever comes now, and none for whoever was there before."""
        known = self.transactions.get(transactional_id)
        wall_ms = self._host.wall_ms()
        if known is None:
            return self._decide(first(transactional_id, new_producer_id, timeout_ms, wall_ms))
        if known.state in PREPARED:
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not known.was(expected):
            return _refused(ErrorCode.PRODUCER_FENCED)
        if known.state is State.ONGOING:
            decision = self._abort(known, new_producer_id)
            decision.reply = Identity(ErrorCode.CONCURRENT_TRANSACTIONS)
            return decision
        following = known.initialized(timeout_ms, expected, new_producer_id, wall_ms)
        return _refused(ErrorCode.PRODUCER_FENCED) if following is None else self._decide(following)

    # ---- partitions join

    def add(
        self, transactional_id: str, producer: Expected, partitions: Iterable[TopicPartition], version: int
    ) -> Decided:
        """AddPartitionsToTxn, AddOffsetsToTxn, or what stands for them since version 2."""
        known = self.transactions.get(transactional_id)
        if known is not None and known.state in PREPARED:
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        error = _mismatch(known, producer)
        if known is None or error is not _NONE:
            return _refused(error)
        wanted = frozenset(partitions)
        if known.state is State.ONGOING and wanted <= known.partitions:
            return _refused(_NONE)
        return self._decide(known.extended(wanted, version, self._host.wall_ms()))

    def verify(
        self, transactional_id: str, producer: Expected, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Which partitions are part of the producer's transaction, and why others are not."""
        known = self.transactions.get(transactional_id)
        error = _mismatch(known, producer)
        if error is _NONE and known is not None and known.state in PREPARED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if known is None or error is not _NONE:
            return dict.fromkeys(partitions, error)
        return {
            partition: _NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    # ---- the end

    def end_needs_producer_id(self, transactional_id: str, version: int) -> bool:
        """Whether `end` will need a new producer id."""
        known = self.transactions.get(transactional_id)
        return version >= WITH_BUMPS and known is not None and known.is_exhausted

    def end(
        self,
        transactional_id: str,
        producer: Expected,
        version: int,
        new_producer_id: int = NO_PRODUCER_ID,
        *,
        is_commit: bool,
    ) -> Decided:
        """EndTxn; with version 2 and above the reply names the id and epoch to go on with."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if known.state in PREPARED:
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if version >= WITH_BUMPS:
            verdict = _end_with_bumps(known, producer, is_commit=is_commit)
        else:
            verdict = _end_without_bumps(known, producer, is_commit=is_commit)
        if verdict is _NONE:
            return CoordinatorDecision((), Identity(_NONE, known.producer_id, known.epoch))
        if verdict is not None:
            return _refused(verdict)
        wall_ms = self._host.wall_ms()
        if not known.is_exhausted:
            new_producer_id = NO_PRODUCER_ID
        prepared = known.prepared(
            is_commit=is_commit, version=version, wall_ms=wall_ms, new_producer_id=new_producer_id
        )
        following = prepared.completed(wall_ms)
        return self._prepare(prepared, Identity(_NONE, following.producer_id, following.epoch))

    def _aborts_with_new_id(self, known: Transaction) -> bool:
        """Whether `_abort` will need a new producer id."""
        return known.is_exhausted and self._version() >= WITH_BUMPS

    def _abort(self, known: Transaction, new_producer_id: int) -> Decided:
        """Abort what a producer left open, and shut it out."""
        version = self._version()
        if not self._aborts_with_new_id(known):
            new_producer_id = NO_PRODUCER_ID
        if version < WITH_BUMPS:
            known = known.fenced()
        prepared = known.prepared(
            is_commit=False, version=version, wall_ms=self._host.wall_ms(), new_producer_id=new_producer_id
        )
        return self._prepare(prepared, Identity(_NONE))

    def _prepare(self, prepared: Transaction, reply: Identity) -> Decided:
        """Record what is decided; its markers follow when the record is committed."""
        return CoordinatorDecision(
            [self._record(prepared)], reply, settle=lambda error: self._is_prepared(prepared, error)
        )

    def _is_prepared(self, prepared: Transaction, error: ErrorCode) -> None:
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return  # the log did not take it, or another broker goes on with it
        if error is not _NONE:
            self._host.after(RETRY_MS, lambda: self._prepare_again(prepared))
            return
        partitions = prepared.partitions
        self._left[prepared.transactional_id] = set(partitions)
        if partitions:
            self._write_markers(prepared, partitions)
        else:
            self._complete(prepared)

    def _prepare_again(self, prepared: Transaction) -> CoordinatorDecision[None] | None:
        """Rule 5."""
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return None
        settle = partial(self._is_prepared, prepared)
        return CoordinatorDecision([self._record(prepared)], None, settle=settle)

    # ---- markers

    def _write_markers(self, prepared: Transaction, partitions: Iterable[TopicPartition]) -> None:
        marker = Marker(
            prepared.producer_id,
            prepared.epoch,
            prepared.is_commit,
            self._host.epoch,
            prepared.client_version,
        )
        self._markers.write(marker, partitions, partial(self._marker_done, prepared))

    def _marker_done(self, prepared: Transaction, partition: TopicPartition, error: ErrorCode) -> None:
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return
        if error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            _log.warning("%s is ended by another coordinator", prepared.transactional_id)
            return
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:  # somebody has ended it there by hand (kafka-transactions.sh)
            _log.warning("%s-%d has a later epoch than %s", *partition, prepared.transactional_id)
        elif error is not _NONE:
            self._host.after(RETRY_MS, lambda: self._write_again(prepared, partition))
            return
        left = self._left[prepared.transactional_id]
        left.discard(partition)
        if not left:
            self._complete(prepared)

    def _write_again(self, prepared: Transaction, partition: TopicPartition) -> None:
        if self.transactions.get(prepared.transactional_id) is prepared:
            self._write_markers(prepared, [partition])

    def _complete(self, prepared: Transaction) -> None:
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return
        completed = prepared.completed(self._host.wall_ms())
        self._host.execute(CoordinatorDecision([self._record(completed)], None))
        if self.transactions.get(prepared.transactional_id) is prepared:  # the log did not take it
            self._host.after(RETRY_MS, lambda: self._complete(prepared))

    # ---- looking

    def left(self, transaction: Transaction) -> Iterable[TopicPartition]:
        """The partitions of a transaction; of one that is decided, those that have no marker yet."""
        if transaction.state in PREPARED:
            return self._left.get(transaction.transactional_id, transaction.partitions)
        return transaction.partitions

    # ---- time

    def _look_later(self) -> None:
        """Look at everything from time to time while there is anything."""
        if self._abortions is None and self.transactions:
            self._abortions = self._host.after(self._settings.abort_interval_ms, self._abort_overdue)
        if self._expiry is None and self.transactions:
            self._expiry = self._host.after(self._settings.expiry_interval_ms, self._expire)

    def _abort_overdue(self) -> None:
        """Abort transactions that have been open for too long."""
        self._abortions = None
        wall_ms = self._host.wall_ms()
        for known in list(self.transactions.values()):
            if known.state is State.ONGOING and known.started_wall_ms + known.timeout_ms < wall_ms:
                _log.info("the transaction of %s is aborted: its time is over", known.transactional_id)
                if self._aborts_with_new_id(known):
                    self._take_producer_id(wall_ms, partial(self._abort_with, known))
                else:
                    self._abort_with(known, NO_PRODUCER_ID)
        self._look_later()

    def _abort_with(self, known: Transaction, new_producer_id: int | None) -> None:
        """Go on where nothing has changed meanwhile; without an id the next look comes back to it."""
        if new_producer_id is not None and self.transactions.get(known.transactional_id) is known:
            self._host.execute(self._abort(known, new_producer_id))

    def _expire(self) -> CoordinatorDecision[None]:
        """Forget transactional ids that nobody has used for long."""
        self._expiry = None
        before_wall_ms = self._host.wall_ms() - self._settings.expiration_ms
        expired = [
            transaction_tombstone(known.transactional_id)
            for known in self.transactions.values()
            if known.state in _IDLE and known.updated_wall_ms <= before_wall_ms
        ]
        self._look_later()
        return CoordinatorDecision(expired, None, is_atomic=False)

    # ---- records

    def _decide(self, following: Transaction) -> Decided:
        reply = Identity(_NONE, following.producer_id, following.epoch)
        return CoordinatorDecision([self._record(following)], reply)

    def _record(self, transaction: Transaction) -> TransactionRecord:
        return transaction_record(transaction, has_versions=self._version() > 0)

    def apply(self, record: StoredRecord, _producer_id: int) -> None:
        """Change what is durable."""
        assert isinstance(record, TransactionRecord)
        transaction = record.transaction
        if transaction is None:
            transactional_id = record.key.transactional_id
            self.transactions.pop(transactional_id, None)
            return
        self.transactions[transaction.transactional_id] = transaction
        if transaction.state not in PREPARED:
            self._left.pop(transaction.transactional_id, None)
        self._look_later()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Nothing here is part of a transaction."""

    def load(self, key: bytes, value: bytes | None, _producer_id: int) -> None:
        """Note a record; only the last one of each transactional id is decoded."""
        if int.from_bytes(key[:2], "big") != TRANSACTION_LOG:
            _log.warning("a record of type %s in %s is passed over", key[:2].hex(), TRANSACTIONS_TOPIC)
        elif value is not None and not is_known_version(value):
            _log.warning("a value of version %s in %s is passed over", value[:2].hex(), TRANSACTIONS_TOPIC)
        else:
            self._unread[key] = value

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """Nothing here is part of a transaction."""

    def finish_loading(self) -> Iterator[None]:
        """Decode what counts, and go on with what is decided."""
        unread, self._unread = self._unread, {}
        for count, (key, value) in enumerate(unread.items(), 1):
            if value is not None:
                transactional_id = read_transactional_id(key)
                self.transactions[transactional_id] = read_transaction(transactional_id, value)
            if count % STEP == 0:
                yield
        for known in self.transactions.values():
            if known.state in PREPARED:
                self._host.after(0, partial(self._prepare_again, known))
        self._look_later()

    def topics_deleted(self, _deleted: Mapping[str, bytes]) -> None:
        """Whoever writes markers knows which partitions there are."""

    def unload(self) -> None:
        """Somebody else coordinates these transactions now."""
        for deadline in (self._abortions, self._expiry):
            if deadline is not None:
                deadline.cancel()
        self.transactions.clear()
        self._left.clear()


def _refused(error: ErrorCode) -> Decided:
    """Nothing to record; with NONE: nothing to do."""
    return CoordinatorDecision((), Identity(error))


def _mismatch(known: Transaction | None, producer: Expected) -> ErrorCode:
    if known is None or known.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return _NONE if known.epoch == producer.epoch else ErrorCode.PRODUCER_FENCED


def _end_without_bumps(known: Transaction, producer: Expected, *, is_commit: bool) -> ErrorCode | None:
    """The answer to EndTxn before version 5; None: it is to be done, NONE: it has been done already."""
    error = _mismatch(known, producer)
    if error is not _NONE:
        return error
    if known.state is State.ONGOING:
        return None
    is_done = known.state is not State.EMPTY and known.is_commit is is_commit
    return _NONE if is_done else ErrorCode.INVALID_TXN_STATE


def _end_with_bumps(known: Transaction, producer: Expected, *, is_commit: bool) -> ErrorCode | None:
    """The answer to EndTxn from version 5 on: an epoch that is one behind asks for what has been done already."""
    is_rotated = (
        producer.producer_id == known.previous_producer_id != known.producer_id
        and producer.epoch == LAST_EPOCH
        and known.epoch == 0
    )
    if producer.producer_id != known.producer_id and not is_rotated:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_repeated = known.state in _COMPLETE and (is_rotated or producer.epoch + 1 == known.epoch)
    if not is_repeated and producer.epoch != known.epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state is State.ONGOING:
        return None
    if is_repeated:
        return _NONE if known.is_commit is is_commit else ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_TXN_STATE if is_commit else None

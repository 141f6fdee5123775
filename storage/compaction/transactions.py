"""Tracks transactions during a compaction: which are aborted, which markers can be removed (Kafka: CleanedTransactionMetadata).

RULES    1. A batch of an aborted transaction is removed.
         2. A marker can be removed if no batch of its transaction was read, including removed ones: these are
            missing in the next compaction, and the marker is removed then, after `delete.retention.ms`.
         3. An aborted transaction stays in the index as long as its marker is retained.
         4. A marker without its record was cleaned before, and can be removed.
NOT HERE Producer sequences and the removal time of a marker (cleaner.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from protocol.control_records import ControlType, control_type
from protocol.primitives import Buffer
from protocol.records import BatchHeader, records
from storage.engine import AbortedTransaction
from storage.log.producer_state import MAX_MARKER_BYTES


class TransactionTracker:
    """The open transactions at the current offset."""

    __slots__ = ("_aborted", "_committed", "_upcoming", "retained")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: those with batches or their marker in the range."""
        self._upcoming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}  # by producer; whether a batch was read
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """Transactions with retained markers; the caller removes them."""

    def on_batch_read(self, header: BatchHeader) -> bool:
        """Read a data batch; returns whether its transaction is aborted."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        if producer_id not in self._aborted:
            self._committed.add(producer_id)
            return False
        transaction, _ = self._aborted[producer_id]
        self._aborted[producer_id] = transaction, True
        return True

    def on_control_batch_read(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Read a control batch; returns whether it can be removed."""
        self._reach(header.last_offset)
        if not header.record_count:
            return True
        kind = control_type(records(buffer, position, header, max_bytes=MAX_MARKER_BYTES)[0].key)
        producer_id = header.producer_id
        if kind == ControlType.ABORT:
            transaction, was_seen = self._aborted.pop(producer_id, (None, False))
            if transaction is not None and was_seen:
                self.retained.append(transaction)
            return not was_seen
        if kind == ControlType.COMMIT:
            was_seen = producer_id in self._committed
            self._committed.discard(producer_id)
            return not was_seen
        return False

    def _reach(self, offset: int) -> None:
        upcoming = self._upcoming
        while upcoming and upcoming[0].first_offset <= offset:
            transaction = upcoming.popleft()
            self._aborted.setdefault(transaction.producer_id, (transaction, False))

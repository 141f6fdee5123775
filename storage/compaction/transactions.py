"""What compaction has to know of transactions while it walks over a log: which are aborted, which markers may go.

RULES    1. A batch of an aborted transaction is dropped as if it had never been.
         2. A marker may go when no batch of its transaction was seen on the way, the dropped ones included: they are
            gone from the next round on, and the marker with it, after `delete.retention.ms`.
         3. An aborted transaction stays in the index as long as its marker is needed.
         4. A marker without its record was cleaned before, and may go.
NOT HERE Producers' sequences (cleaner.py keeps the batches that tell them); when a marker goes (cleaner.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from protocol.primitives import Buffer
from protocol.records import BatchHeader, ControlType, control_type, records
from storage.engine import AbortedTransaction
from storage.log.producer_state import MAX_MARKER_BYTES


class Transactions:
    """The transactions that are open at one point of the walk."""

    __slots__ = ("_aborted", "_coming", "_committed", "retained")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: those with batches, or their marker, on the way."""
        self._coming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}  # by producer; whether a batch was seen
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """Those whose markers were passed and stay; for who walks to take away."""

    def pass_batch(self, header: BatchHeader) -> bool:
        """Walk over a batch of records; whether it was aborted."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        known = self._aborted.get(producer_id)
        if known is None:
            self._committed.add(producer_id)
            return False
        self._aborted[producer_id] = known[0], True
        return True

    def pass_marker(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Walk over a control batch; whether it is of no use any more."""
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
        coming = self._coming
        while coming and coming[0].first_offset <= offset:
            transaction = coming.popleft()
            self._aborted.setdefault(transaction.producer_id, (transaction, False))

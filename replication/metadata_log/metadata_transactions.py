"""Transactions of the metadata log (KIP-868): their records apply when the EndTransaction record is read.

RULES    1. Records outside a transaction apply at once. Records of an aborted transaction never apply.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.messages.stored_records import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord
from protocol.schema import Message


class TransactionFilter:
    """Passes on records that apply."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._open_records: list[Message] | None = [] if is_open else None

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._open_records is not None

    def apply(self, messages: Iterable[Message]) -> list[Message]:
        """Read the next data records of the log; returns those that apply now."""
        applied: list[Message] = []
        for message in messages:
            if isinstance(message, BeginTransactionRecord):
                self._open_records = []
            elif isinstance(message, EndTransactionRecord):
                applied += self._open_records or []
                self._open_records = None
            elif isinstance(message, AbortTransactionRecord):
                self._open_records = None
            elif self._open_records is not None:
                self._open_records.append(message)
            else:
                applied.append(message)
        return applied

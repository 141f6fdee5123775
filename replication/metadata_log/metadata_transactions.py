"""Transactions of the metadata log: their records count when their end is there (KIP-868).

RULES    1. What stands outside of a transaction counts at once. What was aborted never counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.messages.stored_records import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord
from protocol.schema import Message


class WholeTransactions:
    """Lets records through as they count."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._held: list[Message] | None = [] if is_open else None

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._held is not None

    def take(self, messages: Iterable[Message]) -> list[Message]:
        """The next data records of the log; those that count now."""
        counting: list[Message] = []
        for message in messages:
            if isinstance(message, BeginTransactionRecord):
                self._held = []
            elif isinstance(message, EndTransactionRecord):
                counting += self._held or []
                self._held = None
            elif isinstance(message, AbortTransactionRecord):
                self._held = None
            elif self._held is not None:
                self._held.append(message)
            else:
                counting.append(message)
        return counting

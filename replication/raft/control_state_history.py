"""Values set by control records, by offset: the voter set and kraft.version.

RULES    1. A control record takes effect when it is appended, committed or not.
         2. Truncation restores the value before the truncated records.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class _Change(NamedTuple, Generic[Value]):
    offset: int
    value: Value


class ControlStateHistory(Generic[Value]):
    """One value and its changes along the log (Kafka: TreeMapLogHistory)."""

    __slots__ = ("_changes",)

    def __init__(self, first: Value) -> None:
        """Start with the value before the first record: from the configuration or the bootstrap checkpoint."""
        self._changes: list[_Change[Value]] = [_Change(-1, first)]

    @property
    def latest(self) -> Value:
        """The value at the log end."""
        return self._changes[-1].value

    @property
    def latest_offset(self) -> int:
        """The offset of the record that set the latest value; -1 if no record did."""
        return self._changes[-1].offset

    def at(self, end_offset: int) -> Value:
        """The value after all records before `end_offset`."""
        return next(value for offset, value in reversed(self._changes) if offset < end_offset)

    def append(self, offset: int, value: Value) -> None:
        """Add the value of the record at `offset`."""
        assert offset > self.latest_offset, "offsets must increase"
        self._changes.append(_Change(offset, value))

    def truncate_to(self, end_offset: int) -> None:
        """Remove the values of records at or after `end_offset`."""
        while len(self._changes) > 1 and self._changes[-1].offset >= end_offset:
            self._changes.pop()

    def reset_to(self, end_offset: int, value: Value) -> None:
        """Replace all values before `end_offset` by the value of the snapshot that ends there."""
        later = [change for change in self._changes if change.offset >= end_offset]
        self._changes = [_Change(end_offset - 1, value), *later]

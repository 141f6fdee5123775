"""What control records say, as it changed along the log: the voters, and the version of the quorum's protocol.

RULES    1. A control record counts from the moment that it is in the log, committed or not.
         2. What is cut off the log takes what it said with it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class History(Generic[Value]):
    """One value along the log."""

    __slots__ = ("_changes",)

    def __init__(self, first: Value) -> None:
        """Begin with what holds before the first record: a setting, or what the checkpoint at offset 0 says."""
        self._changes: list[tuple[int, Value]] = [(-1, first)]

    @property
    def latest(self) -> Value:
        """The newest value (rule 1)."""
        return self._changes[-1][1]

    @property
    def latest_offset(self) -> int:
        """The offset of the record that said it; -1: no record did."""
        return self._changes[-1][0]

    def at(self, end_offset: int) -> Value:
        """The value as of the records before an offset."""
        return next(value for offset, value in reversed(self._changes) if offset < end_offset)

    def changed(self, offset: int, value: Value) -> None:
        """The record at an offset says this."""
        assert offset > self.latest_offset, "it changes along the log"
        self._changes.append((offset, value))

    def truncated(self, end_offset: int) -> None:
        """The log was cut at an offset (rule 2)."""
        while len(self._changes) > 1 and self._changes[-1][0] >= end_offset:
            self._changes.pop()

    def begins_with(self, end_offset: int, value: Value) -> None:
        """The log begins at an offset, behind a snapshot that says this."""
        self._changes = [(end_offset - 1, value), *(change for change in self._changes if change[0] >= end_offset)]

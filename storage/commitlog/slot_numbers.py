"""The numbers of slots: rows of queue files are addressed by them, so they stay small.

RULES    1. The number of a deleted partition is used again when the file with its DROP is sealed. Files before that one may
            contain its rows and batches: those are before the `begin` of the next slot, so its readers and cleaning skip them.
         2. A file therefore has frames of one slot for each number, or after a DROP those that are ignored.
         3. `take`, `collect` and `give_back` are called under the lock of the log, `release` in any thread.
NOT HERE The slots (slots.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from storage.commitlog.log_file import LogFile


class SlotNumbers:
    """Which numbers are free."""

    def __init__(self, count: int = 0, used: Container[int] = ()) -> None:
        """`count`: numbers below it were used; `used`: those that are, in files that are all sealed."""
        self.count = count
        """All numbers in use are below it."""
        self._free = [number for number in reversed(range(count)) if number not in used]
        self._released: deque[tuple[int, LogFile]] = deque()

    @property
    def has_released(self) -> bool:
        """Whether `collect` may find numbers; any thread."""
        return bool(self._released)

    def take(self) -> int:
        """A number for a new slot."""
        self.collect()
        if self._free:
            return self._free.pop()
        self.count += 1
        return self.count - 1

    def collect(self) -> None:
        """Find the numbers that are free by now, and forget the files with their DROP frames."""
        while self._released and self._released[0][1].is_sealed:
            self._free.append(self._released.popleft()[0])

    def give_back(self, number: int) -> None:
        """No frame was written with the number that was taken last."""
        if number == self.count - 1:
            self.count = number  # as if it had not been taken: queue files are made again from frames alone
        else:
            self._free.append(number)

    def release(self, number: int, file: LogFile) -> None:
        """The slot was dropped by a frame in this file."""
        self._released.append((number, file))

"""How many files may be open: above that, what nobody has used for longest is closed.

RULES    1. The disk counts every file and every mapping, also what threads have open at this moment and what is open only
            because an answer is still being sent from it. A part of what is allowed is left for those: beyond the rest files
            are closed.
         2. Whoever keeps files open says so once (`hold`), and at each use no more than `usage = USED`. Who was not used
            since it was last looked at is closed, the others get another round, at most two at a time.
         3. What was opened since the last look survives it: whoever had it opened has yet to use it.
         4. What cannot be closed now, since something of it is still to be written, is asked again at the next look.
         5. Closing happens when nobody is amid anything: `on_surplus` sees to that. By itself it happens at once.
NOT HERE Who keeps files open (segments/segment.py), how many the process may have (broker/process/file_limits.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from storage.io.disk import Disk

IDLE: Final = 0
USED: Final = 1
NEW: Final = 2

UNLIMITED: Final = 1 << 60
LEAST: Final = 64
"""A limit below this leaves too little room."""
_RESERVED: Final = 8
_LEAST_RESERVED: Final = 32
"""One in so many, and at least so many, are left for files that are open for a moment: what readers have opened and the
loop does not know of yet (broker/io/reader_pool.py) is most of it."""
_ROUNDS: Final = 2
_AT_A_TURN: Final = 128


class Holder(Protocol):
    """Keeps files open."""

    usage: int
    """IDLE, USED or NEW: since it was last looked at."""


H = TypeVar("H", bound=Holder)
Close = Callable[[H], bool]


class OpenFiles:
    """Those who keep files of a disk open; threads may say that they do."""

    def __init__(self, disk: Disk, limit: int = UNLIMITED) -> None:
        """`limit`: of all files and mappings of the disk that are open at the same time."""
        self._disk = disk
        self._limit = limit
        self._most_kept = limit - max(limit // _RESERVED, _LEAST_RESERVED)
        self._held: OrderedDict[Holder, Close[Any]] = OrderedDict()  # the next to be looked at first
        self._new: list[Holder] = []  # since the last look
        self._is_told = False
        self.closed = 0
        """How many were closed for others so far."""
        self.on_surplus: Callable[[], None] = self.close_surplus
        """Has `close_surplus` called soon; may itself be called by any thread."""

    def __len__(self) -> int:
        return len(self._held)

    def __str__(self) -> str:
        return f"{self._disk.open_files} of at most {self._limit} files of logs are open"

    def is_crowded(self, wanted: int = 0) -> bool:
        """Whether the limit is reached with so many more that are going to be opened: who can should ask for none now."""
        return self._disk.open_files + wanted >= self._limit

    def hold(self, holder: H, close: Callable[[H], bool]) -> None:
        """Files were opened; `close` closes them and says whether that was possible."""
        holder.usage = NEW
        self._held[holder] = close
        self._new.append(holder)
        if self._disk.open_files > self._most_kept and not self._is_told:
            self._is_told = True
            self.on_surplus()

    def forget(self, holder: Holder) -> None:
        """Its files are closed; harmless when that is known."""
        self._held.pop(holder, None)

    def close_surplus(self) -> None:
        """Close as many files as there are too many."""
        self._is_told = False
        new = self._take_new()
        for _ in range(_ROUNDS * len(self._held)):
            if not self._held or self._disk.open_files <= self._most_kept:
                break
            self.closed += self._look_at(*self._held.popitem(last=False))  # in one piece: threads add to it
        _age(new)

    def close_idle(self) -> Iterator[None]:
        """Close what was not used since this was done last, some at a step."""
        _age(self._take_new())
        held = list(self._held)
        for begin in range(0, len(held), _AT_A_TURN):
            for holder in held[begin : begin + _AT_A_TURN]:
                close = self._held.pop(holder, None)
                if close is not None:
                    self._look_at(holder, close)
            yield

    def _look_at(self, holder: Holder, close: Close[Any]) -> bool:
        """Whether its files are closed now; else it comes to the end."""
        if holder.usage == IDLE and close(holder):
            return True
        if holder.usage == USED:
            holder.usage = IDLE
        self._held[holder] = close
        return False

    def _take_new(self) -> list[Holder]:
        new, self._new = self._new, []
        return new


def _age(holders: list[Holder]) -> None:
    for holder in holders:
        holder.usage = min(holder.usage, USED)

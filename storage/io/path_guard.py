"""Who is at the files of a log at this moment, by their names: so that nobody else gets these names meanwhile.

RULES    1. Work that finds files by their paths is done as a visit to their log. Nobody visits a log that was taken away.
         2. Before a log's directory gets another name, the visits end that were begun before: what they still open, make,
            rename or delete could else lie in the directory of a topic that was made again under the same name.
         3. Nobody waits for a visit but who renames, and visits wait for nothing but the disk.
NOT HERE Locks that are any: where there are threads, they bring them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

Work = Callable[[], None]
OneAtATime = AbstractContextManager[object]


class Host(Protocol):
    """A log."""

    is_offline: bool
    """Whether it was taken away, or its directory failed."""


class Visits:
    """The visits to all logs of a broker."""

    __slots__ = ("_new_lock", "_one_at_a_time", "_under_way")

    def __init__(self, new_lock: Callable[[], OneAtATime]) -> None:
        self._new_lock = new_lock
        self._one_at_a_time = new_lock()
        self._under_way: dict[OneAtATime, Host] = {}

    def visit(self, host: Host, work: Work) -> None:
        """Do something at a log's files (in any thread), unless it is gone."""
        stay = self._new_lock()
        with stay:
            with self._one_at_a_time:
                if host.is_offline:
                    return
                self._under_way[stay] = host
            try:
                work()
            finally:
                with self._one_at_a_time:
                    del self._under_way[stay]

    def await_end(self, host: Host) -> None:
        """Return when nobody is at the files of a log that was taken away (in a thread that may wait)."""
        with self._one_at_a_time:
            stays = [stay for stay, visited in self._under_way.items() if visited is host]
        for stay in stays:
            with stay:
                pass


ALONE: Final = Visits(nullcontext)
"""Where there are no threads."""

"""Whether a log directory has room, and how room is made in it while it has none.

RULES    1. What makes room does not wait behind what waits for it: while the directory is full it has a `Later` of its own.
         2. So it must not touch what is still to be made: only segments go that lack nothing, and no new one is begun.
NOT HERE Who finds out that it is full (`broker/io/worker_thread.py`). Why so: docs/decisions/0024-a-full-disk-is-a-delay.md
"""

from __future__ import annotations

from typing import Final

from storage.io.deferred_file_ops import Later, at_once


class Room:
    """Of one log directory."""

    __slots__ = ("is_full", "later")

    def __init__(self, later: Later = at_once) -> None:
        self.is_full = False
        """Clients' appends are refused meanwhile."""
        self.later = later
        """Makes the changes that make room, while it is full."""


ROOMY: Final = Room()
"""Where nobody looks."""

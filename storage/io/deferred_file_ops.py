"""Changes of files that need not be made at this very moment: closed work, made in the order in which it arose.

RULES    1. What is handed to a `Later` is made before anything that is handed in after it, and before any bytes of the
            same log directory that are written later. Until then nobody may look for it on the disk.
         2. By itself everything is made at once; whoever may not wait for the disk sets another `Later`
            (`LogManager.later`).
         3. What found no room on a full disk may be made again, from its beginning. After a failure of another kind what is
            behind it may be made nevertheless: what must not is one change with it (`in_order`).
         4. It never outlives what it changes: taking a log away is a change too, and comes behind all others.
NOT HERE Threads, and what a failure means (replication/partition/replica_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable

Change = Callable[[], None]
Later = Callable[[Change], None]


def at_once(change: Change) -> None:
    """Make it now."""
    change()


def in_order(steps: list[Change]) -> Change:
    """One change of several, none of which is made before those in front of it; made again, it goes on where it failed."""

    def change() -> None:
        while steps:
            steps[0]()
            del steps[0]

    return change

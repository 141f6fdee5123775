"""When the interpreter's garbage collector runs.

RULES    1. It is disabled until the broker is ready: imports and the start create no garbage. Then all objects are frozen: no
            collection visits them again.
         2. Objects of partitions and open logs live long. When there are some more of them than at any time before, garbage
            is collected and the rest is frozen. Otherwise collections visit tens of thousands of objects twice and stop the
            event loop for as long as 50 ms while a request opens thousands of logs.
         3. Garbage is never frozen: it would never be freed.
"""

from __future__ import annotations

import gc

_THRESHOLD = 10_000
"""Allocations between garbage collections; Python's default of 700 would run dozens of them for one large request."""


def start_collecting() -> None:
    """Freezes the objects of the start, and enables the garbage collector."""
    gc.freeze()
    gc.set_threshold(_THRESHOLD, 10, 10)
    gc.enable()


class FrozenObjects:
    """The greatest number so far of a kind of objects that live long (rule 2)."""

    def __init__(self, step: int) -> None:
        """`step`: after this number of further objects all are frozen."""
        self._step = step
        self._frozen = 0

    def grow(self, count: int) -> None:
        """Freezes all objects if this number of one kind exceeds the one at the last time by the step.

        During the start, the number is only recorded: all objects are frozen at its end.
        """
        if count >= self._frozen + self._step:
            self._frozen = count
            if gc.isenabled():
                gc.collect()
                gc.freeze()

"""Long work of the state machines in slices, so that other callbacks of the event loop run in between.

RULES    1. The work is an iterator of steps; after every step all state is consistent.
         2. A slice is a number of steps, because there is no clock here. The first slice runs at once, so small work
            completes before the call returns.
NOT HERE The event loop (`broker/server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

CallSoon = Callable[[Callable[[], None]], object]
"""Schedules a callback on a later iteration of the event loop, in the order of the calls."""

STEPS_PER_SLICE: Final = 256
"""A few milliseconds, where a step creates a partition or encodes a record."""


def run_inline(remaining: Callable[[], None]) -> None:
    """A CallSoon that calls at once: for tests and tools."""
    remaining()


def no_op(*_: object) -> None:
    """Do nothing: the default of a callback, and a work item that only waits for its turn in a queue."""


def run_in_slices(steps: Iterator[object], call_soon: CallSoon) -> None:
    """Run the first slice of the steps now, the others in later iterations."""
    if sum(1 for _ in islice(steps, STEPS_PER_SLICE)) == STEPS_PER_SLICE:
        call_soon(partial(run_in_slices, steps, call_soon))

"""Long work of the state machines in pieces, one a turn of whoever runs them, so that others have their turns between.

RULES    1. What is done in pieces comes as steps, an iterator; every step leaves all in order.
         2. A piece is a number of steps, for there is no clock here. The first piece is done at once: what is small is
            done whole before the caller goes on.
NOT HERE What a turn is: the daemon's is one of the event loop (`broker/server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

Soon = Callable[[Callable[[], None]], object]
"""Calls something in one of the next turns, in the order of these calls."""

STEPS_A_TURN: Final = 256
"""Some milliseconds, where a step makes a partition or encodes a record."""


def at_once(rest: Callable[[], None]) -> None:
    """Nobody else has a turn: for tests and for tools."""
    rest()


def in_turns(steps: Iterator[object], soon: Soon) -> None:
    """Take the first piece of the steps now, the others in later turns."""
    if sum(1 for _ in islice(steps, STEPS_A_TURN)) == STEPS_A_TURN:
        soon(partial(in_turns, steps, soon))

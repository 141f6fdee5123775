"""Waiting for something that announces itself to nobody: another process, another broker.

RULES    1. It looks at once, then every few milliseconds, and fails with a sentence when the time is over. That is long: it
            ends what would hang, and says nothing of how quick anything is on a machine that is busy.
         2. What announces itself (a thread, a pipe, a fake clock) is waited for itself, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, within_s: float = 60.0, every_s: float = 0.02) -> T:
    """What `look` finds, as soon as it is something true."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(every_s)
    return found

"""Polling for a condition of another process or broker.

The timeout is long: it ends a hanging test and measures nothing. Threads, pipes and fake clocks are waited for
directly, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, within_s: float = 60.0, every_s: float = 0.02) -> T:
    """The first true result of `look`."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(every_s)
    return found

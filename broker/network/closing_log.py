"""Logs why connections are closed: once for an address and a reason, since such clients connect again and again.

RULES    1. The first connection that an address loses for a reason is a line; the next line follows after INTERVAL_S at the
            earliest, with the number of those in between.
         2. At most MOST pairs are remembered; above that, all are dropped.
"""

from __future__ import annotations

import logging
import time
from typing import Final

_log = logging.getLogger("barnabas.network")

INTERVAL_S: Final = 60.0
MOST: Final = 1_000


class ClosingLog:
    """The reasons that were logged recently."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str], tuple[float, int]] = {}  # when it was logged, and how often it was not

    def add(self, host: str, port: int, reason: str, now_s: float) -> None:
        """A connection of this peer is closed for this reason; `now_s` is of the monotonic clock."""
        logged_s, unlogged = self._recent.get((host, reason), (now_s - INTERVAL_S, 0))
        if now_s - logged_s < INTERVAL_S:
            self._recent[host, reason] = (logged_s, unlogged + 1)
            return
        if len(self._recent) >= MOST:
            self._recent.clear()
        self._recent[host, reason] = (now_s, 0)
        others = f" ({unlogged} other connections of this host since the last line)" if unlogged else ""
        _log.warning("closing %s:%d: %s%s", host, port, reason, others)


_closing_log = ClosingLog()


def log_closing(host: str, port: int, reason: str) -> None:
    """Logs the reason, unless that was done recently; all connections of the process share the memory."""
    _closing_log.add(host, port, reason, time.monotonic())

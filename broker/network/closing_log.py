"""Logs why connections are closed: once a minute for an address and a reason, since such clients connect again and again.

RULES    1. A line after the first has the number of connections without a line.
"""

from __future__ import annotations

import logging
import time

from broker.network.repeated_lines import RepeatedLines

_log = logging.getLogger("barnabas.network")


class ClosingLog:
    """The reasons that were logged recently."""

    def __init__(self) -> None:
        self._lines = RepeatedLines()

    def add(self, host: str, port: int, reason: str, now_s: float) -> None:
        """A connection of this peer is closed for this reason; `now_s` is of the monotonic clock."""
        unlogged = self._lines.count_if_due((host, reason), now_s)
        if unlogged is not None:
            others = f" ({unlogged} other connections of this host since the last line)" if unlogged else ""
            _log.warning("closing %s:%d: %s%s", host, port, reason, others)


_closing_log = ClosingLog()


def log_closing(host: str, port: int, reason: str) -> None:
    """Logs the reason, unless that was done recently; all connections of the process share the memory."""
    _closing_log.add(host, port, reason, time.monotonic())

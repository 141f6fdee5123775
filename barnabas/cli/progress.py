"""A line on a terminal that shows how far long work is: share, count, rate, time left.

RULES    1. It is on standard error, only if that is a terminal, and the data goes elsewhere.
         2. It is drawn at most every PERIOD_S seconds, and first after DELAY_S: short work shows none.
"""

from __future__ import annotations

import sys
import time

PERIOD_S = 0.2
DELAY_S = 1.0
_BAR_WIDTH = 24
_CLEAR = "\r\x1b[K"


class Progress:
    """The line of one verb. `total` is in the unit of `done`; None if it is not known."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._total = total
        self._started = time.monotonic()
        self._next = self._started + DELAY_S
        self._is_drawn = False
        self._is_shown = sys.stderr.isatty() and not sys.stdout.isatty()

    def show(self, done: int, records: int) -> None:
        """Draws the line, if it is time."""
        now = time.monotonic()
        if self._is_shown and now >= self._next:
            self._next = now + PERIOD_S
            self._is_drawn = True
            sys.stderr.write(_CLEAR + describe(self._what, now - self._started, done, self._total, records))
            sys.stderr.flush()

    def clear(self) -> None:
        """Removes the line."""
        if self._is_drawn:
            sys.stderr.write(_CLEAR)
            self._is_drawn = False


def describe(what: str, elapsed_s: float, done: int, total: int | None, records: int) -> str:
    """The text of the line."""
    rate = records / elapsed_s if elapsed_s > 0 else 0.0
    text = f"{records:,} records, {rate:,.0f}/s"
    if not total:
        return f"{what}: {text}"
    share = min(1.0, done / total)
    filled = round(share * _BAR_WIDTH)
    left = f", {_duration(elapsed_s / share * (1 - share))} left" if share > 0 else ""
    return f"{what} [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%} {text}{left}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

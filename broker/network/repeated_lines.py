"""Which log lines were written recently, so that what happens again and again is a line once a minute.

RULES    1. The first event of a key is a line; the next line follows after INTERVAL_S at the earliest.
         2. At most MOST keys are remembered; above that, all are dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

INTERVAL_S: Final = 60.0
MOST: Final = 1_000


class RepeatedLines:
    """The lines of the last minute, by key."""

    def __init__(self) -> None:
        self._recent: dict[Hashable, tuple[float, int]] = {}  # when it was written, and how often it was not

    def __len__(self) -> int:
        return len(self._recent)

    def count_if_due(self, key: Hashable, now_s: float) -> int | None:
        """How many events of this key had no line since the last one; None: this event has no line either.

        `now_s` is of the monotonic clock.
        """
        written_s, unwritten = self._recent.get(key, (now_s - INTERVAL_S, 0))
        if now_s - written_s < INTERVAL_S:
            self._recent[key] = (written_s, unwritten + 1)
            return None
        if len(self._recent) >= MOST:
            self._recent.clear()
        self._recent[key] = (now_s, 0)
        return unwritten

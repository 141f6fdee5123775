"""How fast a value grows, from one scrape to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_MS: Final = 60_000


class Rate:
    """The growth of one value in the last `WINDOW_MS`, as far as there were scrapes."""

    def __init__(self, mono_ms: Callable[[], int]) -> None:
        self._mono_ms = mono_ms
        self._known: deque[tuple[int, float]] = deque()

    def per_second(self, value: float) -> float:
        """The growth up to `value`, which is kept; 0 at the first scrape."""
        now_ms, known = self._mono_ms(), self._known
        while len(known) > 1 and known[1][0] <= now_ms - WINDOW_MS:
            known.popleft()
        known.append((now_ms, value))
        then_ms, before = known[0]
        return 0.0 if now_ms <= then_ms else (value - before) * 1000 / (now_ms - then_ms)

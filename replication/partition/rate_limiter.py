"""So many bytes a second, on average: whoever wants to move more has to wait.

RULES    1. What was moved is a debt that is paid off with time. While there is none the next piece may be moved, however
            large it is.
         2. Nobody waits for longer than LONGEST_WAIT_MS before asking again: the rate may have changed. It may be 0.
NOT HERE Waiting.
"""

from __future__ import annotations

from math import ceil
from typing import Final

LONGEST_WAIT_MS: Final = 1000


class Throttle:
    """The pace of one kind of work."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._debt = 0.0
        self._at_mono_ms = 0

    def set_rate(self, bytes_per_second: float, mono_ms: int) -> None:
        """Another rate from now on."""
        self._pay(mono_ms)
        self._rate = bytes_per_second

    def took(self, size: int, mono_ms: int) -> None:
        """So much was moved."""
        self._pay(mono_ms)
        self._debt += size

    def wait_ms(self, mono_ms: int) -> int:
        """After which time to ask again; 0: the next piece may be moved."""
        self._pay(mono_ms)
        if self._rate <= 0:
            return LONGEST_WAIT_MS
        return min(ceil(self._debt * 1000 / self._rate), LONGEST_WAIT_MS)

    def _pay(self, mono_ms: int) -> None:
        if mono_ms > self._at_mono_ms:
            self._debt = max(0.0, self._debt - self._rate * (mono_ms - self._at_mono_ms) / 1000)
            self._at_mono_ms = mono_ms

"""An average rate in bytes per second.

RULES    1. Recorded bytes are a debt that shrinks with time. While it is zero the next piece may pass, whatever its size.
         2. `wait_ms` is at most MAX_WAIT_MS, because the rate may change meanwhile. The rate may be 0.
NOT HERE Waiting.
"""

from __future__ import annotations

from math import ceil
from typing import Final

MAX_WAIT_MS: Final = 1000


class RateLimiter:
    """The rate limit of one kind of work."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._debt = 0.0
        self._updated_mono_ms = 0

    def set_rate(self, bytes_per_second: float, mono_ms: int) -> None:
        """Use another rate."""
        self._reduce_debt(mono_ms)
        self._rate = bytes_per_second

    def record(self, size: int, mono_ms: int) -> None:
        """Count bytes."""
        self._reduce_debt(mono_ms)
        self._debt += size

    def wait_ms(self, mono_ms: int) -> int:
        """After how many milliseconds to ask again; 0: the next piece may pass."""
        self._reduce_debt(mono_ms)
        if self._rate <= 0:
            return MAX_WAIT_MS
        return min(ceil(self._debt * 1000 / self._rate), MAX_WAIT_MS)

    def _reduce_debt(self, mono_ms: int) -> None:
        if mono_ms > self._updated_mono_ms:
            self._debt = max(0.0, self._debt - self._rate * (mono_ms - self._updated_mono_ms) / 1000)
            self._updated_mono_ms = mono_ms

"""The arithmetic of client quotas: rates over sampled windows, token buckets, throttle times.

SOURCE   Apache Kafka 4.3: `Rate`, `SampledStat` and `WindowedSum` (KIP-13), `TokenBucket` (KIP-599), `QuotaUtils.throttleTime`.
RULES    1. A rate is the sum of the samples divided by the time since the oldest one began. A young rate is divided by
            `samples` - 1 full windows and the running one, as if nothing had been recorded before.
         2. A sample is emptied when nothing was recorded in it for `samples` windows.
         3. A token bucket holds at most `samples` windows of its rate and starts full. It may be overdrawn.
         4. Time is a parameter, in milliseconds of any clock that does not run backwards.
         5. A throttle time is at most 2^31 - 1 ms, which is what the protocol has room for. In Apache Kafka a longer one
            overflows, and nothing is throttled.
NOT HERE The quota that applies (`metadata/client_quotas.py`), muting (`broker/network/connection.py`).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from storage.config.config_def import MAX_INT

_MS_PER_S: Final = 1000


class QuotaWindows(NamedTuple):
    """The windows of a rate."""

    samples: int = 11
    """quota.window.num; the running window is one of them."""
    window_ms: int = 1000
    """quota.window.size.seconds."""

    def max_value(self, bound: float) -> float:
        """The most that can be recorded at once without exceeding a quota of `bound` per second."""
        return bound * (self.samples - 1) * self.window_ms / _MS_PER_S


METRIC_WINDOWS: Final = QuotaWindows(2, 30_000)
"""metrics.num.samples and metrics.sample.window.ms of Apache Kafka, by default: of values that only metrics show."""


class _Sample:
    """What was recorded in one window."""

    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class SampledRate:
    """A rate per second over the last windows."""

    __slots__ = ("_current", "_samples", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add a value; a negative one takes back what was recorded in the running window."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self._windows.window_ms:
            sample = self._advance(now_ms)
        sample.value += value
        sample.last_ms = now_ms

    def measure(self, now_ms: int) -> float:
        """The rate per second."""
        self._purge(now_ms)
        return sum(sample.value for sample in self._samples) * _MS_PER_S / self._span_ms(now_ms)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long nothing may be recorded until the rate is back at `bound` per second; 0 if it is not above."""
        value = self.measure(now_ms)
        if value <= bound:
            return 0
        return _rounded((value - bound) / bound * self._span_ms(now_ms))

    def _advance(self, now_ms: int) -> _Sample:
        """Begin the next sample; one more than configured is kept, since the oldest overlaps the measured time."""
        samples = self._samples
        self._current = (self._current + 1) % (self._windows.samples + 1)
        if self._current == len(samples):
            samples.append(_Sample(now_ms))
        else:
            samples[self._current].reset(now_ms)
        return samples[self._current]

    def _purge(self, now_ms: int) -> None:
        expired_ms = now_ms - self._windows.samples * self._windows.window_ms
        for sample in self._samples:
            if sample.last_ms <= expired_ms:
                sample.reset(now_ms)

    def _span_ms(self, now_ms: int) -> int:
        """The time that the samples stand for, at least one millisecond."""
        window_ms = self._windows.window_ms
        elapsed_ms = now_ms - min((sample.start_ms for sample in self._samples), default=now_ms)
        missing = self._windows.samples - 1 - elapsed_ms // window_ms
        return max(elapsed_ms + max(missing, 0) * window_ms, 1)


class AverageTime:
    """The average of durations in the last minute."""

    __slots__ = ("_count", "_sum_ms")

    def __init__(self) -> None:
        self._sum_ms = SampledRate(METRIC_WINDOWS)
        self._count = SampledRate(METRIC_WINDOWS)

    def record(self, duration_ms: int, now_ms: int) -> None:
        """Add a duration in milliseconds."""
        self._sum_ms.record(duration_ms, now_ms)
        self._count.record(1, now_ms)

    def measure(self, now_ms: int) -> float:
        """The average in milliseconds; not a number if there was none."""
        count = self._count.measure(now_ms)
        return self._sum_ms.measure(now_ms) / count if count else math.nan


class TokenBucket:
    """Tokens that are refilled at a rate per second."""

    __slots__ = ("_tokens", "_updated_ms", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        self._tokens = math.inf
        self._updated_ms = 0

    def tokens(self, bound: float, now_ms: int) -> float:
        """The tokens in the bucket; below zero it is overdrawn. `bound` is the rate."""
        burst = bound * self._windows.samples * self._windows.window_ms / _MS_PER_S
        refilled = self._tokens + bound * (now_ms - self._updated_ms) / _MS_PER_S
        self._tokens = min(burst, refilled)
        self._updated_ms = now_ms
        return self._tokens

    def record(self, value: float, bound: float, now_ms: int) -> None:
        """Take tokens, even more than there are."""
        self._tokens = self.tokens(bound, now_ms) - value

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """The time until the bucket is no longer overdrawn; 0 if it is not."""
        tokens = self.tokens(bound, now_ms)
        return _rounded(-tokens / bound * _MS_PER_S) if tokens < 0 else 0


def _rounded(duration_ms: float) -> int:
    """A throttle time as the protocol can have it."""
    return math.floor(min(duration_ms, float(MAX_INT)) + 0.5)

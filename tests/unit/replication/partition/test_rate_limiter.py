"""The rules of `RateLimiter`."""

from __future__ import annotations

import math

from replication.partition.rate_limiter import MAX_WAIT_MS, RateLimiter


def test_the_debt_of_a_large_piece_shrinks_with_time() -> None:
    limiter = RateLimiter(1000)
    assert limiter.wait_ms(5_000) == 0
    limiter.record(1500, 5_000)
    assert limiter.wait_ms(5_000) == MAX_WAIT_MS
    assert limiter.wait_ms(5_800) == 700
    assert limiter.wait_ms(6_499) == 1
    assert limiter.wait_ms(6_500) == 0


def test_idle_time_gives_no_credit() -> None:
    limiter = RateLimiter(1000)
    limiter.record(100, 60_000)
    assert limiter.wait_ms(60_000) == 100


def test_a_new_rate_applies_to_the_remaining_debt() -> None:
    limiter = RateLimiter(math.inf)
    limiter.record(1000, 0)
    assert limiter.wait_ms(0) == 0
    limiter.set_rate(0, 0)
    assert limiter.wait_ms(10_000) == MAX_WAIT_MS
    limiter.set_rate(10_000, 10_000)
    assert limiter.wait_ms(10_000) == 100

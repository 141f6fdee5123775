"""Rules of replication/partition/rate_limiter.py."""

from __future__ import annotations

import math

from replication.partition.rate_limiter import LONGEST_WAIT_MS, Throttle


def test_what_was_moved_is_paid_off_with_time() -> None:
    """Rule 1: also what is larger than a second's worth."""
    throttle = Throttle(1000)
    assert throttle.wait_ms(5_000) == 0
    throttle.took(1500, 5_000)
    assert throttle.wait_ms(5_000) == LONGEST_WAIT_MS
    assert throttle.wait_ms(5_800) == 700
    assert throttle.wait_ms(6_499) == 1
    assert throttle.wait_ms(6_500) == 0


def test_time_that_passed_before_is_no_credit() -> None:
    throttle = Throttle(1000)
    throttle.took(100, 60_000)
    assert throttle.wait_ms(60_000) == 100


def test_the_rest_of_a_debt_is_paid_at_the_new_rate() -> None:
    """Rule 2: at none, too."""
    throttle = Throttle(math.inf)
    throttle.took(1000, 0)
    assert throttle.wait_ms(0) == 0
    throttle.set_rate(0, 0)
    assert throttle.wait_ms(10_000) == LONGEST_WAIT_MS
    throttle.set_rate(10_000, 10_000)
    assert throttle.wait_ms(10_000) == 100

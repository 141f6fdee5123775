"""Rates between scrapes (broker/telemetry/rates.py)."""

from __future__ import annotations

from broker.telemetry.rates import WINDOW_MS, Rate


def test_a_rate_is_that_of_the_last_window() -> None:
    now_ms = 0
    rate = Rate(lambda: now_ms)
    assert rate.per_second(100) == 0.0
    now_ms = 10_000
    assert rate.per_second(150) == 5.0
    now_ms = 20_000
    assert rate.per_second(150) == 2.5
    now_ms = 20_000 + WINDOW_MS
    assert rate.per_second(150 + WINDOW_MS / 1000) == 1.0  # since the second 20: older scrapes do not count

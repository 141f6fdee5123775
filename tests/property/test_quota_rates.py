"""Rates and token buckets, compared with models that keep every recorded value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replication.quota_rates import QuotaWindows, SampledRate, TokenBucket

windows_of_quotas = st.builds(QuotaWindows, st.integers(2, 12), st.sampled_from((1000, 2000)))
bounds = st.floats(0.1, 1e6)
steps = st.lists(st.tuples(st.integers(0, 4000) | st.integers(0, 40_000), st.floats(0, 1e6)), min_size=1, max_size=40)


def rate_of_model(values: list[tuple[int, float]], windows: QuotaWindows) -> tuple[float, int]:
    """Rate per second and its span in ms at the time of the last value.

    A sample is a list of values: it begins with the first value that the one before is too old for.
    """
    samples: list[list[tuple[int, float]]] = []
    for time_ms, value in values:
        if not samples or time_ms - samples[-1][0][0] >= windows.window_ms:
            samples.append([])
        samples[-1].append((time_ms, value))
    now_ms, lifetime_ms = values[-1][0], windows.samples * windows.window_ms
    kept = [sample for sample in samples[-windows.samples - 1 :] if now_ms - sample[-1][0] < lifetime_ms]
    elapsed_ms = now_ms - kept[0][0][0]
    missing = max(windows.samples - 1 - elapsed_ms // windows.window_ms, 0)
    span_ms = elapsed_ms + missing * windows.window_ms
    return sum(value for sample in kept for _, value in sample) * 1000 / span_ms, span_ms


@given(windows_of_quotas, bounds, steps)
def test_a_rate_is_that_of_the_model(windows: QuotaWindows, bound: float, recorded: list[tuple[int, float]]) -> None:
    rate, now_ms, values = SampledRate(windows), 5, []
    for pause_ms, value in recorded:
        now_ms += pause_ms
        values.append((now_ms, value))
        rate.record(value, now_ms)
        expected, span_ms = rate_of_model(values, windows)
        assert abs(rate.measure(now_ms) - expected) <= 1e-6 * max(expected, 1)
        throttle_ms = rate.throttle_ms(bound, now_ms)
        if expected > bound * (1 + 1e-6):
            expected_ms = min((expected - bound) / bound * span_ms, 2**31 - 1)
            assert abs(throttle_ms - expected_ms) <= 1 + 1e-6 * throttle_ms
        elif expected < bound:
            assert throttle_ms == 0


@given(windows_of_quotas, bounds, steps)
def test_what_is_taken_back_was_never_recorded(
    windows: QuotaWindows, bound: float, recorded: list[tuple[int, float]]
) -> None:
    rate, untouched, now_ms = SampledRate(windows), SampledRate(windows), 5
    for pause_ms, value in recorded:
        now_ms += pause_ms
        for one in (rate, untouched):
            one.record(1.0, now_ms)
        rate.record(value, now_ms)
        rate.record(-value, now_ms)
        assert abs(rate.measure(now_ms) - untouched.measure(now_ms)) < 1e-3
    assert windows.max_value(bound) == bound * (windows.samples - 1) * windows.window_ms / 1000


@given(windows_of_quotas, bounds, steps)
def test_a_bucket_is_full_at_first_and_refilled_at_its_rate(
    windows: QuotaWindows, bound: float, recorded: list[tuple[int, float]]
) -> None:
    bucket, now_ms = TokenBucket(windows), 5
    burst = bound * windows.samples * windows.window_ms / 1000
    tokens = burst
    for pause_ms, value in recorded:
        now_ms += pause_ms
        tokens = min(burst, tokens + bound * pause_ms / 1000)
        assert abs(bucket.tokens(bound, now_ms) - tokens) <= 1e-6 * max(burst, abs(tokens))
        bucket.record(value, bound, now_ms)
        tokens -= value
        wait_ms = bucket.throttle_ms(bound, now_ms)
        assert (wait_ms > 0) is (tokens < 0 and -tokens / bound >= 0.0005) or abs(tokens) < 1e-6 * burst
        expected_ms = min(max(-tokens, 0) / bound * 1000, 2**31 - 1)
        assert abs(wait_ms - expected_ms) <= 1 + 1e-6 * wait_ms + 1e-3 * burst / bound


def test_a_throttle_time_is_one_that_the_protocol_can_have() -> None:
    for bound in (1.0, 5e-324):
        rate, bucket = SampledRate(QuotaWindows()), TokenBucket(QuotaWindows())
        rate.record(4e6, 0)
        bucket.record(4e6, bound, 0)
        assert rate.throttle_ms(bound, 0) == 2**31 - 1
        assert bucket.throttle_ms(bound, 0) == min((4e6 - 11 * bound) / bound * 1000, 2**31 - 1)

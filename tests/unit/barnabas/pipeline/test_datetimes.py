"""Times in the settings of jobs."""

from __future__ import annotations

import pytest

from barnabas.pipeline.datetimes import parse_duration_s, parse_timestamp_ms, time_text
from barnabas.pipeline.errors import JobError


def test_a_time_is_iso_8601_or_milliseconds() -> None:
    texts = "0", "1795655091625", "9" * 18, "2026-01-31", "2026-01-31T12:00:00+02:00"
    assert [parse_timestamp_ms(text) for text in texts] == [
        0,
        1_795_655_091_625,
        10**18 - 1,
        1_769_817_600_000,
        1_769_853_600_000,
    ]
    assert parse_timestamp_ms(None) is None


@pytest.mark.parametrize("text", ["9" * 20, "\u00b2", "-5", "", "soon"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Times are 64-bit numbers for clients and Spark."""
    with pytest.raises(JobError, match="is not a time"):
        parse_timestamp_ms(text)


@pytest.mark.parametrize("text", ["500 ms", "500ms", "90ss", "2 hs"])
def test_a_short_unit_has_no_plural(text: str) -> None:
    """500 ms were 500 minutes."""
    with pytest.raises(JobError, match="--lateness takes a duration"):
        parse_duration_s("--lateness", text)


def test_a_time_that_the_calendar_does_not_have_is_a_number() -> None:
    """A watermark is in the year -712 with a lateness of 1,000,000 days."""
    assert time_text(1_769_817_600) == "2026-01-31T00:00:00+00:00"
    assert time_text(-84_604_096_909) == "-84604096909 s since 1970"
    assert time_text(10**15) == "1000000000000000 s since 1970"

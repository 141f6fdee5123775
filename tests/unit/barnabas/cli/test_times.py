"""Moments and durations of options (barnabas/cli/times.py)."""

from __future__ import annotations

import pytest

from barnabas.cli.times import MAX_DURATION_MS, parse_duration_ms, parse_moment_ms

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "found_ms"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1.5d", 129_600_000),
        ("1w", 604_800_000),
        ("PT1H30M", 5_400_000),
        ("p1dt1s", 86_401_000),
        ("0s", 0),
        ("", None),
        ("1", None),
        ("1y", None),
        ("1h 30m", None),
        ("-1h", None),
        ("P", None),
        ("9" * 400 + "d", None),
        ("9" * 12 + "w", MAX_DURATION_MS),
        ("9" * 12 + "d" + "9" * 12 + "s", MAX_DURATION_MS),
        ("P999999999D", MAX_DURATION_MS),
    ],
)
def test_a_duration_is_parsed_or_none(text: str, found_ms: int | None) -> None:
    assert parse_duration_ms(text) == found_ms


def test_a_duration_is_none_that_sleep_refuses() -> None:
    assert MAX_DURATION_MS * 1_000_000 < 1 << 63


@pytest.mark.parametrize(
    ("text", "found_ms"),
    [
        ("now", NOW_MS),
        ("-1h", NOW_MS - 3_600_000),
        ("-PT1H", NOW_MS - 3_600_000),
        ("-99999999d", 0),
        ("1767225600", 1_767_225_600_000),
        ("1767225600123", 1_767_225_600_123),
        ("0", 0),
        ("2026-01-01", 1_767_225_600_000),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2026-01-01T00:00:00.5Z", 1_767_225_600_500),
        ("1969-12-31", 0),
        ("0001-01-01T00:00:00+14:00", 0),
        ("2026-13-01", None),
        ("20260101T00", None),
        ("9" * 19, None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_moment_is_parsed_or_none(text: str, found_ms: int | None) -> None:
    assert parse_moment_ms(text, NOW_MS) == found_ms

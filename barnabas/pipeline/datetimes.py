"""Timestamps and durations in settings and reports."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from barnabas.pipeline.errors import JobError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = re.compile(r"[0-9]{1,18}")
_PART = re.compile(r"\s*(\d{1,12})\s*((?:second|minute|hour|day|week|min)s?|[smhdw])(?![a-z])", re.IGNORECASE)
LONGEST_S = 10**11
"""Three millennia: of event times in microseconds, 64 bits hold a hundred times as many."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def now() -> str:
    """Returns the current time: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def time_text(seconds: int) -> str:
    """Returns a time in seconds since 1970: ISO 8601 in UTC, or these seconds if the calendar has no such year."""
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return f"{seconds} s since 1970"


def parse_timestamp_ms(text: str | None) -> int | None:
    """Parses ISO 8601 (UTC by default) or milliseconds since 1970. None stays None. Raises JobError."""
    if text is None:
        return None
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as failure:
        raise JobError(
            f"{text!r} is not a time: give ISO 8601, such as 2026-01-31T12:00:00, or milliseconds since 1970."
        ) from failure
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_duration_s(option: str, text: str) -> int:
    """Parses `15 minutes`, `1 hour 30 minutes` or `90s`; returns seconds, at most LONGEST_S. Raises JobError."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts).strip() != text.strip():
        raise JobError(f"{option} takes a duration such as `15 minutes` or `1 hour`, not {text!r}.")
    seconds = sum(int(part[1]) * _SECONDS[part[2][0].lower()] for part in parts)
    if seconds > LONGEST_S:
        raise JobError(f"{option} takes at most {LONGEST_S:,} seconds, not {text!r}.")
    return seconds

"""Moments and durations, as options take them.

FORMAT   a duration is 500ms, 90s, 1h30m, 2d, 1w, or ISO 8601: PT1H30M
         a moment is Unix seconds (9 or 10 digits) or milliseconds (other numbers), 2026-11-23, 2026-11-23T12:00:00Z,
         a duration before now (-1h30m), or now
RULES    1. A date without a zone is UTC. A moment before 1970 is 1970: in requests, negative times have other meanings.
         2. A duration is at most MAX_DURATION_MS: added to a moment it still is a 64-bit number, and time.sleep takes it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

MAX_DURATION_MS = 9 * 10**12
"""285 years."""
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = r"(\d{1,12}(?:\.\d{1,9})?)(ms|[smhdw])"
_DURATION = re.compile(f"(?:{_PART})+")
_DURATION_PART = re.compile(_PART)
_ISO_DURATION = re.compile(r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?", re.IGNORECASE)
_SECONDS = re.compile(r"\d{9,10}")
_NUMBER = re.compile(r"\d{1,18}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def parse_duration_ms(text: str) -> int | None:
    """The milliseconds of a duration, longer ones cut (rule 2); None if it is none."""
    if _DURATION.fullmatch(text):
        found = sum(float(count) * _UNITS_MS[unit] for count, unit in _DURATION_PART.findall(text))
        return round(min(found, MAX_DURATION_MS))
    iso = _ISO_DURATION.fullmatch(text)
    if iso is not None and any(iso.groups()):
        parts = zip(iso.groups(), "dhms", strict=True)
        return min(sum(int(part or 0) * _UNITS_MS[unit] for part, unit in parts), MAX_DURATION_MS)
    return None


def parse_moment_ms(text: str, now_ms: int) -> int | None:
    """The Unix milliseconds of a moment; None if it is none."""
    if text == "now":
        return now_ms
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    if _NUMBER.fullmatch(text):
        return int(text)
    if text.startswith("-"):
        before_ms = parse_duration_ms(text[1:])
        return None if before_ms is None else max(0, now_ms - before_ms)
    return _date_ms(text) if _DATE.match(text) else None


def _date_ms(text: str) -> int | None:
    try:
        found = datetime.fromisoformat(text)
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return max(0, round(aware.timestamp() * 1000))
    except (ValueError, OverflowError):
        return None

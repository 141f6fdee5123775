"""Moments as people write them in settings."""

from __future__ import annotations

from datetime import UTC, datetime

from barnabas.pipeline.trouble import JobError


def moment_ms(text: str | None) -> int | None:
    """ISO 8601, UTC unless it says else, or milliseconds since 1970; None stays None."""
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as failure:
        raise JobError(f"{text!r} is no moment: 2026-01-31T12:00:00 or milliseconds since 1970 are.") from failure
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)

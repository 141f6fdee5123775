"""Timestamps of records for a running broker.

A broker deletes records older than a week half a minute after its start, so tests use recent times. Where a clock is an
argument, the time is fixed (`NOW_MS` of `logs.py` and others).
"""

from __future__ import annotations

import time
from typing import Final

RECENT_MS: Final = time.time_ns() // 1_000_000
"""The start of this test run."""

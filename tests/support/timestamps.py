"""The time of records that a running broker is given.

A broker looks for what is a week old when it has run for half a minute: records of some old time are there for so long, and no
longer. Where a clock is an argument, the time is a fixed one (`NOW_MS` of `logs.py` and of others).
"""

from __future__ import annotations

import time
from typing import Final

RECENT_MS: Final = time.time_ns() // 1_000_000
"""When this run began."""

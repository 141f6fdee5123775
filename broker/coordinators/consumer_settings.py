"""What the settings say about consumer groups; defaults as in Apache Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ConsumerGroupSettings(NamedTuple):
    """Times in milliseconds; `limits` bounds what single groups may ask for."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    regex_refresh_interval_ms: int = 600_000
    max_size: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = ("uniform", "range")
    limits: Mapping[str, tuple[int, int]] = {
        "session.timeout.ms": (45_000, 60_000),
        "heartbeat.interval.ms": (5_000, 15_000),
        "assignment.interval.ms": (0, 15_000),
    }

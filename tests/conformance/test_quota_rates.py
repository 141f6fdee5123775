"""The throttle times of random histories, compared with those that Apache Kafka's own classes compute."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from replication.quota_rates import QuotaWindows, SampledRate, TokenBucket
from tests.support.goldens import check_golden, golden
from tests.support.kafka import needs_kafka, tool_command
from tests.support.line_process import LineProcess

START_MS = 10_000_000
ORACLE = Path(__file__).parents[1] / "oracle" / "QuotaRates.java"


class History(NamedTuple):
    """Values recorded under one quota."""

    kind: str
    windows: QuotaWindows
    bound: float
    values: list[tuple[int, float]]
    """Time in milliseconds, and value."""

    def line(self) -> str:
        """The question for the Java program."""
        samples, window_ms = self.windows
        values = " ".join(f"{time_ms} {value!r}" for time_ms, value in self.values)
        return f"{self.kind} {samples} {window_ms // 1000} {self.bound!r} {values}"

    def throttle_times(self) -> list[int]:
        """Our answer."""
        times = []
        rate, bucket = SampledRate(self.windows), TokenBucket(self.windows)
        for time_ms, value in self.values:
            if self.kind == "rate":
                rate.record(value, time_ms)
                times.append(rate.throttle_ms(self.bound, time_ms))
            else:
                bucket.record(value, self.bound, time_ms)
                times.append(bucket.throttle_ms(self.bound, time_ms))
        return times


def histories() -> dict[str, History]:
    """Histories with bursts, pauses, corrections, and quotas that are often exceeded."""
    rng = random.Random(5)
    found = {}
    for number in range(40):
        kind = ("rate", "bucket")[number % 2]
        windows = QuotaWindows(rng.choice((1, 2, 11, 11, 11)), rng.choice((1000, 1000, 2000)))
        bound = rng.choice((0.5, 10.0, 1000.0, 1e6))
        now_ms, values = START_MS, []
        for _ in range(60):
            now_ms += rng.choice((0, 1, 17, 250, 999, 1000, 1001, 5000, rng.randrange(30_000)))
            values.append((now_ms, round(bound * rng.choice((0, 0.1, 0.9, 3, 15, -0.5)), 3)))
        found[f"{number} {kind}"] = History(kind, windows, bound, values)
    return found


def test_throttle_times_are_those_of_apache_kafka() -> None:
    recorded = golden("quota_rates")
    answers = {name: history.throttle_times() for name, history in histories().items()}
    assert sum(time > 0 for times in answers.values() for time in times) > 500
    assert answers == recorded


@needs_kafka
@pytest.mark.golden
def test_apache_kafkas_throttle_times() -> None:
    program = LineProcess(tool_command(str(ORACLE)))
    try:
        answers = {name: [*map(int, program.ask(history.line()).split())] for name, history in histories().items()}
    finally:
        program.stop()
    check_golden("quota_rates", answers)

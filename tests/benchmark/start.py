"""Start to the first answer, and memory and processor time at rest, beside Apache Kafka in one run.

Both start on an empty directory; Kafka's formatting, a program of its own, is not counted against it. Memory is what
the process holds alone, and its share of what it holds with others (PSS).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from barnabas.embedded import Broker
from tests.support.kafka import STOCK_JVM, ApacheKafka, why_no_kafka

RUNS = 5
KAFKA_RUNS = 3
REST_S = 5.0
AIM = 0.15


class Figures(NamedTuple):
    """One start."""

    start_s: float
    memory_mib: float
    cpu_percent: float


def at_rest(pid: int, start_s: float) -> Figures:
    """Let the process settle, then watch it doing nothing."""
    process = psutil.Process(pid)
    time.sleep(REST_S)
    before = process.cpu_times()
    time.sleep(REST_S)
    after = process.cpu_times()
    used = (after.user + after.system) - (before.user + before.system)
    return Figures(start_s, process.memory_full_info().pss / 2**20, 100 * used / REST_S)


def barnabas_once() -> Figures:
    started = time.monotonic()
    with Broker() as broker:
        return at_rest(broker.pid, time.monotonic() - started)


def kafka_once() -> Figures:
    with ApacheKafka(jvm=STOCK_JVM) as kafka:
        return at_rest(kafka.pid, kafka.start_s)


def median(run: Callable[[], Figures], times: int) -> Figures:
    runs = [run() for _ in range(times)]
    return Figures(*(statistics.median(column) for column in zip(*runs, strict=True)))


def main() -> int:
    if (reason := why_no_kafka()) is not None:
        print(f"Nothing to compare with: {reason}")
        return 0
    ours, theirs = median(barnabas_once, RUNS), median(kafka_once, KAFKA_RUNS)
    print(f"{'median':26}{'Barnabas':>12}{'Apache Kafka':>14}{'ratio':>8}")
    missed = 0
    for name, mine, other in zip(("start, s", "memory at rest, MiB", "CPU at rest, %"), ours, theirs, strict=True):
        ratio = mine / other if other else 0.0
        missed += ratio > AIM
        print(f"{name:26}{mine:12.2f}{other:14.2f}{ratio:8.3f}{'' if ratio <= AIM else '  missed'}")
    print(f"Python {sys.version.split()[0]}, load {Path('/proc/loadavg').read_text().split()[0]} at the end")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

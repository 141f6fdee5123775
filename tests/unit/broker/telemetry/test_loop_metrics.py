"""The counters of the event loop (broker/telemetry/loop_metrics.py)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from broker.process.watchdog import Stall, StallLog
from broker.telemetry.loop_metrics import CPU, CPU_WAIT, PROCESS_CPU, STALL_SECONDS, STALLS, LoopMetrics

WORK_S = 0.03


def ignore(_line: str) -> None:
    """No log lines."""


def value(metrics: LoopMetrics, name: str) -> float:
    (sample,) = metrics.numbers(name)
    assert sample.is_counter
    assert sample.labels == ()
    return sample.value


def work() -> None:
    """Uses the CPU for WORK_S."""
    started_s = time.thread_time()
    while time.thread_time() < started_s + WORK_S:
        pass


def test_the_cpu_time_of_this_thread_counts_not_that_of_others() -> None:
    metrics = LoopMetrics(StallLog(ignore))
    loop_s, process_s = value(metrics, CPU), value(metrics, PROCESS_CPU)
    other = threading.Thread(target=work)
    other.start()
    other.join()
    assert value(metrics, CPU) - loop_s < WORK_S / 2
    assert value(metrics, PROCESS_CPU) - process_s >= WORK_S
    loop_s = value(metrics, CPU)
    work()
    assert value(metrics, CPU) - loop_s >= WORK_S


def test_the_time_without_a_cpu_is_the_second_number_of_schedstat(tmp_path: Path) -> None:
    schedstat = tmp_path / "schedstat"
    schedstat.write_text("7000000000 2500000000 11\n")
    metrics = LoopMetrics(StallLog(ignore), schedstat)
    assert value(metrics, CPU_WAIT) == 2.5
    assert metrics.names(0) == [CPU, CPU_WAIT, STALLS, STALL_SECONDS, PROCESS_CPU]


def test_a_system_without_schedstat_has_no_such_metric(tmp_path: Path) -> None:
    metrics = LoopMetrics(StallLog(ignore), tmp_path / "missing")
    assert metrics.names(0) == [CPU, STALLS, STALL_SECONDS, PROCESS_CPU]


def test_stalls_are_counted() -> None:
    stalls = StallLog(ignore)
    stalls.add(Stall(0.25, 0.01, "f"), now_s=1.0)
    stalls.add(Stall(0.5, 0.01, "f"), now_s=1.0)
    metrics = LoopMetrics(stalls)
    assert value(metrics, STALLS) == 2
    assert value(metrics, STALL_SECONDS) == 0.75

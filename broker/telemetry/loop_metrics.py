"""How busy the event loop is, as counters: the share of a period in which one of them grew is its rate.

RULES    1. Nothing is measured while requests are handled: the kernel counts, and the counters are read when the page is
            requested, on the loop's own thread.
         2. The loop is busy while its thread has a CPU or waits for one. Other waits inside a callback (a disk, the
            interpreter lock) are not included; those of more than 20 ms are stalls (`process/watchdog.py`).
NOT HERE What the values mean for an operator: docs/multicore.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.process.watchdog import StallLog
from broker.telemetry.clients.received_metrics import Sample
from broker.telemetry.families import Dialect, Families, counter, percent
from broker.telemetry.rates import Rate

CPU: Final = "barnabas.event.loop.cpu.seconds"
CPU_WAIT: Final = "barnabas.event.loop.cpu.wait.seconds"
STALLS: Final = "barnabas.event.loop.stalls"
STALL_SECONDS: Final = "barnabas.event.loop.stall.seconds"
PROCESS_CPU: Final = "process.cpu.seconds"
"""All threads; Prometheus' usual name."""
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a CPU, nanoseconds runnable without one, time slices (Linux, Documentation/scheduler/sched-stats.rst)."""


class LoopMetrics:
    """The counters of the event loop, for the metrics page. Read them on the loop."""

    def __init__(self, stalls: StallLog, schedstat: Path = _SCHEDSTAT) -> None:
        self._stalls = stalls
        self._schedstat = schedstat

    def names(self, _now_ms: int) -> list[str]:
        """The metrics of this system: not every one counts the time without a CPU."""
        return [CPU, *([CPU_WAIT] if self._schedstat.exists() else []), STALLS, STALL_SECONDS, PROCESS_CPU]

    def numbers(self, name: str) -> list[Sample]:
        """The current value of a counter."""
        return [Sample((), self._value(name), is_counter=True)]

    def _value(self, name: str) -> float:
        if name == CPU:
            return time.thread_time()
        if name == CPU_WAIT:
            return int(self._schedstat.read_text().split()[1]) / 1e9
        if name == PROCESS_CPU:
            return time.process_time()
        return float(self._stalls.count) if name == STALLS else self._stalls.seconds

    @property
    def busy_s(self) -> float:
        """How long the loop was busy (rule 2), in seconds."""
        return sum(self._value(name) for name in self.names(0) if name in (CPU, CPU_WAIT))


class IdleMetrics:
    """The idle share of the loop in the last minute, with the names of Apache Kafka's request handlers and network threads."""

    def __init__(self, loop: LoopMetrics, mono_ms: Callable[[], int]) -> None:
        """Create it on the loop."""
        self._loop = loop
        self._mono_ms = mono_ms
        self._busy = Rate(mono_ms)
        self._began_ms, self._busy_at_start_s = mono_ms(), loop.busy_s
        self._idle_s = 0.0
        self._busy.per_second(loop.busy_s)

    def families(self) -> Families:
        """Two names of one share: here one loop does the work of both kinds of threads.

        The counter is Strimzi's metrics reporter's: its board divides the rate by 1e9.
        """
        idle = min(max(1 - self._busy.per_second(self._loop.busy_s), 0.0), 1.0)
        explanation = "Idle share of the event loop in the last minute, 0 to 1."
        handlers = "kafka_server_kafkarequesthandlerpool"
        yield percent(handlers, "RequestHandlerAvgIdle", explanation, idle)._replace(
            other_names={Dialect.CONFLUENT: f"{handlers}_requesthandleravgidlepercent_oneminuterate"}
        )
        elapsed_s = (self._mono_ms() - self._began_ms) / 1000
        idle_s = elapsed_s - (self._loop.busy_s - self._busy_at_start_s)
        self._idle_s = max(self._idle_s, idle_s)  # a counter never falls, whatever the clocks' resolution
        idle_ns = int(self._idle_s * 1e9)
        yield counter(f"{handlers}_requesthandleravgidlepercent", "Nanoseconds that the event loop was idle.", idle_ns)
        yield percent("kafka_network_socketserver", "NetworkProcessorAvgIdle", explanation, idle)

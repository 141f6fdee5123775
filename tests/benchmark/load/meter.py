"""CPU time of brokers, and latencies."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

GIB = 2**30


class Outcome(NamedTuple):
    """The result of one run of a load."""

    figures: dict[str, float]
    seconds: Sequence[float] = ()
    """The sorted latencies of the requests; empty if several were in flight."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, including its ended threads, in nanosecond resolution.

    The clock id is the one of clock_getcpuclockid(3) on Linux.
    """
    return time.clock_gettime((~pid << 3) | 2)


def device_counters(folder: Path) -> tuple[int, int, int]:
    """Writes, sectors of 512 bytes and cache flushes of the folder's block device since the start of the system."""
    number = folder.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()
    return int(stat[4]), int(stat[6]), int(stat[15])


class DeviceMeter:
    """What is written to the block device of the temporary directory, by all programs, during a `with` block and until all
    that it has written is on the device."""

    def __enter__(self) -> Self:
        os.sync()
        self._before = device_counters(Path(tempfile.gettempdir()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.sync()
        now = device_counters(Path(tempfile.gettempdir()))
        self.written_bytes = 512 * (now[1] - self._before[1])


def loopback_bytes() -> int:
    """What all programs have received over the loopback interface since the start of the system."""
    return int(Path("/sys/class/net/lo/statistics/rx_bytes").read_text())


class Meter:
    """Wall time, the CPU time of one or more brokers, and the bytes on the loopback interface during a `with` block."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.loopback_bytes = 0
        """With their headers, in both directions."""

    def __enter__(self) -> Self:
        self._bytes_before = loopback_bytes()
        self._cpu_before = sum(map(cpu_seconds, self._pids))
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall_s = time.perf_counter() - self._started
        self.cpu_s = sum(map(cpu_seconds, self._pids)) - self._cpu_before
        self.loopback_bytes = loopback_bytes() - self._bytes_before

    def throughput(self, payload_bytes: int) -> Outcome:
        """Rate and CPU time by size."""
        return Outcome({"MB/s": payload_bytes / 1e6 / self.wall_s, **self.by_size(payload_bytes)})

    def records(self, per_second: float, payload_bytes: int) -> Outcome:
        """Rate in records and CPU time by size."""
        return Outcome({"records/s": per_second, **self.by_size(payload_bytes)})

    def by_size(self, payload_bytes: int) -> dict[str, float]:
        return {"CPU s/GiB": self.cpu_s * GIB / payload_bytes}

    def each(self, seconds: list[float]) -> Outcome:
        """Latencies and the broker's CPU time per request, in microseconds."""
        seconds = sorted(seconds)
        count = len(seconds)
        figures = {
            "p50 us": seconds[count // 2] * 1e6,
            "p99 us": seconds[min(count - 1, count * 99 // 100)] * 1e6,
            "CPU us": self.cpu_s * 1e6 / count,
        }
        return Outcome(figures, seconds)

"""Memory, descriptors, disk traffic and start time of this process, with Prometheus' usual names.

RULES    1. The values are from /proc; a system without it has none. Disk traffic is what reached the disks, without the page
            cache (proc(5), /proc/PID/io); its names are those of Apache Kafka's KafkaServer.
NOT HERE CPU time (`loop_metrics.py`).
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Final

from broker.telemetry.families import Families, gauge

_PROC: Final = Path("/proc/self")
_PAGE_BYTES: Final = resource.getpagesize()


class ProcessMetrics:
    """The families of this process."""

    def families(self) -> Families:
        """A gauge for each value."""
        statm, fds = _PROC / "statm", _PROC / "fd"
        if not statm.exists():
            return
        virtual, resident = statm.read_text().split()[:2]
        yield gauge("process_virtual_memory_bytes", "Virtual memory.", int(virtual) * _PAGE_BYTES)
        yield gauge("process_resident_memory_bytes", "Resident memory.", int(resident) * _PAGE_BYTES)
        yield gauge("process_open_fds", "Open descriptors.", len(os.listdir(fds)))
        yield gauge("process_max_fds", "Limit of descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        yield gauge("process_start_time_seconds", "Start, in seconds since 1970.", self._start_s())
        traffic = dict(line.split(": ") for line in (_PROC / "io").read_text().splitlines())
        for way in ("read", "write"):
            name = f"kafka_server_kafkaserver_linux_disk_{way}_bytes"
            yield gauge(name, f"Bytes of {way}s that reached the disks since the start.", int(traffic[f"{way}_bytes"]))

    def _start_s(self) -> float:
        ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[19])
        boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return round(boot_s + ticks / os.sysconf("SC_CLK_TCK"), 2)

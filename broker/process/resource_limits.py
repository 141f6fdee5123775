"""The resources of this process: file descriptors, shared between log files and connections, and memory.

RULES    1. The descriptor limit is raised to the hard limit, as the JVM does.
         2. Log files and connections have disjoint shares. A broker without descriptors could not append and would take the
            log directory offline, so it refuses clients before that.
         3. The kernel's descriptor table gets its size at startup. When it grows later, the thread that opens a file waits some
            milliseconds for all other threads, and the table only doubles.
NOT HERE Closing files (`storage/io/file_handle_cache.py`), refusing connections (`network/listener.py`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
from typing import Final, NamedTuple

_log = logging.getLogger("barnabas.config")

MAX_OPEN_FILES: Final = "barnabas.log.max.open.files"
RESERVED_DESCRIPTORS: Final = 64
"""For listeners, lock files, the event loop, standard streams, imports and the pipes of the compaction processes."""
_LOW_LIMIT: Final = 4096
"""A lower limit is a warning: it is less than a service needs."""
_UNLIMITED: Final = 1 << 20
"""The limit where the system has none."""
_MEMORY_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class DescriptorLimits(NamedTuple):
    """The most descriptors for log files and for connections."""

    files: int
    connections: int


def raise_descriptor_limit() -> int:
    """Raises the soft limit of descriptors to the hard limit; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def grow_descriptor_table(count: int) -> None:
    """Grows the kernel's table for `count` descriptors, within the limit (rule 3)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, min(count, soft) - 1))
    finally:
        os.close(descriptor)


def allocate_descriptors(limit: int, wanted_files: int) -> DescriptorLimits:
    """Divides the descriptors between log files and connections; by default (-1) log files get half."""
    free = max(limit - RESERVED_DESCRIPTORS, 4)
    most_files = free * 3 // 4
    files = free // 2 if wanted_files < 0 else wanted_files
    if limit < _LOW_LIMIT:
        _log.warning(
            "the limit of open files is %d: at most %d connections, and %d log files are kept open; raise it (ulimit -n, "
            "LimitNOFILE=)",
            limit,
            free - min(files, most_files),
            min(files, most_files),
        )
    if files > most_files:
        _log.warning(
            "%s=%d is above %d, three quarters of the descriptor limit (ulimit -n); using the latter",
            MAX_OPEN_FILES,
            files,
            most_files,
        )
        files = most_files
    return DescriptorLimits(files, free - files)


def memory_bytes(limits: tuple[str, ...] = _MEMORY_LIMITS) -> int:
    """The memory of the machine, or the limit of the control group if it is lower."""
    allowed = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:  # another cgroup version, or no cgroup
            continue
        if text.isdigit():  # "max" means unlimited
            allowed.append(int(text))
    return min(allowed)

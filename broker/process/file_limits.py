"""How many descriptors the process may have, and who gets them: files of logs, connections, and a few for the rest.

RULES    1. The limit is raised as far as the system allows, as Java does by itself.
         2. The shares do not overlap: who runs out of descriptors amid an append would have to take a log directory for
            broken, so clients are refused before that.
         3. The table that the kernel keeps of them is made large enough at once. When it grows, who opened a file waits until
            every thread has let go of the smaller one, some milliseconds, and it doubles only.
NOT HERE Closing files (`storage/io/file_handle_cache.py`), refusing connections (`network/listener.py`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
from typing import Final, NamedTuple

_log = logging.getLogger("barnabas.config")

SETTING: Final = "barnabas.log.max.open.files"
OTHERS: Final = 64
"""Listeners, lock files, the event loop, standard streams, what is imported, the helper's pipes."""
_ENOUGH: Final = 1 << 20
"""Where the system has no limit."""


class Shares(NamedTuple):
    """The most that each may have open."""

    files: int
    connections: int


def raise_limit() -> int:
    """Have as many descriptors as the system allows; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _ENOUGH if hard == resource.RLIM_INFINITY else hard


def make_room(count: int) -> None:
    """Have room for so many, and as many as are allowed, in the kernel's table (rule 3)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, min(count, soft) - 1))
    finally:
        os.close(descriptor)


def share_out(limit: int, wanted_files: int) -> Shares:
    """Who gets how many; without a wish (-1) files of logs get half."""
    free = max(limit - OTHERS, 4)
    most_files = free * 3 // 4
    files = free // 2 if wanted_files < 0 else wanted_files
    if files > most_files:
        _log.warning(
            "%s=%d is more than %d, three quarters of the descriptors that the system allows (ulimit -n): that many it is",
            SETTING,
            files,
            most_files,
        )
        files = most_files
    return Shares(files, free - files)

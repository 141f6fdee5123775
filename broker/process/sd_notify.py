"""Notifies systemd (Type=notify) of the state of the daemon; without systemd nothing happens.

RULES    1. A notification is a datagram to NOTIFY_SOCKET: lines of the form NAME=VALUE, as sd_notify(3) defines them.
         2. While logs are recovered, each recovered log extends the start timeout by EXTENSION_S: a long recovery is not
            interrupted, a recovery without progress is.
         3. With WatchdogSec= the loop sends WATCHDOG=1 twice in that time: systemd restarts a daemon whose loop hangs.
NOT HERE The unit (config/systemd/barnabas.service), stalls of the loop (`watchdog.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final

_log = logging.getLogger("barnabas.systemd")

EXTENSION_S: Final = 120
"""Recovery of one log, which reads at most what was written since its last flush."""
_SOCKET: Final = "NOTIFY_SOCKET"


def notify(*lines: str) -> None:
    """Sends one notification; one that cannot be sent is a log line, since systemd acts on those that it misses."""
    path = os.environ.get(_SOCKET)
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            _log.warning("systemd was not notified of %s: %s", lines[0], error.strerror)


def notify_recovered(log: str) -> None:
    """A log was recovered at startup (rule 2)."""
    notify(f"STATUS=recovering logs: {log} is done", f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")


def notify_ready(loop: asyncio.AbstractEventLoop, where: str) -> None:
    """The daemon accepts requests at this address; from now on the loop reports that it runs (rule 3)."""
    notify("READY=1", f"STATUS=ready on {where}")
    watched = os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    interval_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2_000_000
    if watched and interval_s and os.environ.get(_SOCKET):
        _report(loop, interval_s)


def _report(loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
    notify("WATCHDOG=1")
    loop.call_later(interval_s, _report, loop, interval_s)


def notify_stopping() -> None:
    """The daemon shuts down: other brokers take over its partitions, then the logs are closed durably."""
    notify("STOPPING=1", "STATUS=shutting down")

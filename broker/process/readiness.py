"""The ready line, and what else says that the daemon accepts requests."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

from broker.process.event_loop import process_age_s
from broker.process.sd_notify import notify_ready

_log = logging.getLogger("barnabas")

_STANDARD_OUTPUT: Final = 1


def announce_ready(loop: asyncio.AbstractEventLoop, host: str, port: int, node_id: int) -> None:
    """Prints the ready line, with the address of the first listener, and notifies systemd.

    A line that cannot be written, as on a full disk, is no reason not to serve.
    """
    host = host or "0.0.0.0"  # noqa: S104
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    line = f"barnabas ready on {where} (node {node_id}, {process_age_s():.2f} s)\n"
    try:
        os.write(_STANDARD_OUTPUT, line.encode())
    except OSError as error:
        _log.warning("the ready line cannot be written to standard output: %s", error.strerror)
    notify_ready(loop, where)

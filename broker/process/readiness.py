"""The ready line, and what else says that the daemon accepts requests."""

from __future__ import annotations

import asyncio
import sys

from broker.process.event_loop import process_age_s
from broker.process.sd_notify import notify_ready


def announce_ready(loop: asyncio.AbstractEventLoop, host: str, port: int, node_id: int) -> None:
    """Prints the ready line, with the address of the first listener, and notifies systemd."""
    host = host or "0.0.0.0"  # noqa: S104
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sys.stdout.write(f"barnabas ready on {where} (node {node_id}, {process_age_s():.2f} s)\n")
    sys.stdout.flush()
    notify_ready(loop, where)

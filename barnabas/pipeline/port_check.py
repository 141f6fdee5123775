"""Checks that an address accepts connections, before a client is started that would retry for half a minute or more.

RULES    1. One reachable address of several is enough; otherwise the first error is reported.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from barnabas.pipeline.errors import JobError

CONNECT_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 0.5


def check_reachable(server: str, url: str, within_s: float = 0.0) -> None:
    """Connects to one of [scheme://]HOST:PORT[,HOST:PORT...]; retries for `within_s` seconds. Raises JobError."""
    deadline_s = time.monotonic() + within_s
    while error := _connect_error(url.rpartition("://")[2].split(",")):
        if time.monotonic() >= deadline_s:
            raise JobError(f"No {server} answers at {url}: {error}.")
        time.sleep(RETRY_PAUSE_S)


def _connect_error(addresses: Iterable[str]) -> str:
    """The first error; empty if an address accepted the connection."""
    errors = []
    for address in addresses:
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            errors.append(f"{address.strip()!r} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError, UnicodeError) as failure:
            errors.append(getattr(failure, "strerror", None) or str(failure))
        else:
            return ""
    return errors[0]


def addresses_of(servers: str) -> list[tuple[str, int]]:
    """The host and port of each of HOST:PORT[,HOST:PORT...] that has this form."""
    parts = (address.strip().rpartition(":") for address in servers.split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in parts if host and port.isdecimal()]

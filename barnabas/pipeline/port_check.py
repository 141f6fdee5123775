"""Whether anybody listens at an address, asked before something is started that would try for half a minute or more.

RULES    1. One of several addresses is enough; of none the first refusal is told.
NOT HERE What whoever listens there is (`brokers.py`, `session.py`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

CONNECT_LIMIT_S = 5.0
LOOK_EVERY_S = 0.5


class NobodyListens(Exception):
    """Nobody does; the message says why."""


def see_that_somebody_listens(addresses: str, within_s: float = 0.0) -> None:
    """Connect to one of HOST:PORT[,HOST:PORT...], or say why that cannot be done; `within_s`: it may be about to start."""
    over_s = time.monotonic() + within_s
    while refusal := _refusal(addresses.split(",")):
        if time.monotonic() >= over_s:
            raise NobodyListens(refusal)
        time.sleep(LOOK_EVERY_S)


def _refusal(addresses: Iterable[str]) -> str:
    """Why nobody can be reached; nothing when somebody can."""
    refusals = []
    for address in addresses:
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            refusals.append(f"{address.strip()!r} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_LIMIT_S).close()
        except (OSError, OverflowError, UnicodeError) as failure:
            refusals.append(str(failure))
        else:
            return ""
    return refusals[0]

"""Whether anybody listens at an address, asked before something is started that would try for half a minute.

RULES    1. One of several addresses is enough; of none the first refusal is told.
NOT HERE What whoever listens there is (`brokers.py`, `session.py`).
"""

from __future__ import annotations

import socket

CONNECT_LIMIT_S = 5.0


class NobodyListens(Exception):
    """Nobody does; the message says why."""


def see_that_somebody_listens(addresses: str) -> None:
    """Connect to one of HOST:PORT[,HOST:PORT...], or say why that cannot be done."""
    refusals = []
    for address in addresses.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            refusals.append(f"{address.strip()!r} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_LIMIT_S).close()
        except (OSError, OverflowError, UnicodeError) as failure:
            refusals.append(str(failure))
        else:
            return
    raise NobodyListens(refusals[0])

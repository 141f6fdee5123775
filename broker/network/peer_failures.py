"""Logs which nodes cannot be reached, why, and when they can be again.

RULES    1. A reason is logged when it is new for a node, then once a minute with the time since the first failure.
         2. The first connection after that is logged. It ends the failure, and the next one is logged at once.
         3. The nodes are those of the cluster: they are few, and none is forgotten.
"""

from __future__ import annotations

import logging
import ssl
from socket import gaierror
from typing import Final, NamedTuple

from broker.network.repeated_lines import RepeatedLines

_log = logging.getLogger("barnabas.peers")


class _Failing(NamedTuple):
    """A node that does not answer."""

    since_s: float
    lines: RepeatedLines


class PeerFailures:
    """The nodes that cannot be reached, as "the node at HOST:PORT", or "node ID" if that has no address.

    Times are of the monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self._failing: dict[str, _Failing] = {}

    def on_failed(self, name: str, reason: str, now_s: float) -> None:
        """No connection was made."""
        failing = self._failing.setdefault(name, _Failing(now_s, RepeatedLines()))
        if failing.lines.count_if_due(reason, now_s) is not None:
            seconds = round(now_s - failing.since_s)
            _log.warning("cannot connect to %s%s: %s", name, f" for {seconds} s" if seconds else "", reason)

    def on_connected(self, name: str, now_s: float) -> None:
        """A connection was made, and this node is authenticated if that is required."""
        failing = self._failing.pop(name, None)
        if failing is not None:
            _log.info("connected to %s, after %.1f s of failures", name, now_s - failing.since_s)


PEER_FAILURES: Final = PeerFailures()
"""All connections of the process share it: a node has several to the same address."""


def reason_of(error: Exception) -> str:
    """Why a connection was not made, or ended, for a log line."""
    if isinstance(error, gaierror):
        return f"the host name does not resolve: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error}"
    if isinstance(error, UnicodeError):
        return "the host name is not valid"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    return getattr(error, "strerror", None) or str(error)

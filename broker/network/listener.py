"""Accepting connections: one listening socket, its open connections, their limits.

RULES    1. A connection above `max.connections` or `max.connections.per.ip` is closed at once; one log line a second.
         2. A connection that moves no byte for `connections.max.idle.ms` is closed, a stalled reader too.
         3. The kernel's send buffer of a connection is bounded by `socket.send.buffer.bytes` (design D5).
         4. While it turns clients away, every connection is closed at once: they go to another node.
NOT HERE What a connection does (`connection.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections import Counter

from broker.config.broker_config import SocketSettings
from broker.network.connection import Connection
from broker.network.exchange import ConnectionInfo, Dispatch
from broker.network.page_cache_prefetch import Warmer
from broker.network.socket_io import PlainWire
from broker.security.authorizer import ANONYMOUS
from protocol.framing import SCRATCH_BYTES, FrameReader

_log = logging.getLogger("barnabas.network")

_ACCEPTS_PER_TURN = 64
_LEAST_BACKLOG = 1024
"""Kafka's 50 are emptied by a thread of their own. Here they wait for the loop, and a client that finds the queue full
tries again only after a second."""
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """One listening socket and the connections that came in through it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        host: str,
        port: int,
        dispatch: Dispatch,
        settings: SocketSettings,
    ) -> None:
        self._loop = loop
        self.name = name
        self._dispatch = dispatch
        self.settings = settings
        """Those of limits may change."""
        self._scratch = bytearray(SCRATCH_BYTES)
        self._connections: set[Connection] = set()
        self._per_ip: Counter[str] = Counter()
        self._next_connection_id = 1
        self._refusal_logged_mono_s = 0.0
        self._turns_away = False
        self._socket = _listening_socket(host, port, settings)
        self.warmer: Warmer | None = None
        """Who reads what is cold; None: the loop itself."""
        self.most_descriptors: int | None = None
        """More connections would take the descriptors of files; None: no limit."""
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    def __len__(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        """Begin to accept."""
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting and end every connection; harmless when that is done."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._close_connections()

    def turn_away(self, turns_away: bool) -> None:  # noqa: FBT001
        """End every connection, and those that come, until told False."""
        self._turns_away = turns_away
        if turns_away:
            self._close_connections()

    def _close_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()

    def close_idle(self, mono_ms: int) -> int | None:
        """End connections that have been idle too long; when the next one may become so (None: never)."""
        limit_ms = self.settings.connections_max_idle_ms
        if limit_ms < 0:
            return None
        oldest = mono_ms
        for connection in list(self._connections):
            if mono_ms - connection.last_active_mono_ms >= limit_ms:
                connection.close()
            else:
                oldest = min(oldest, connection.last_active_mono_ms)
        return oldest + limit_ms

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            self._admit(accepted, peer)

    def _cannot_accept(self, error: OSError) -> None:
        self._complain(f"cannot accept a connection: {error.strerror}")
        if error.errno in _OUT_OF_DESCRIPTORS:  # the listener stays readable: come back later instead of spinning
            descriptor = self._socket.fileno()
            self._loop.remove_reader(descriptor)
            self._loop.call_later(0.1, self._accept_again)

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self.start()

    def _admit(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        settings = self.settings
        peer_host = peer[0]
        if self._turns_away:
            accepted.close()
            return
        if len(self._connections) >= settings.max_connections:
            self._complain(f"more than max.connections={settings.max_connections} connections; {peer_host} is refused")
            accepted.close()
            return
        if self.most_descriptors is not None and len(self._connections) >= self.most_descriptors:
            self._complain(
                f"only {self.most_descriptors} descriptors (ulimit -n) are for connections; {peer_host} is refused"
            )
            accepted.close()
            return
        if self._per_ip[peer_host] >= settings.max_connections_per_ip:
            self._complain(
                f"more than max.connections.per.ip={settings.max_connections_per_ip} connections from {peer_host}"
            )
            accepted.close()
            return
        try:
            local = accepted.getsockname()
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if settings.send_buffer_bytes > 0:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        except OSError:  # reset between connect and here
            accepted.close()
            return
        info = ConnectionInfo(self._next_connection_id, self.name, local[:2], peer[:2], ANONYMOUS)
        self._next_connection_id += 1
        connection = Connection(
            self._loop,
            PlainWire(accepted),
            info,
            self._dispatch,
            FrameReader(settings.request_max_bytes, self._scratch),
            self._forget,
            self.warmer,
        )
        self._connections.add(connection)
        self._per_ip[peer_host] += 1
        connection.start()

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        host = connection.info.peer_host
        self._per_ip[host] -= 1
        if self._per_ip[host] <= 0:
            del self._per_ip[host]

    def _complain(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._refusal_logged_mono_s >= 1:
            self._refusal_logged_mono_s = now
            _log.warning("%s: %s", self.name, sentence)


def _listening_socket(host: str, port: int, settings: SocketSettings) -> socket.socket:
    """Bind and listen.

    Raises:
        OSError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    if family is socket.AF_INET6 and not socket.has_ipv6:
        family, host = socket.AF_INET, "0.0.0.0"  # noqa: S104
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if settings.receive_buffer_bytes > 0:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        listening.setblocking(False)
        listening.bind((host, port))
        listening.listen(max(settings.listen_backlog_size, _LEAST_BACKLOG))
    except OSError:
        listening.close()
        raise
    return listening

"""Accepts connections on one listening socket and enforces their limits.

RULES    1. Above a limit of `ConnectionQuotas` the listening socket is not watched, so that clients wait in its queue and other
            listeners are served; or the connection is closed, now or later. One log line a second.
         2. A connection that moves no byte for `connections.max.idle.ms` is closed, also while it has unsent bytes.
         3. `socket.send.buffer.bytes` bounds the kernel's send buffer of a connection.
         4. With TLS, a connection begins when its handshake is complete; handshakes count as connections.
         5. A client of a listener with SASL that is not authenticated within LOGIN_TIMEOUT_S is closed, also while it sends.
         6. While the listener rejects clients, it closes every connection, so that clients go to another broker.
NOT HERE The work of a connection (`connection.py`), of a handshake (`tls_handshake.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from functools import partial

from broker.config.broker_config import SocketSettings
from broker.config.connection_configs import canonical_address
from broker.io.worker_thread import WorkerThread
from broker.network.closing_log import log_closing
from broker.network.connection import Connection
from broker.network.descriptor_share import DescriptorShare
from broker.network.exchange import ConnectionInfo, Dispatcher
from broker.network.page_cache_prefetch import PageCachePrefetcher
from broker.network.socket_io import PlaintextTransportLayer
from broker.network.tls_handshake import TlsHandshake
from broker.network.tls_transport import TlsBuffers, TlsTransportLayer
from broker.process.timer import mono_ms
from broker.quotas.connection_quotas import ConnectionQuotas
from broker.security.authorizer import ANONYMOUS
from broker.security.tls_context import ListenerTls
from broker.telemetry.authentication_metrics import AuthenticationMetrics, Outcome
from protocol.framing import SCRATCH_BYTES, FrameReader

_log = logging.getLogger("barnabas.network")

LOGIN_TIMEOUT_S = 30.0
_ACCEPTS_PER_TURN = 64
_MIN_BACKLOG = 1024
"""Kafka's default of 50 suffices for its acceptor thread. Here connections wait for the event loop, and a client that finds
the queue full retries only after a second.
"""
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


Authentication = Callable[[FrameReader], Dispatcher]
"""Creates the dispatcher of a connection, which authenticates the client before it serves requests."""


class Listener:
    """One listening socket and its connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        host: str,
        port: int,
        dispatcher: Dispatcher,
        settings: SocketSettings,
        tls: ListenerTls | None = None,
        authentication: Authentication | None = None,
        quotas: ConnectionQuotas | None = None,
        authentications: AuthenticationMetrics | None = None,
    ) -> None:
        """With `authentication`, clients are not served before they are authenticated. Listeners can share `quotas`.

        `authentications` counts handshakes, if there is `tls`.
        """
        self._loop = loop
        self.name = name
        self._dispatcher = dispatcher
        self._authentication = authentication
        self.settings = settings
        """The limits can change at run time."""
        self._scratch = bytearray(SCRATCH_BYTES)
        self._connections: set[Connection] = set()
        self._logins: dict[Connection, asyncio.TimerHandle] = {}
        self._held: set[socket.socket] = set()
        """Accepted sockets that wait for a rate or a slot."""
        self.quotas = quotas or ConnectionQuotas()
        self.quotas.add_listener(name, lambda: self._connections)
        self._authentications = authentications
        self._tls = None if tls is None else _ListenerHandshakes(loop, tls, self._count_handshake)
        if authentications is not None and tls is not None:
            authentications.add_listener(name)
        self._next_connection_id = 1
        self._refusal_logged_mono_s = 0.0
        self._is_rejecting = False
        self._socket = _listening_socket(host, port, settings)
        self.prefetcher: PageCachePrefetcher | None = None
        """Reads uncached regions in a thread; None: the event loop reads them."""
        self.descriptor_share: DescriptorShare | None = None
        """The descriptors for connections; None: no limit."""
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._connections)

    def start(self) -> None:
        """Starts to accept."""
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stops accepting and closes all connections; may be called twice."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for held in self._held:
            held.close()
        self._held.clear()
        self._close_connections()
        if self._tls is not None:
            self._tls.stop()

    def reject_clients(self, is_rejecting: bool) -> None:  # noqa: FBT001
        """Closes all connections, present and new, until called with False."""
        self._is_rejecting = is_rejecting
        if is_rejecting:
            self._close_connections()

    def _close_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()
        if self._tls is not None:
            self._tls.close()

    def close_idle(self, mono_ms: int) -> int | None:
        """Closes the connections that are idle for too long.

        Returns:
            The time at which the next one may be, in monotonic milliseconds; None: never.
        """
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
            if not self.quotas.has_slot(self.name):
                self._await_slot(self._resume_accepting)
                return
            try:
                accepted, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._on_accept_error(error)
                return
            wait_ms = 0 if self._is_rejecting else self.quotas.record(self.name, mono_ms())
            if wait_ms:
                self._loop.remove_reader(self._socket.fileno())
                self._hold(accepted, wait_ms, partial(self._admit_held, accepted, peer))
                return
            self._admit(accepted, peer)

    def _hold(self, accepted: socket.socket, duration_ms: int, then: Callable[[], None]) -> None:
        self._held.add(accepted)
        self._loop.call_later(duration_ms / 1000, then)

    def _await_slot(self, then: Callable[[], None]) -> None:
        """Stops accepting until a connection closes or a limit is raised."""
        self._log_refusal("no more connections are accepted: the limit of max.connections is reached")
        self._loop.remove_reader(self._socket.fileno())
        self.quotas.when_free(self.name, lambda: self._soon(then))

    def _soon(self, then: Callable[[], None]) -> None:
        self._loop.call_soon(then)

    def _admit_held(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        """The rates allow the next connection; if there is no slot for it, it waits on."""
        if accepted not in self._held:  # the listener is closed
            return
        if not self.quotas.has_slot(self.name):
            self._await_slot(partial(self._admit_held, accepted, peer))
            return
        self._held.remove(accepted)
        self._admit(accepted, peer)
        self._resume_accepting()

    def _close_held(self, accepted: socket.socket) -> None:
        self._held.discard(accepted)
        accepted.close()

    def _on_accept_error(self, error: OSError) -> None:
        self._log_refusal(f"cannot accept a connection: {error.strerror}")
        if error.errno in _OUT_OF_DESCRIPTORS:  # the listener stays readable: pause instead of spinning
            descriptor = self._socket.fileno()
            self._loop.remove_reader(descriptor)
            self._loop.call_later(0.1, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._socket.fileno() >= 0:
            self.start()

    def _admit(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        settings = self.settings
        peer_host = peer[0]
        if "." in peer_host:  # on a socket for IPv6 too, this is an IPv4 address that IPv6 maps
            peer_host = peer_host.removeprefix("::ffff:")
        address = canonical_address(peer_host)
        if self._is_rejecting or self._has_no_descriptor(peer_host):
            accepted.close()
            return
        delay_ms = self.quotas.record_address(self.name, address, mono_ms())
        if delay_ms:
            self._log_refusal(f"{peer_host} exceeds its connection_creation_rate")
            self._hold(accepted, delay_ms, partial(self._close_held, accepted))
            return
        try:
            local = accepted.getsockname()
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if settings.send_buffer_bytes > 0:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        except OSError:  # the peer has reset it
            accepted.close()
            return
        if not self.quotas.add(self.name, address):
            maximum = self.quotas.max_of_address(address)
            self._log_refusal(f"more than {maximum} connections from {peer_host} (max.connections.per.ip)")
            accepted.close()
            return
        info = ConnectionInfo(self._next_connection_id, self.name, local[:2], (peer_host, peer[1]), ANONYMOUS)
        self._next_connection_id += 1
        if self._tls is None:
            self._open_connection(PlaintextTransportLayer(accepted), info).start()
        else:
            self._tls.start(accepted, info, self._on_handshaken, self._on_closed)

    def _open_connection(self, transport: PlaintextTransportLayer, info: ConnectionInfo) -> Connection:
        reader = FrameReader(self.settings.request_max_bytes, self._scratch)
        connection = Connection(
            self._loop,
            transport,
            info,
            self._dispatcher if self._authentication is None else self._authentication(reader),
            reader,
            self._on_connection_closed,
            self.prefetcher,
            self.quotas.has_several_active,
        )
        self._connections.add(connection)
        if self._authentication is not None:
            info.is_authenticated = False
            self._logins[connection] = self._loop.call_later(LOGIN_TIMEOUT_S, self._on_login_timeout, connection)
        return connection

    def _on_login_timeout(self, connection: Connection) -> None:
        del self._logins[connection]
        info = connection.info
        if not info.is_authenticated:
            log_closing(info.peer_host, info.peer_port, f"it is not authenticated after {LOGIN_TIMEOUT_S:g} s")
            connection.close()

    def _on_handshaken(self, transport: TlsTransportLayer, info: ConnectionInfo) -> None:
        connection = self._open_connection(transport, info)
        transport.on_buffered = connection.receive_soon
        connection.start()

    def _count_handshake(self, *, has_failed: bool) -> None:
        if self._authentications is not None and has_failed:
            self._authentications.count(self.name, Outcome.FAILED)
        elif self._authentications is not None and self._authentication is None:  # else the login counts
            self._authentications.count(self.name, Outcome.SUCCESSFUL)

    @property
    def descriptors(self) -> int:
        """How many the connections have, with held sockets and handshakes."""
        handshakes = 0 if self._tls is None else len(self._tls.running)
        return len(self._connections) + len(self._held) + handshakes

    def _has_no_descriptor(self, peer_host: str) -> bool:
        """Whether log files or other listeners need the descriptor of one more connection."""
        share = self.descriptor_share
        if share is None or not share.is_used_up(self):
            return False
        self._log_refusal(f"only {share.limit} descriptors (ulimit -n) are for connections; {peer_host} is refused")
        return True

    def _on_connection_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        timeout = self._logins.pop(connection, None)
        if timeout is not None:
            timeout.cancel()
        self._on_closed(connection.info)

    def _on_closed(self, info: ConnectionInfo) -> None:
        self.quotas.remove(self.name, canonical_address(info.peer_host))

    def _log_refusal(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._refusal_logged_mono_s >= 1:
            self._refusal_logged_mono_s = now
            _log.warning("%s: %s", self.name, sentence)


class _ListenerHandshakes:
    """The TLS handshakes of a listener."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ListenerTls, count: Callable[..., None]) -> None:
        """`count` is called with `has_failed` at the end of a handshake, unless the client is gone."""
        self._loop = loop
        self._tls = tls
        self._count = count
        self._steps = WorkerThread(loop, "tls-handshakes")
        self._buffers = TlsBuffers()
        self.running: set[TlsHandshake] = set()

    def close(self) -> None:
        """Closes the handshakes that run."""
        for handshake in list(self.running):
            handshake.close()

    def stop(self) -> None:
        """Ends the thread; no handshake starts any more."""
        self._steps.stop()

    def start(
        self,
        accepted: socket.socket,
        info: ConnectionInfo,
        on_complete: Callable[[TlsTransportLayer, ConnectionInfo], None],
        on_closed: Callable[[ConnectionInfo], None],
    ) -> None:
        """Starts a handshake; one of the callbacks is called at its end."""

        def complete(handshake: TlsHandshake) -> None:
            info.principal = self._tls.principal(handshake.transport.peer_certificate())
            self.running.discard(handshake)
            self._count(has_failed=False)
            on_complete(handshake.transport, info)

        def closed(handshake: TlsHandshake) -> None:
            self.running.discard(handshake)
            if handshake.has_failed:
                self._count(has_failed=True)
            on_closed(info)

        transport = TlsTransportLayer(accepted, self._tls.context, self._buffers)
        peer = info.peer_host, info.peer_port
        self.running.add(TlsHandshake(self._loop, self._steps, transport, peer, complete, closed))


def _listening_socket(host: str, port: int, settings: SocketSettings) -> socket.socket:
    """Binds and listens.

    Raises:
        OSError: the address is in use or not local.
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
        listening.listen(max(settings.listen_backlog_size, _MIN_BACKLOG))
    except OSError:
        listening.close()
        raise
    return listening

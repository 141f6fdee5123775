"""TLS handshakes of a listener: a connection begins when its handshake is complete.

RULES    1. A handshake continues when its socket is ready, and one step of one handshake runs in each iteration of the loop: a
            signature takes up to a few milliseconds, and between two of them the loop serves established connections.
         2. A handshake that takes longer than `HANDSHAKE_TIMEOUT_S` is closed.
         3. A failed handshake costs one log line; a peer that connects and leaves without a byte costs none.
NOT HERE Bytes (`tls_transport.py`), limits on connections (`listener.py`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.network.tls_transport import TlsTransportLayer, reason
from broker.security.ssl_principal import NoPrincipal

_log = logging.getLogger("barnabas.network")

HANDSHAKE_TIMEOUT_S: Final = 30.0
_PLAINTEXT_REASONS: Final = ("wrong version number", "http request", "unknown protocol", "packet length too long")


class HandshakeTurns:
    """The handshakes of a listener that can continue, oldest first (rule 1)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[TlsHandshake] = deque()

    def add(self, handshake: TlsHandshake) -> None:
        """Lets a handshake continue when those before it have."""
        self._ready.append(handshake)
        if len(self._ready) == 1:
            self._loop.call_soon(self._run_one)

    def _run_one(self) -> None:
        self._ready[0].step()
        self._ready.popleft()
        if self._ready:
            self._loop.call_soon(self._run_one)


class TlsHandshake:
    """The handshake of one accepted socket."""

    __slots__ = ("_loop", "_on_closed", "_on_complete", "_peer", "_timeout", "_turns", "is_closed", "transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: HandshakeTurns,
        transport: TlsTransportLayer,
        peer: tuple[str, int],
        on_complete: Callable[[TlsHandshake], None],
        on_closed: Callable[[TlsHandshake], None],
    ) -> None:
        """`on_complete` takes over the transport; else `on_closed` is called. It may raise `NoPrincipal`."""
        self._loop = loop
        self._turns = turns
        self.transport = transport
        self._peer = peer
        self._on_complete = on_complete
        self._on_closed = on_closed
        self.is_closed = False
        self._timeout = loop.call_later(HANDSHAKE_TIMEOUT_S, self._fail, "it takes too long")
        loop.add_reader(transport.fileno(), self._on_ready)

    def close(self) -> None:
        """Closes the socket."""
        if self.is_closed:
            return
        self._end()
        self.transport.close()
        self._on_closed(self)

    def _on_ready(self) -> None:
        self._unwatch()
        self._turns.add(self)

    def step(self) -> None:
        """Continues with what the socket has."""
        if self.is_closed:
            return
        try:
            is_complete = self.transport.handshake()
            if is_complete:
                self._on_complete(self)
        except ssl.SSLError as error:
            text = reason(error)
            hint = " (does the client use TLS?)" if text in _PLAINTEXT_REASONS else ""
            self._fail(text + hint)
        except NoPrincipal as error:
            self._fail(str(error))
        except OSError as error:
            _log.debug("closing %s:%d during the TLS handshake: %s", *self._peer, error)
            self.close()
        else:
            self._watch_or_end(is_complete=is_complete)

    def _watch_or_end(self, *, is_complete: bool) -> None:
        if is_complete:
            self.is_closed = True
            self._timeout.cancel()
        elif self.transport.has_unsent:
            self._loop.add_writer(self.transport.fileno(), self._on_ready)
        else:
            self._loop.add_reader(self.transport.fileno(), self._on_ready)

    def _fail(self, sentence: str) -> None:
        _log.warning("closing %s:%d: the TLS handshake failed: %s", *self._peer, sentence)
        self.close()

    def _end(self) -> None:
        self.is_closed = True
        self._timeout.cancel()
        self._unwatch()

    def _unwatch(self) -> None:
        self._loop.remove_reader(self.transport.fileno())
        self._loop.remove_writer(self.transport.fileno())

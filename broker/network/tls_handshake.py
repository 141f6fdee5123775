"""TLS handshakes of a listener: a connection begins when its handshake is complete.

RULES    1. The socket calls of a handshake are on the event loop, its steps in a thread: a signature takes up to several
            milliseconds. Between receiving and the end of a step only the thread uses the transport.
         2. A step runs when its client has sent something. So clients that send nothing, or slowly, occupy no thread.
         3. A handshake that takes longer than `HANDSHAKE_TIMEOUT_S` is closed.
         4. A failed handshake costs one log line, or one in a minute if the same host fails again and again; a peer that
            connects and leaves without a byte costs none.
NOT HERE Bytes (`tls_transport.py`), limits on connections (`listener.py`), reasons (docs/decisions/0067).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from broker.io.worker_thread import WorkerThread
from broker.network.closing_log import log_closing
from broker.network.tls_transport import TlsTransportLayer, reason
from broker.security.ssl_principal import NoPrincipal

_log = logging.getLogger("barnabas.network")

HANDSHAKE_TIMEOUT_S: Final = 30.0
_PLAINTEXT_REASONS: Final = ("wrong version number", "http request", "unknown protocol", "packet length too long")


class TlsHandshake:
    """The handshake of one accepted socket."""

    __slots__ = (
        "_is_complete",
        "_is_stepping",
        "_loop",
        "_on_closed",
        "_on_complete",
        "_peer",
        "_steps",
        "_timeout",
        "has_failed",
        "is_closed",
        "transport",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        steps: WorkerThread,
        transport: TlsTransportLayer,
        peer: tuple[str, int],
        on_complete: Callable[[TlsHandshake], None],
        on_closed: Callable[[TlsHandshake], None],
    ) -> None:
        """`on_complete` takes over the transport; else `on_closed` is called. It may raise `NoPrincipal`."""
        self._loop = loop
        self._steps = steps
        self.transport = transport
        self._peer = peer
        self._on_complete = on_complete
        self._on_closed = on_closed
        self._is_stepping = self._is_complete = False
        self.is_closed = False
        self.has_failed = False
        """Whether it was closed because the client is not authenticated, rather than gone."""
        self._timeout = loop.call_later(HANDSHAKE_TIMEOUT_S, self._fail, "it takes too long")
        loop.add_reader(transport.fileno(), self._on_readable)

    def close(self) -> None:
        """Closes the socket, at the end of the step that runs."""
        if self.is_closed:
            return
        self.is_closed = True
        self._timeout.cancel()
        self._unwatch()
        self._on_closed(self)
        if not self._is_stepping:
            self.transport.close()

    def _on_readable(self) -> None:
        self._unwatch()
        try:
            self.transport.receive_handshake()
        except OSError as error:
            self._lose(error)
        else:
            self._step()

    def _step(self) -> None:
        """Runs a step in the thread (rule 1)."""
        failed: list[ssl.SSLError] = []

        def run() -> None:
            try:
                self._is_complete = self.transport.step_handshake()
            except ssl.SSLError as error:
                failed.append(error)

        self._is_stepping = True
        self._steps.put(run).then(lambda _: self._on_stepped(failed))

    def _on_stepped(self, failed: list[ssl.SSLError]) -> None:
        self._is_stepping = False
        if self.is_closed:
            self.transport.close()
            return
        self._flush()
        if failed and not self.is_closed:
            text = reason(failed[0])
            hint = " (does the client use TLS?)" if text in _PLAINTEXT_REASONS else ""
            self._fail(text + hint)

    def _flush(self) -> None:
        """Sends the results of the steps; then the handshake is complete, or waits for the client."""
        self._unwatch()
        try:
            is_sent = self.transport.flush()
            if is_sent and self._is_complete:
                self._on_complete(self)
                self.is_closed = True
                self._timeout.cancel()
        except NoPrincipal as error:
            self._fail(str(error))
        except OSError as error:
            self._lose(error)
        else:
            self._watch(is_sent=is_sent)

    def _watch(self, *, is_sent: bool) -> None:
        if self.is_closed:
            return
        if is_sent:
            self._loop.add_reader(self.transport.fileno(), self._on_readable)
        else:
            self._loop.add_writer(self.transport.fileno(), self._flush)

    def _lose(self, error: OSError) -> None:
        _log.debug("closing %s:%d during the TLS handshake: %s", *self._peer, error)
        self.close()

    def _fail(self, sentence: str) -> None:
        log_closing(*self._peer, f"the TLS handshake failed: {sentence}")
        self.has_failed = True
        self.close()

    def _unwatch(self) -> None:
        self._loop.remove_reader(self.transport.fileno())
        self._loop.remove_writer(self.transport.fileno())

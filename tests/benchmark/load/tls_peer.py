"""A raw client over TLS."""

from __future__ import annotations

import ssl

from tests.benchmark.load.raw import Peer


class TlsPeer(Peer):
    """As `Peer`; what it discards is decrypted before."""

    def __init__(self, bootstrap: str, context: ssl.SSLContext, suite: str) -> None:
        """Connects, and checks that both brokers use the same suite."""
        super().__init__(bootstrap)
        self._socket = tls = context.wrap_socket(self._socket, server_hostname="localhost")
        cipher = tls.cipher()
        assert cipher is not None
        assert cipher[0] == suite, cipher
        self.send, self.fileno = tls.sendall, tls.fileno

    def _skip(self, count: int) -> int:
        return self._socket.recv_into(self.buffer, min(count, len(self.buffer)))

    def _receive_length(self) -> None:
        filled = 0
        while filled < 4:
            filled += self._socket.recv_into(self.buffer[filled:], 4 - filled) or self._hung_up()

"""A relay on the loopback that records every byte of the connections through it, as a packet capture would.

RULES    1. Bytes pass unchanged and in order; a direction that ends is closed at the other side.
NOT HERE Frames and requests (`recording_proxy.py`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class ByteRelay:
    """Listens during the `with` block, and connects to a port of 127.0.0.1."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open = [self._listening]
        self.streams: list[bytearray] = []
        """Of each connection, what the client sent, and what it received."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the block was left
            while True:
                client, _ = self._listening.accept()
                broker = socket.create_connection(("127.0.0.1", self._upstream_port))
                self._open += [client, broker]
                for source, target in ((client, broker), (broker, client)):
                    stream = bytearray()
                    self.streams.append(stream)
                    threading.Thread(target=_pump, args=(source, target, stream), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, stream: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            stream += data
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)

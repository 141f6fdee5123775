"""Non-blocking socket operations: receive, send, sendfile. Tests use a fake that moves one byte at a time.

RULES    1. Every call returns the number of bytes that it moved, or None if it would block.
         2. `receive` returns 0 at the end of the peer's stream.
         3. `send_file` copies nothing through this process (sendfile(2)).
NOT HERE What is sent and when (`sender.py`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence

from protocol.file_region import FileRegion
from protocol.primitives import Buffer

_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_NO_LINGER = struct.pack("ii", 1, 0)


class PlaintextTransportLayer:
    """The unencrypted non-blocking socket of a connection (Kafka: PlaintextTransportLayer)."""

    __slots__ = ("_recv_into", "_send", "_socket", "fd")

    has_buffered = False
    """Whether received bytes are here that the socket does not announce (`tls_transport.py`)."""
    joins_regions = False
    """Whether bytes are sent together with the file region behind them, whatever its size."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._send = sock.send
        self._recv_into = sock.recv_into
        self.fd = sock.fileno()

    def fileno(self) -> int:
        """The descriptor to watch."""
        return self.fd

    def receive(self, space: bytearray | memoryview) -> int | None:
        """Receives into `space`."""
        try:
            return self._recv_into(space)
        except BlockingIOError:
            return None

    def send(self, buffer: Buffer, *, more: bool) -> int | None:
        """Sends from one buffer; `more` says that another part follows immediately."""
        try:
            return self._send(buffer, _MSG_MORE) if more else self._send(buffer)
        except BlockingIOError:
            return None

    def send_all(self, buffers: Sequence[Buffer], *, more: bool) -> int | None:
        """Sends several buffers in one call."""
        try:
            return self._socket.sendmsg(buffers, (), _MSG_MORE if more else 0)
        except BlockingIOError:
            return None

    def send_file(self, region: FileRegion, skip: int, limit: int) -> int | None:
        """Sends at most `limit` bytes of a region, starting `skip` bytes into it; 0 if the file ends before."""
        count = region.length - skip
        try:
            return os.sendfile(self.fd, region.file.fileno(), region.position + skip, min(limit, count))
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Closes the socket; the kernel still delivers what it has."""
        self._socket.close()

    def reset(self) -> None:
        """Closes the socket; the kernel discards what it has not delivered."""
        with contextlib.suppress(OSError):  # the peer closed it first
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._socket.close()

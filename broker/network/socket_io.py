"""The narrow door to a socket: receive, send, send a piece of a file. A fake one moves a byte at a time.

RULES    1. Every call moves what can be moved now and returns the count; None means: would block.
         2. 0 from `receive` is the peer's end of stream.
         3. `send_file` copies nothing through this process (seeds.md Z1).
NOT HERE What is sent and when (`sender.py`); TLS, a further wire that encrypts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from typing import Protocol

from protocol.records import FileRegion

Buffer = bytes | bytearray | memoryview

_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_NO_LINGER = struct.pack("ii", 1, 0)


class Wire(Protocol):
    """What a connection needs of a socket."""

    def fileno(self) -> int:
        """The descriptor to watch."""

    def receive(self, space: bytearray | memoryview) -> int | None:
        """Receive into `space`."""

    def send(self, buffer: Buffer, *, more: bool) -> int | None:
        """Send from one buffer; `more` says that the next part follows at once."""

    def send_all(self, buffers: Sequence[Buffer], *, more: bool) -> int | None:
        """Send from several buffers in a row."""

    def send_file(self, region: FileRegion, skip: int, limit: int) -> int | None:
        """Send at most `limit` bytes of a region, from `skip` bytes into it; 0 where the file ends before."""

    def close(self) -> None:
        """Close the socket; what was handed to the kernel is still delivered."""

    def reset(self) -> None:
        """Close the socket; the kernel forgets at once what it has not delivered."""


class PlainWire:
    """An unencrypted non-blocking socket."""

    __slots__ = ("_recv_into", "_send", "_socket", "fd")

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
        """Receive into `space`."""
        try:
            return self._recv_into(space)
        except BlockingIOError:
            return None

    def send(self, buffer: Buffer, *, more: bool) -> int | None:
        """Send from one buffer."""
        try:
            return self._send(buffer, _MSG_MORE) if more else self._send(buffer)
        except BlockingIOError:
            return None

    def send_all(self, buffers: Sequence[Buffer], *, more: bool) -> int | None:
        """Send from several buffers in a row."""
        try:
            return self._socket.sendmsg(buffers, (), _MSG_MORE if more else 0)
        except BlockingIOError:
            return None

    def send_file(self, region: FileRegion, skip: int, limit: int) -> int | None:
        """Send part of a region by sendfile(2)."""
        count = region.length - skip
        try:
            return os.sendfile(self.fd, region.file.fileno(), region.position + skip, min(limit, count))
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def reset(self) -> None:
        """Close the socket without lingering."""
        with contextlib.suppress(OSError):  # the peer was first
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._socket.close()

"""An encrypted non-blocking socket with the calls of `PlaintextTransportLayer` (Kafka: SslTransportLayer).

RULES    1. OpenSSL works on memory (`ssl.MemoryBIO`), the socket calls are here: one receive and one send move several TLS
            records, and no call of OpenSSL waits.
         2. Bytes count as sent when the kernel has their ciphertext. Until then they are `_claimed`: the caller offers them
            again, as after any short write, and they are not encrypted twice.
         3. One call encrypts at most `TURN_BYTES`, then the caller waits until the socket is writable: other connections
            get their turn.
         4. A file region is read and encrypted; the caller has checked that the page cache has it, as before sendfile.
         5. Decrypted bytes that did not fit are `has_buffered`; the socket does not announce them, `on_buffered` does.
         6. The bytes of OpenSSL's alert are sent before the error is raised.
NOT HERE When a handshake continues (`tls_handshake.py`), certificates and settings (`broker/security/tls_context.py`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from broker.network.socket_io import PlaintextTransportLayer
from protocol.errors import MalformedRequest
from protocol.file_region import FileRegion
from protocol.primitives import Buffer

TURN_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = 64 * 1024
"""Encrypted for one send; as much is kept for a socket that is full."""
_MAX_PIECE_BYTES: Final = _PIECE_BYTES + _PIECE_BYTES // 2
"""A short rest is no piece of its own."""
_HELD_BYTES: Final = 64 * 1024
"""Ciphertext that waits for the part that follows immediately."""


class TlsBuffers:
    """Scratch memory that the connections of a listener share: it is empty between two calls."""

    __slots__ = ("file_bytes", "received")

    def __init__(self) -> None:
        self.received = bytearray(128 * 1024)
        self.file_bytes = memoryview(bytearray(TURN_BYTES))


class TlsTransportLayer(PlaintextTransportLayer):
    """The server's side of one TLS connection."""

    joins_regions = True

    __slots__ = ("_buffers", "_claimed", "_incoming", "_outgoing", "_tls", "_unsent", "has_buffered", "on_buffered")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, buffers: TlsBuffers) -> None:
        super().__init__(sock)
        self._buffers = buffers
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._claimed = 0  # bytes of the caller that are encrypted, but not yet reported as sent
        self._unsent = memoryview(b"")  # ciphertext that the socket did not take
        self.has_buffered = False
        self.on_buffered: Callable[[], None] = _ignore
        """Called when `receive` must be called again although the socket may not become readable."""

    # ------------------------------------------------------------ handshake
    def receive_handshake(self) -> None:
        """Receives what the socket has for the next step of the handshake.

        Raises:
            ConnectionError: the peer closed the connection.
        """
        if self._fill() == 0:
            raise ConnectionResetError("the peer closed the connection")

    def step_handshake(self) -> bool:
        """Computes one step of the handshake; returns whether it was the last. A thread may run this: no other call meanwhile.

        Raises:
            ssl.SSLError: the handshake failed; an alert waits to be sent.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.has_buffered = True  # the first request may have arrived with the end of the handshake
        return True

    def peer_certificate(self) -> bytes | None:
        """The verified certificate of the client, in DER; None if it sent none."""
        return self._tls.getpeercert(binary_form=True)

    # ------------------------------------------------------------ receiving
    def receive(self, space: bytearray | memoryview) -> int | None:
        """Receives into `space`.

        Raises:
            MalformedRequest: the bytes are not valid TLS.
        """
        if self.has_buffered:
            count = self._decrypt(memoryview(space))
            if count is not None:
                return count
        received = self._fill()
        if not received:
            return received
        count = self._decrypt(memoryview(space))
        if count is None:  # a part of a record: the end of the stream may have arrived with it
            self.on_buffered()
        return count

    def _fill(self) -> int | None:
        """Receives ciphertext; returns the number of bytes, 0 at the end of the stream, None if there is none now."""
        scratch = self._buffers.received
        try:
            count = self._recv_into(scratch)
        except BlockingIOError:
            return None
        self._incoming.write(memoryview(scratch)[:count])
        return count

    def _decrypt(self, space: memoryview) -> int | None:
        filled, size = 0, len(space)
        self.has_buffered = False
        try:
            while filled < size:
                count = cast("int", self._tls.read(size - filled, space[filled:]))  # with a buffer, the number of bytes
                if not count:
                    break
                filled += count
        except ssl.SSLWantReadError:
            return filled or None
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            self.flush()
            raise MalformedRequest(f"invalid TLS record: {reason(error)}") from None
        self.has_buffered = filled > 0  # the rest, or the end of the stream
        if filled:
            self.on_buffered()
        return filled

    # ------------------------------------------------------------ sending
    def send(self, buffer: Buffer, *, more: bool) -> int | None:
        """Sends from one buffer; `more` says that another part follows immediately."""
        return self._write(memoryview(buffer), more=more)

    def send_all(self, buffers: Sequence[Buffer], *, more: bool) -> int | None:
        """Sends several buffers; they share records."""
        return self._write(memoryview(b"".join(buffers)), more=more)

    def send_file(self, region: FileRegion, skip: int, limit: int) -> int | None:
        """Sends at most `limit` bytes of a region, starting `skip` bytes into it; 0 if the file ends before."""
        limit = min(limit, region.length - skip)
        if self._claimed:
            return self._report_claimed(limit)
        space = self._buffers.file_bytes[:limit]
        count = os.preadv(region.file.fileno(), [space], region.position + skip)
        return self._write(space[:count], more=False) if count else 0

    def _write(self, data: memoryview, *, more: bool) -> int | None:
        done, size = 0, len(data)
        if self._claimed:
            reported = self._report_claimed(size)
            if reported is None or reported == size:
                return reported
            done = reported
        end = min(size, done + TURN_BYTES)
        while True:
            flushed = done
            if done < end:
                piece = _PIECE_BYTES if end - done > _MAX_PIECE_BYTES else end - done
                done += self._tls.write(data[done : done + piece])
            # Held bytes are reported as sent. If the next part is empty and the socket full, None makes the caller repeat it.
            is_held = more and done == size and self._outgoing.pending < _HELD_BYTES
            if not is_held and not self.flush():
                self._claimed = done - flushed
                return flushed or None
            if done == end:
                return done

    def _report_claimed(self, size: int) -> int | None:
        """Sends the rest of the ciphertext; the number of its bytes, at most `size`, or None if the socket is full."""
        if not self.flush():
            return None
        count = min(self._claimed, size)
        self._claimed -= count
        return count

    def flush(self) -> bool:
        """Sends ciphertext; returns whether the kernel has all of it."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            try:
                count = self._send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[count:]
            if self._unsent:
                return False

    def close(self) -> None:
        """Announces the end of the stream if the socket takes it, and closes the socket."""
        self.on_buffered = _ignore  # it refers to the connection, which refers to this
        with contextlib.suppress(OSError):  # the handshake is not complete, or the peer has reset the connection
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self.flush()
        super().close()

    def reset(self) -> None:
        """Closes the socket; the kernel discards what it has not delivered."""
        self.on_buffered = _ignore
        super().reset()


def reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason in plain words."""
    return getattr(error, "verify_message", "") or (error.reason or str(error)).lower().replace("_", " ")


def _ignore() -> None:
    """Nothing receives yet."""

"""A raw, synchronous client: one socket, one request at a time, any version; also for Apache Kafka."""

from __future__ import annotations

import socket
import struct
from typing import Any, Self, TypeVar

from protocol.api import APIS, request_header_version, response_header_version
from protocol.codec import decode, encode
from protocol.messages.headers import RequestHeader, ResponseHeader
from protocol.schema import Message

M = TypeVar("M", bound=Message)


class RawClient:
    """A client with this project's codec."""

    def __init__(
        self,
        bootstrap: str,
        timeout_s: float = 30,
        *,
        receive_buffer_bytes: int | None = None,
        client_id: str = "raw",
        source: str | None = None,
    ) -> None:
        """Connects, from the address `source` if given; `receive_buffer_bytes` limits what the kernel receives ahead."""
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:  # counts only when it is set before the connection is made
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if source is not None:
            self.socket.bind((source, 0))
        self.socket.settimeout(timeout_s)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._client_id = client_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, request: Message, version: int) -> int:
        """Sends a request; returns its correlation id."""
        self._correlation_id += 1
        key = type(request).API_KEY
        assert key is not None
        number = self._correlation_id
        header = RequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=number, client_id=self._client_id
        )
        self.send_frame(encode(header, request_header_version(key, version)) + encode(request, version))
        return number

    def send_frame(self, frame: bytes) -> None:
        """Sends bytes as a frame."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive_frame(self) -> bytes:
        """The next frame, without its length; EOFError if the broker has closed the connection."""
        return receive_frame(self.socket)

    def receive(self, request: Message, version: int) -> Any:
        """The response to a request that was sent."""
        return self.decode(self.receive_frame(), request, version)

    @staticmethod
    def decode(frame: bytes, request: Message, version: int) -> Any:
        """The response in a frame."""
        key = type(request).API_KEY
        assert key is not None
        header_version = response_header_version(key, version)
        header = decode(ResponseHeader, header_version, frame)
        start = len(encode(header, header_version))
        return decode(APIS[key].response, version, frame, start)

    def ask(self, request: Message, version: int) -> Any:
        """Sends a request and waits for the response."""
        self.send(request, version)
        return self.receive(request, version)


def receive_frame(connection: socket.socket) -> bytes:
    """The next frame of a connection, without its length; EOFError if the peer has closed it."""
    (length,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, length)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError(f"the peer hung up with {count - len(data)} of {count} bytes missing")
        data += piece
    return bytes(data)

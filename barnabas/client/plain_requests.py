"""The first two requests to a node: whether it answers, and which nodes it names. ApiVersions needs no login, Metadata does.

FORMAT   The header, version 1: API key, API version, correlation id, no client id. Metadata, version 1, is about no topic.
RULES    1. `barnabas health` imports it every few seconds: only the standard library is imported.
NOT HERE The other requests (`wire.py`).
"""

from __future__ import annotations

import socket

API_VERSIONS = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
METADATA = b"\x00\x03\x00\x01\x00\x00\x00\x02\xff\xff\x00\x00\x00\x00"
_MAX_BYTES = 1 << 24
"""Of a response. The first bytes of another protocol are a number above."""


def ask(connection: socket.socket, request: bytes) -> bytes:
    """The response without its length and correlation id.

    Empty if the node closes the connection instead, or does not speak Kafka's protocol.

    Raises:
        OSError: the connection breaks, or the node is silent until the timeout of the connection.
    """
    connection.sendall(len(request).to_bytes(4, "big") + request)
    with connection.makefile("rb") as stream:
        size = int.from_bytes(stream.read(4), "big")
        answer = stream.read(size) if 4 < size < _MAX_BYTES else b""
    return answer[4:] if len(answer) == size and answer[:4] == request[4:8] else b""

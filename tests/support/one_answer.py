"""A server that answers one connection with given bytes, whatever it is asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

TIMEOUT_S = 30


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The server's address, HOST:PORT; the block must connect to it."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        server.settimeout(TIMEOUT_S)

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(answer)

        done = thread.submit(serve)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        done.result()

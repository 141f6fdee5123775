"""A port that neither accepts nor refuses connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def full_listener() -> Iterator[tuple[str, int]]:
    """A listening socket with a full backlog that is never accepted."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for one in (first, second):
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(listening.getsockname())
        host, port = listening.getsockname()
        yield host, port

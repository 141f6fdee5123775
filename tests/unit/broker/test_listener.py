"""A listening socket whose loop is busy."""

from __future__ import annotations

import asyncio
import socket

from broker.config import SocketSettings
from broker.network.listener import Listener

CLIENTS = 300


def test_a_burst_of_connections_finds_room_while_the_loop_is_busy() -> None:
    """A connection that finds the queue full is tried again a second later: too late for anybody's patience."""
    loop = asyncio.new_event_loop()
    listener = Listener(loop, "PLAINTEXT", "127.0.0.1", 0, lambda *_: None, SocketSettings())
    clients = []
    try:
        for _ in range(CLIENTS):
            clients.append(socket.create_connection(("127.0.0.1", listener.port), timeout=0.5))  # noqa: PERF401
    finally:
        for client in clients:
            client.close()
        listener.close()
        loop.close()

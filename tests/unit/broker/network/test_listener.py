"""A listening socket whose loop is busy."""

from __future__ import annotations

import asyncio
import socket

from broker.config.broker_config import SocketSettings
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


def test_who_is_turned_away_is_let_in_again_later() -> None:
    """Who is there and who comes are disconnected, the socket stays; then connections are kept as ever."""
    loop = asyncio.new_event_loop()
    listener = Listener(loop, "PLAINTEXT", "127.0.0.1", 0, lambda *_: None, SocketSettings())
    listener.start()

    def come() -> socket.socket:
        client = socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        loop.call_soon(loop.stop)
        loop.run_forever()
        return client

    clients = []
    try:
        clients.append(come())
        assert len(listener) == 1
        listener.turn_away(turns_away=True)
        assert (len(listener), clients[0].recv(1)) == (0, b"")
        clients.append(come())
        assert (len(listener), clients[1].recv(1)) == (0, b"")
        listener.turn_away(turns_away=False)
        clients.append(come())
        assert len(listener) == 1
    finally:
        for client in clients:
            client.close()
        listener.close()
        loop.close()

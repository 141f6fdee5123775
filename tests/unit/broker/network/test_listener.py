"""A listening socket (broker/network/listener.py)."""

from __future__ import annotations

import asyncio
import socket

from broker.config.broker_config import SocketSettings
from broker.network.listener import Listener

CLIENTS = 300


def test_a_burst_of_connections_fits_into_the_backlog() -> None:
    """A client that finds the queue full retries only after a second."""
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


def test_rejected_clients_are_disconnected_until_they_are_accepted_again() -> None:
    loop = asyncio.new_event_loop()
    listener = Listener(loop, "PLAINTEXT", "127.0.0.1", 0, lambda *_: None, SocketSettings())
    listener.start()

    def connect() -> socket.socket:
        client = socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        loop.call_soon(loop.stop)
        loop.run_forever()
        return client

    clients = []
    try:
        clients.append(connect())
        assert len(listener._connections) == 1
        listener.reject_clients(is_rejecting=True)
        assert (len(listener._connections), clients[0].recv(1)) == (0, b"")
        clients.append(connect())
        assert (len(listener._connections), clients[1].recv(1)) == (0, b"")
        listener.reject_clients(is_rejecting=False)
        clients.append(connect())
        assert len(listener._connections) == 1
    finally:
        for client in clients:
            client.close()
        listener.close()
        loop.close()

"""A listening socket (broker/network/listener.py)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from broker.config.broker_config import SocketSettings
from broker.network.descriptor_share import DescriptorShare
from broker.network.listener import Listener

CLIENTS = 300
NO_DISPATCHER: Any = None


class Holder(NamedTuple):
    """A listener with connections."""

    descriptors: int


class Listening:
    """A listener and its clients."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.listener = Listener(self.loop, "PLAINTEXT", "127.0.0.1", 0, NO_DISPATCHER, SocketSettings())
        self.clients: list[socket.socket] = []

    def connect(self, timeout_s: float = 5) -> socket.socket:
        self.clients.append(socket.create_connection(("127.0.0.1", self.listener.port), timeout=timeout_s))
        return self.clients[-1]

    def accept(self) -> int:
        """Runs the loop once; returns the number of connections."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        return len(self.listener._connections)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.listener.close()
        self.loop.close()


@pytest.fixture
def listening() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.close()


def test_a_client_that_does_not_authenticate_in_time_is_closed(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.network.listener.LOGIN_TIMEOUT_S", 0.1)
    listening.listener._authentication = lambda _: NO_DISPATCHER
    listening.listener.start()
    slow, authenticated, left = (listening.connect() for _ in range(3))
    while listening.accept() < 3:
        pass
    port = authenticated.getsockname()[1]
    (known,) = (one for one in listening.listener._connections if one.info.peer_port == port)
    known.info.is_authenticated = True
    left.close()
    while listening.accept() > 1:
        pass
    assert listening.listener._connections == {known}
    assert slow.recv(1) == b""
    assert caplog.text.count("is not authenticated after 0.1 s") == 1
    while listening.listener._logins:
        listening.accept()
    assert not known.is_closed


def test_a_burst_of_connections_fits_into_the_backlog(listening: Listening) -> None:
    """A client that finds the queue full retries only after a second."""
    for _ in range(CLIENTS):
        listening.connect(timeout_s=0.5)


def test_rejected_clients_are_disconnected_until_they_are_accepted_again(listening: Listening) -> None:
    listening.listener.start()
    first = listening.connect()
    assert listening.accept() == 1
    listening.listener.reject_clients(is_rejecting=True)
    assert (len(listening.listener._connections), first.recv(1)) == (0, b"")
    second = listening.connect()
    assert (listening.accept(), second.recv(1)) == (0, b"")
    listening.listener.reject_clients(is_rejecting=False)
    listening.connect()
    assert listening.accept() == 1


def test_a_connection_above_the_share_of_descriptors_is_refused(listening: Listening) -> None:
    listening.listener.descriptor_share = DescriptorShare(2, [listening.listener])
    listening.listener.start()
    *_, last = [listening.connect() for _ in range(3)]
    assert (listening.accept(), last.recv(1)) == (2, b"")


@pytest.mark.parametrize(
    ("own", "others", "is_used_up"),
    [
        (15, [], False),
        (16, [], True),
        (13, [0], False),
        (14, [0], True),
        (14, [1], True),
        (13, [3], True),
        (2, [13], False),
        (3, [13], True),
        (13, [0, 0], False),
        (14, [0, 0], True),
    ],
)
def test_listeners_share_descriptors_and_keep_a_few_for_each_other(
    own: int, others: list[int], *, is_used_up: bool
) -> None:
    listeners = [Holder(count) for count in (own, *others)]
    assert DescriptorShare(16, listeners).is_used_up(listeners[0]) is is_used_up


def test_connections_count_the_active_ones_of_the_listener(listening: Listening) -> None:
    """A reader alone may send more in one turn of the loop."""
    listening.listener.start()
    listening.connect()
    assert listening.accept() == 1
    connection = listening.listener.connections[0]
    asks = connection._sender._is_loop_shared
    assert asks is not None
    assert not asks(0)
    listening.connect()
    assert listening.accept() == 2
    assert asks(0)

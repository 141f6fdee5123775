"""Who gets how many descriptors (broker/descriptors.py)."""

from __future__ import annotations

import asyncio
import socket

import pytest

from broker.config import SocketSettings, load_config
from broker.descriptors import OTHERS, SETTING, Shares, share_out
from broker.network.listener import Listener


@pytest.mark.parametrize(
    ("limit", "wanted", "shares"),
    [
        (1024, -1, Shares(480, 480)),
        (20_000, -1, Shares(9968, 9968)),
        (20_000, 500, Shares(500, 19_436)),
        (1064, 5000, Shares(750, 250)),
        (20, -1, Shares(2, 2)),
    ],
)
def test_files_and_connections_never_share_a_descriptor(limit: int, wanted: int, shares: Shares) -> None:
    """Rule 2: together they leave room for the rest."""
    assert share_out(limit, wanted) == shares
    assert sum(shares) <= max(limit - OTHERS, 4)


def test_the_setting_has_a_default_and_a_lower_bound() -> None:
    """Below that every append would open its file again."""
    assert load_config(None, {}).number(SETTING) == -1
    with pytest.raises(ValueError, match="between 64 and"):
        load_config(None, {SETTING: "63"})


def test_a_connection_that_would_take_the_descriptor_of_a_file_is_refused() -> None:
    """Rule 2."""
    loop = asyncio.new_event_loop()
    listener = Listener(loop, "PLAINTEXT", "127.0.0.1", 0, lambda *_: None, SocketSettings())
    listener.most_descriptors = 2
    listener.start()
    clients = [socket.create_connection(("127.0.0.1", listener.port), timeout=5) for _ in range(3)]
    try:
        loop.call_soon(loop.call_soon, loop.stop)
        loop.run_forever()
        assert len(listener) == 2
        assert clients[2].recv(1) == b""
    finally:
        for client in clients:
            client.close()
        listener.close()
        loop.close()

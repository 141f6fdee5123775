"""Who gets how many descriptors (broker/process/file_limits.py)."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path

import pytest

from broker.config.broker_config import SocketSettings, load_config
from broker.network.listener import Listener
from broker.process.file_limits import OTHERS, SETTING, Shares, make_room, share_out


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


def test_the_kernels_table_is_made_larger_without_opening_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 3."""

    def slots() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize"))

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2 * slots(), soft)
    before = os.listdir("/proc/self/fd")
    make_room(wanted)
    assert slots() >= wanted
    assert len(os.listdir("/proc/self/fd")) == len(before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (wanted, wanted))
    make_room(1 << 40)
    assert len(os.listdir("/proc/self/fd")) == len(before), "more than are allowed is no mistake"

"""The shares of descriptors (broker/process/resource_limits.py)."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path

import pytest

from broker.config.broker_config import SocketSettings, load_config
from broker.network.listener import Listener
from broker.process.resource_limits import (
    MAX_OPEN_FILES,
    RESERVED_DESCRIPTORS,
    DescriptorLimits,
    allocate_descriptors,
    grow_descriptor_table,
)


@pytest.mark.parametrize(
    ("limit", "wanted", "shares"),
    [
        (1024, -1, DescriptorLimits(480, 480)),
        (20_000, -1, DescriptorLimits(9968, 9968)),
        (20_000, 500, DescriptorLimits(500, 19_436)),
        (1064, 5000, DescriptorLimits(750, 250)),
        (20, -1, DescriptorLimits(2, 2)),
    ],
)
def test_the_shares_of_files_and_connections_are_disjoint(limit: int, wanted: int, shares: DescriptorLimits) -> None:
    assert allocate_descriptors(limit, wanted) == shares
    assert sum(shares) <= max(limit - RESERVED_DESCRIPTORS, 4)


def test_the_setting_has_a_default_and_a_lower_bound() -> None:
    assert load_config(None, {}).number(MAX_OPEN_FILES) == -1
    with pytest.raises(ValueError, match="between 64 and"):
        load_config(None, {MAX_OPEN_FILES: "63"})


def test_a_connection_above_its_share_is_refused() -> None:
    loop = asyncio.new_event_loop()
    listener = Listener(loop, "PLAINTEXT", "127.0.0.1", 0, lambda *_: None, SocketSettings())
    listener.descriptor_limit = 2
    listener.start()
    clients = [socket.create_connection(("127.0.0.1", listener.port), timeout=5) for _ in range(3)]
    try:
        loop.call_soon(loop.call_soon, loop.stop)
        loop.run_forever()
        assert len(listener._connections) == 2
        assert clients[2].recv(1) == b""
    finally:
        for client in clients:
            client.close()
        listener.close()
        loop.close()


def test_the_kernels_table_grows_without_opening_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def slots() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize"))

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2 * slots(), soft)
    before = os.listdir("/proc/self/fd")
    grow_descriptor_table(wanted)
    assert slots() >= wanted
    assert len(os.listdir("/proc/self/fd")) == len(before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (wanted, wanted))
    grow_descriptor_table(1 << 40)
    assert len(os.listdir("/proc/self/fd")) == len(before), "more than are allowed is no mistake"

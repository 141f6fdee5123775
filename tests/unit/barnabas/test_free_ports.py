"""Ports for nodes that start later."""

from __future__ import annotations

import socket

import pytest

from barnabas.cluster import free_ports

MANY = 200
ASKED = 5_000
"""Of some 14,000 ports that the kernel chooses from: about 70 of them would be among those that were given out."""


@pytest.mark.parametrize("is_server", [False, True])
def test_the_kernel_does_not_assign_a_free_port_to_another_socket(is_server: bool) -> None:
    given_out = set(free_ports(MANY))
    assert len(given_out) == MANY
    for _ in range(ASKED):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_server)
            other.bind(("127.0.0.1", 0))
            assert other.getsockname()[1] not in given_out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_free_port_can_be_bound(host: str) -> None:
    for port in free_ports(10, host):
        with socket.create_server((host, port)) as server:
            assert server.getsockname()[1] == port

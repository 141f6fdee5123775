"""Ports for nodes that start in a while."""

from __future__ import annotations

import socket

import pytest

from barnabas.cluster import free_ports

MANY = 200
ASKED = 5_000
"""Of some 14,000 ports that the kernel chooses from: about 70 of them would be among those that were given out."""


@pytest.mark.parametrize("is_server", [False, True])
def test_who_asks_for_any_port_is_not_given_one_that_another_is_about_to_name(is_server: bool) -> None:
    """Neither a server that lets its address be used again, as ours does, nor who does not."""
    given_out = set(free_ports(MANY))
    assert len(given_out) == MANY
    for _ in range(ASKED):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_server)
            other.bind(("127.0.0.1", 0))
            assert other.getsockname()[1] not in given_out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_who_names_a_port_that_was_given_out_gets_it(host: str) -> None:
    """As a server does."""
    for port in free_ports(10, host):
        with socket.create_server((host, port)) as server:
            assert server.getsockname()[1] == port

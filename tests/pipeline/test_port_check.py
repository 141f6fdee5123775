"""Whether an address accepts connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.port_check import check_reachable


@pytest.fixture
def starting() -> Iterator[socket.socket]:
    """A bound socket that does not listen yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def address_of(bound: socket.socket) -> str:
    return f"127.0.0.1:{bound.getsockname()[1]}"


def test_one_of_several_addresses_is_enough(starting: socket.socket) -> None:
    starting.listen()
    check_reachable("broker", f"127.0.0.1:1, {address_of(starting)}")


@pytest.mark.parametrize(
    ("addresses", "why"), [("nowhere,127.0.0.1:1", "'nowhere' is not HOST:PORT"), ("127.0.0.1:1,nowhere", "refused")]
)
def test_the_first_error_is_reported(addresses: str, why: str) -> None:
    with pytest.raises(JobError, match=f"No broker answers at {addresses}: .*{why}"):
        check_reachable("broker", addresses)


def test_a_server_may_start_within_the_timeout(starting: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="refused"):
        check_reachable("broker", address_of(starting))
    monkeypatch.setattr("barnabas.pipeline.port_check.time.sleep", lambda _: starting.listen())
    check_reachable("broker", address_of(starting), within_s=60)

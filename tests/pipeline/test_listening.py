"""Guards barnabas/pipeline/port_check.py."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from barnabas.pipeline.port_check import NobodyListens, see_that_somebody_listens


@pytest.fixture
def starting() -> Iterator[socket.socket]:
    """A socket with an address, which does not listen yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def address_of(bound: socket.socket) -> str:
    return f"127.0.0.1:{bound.getsockname()[1]}"


def test_one_of_several_addresses_is_enough(starting: socket.socket) -> None:
    """Rule 1."""
    starting.listen()
    see_that_somebody_listens(f"127.0.0.1:1, {address_of(starting)}")


@pytest.mark.parametrize(
    ("addresses", "why"), [("nowhere,127.0.0.1:1", "'nowhere' is not HOST:PORT"), ("127.0.0.1:1,nowhere", "refused")]
)
def test_the_first_refusal_is_told(addresses: str, why: str) -> None:
    """Rule 1."""
    with pytest.raises(NobodyListens, match=why):
        see_that_somebody_listens(addresses)


def test_who_is_about_to_start_is_waited_for(starting: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the time; nobody is, when it is over."""
    with pytest.raises(NobodyListens, match="refused"):
        see_that_somebody_listens(address_of(starting))
    monkeypatch.setattr("barnabas.pipeline.port_check.time.sleep", lambda _: starting.listen())
    see_that_somebody_listens(address_of(starting), within_s=60)

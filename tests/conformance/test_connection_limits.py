"""Limits of connections that change at run time, on this broker and on Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from protocol.messages.metadata import ApiVersionsRequest
from tests.conformance.brokers import alter_configs, running
from tests.support.config_cases import BROKER, DELETE_SETTING, SET
from tests.support.follower_harness import BOTH
from tests.support.quotas import set_quotas, settle
from tests.support.raw_client import RawClient
from tests.support.waiting import until

NODE: Final = "1"
LIMITED_HOST, RATED_HOST = "127.0.0.3", "127.0.0.4"
REQUEST = ApiVersionsRequest(client_software_name="t", client_software_version="1")
VERSION = 3


@pytest.fixture(scope="module", params=BOTH)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(request.param, {"max.connections.per.ip.overrides": f"{LIMITED_HOST}:1"}) as broker:
        yield broker.bootstrap


@contextmanager
def changed(bootstrap: str, name: str, value: str, node: str = "") -> Iterator[None]:
    """A dynamic setting, for a while."""
    with RawClient(bootstrap) as client:
        alter_configs(client, BROKER, node, (name, SET, value))
        settle()
        yield
        alter_configs(client, BROKER, node, (name, DELETE_SETTING, None))


def is_served(client: RawClient) -> bool:
    """Whether the connection is answered, and not closed."""
    try:
        return bool(client.ask(REQUEST, VERSION).error_code == 0)
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return False


def is_silent(client: RawClient, seconds: float) -> bool:
    """Whether the client gets nothing for some time."""
    client.socket.settimeout(seconds)
    try:
        client.receive_frame()
    except TimeoutError:
        return True
    finally:
        client.socket.settimeout(30)
    return False


def test_connections_above_the_limit_of_their_address_are_closed(bootstrap: str) -> None:
    with RawClient(bootstrap, source=LIMITED_HOST) as first:
        assert is_served(first)
        with RawClient(bootstrap, source=LIMITED_HOST) as second:
            assert not is_served(second)
        with RawClient(bootstrap) as other:
            assert is_served(other)
        assert is_served(first)

    def is_free() -> bool:
        with RawClient(bootstrap, source=LIMITED_HOST) as third:
            return is_served(third)

    until(is_free, "the connection does not count any more")


def test_connections_above_the_limit_wait_for_a_slot(bootstrap: str) -> None:
    """Of a listener: the broker's limit also limits Apache Kafka's controller, which then cannot be changed back."""
    with changed(bootstrap, "listener.name.plaintext.max.connections", "2", NODE), RawClient(bootstrap) as second:
        until(lambda: is_served(second), "it has a slot")
        with RawClient(bootstrap) as third:
            third.send(REQUEST, VERSION)
            assert is_silent(third, 0.5)
            assert is_served(second)
            second.close()
            assert third.receive(REQUEST, VERSION).error_code == 0


def test_above_the_rate_accepting_waits(bootstrap: str) -> None:
    with changed(bootstrap, "listener.name.plaintext.max.connection.creation.rate", "3", NODE):
        seconds = []
        for _ in range(34):  # ten seconds of the rate are accepted at once
            started_s = time.monotonic()
            with RawClient(bootstrap) as client:
                assert is_served(client)
            seconds.append(time.monotonic() - started_s)
        assert sum(seconds[:15]) < 0.5
        assert sum(seconds[-4:]) > 0.8
        assert max(seconds) < 1.3


def test_connections_above_the_rate_of_their_address_are_closed_later(bootstrap: str) -> None:
    set_quotas(bootstrap, ({"ip": RATED_HOST}, "connection_creation_rate", 1.0))
    for _ in range(10):
        with RawClient(bootstrap, source=RATED_HOST) as client:
            assert is_served(client)
    started_s = time.monotonic()
    with RawClient(bootstrap, source=RATED_HOST) as client:
        assert not is_served(client)
    assert 0.2 < time.monotonic() - started_s < 1.5
    with RawClient(bootstrap) as other:
        assert is_served(other)

"""Limits of connections that change at run time, on this broker and on Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import pytest

from protocol.messages.metadata import ApiVersionsRequest
from tests.conformance.brokers import KAFKA, alter_configs, running
from tests.support.config_cases import BROKER, DELETE_SETTING, SET
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.follower_harness import BOTH
from tests.support.quotas import set_quotas, settle
from tests.support.raw_client import RawClient
from tests.support.waiting import until

NODE: Final = "1"
LIMITED_HOST, RATED_HOSTS = "127.0.0.3", ("127.0.0.4", "127.0.0.5")
REQUEST = ApiVersionsRequest(client_software_name="t", client_software_version="1")
VERSION = 3


class Addresses(NamedTuple):
    """The addresses of a node."""

    broker: str
    controller: str


@pytest.fixture(scope="module", params=BOTH)
def node(request: pytest.FixtureRequest) -> Iterator[Addresses]:
    is_kafka = request.param == KAFKA
    settings = {"max.connections.per.ip.overrides": f"{LIMITED_HOST}:1", **({} if is_kafka else WITH_CONTROLLER)}
    with running(request.param, settings) as broker:
        controller = broker.controller if is_kafka else controller_of(broker)  # type: ignore[union-attr,arg-type]
        yield Addresses(broker.bootstrap, controller)


@pytest.fixture
def bootstrap(node: Addresses) -> str:
    return node.broker


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


@pytest.mark.parametrize(("listener", "host"), [*zip(Addresses._fields, RATED_HOSTS, strict=True)])
def test_connections_above_the_rate_of_their_address_are_closed_later(
    node: Addresses, listener: str, host: str
) -> None:
    address = getattr(node, listener)
    set_quotas(node.broker, ({"ip": host}, "connection_creation_rate", 1.0))
    for _ in range(10):
        with RawClient(address, source=host) as client:
            assert is_served(client)
    started_s = time.monotonic()
    with RawClient(address, source=host) as client:
        assert not is_served(client)
    assert 0.2 < time.monotonic() - started_s < 1.5
    with RawClient(address) as other:
        assert is_served(other)

"""Limits of connections (broker/quotas/connection_quotas.py)."""

from __future__ import annotations

import pytest

from broker.config.connection_configs import ConnectionLimits, ListenerLimits
from broker.quotas.connection_quotas import ConnectionQuotas
from replication.metadata.client_quotas import Entity
from replication.quota_rates import QuotaWindows

IP = "10.0.0.1"


class Connection:
    """A connection that was used at some time."""

    def __init__(self, last_active_mono_ms: int) -> None:
        self.last_active_mono_ms = last_active_mono_ms
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def quotas_with(limits: ConnectionLimits, *listeners: str, inter_broker: str | None = None) -> ConnectionQuotas:
    quotas = ConnectionQuotas(limits, QuotaWindows(), inter_broker)
    for listener in listeners:
        quotas.add_listener(listener, list)
    return quotas


def rate_of(name: str | None, bound: float) -> dict[Entity, dict[str, float]]:
    """A quota of an address."""
    return {(("ip", name),): {"connection_creation_rate": bound}}


def test_a_slot_is_limited_by_broker_and_listener() -> None:
    limits = ConnectionLimits(ListenerLimits(max_connections=3), {"in": ListenerLimits(max_connections=1)})
    quotas = quotas_with(limits, "IN", "OUT")
    assert quotas.add("IN", IP)
    assert (quotas.has_slot("IN"), quotas.has_slot("OUT")) == (False, True)
    freed: list[str] = []
    quotas.when_free("IN", lambda: freed.append("IN"))
    assert quotas.add("OUT", IP)
    assert quotas.add("OUT", IP)
    assert not quotas.has_slot("OUT")
    quotas.remove("OUT", IP)
    assert (quotas.has_slot("OUT"), freed) == (True, [])
    quotas.remove("IN", IP)
    assert freed == ["IN"]
    quotas.remove("OUT", IP)
    assert freed == ["IN"]  # once


def test_the_inter_broker_listener_takes_slots_of_others() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(ListenerLimits(max_connections=2)), QuotaWindows(), "IN")
    clients = [Connection(5), Connection(3)]
    quotas.add_listener("OUT", lambda: clients)
    quotas.add_listener("IN", list)
    assert quotas.add("OUT", IP)
    assert quotas.add("OUT", IP)
    assert (quotas.has_slot("OUT"), quotas.has_slot("IN")) == (False, True)
    assert quotas.add("IN", IP)
    assert [client.is_closed for client in clients] == [False, True]  # the least recently used one


def test_the_only_listener_is_not_protected() -> None:
    quotas = quotas_with(ConnectionLimits(ListenerLimits(max_connections=1)), "IN", inter_broker="IN")
    assert quotas.add("IN", IP)
    assert not quotas.has_slot("IN")


def test_lower_limits_close_connections_and_higher_ones_wake() -> None:
    quotas = ConnectionQuotas()
    clients = [Connection(age) for age in (4, 1, 3, 2)]
    quotas.add_listener("OUT", lambda: clients)
    for _ in clients:
        assert quotas.add("OUT", IP)
    quotas.update(ConnectionLimits(ListenerLimits(max_connections=2)))
    assert [client.is_closed for client in clients] == [False, True, False, True]
    freed: list[str] = []
    quotas.when_free("OUT", lambda: freed.append("OUT"))
    quotas.update(ConnectionLimits(ListenerLimits(max_connections=4)))
    assert not freed
    quotas.update(ConnectionLimits(ListenerLimits(max_connections=5)))
    assert freed == ["OUT"]


@pytest.mark.parametrize(("since_ms", "is_expected"), [(100, True), (150, True), (151, False), (301, False)])
def test_active_connections_of_all_listeners_count(since_ms: int, *, is_expected: bool) -> None:
    quotas = ConnectionQuotas()
    quotas.add_listener("OUT", lambda: [Connection(300), Connection(10)])
    quotas.add_listener("IN", lambda: [Connection(150)])
    assert quotas.has_several_active(since_ms) is is_expected


def test_many_connections_count_as_active_without_a_search() -> None:
    quotas = quotas_with(ConnectionLimits(), "OUT")
    for number in range(40):
        assert quotas.add("OUT", f"10.0.1.{number}")
    assert quotas.has_several_active(0)


def test_addresses_have_their_own_numbers() -> None:
    quotas = quotas_with(ConnectionLimits(max_per_ip=1, per_ip_overrides={IP: 2, "10.0.0.9": 0}), "OUT")
    assert [quotas.add("OUT", IP) for _ in range(3)] == [True, True, False]
    assert [quotas.add("OUT", "10.0.0.2") for _ in range(2)] == [True, False]
    assert not quotas.add("OUT", "10.0.0.9")
    quotas.remove("OUT", IP)
    assert quotas.add("OUT", IP)


def test_above_a_rate_accepting_waits_at_most_one_window() -> None:
    limits = ConnectionLimits(ListenerLimits(creation_rate=2), {"slow": ListenerLimits(creation_rate=1)})
    quotas = quotas_with(limits, "SLOW", "FAST")
    assert [quotas.record("SLOW", 0) for _ in range(11)] == [0] * 10 + [1000]
    assert [quotas.record("FAST", 0) for _ in range(10)] == [0] * 9 + [500]  # 21 of the broker's 20 in ten seconds
    assert quotas.record("FAST", 0) == 1000
    unlimited = quotas_with(ConnectionLimits(), "FAST")
    assert [unlimited.record("FAST", 0) for _ in range(1000)] == [0] * 1000


def test_the_inter_broker_listener_has_its_own_rate_only() -> None:
    limits = ConnectionLimits(ListenerLimits(creation_rate=1))
    quotas = quotas_with(limits, "IN", "OUT", inter_broker="IN")
    assert [quotas.record("IN", 0) for _ in range(100)] == [0] * 100
    assert [quotas.record("OUT", 0) for _ in range(11)] == [0] * 10 + [1000]


def test_a_rate_of_zero_lets_one_through_in_each_window() -> None:
    quotas = quotas_with(ConnectionLimits(ListenerLimits(creation_rate=0)), "OUT")
    assert quotas.record("OUT", 0) == 1000


def test_connections_above_the_rate_of_their_address_do_not_count() -> None:
    quotas = quotas_with(ConnectionLimits(ListenerLimits(creation_rate=2)), "OUT")
    quotas.update_addresses(rate_of(IP, 1.0) | rate_of(None, 0.5))
    for _ in range(10):
        quotas.record("OUT", 0)
        assert quotas.record_address("OUT", IP, 0) == 0
    for _ in range(5):
        assert quotas.record("OUT", 0) == 0
        assert quotas.record_address("OUT", IP, 0) == 1000
    assert [quotas.record_address("OUT", "10.0.0.2", 0) for _ in range(6)] == [0] * 5 + [1000]
    quotas.update_addresses({})
    assert quotas.record_address("OUT", IP, 0) == 0


def test_an_address_may_be_written_in_any_notation_and_host_names_have_no_effect() -> None:
    quotas = quotas_with(ConnectionLimits(), "OUT")
    quotas.update_addresses(
        rate_of("0:0:0:0:0:0:0:1", 0.1) | rate_of("::ffff:10.0.0.1", 0.1) | rate_of("localhost", 0.1)
    )
    for address in ("::1", IP):
        assert [quotas.record_address("OUT", address, 0) for _ in range(3)][-1] > 0
    assert not any(quotas.record_address("OUT", "127.0.0.1", 0) for _ in range(3))


def test_rates_are_forgotten_when_their_limits_are_removed() -> None:
    limit = ListenerLimits(creation_rate=5)
    quotas = quotas_with(ConnectionLimits(limit, {"in": limit, "out": limit}), "IN", "OUT")
    quotas.update_addresses(rate_of(IP, 1.0) | rate_of("10.0.0.2", 1.0))
    for listener, address in (("IN", IP), ("OUT", "10.0.0.2")):
        quotas.record(listener, 0)
        quotas.record_address(listener, address, 0)
    quotas.update(ConnectionLimits(ListenerLimits(), {"in": limit}))
    quotas.update_addresses(rate_of(IP, 1.0))
    assert [(kind, name) for kind, name, _ in quotas.rates(0)] == [("listener", "IN"), ("ip", IP)]

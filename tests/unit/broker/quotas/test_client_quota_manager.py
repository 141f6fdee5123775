"""Sensors of clients with quotas (broker/quotas/client_quota_manager.py)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from broker.quotas import client_quota_manager as module
from broker.quotas.client_quota_manager import ClientQuotaManager, QuotaSensor
from replication.metadata.client_quotas import Quotas
from replication.quota_rates import QuotaWindows


def manager_with(kind: str, name: str | None) -> ClientQuotaManager:
    """Quotas of one entity for produced bytes."""
    manager = ClientQuotaManager(QuotaWindows())
    manager.update({((kind, name),): {"producer_byte_rate": 5.0}})
    return manager


def test_clients_of_one_user_share_a_sensor() -> None:
    manager = manager_with("user", None)
    one, other = manager.find("User:a", "x", 0), manager.find("User:a", None, 0)
    assert one is not None
    assert other is not None
    assert one.produce is other.produce
    assert (one.fetch, one.request) == (None, None)
    stranger = manager.find("User:b", "x", 0)
    assert stranger is not None
    assert stranger.produce is not one.produce


def test_a_client_without_a_quota_has_no_sensors() -> None:
    manager = manager_with("client-id", "x")
    assert manager.is_enabled
    assert manager.find("User:a", "y", 0) is None
    assert not manager.sensors()


def test_quotas_of_addresses_enable_nothing() -> None:
    manager = ClientQuotaManager(QuotaWindows())
    manager.update({(("ip", None),): {"connection_creation_rate": 5.0}})
    assert not manager.is_enabled


def test_unused_sensors_are_deleted_after_an_hour(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    manager = manager_with("client-id", None)
    manager.find("User:a", "old", 0)
    used = manager.find("User:a", "used", 0)
    assert used is not None
    assert used.produce is not None
    used.produce.record(1, module.EXPIRATION_MS)
    manager.find("User:a", "new", module.EXPIRATION_MS + 1)
    assert {sensor.client_id for _, sensor in manager.sensors()} == {"used", "new"}
    for number in range(8):
        manager.find("User:a", f"other {number}", module.EXPIRATION_MS + 1)
    monkeypatch.setattr(module, "MAX_SENSORS", 10)
    manager.find("User:a", "newest", module.EXPIRATION_MS + 2)
    assert {"new", "newest"} < (names := {sensor.client_id for _, sensor in manager.sensors()})
    assert "used" not in names
    again = manager.find("User:a", "used", module.EXPIRATION_MS + 3)
    assert again is not None
    assert again.produce is not used.produce


def test_a_client_that_returns_keeps_all_its_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    quotas: Quotas = {(("client-id", None),): dict.fromkeys(keys, 5.0)}
    manager = ClientQuotaManager(QuotaWindows())
    monkeypatch.setattr(module, "MAX_SENSORS", 10)
    manager.update(quotas)
    for number in range(20):
        found = manager.find("User:a", f"client {number % 4}", number)
        assert found is not None
        kept = [sensor for _, sensor in manager.sensors()]
        assert all(any(sensor is other for other in kept) for sensor in found), number
        manager.update(dict(quotas))  # the look-ups are not cached


def test_new_clients_compare_few_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SENSORS", 1000)
    manager = manager_with("client-id", None)
    looks: list[int] = []
    used: Any = vars(QuotaSensor)["used_mono_ms"]

    def counted(sensor: QuotaSensor) -> object:
        looks.append(1)
        return used.__get__(sensor)

    monkeypatch.setattr(QuotaSensor, "used_mono_ms", property(counted, used.__set__))
    for number in range(3000):
        manager.find("User:a", f"client {number}", number)
    assert len(looks) < 100 * 3000


@pytest.mark.parametrize(("kind", "name"), [("user", "a"), ("client-id", "x")])
def test_many_client_ids_cost_little_memory(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SENSORS", 50)
    manager = manager_with(kind, name)
    for number in range(60):
        manager.find("User:a", f"client {number} {'x' * 10_000}", 0)
    tracemalloc.start()
    try:
        for number in range(60, 2000):
            manager.find("User:a", f"client {number} {'x' * 10_000}", 0)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()

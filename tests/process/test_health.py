"""`barnabas health` of nodes with and without TLS."""

from __future__ import annotations

import socket

import pytest

import barnabas
from barnabas import health
from barnabas.security import PROTOCOLS


def test_a_plaintext_node_is_healthy_until_it_stops(capsys: pytest.CaptureFixture[str]) -> None:
    with barnabas.Broker() as broker:
        assert health.main([broker.bootstrap]) == 0
    assert health.main([broker.bootstrap]) == 1
    assert capsys.readouterr().err == f"barnabas: no answer from {broker.bootstrap}: [Errno 111] Connection refused\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_closed_node_is_healthy_for_a_check_without_an_account(protocol: str) -> None:
    """SSL wants a certificate of the client."""
    with barnabas.Broker(security=barnabas.Security(protocol=protocol)) as broker:
        assert health.main([broker.bootstrap]) == 0


def test_a_check_that_knows_the_listener_costs_no_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with barnabas.Broker(security=barnabas.Security()) as broker:
        monkeypatch.setenv("KAFKA_LISTENERS", f"SASL_SSL://{broker.bootstrap}")
        before = broker.log()
        assert health.main([]) == 0
        assert broker.log() == before


def test_a_port_that_answers_nothing_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert health.main([f"127.0.0.1:{silent.getsockname()[1]}"]) == 1
    assert "timed out" in capsys.readouterr().err

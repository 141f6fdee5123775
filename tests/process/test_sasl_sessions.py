"""Sessions of limited length on the metrics page."""

from __future__ import annotations

import urllib.request

import pytest

from barnabas import Broker
from barnabas.cluster import free_ports
from protocol.messages.metadata import ApiVersionsRequest
from tests.support.raw_client import RawClient
from tests.support.sasl import handshake, outlast, plain_token, sasl_node, send_token

RIGHT, WRONG = plain_token("alice", "alice-secret"), plain_token("alice", "wrong")


def test_the_metrics_page_counts_authentications() -> None:
    (port,) = free_ports(1)
    limits = {"connections.max.reauth.ms": "300", "barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}
    settings, address = sasl_node(limits)
    with Broker(settings=settings):
        with RawClient(address) as client:
            for token in (RIGHT, RIGHT):
                handshake(client, "PLAIN")
                assert send_token(client, token).session_lifetime_ms == 300
            outlast(0.4)
            client.send(ApiVersionsRequest(), 0)
            with pytest.raises((EOFError, ConnectionResetError)):
                client.receive_frame()
        with RawClient(address) as client:
            handshake(client, "PLAIN")
            send_token(client, WRONG)
        with RawClient(address) as client:
            for token in (RIGHT, WRONG):
                handshake(client, "PLAIN")
                send_token(client, token)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
    counted = dict(line.split("_total{listener=") for line in lines if "_total{listener=" in line)
    assert counted == {
        "successful_authentication": '"SASL_PLAINTEXT"} 2',
        "successful_reauthentication": '"SASL_PLAINTEXT"} 1',
        "failed_authentication": '"SASL_PLAINTEXT"} 1',
        "failed_reauthentication": '"SASL_PLAINTEXT"} 1',
        "expired_connections_killed": '"SASL_PLAINTEXT"} 1',
    }

"""Clients of other projects: OAUTHBEARER, and sessions that end while they produce."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from barnabas import Broker
from barnabas.cluster import free_ports
from broker.config.oauth_configs import UNSECURED_HANDLER
from tests.support.sasl import MODULE, outlast, sasl_node

PREFIX = "listener.name.sasl_plaintext.oauthbearer"
SESSION_MS = 2500


@pytest.fixture(scope="module")
def node() -> Iterator[tuple[str, int]]:
    """The address of a node's SASL listener, and the port of its metrics page."""
    (port,) = free_ports(1)
    settings, address = sasl_node(
        {
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            f"{PREFIX}.sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
            f"{PREFIX}.sasl.server.callback.handler.class": UNSECURED_HANDLER,
            "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": str(SESSION_MS),
            "barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}",
        }
    )
    with Broker(settings=settings):
        yield address, port


def token() -> str:
    parts = ({"alg": "none"}, {"sub": "alice", "iat": time.time(), "exp": time.time() + 600})
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def test_librdkafka_sends_a_token(node: tuple[str, int]) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": node[0], "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token(), time.time() + 600),
    }  # fmt: skip
    client = AdminClient(settings)
    client.poll(0.1)
    assert list(client.list_topics(timeout=10).brokers) == [1]


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Of kafka-python."""

    def token(self) -> str:
        return token()


def test_kafka_python_sends_a_token(node: tuple[str, int]) -> None:
    admin = KafkaAdminClient(
        bootstrap_servers=node[0], security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(),
    )  # fmt: skip
    assert len(admin.describe_cluster()["brokers"]) == 1
    admin.close()


class AioTokens(AioTokenProvider):  # type: ignore[misc]
    """Of aiokafka."""

    async def token(self) -> str:
        return token()


def test_aiokafka_sends_a_token(node: tuple[str, int]) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=node[0], security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AioTokens(),
        ) as producer:  # fmt: skip
            await producer.send_and_wait("tokens", b"v")

    asyncio.run(produce())


def counted(port: int, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith(f"{name}_total")]
    return int(value)


@pytest.mark.long
def test_librdkafka_authenticates_again_while_it_produces(node: tuple[str, int]) -> None:
    address, port = node
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "alice", "sasl.password": "alice-secret", "error_cb": errors.append, "linger.ms": 0,
        }
    )  # fmt: skip
    before = counted(port, "successful_reauthentication")
    started = time.monotonic()
    delivered: list[object] = []
    while time.monotonic() - started < 2.4 * SESSION_MS / 1000:
        producer.produce("sessions", b"v", on_delivery=lambda error, _: delivered.append(error))
        assert producer.flush(10) == 0
        outlast(0.02)
    assert set(delivered) == {None}
    assert errors == []
    assert counted(port, "successful_reauthentication") - before >= 2
    assert counted(port, "expired_connections_killed") == 0

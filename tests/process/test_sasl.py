"""A node with a SASL_PLAINTEXT listener: clients with right and wrong passwords, early requests, limits, secrets."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from barnabas import Broker
from barnabas.client.client_settings import for_kafka_python
from broker.config.security_configs import STANDARD_AUTHORIZER
from protocol.errors import ErrorCode
from protocol.messages.admin import DescribeConfigsRequest
from protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import (
    MECHANISMS,
    SCRAM_PASSWORD,
    SCRAM_USER,
    add_scram_user,
    handshake,
    listener_address,
    plain_token,
    sasl_node,
    scram_final,
    scram_first,
    send_token,
)

PASSWORDS = dict.fromkeys(MECHANISMS, (SCRAM_USER, SCRAM_PASSWORD)) | {"PLAIN": ("alice", "alice-secret")}
DELAY_S = 0.2
LOOP_CLOCK_S = 0.002
"""Timers of the event loop count whole milliseconds, from the begin of an iteration."""


class Node(NamedTuple):
    """A running node, and the address of its SASL listener."""

    broker: Broker
    sasl: str
    plaintext: str


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    delay = {
        "connection.failed.authentication.delay.ms": str(int(DELAY_S * 1000)),
        "sasl.server.max.receive.size": "5000",
    }
    settings, address = sasl_node(delay)
    with Broker(settings=settings) as broker:
        plaintext = listener_address(settings, "PLAINTEXT")
        add_scram_user(plaintext)
        yield Node(broker, address, plaintext)


def librdkafka_settings(address: str, mechanism: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
        "sasl.username": PASSWORDS[mechanism][0], "sasl.password": password, "log_level": 0,
    }  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_authenticates(node: Node, mechanism: str) -> None:
    right = AdminClient(librdkafka_settings(node.sasl, mechanism, PASSWORDS[mechanism][1]))
    assert list(right.list_topics(timeout=10).brokers) == [1]


def test_librdkafka_is_told_that_the_password_is_wrong(node: Node) -> None:
    messages = []
    wrong = AdminClient(librdkafka_settings(node.sasl, "PLAIN", "x") | {"error_cb": lambda e: messages.append(e.str())})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=1)
    wrong.poll(0.1)
    assert any("Authentication failed: Invalid username or password" in text for text in messages), messages


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_verbs_authenticate_users_with_any_name(node: Node, mechanism: str) -> None:
    user, password = "=a,b=3D", "secret"
    if mechanism == "PLAIN":
        user, password = PASSWORDS[mechanism]
    else:
        add_scram_user(node.plaintext, user, password)
    settings = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'X required username="{user}" password="{password}";',
    }  # fmt: skip
    admin = KafkaAdminClient(bootstrap_servers=node.sasl, **for_kafka_python(settings))
    assert len(admin.describe_cluster()["brokers"]) == 1
    admin.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_authenticates_or_is_refused(node: Node, mechanism: str) -> None:
    user, password = PASSWORDS[mechanism]
    common = {
        "bootstrap_servers": node.sasl, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
    }  # fmt: skip
    admin = KafkaAdminClient(**common, sasl_plain_password=password)
    assert len(admin.describe_cluster()["brokers"]) == 1
    admin.close()
    with pytest.raises(KafkaError):  # it tries again until the timeout
        KafkaAdminClient(**common, sasl_plain_password="wrong", bootstrap_timeout_ms=500)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_authenticates_or_is_refused(node: Node, mechanism: str) -> None:
    user, password = PASSWORDS[mechanism]

    async def produce(given: str) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=node.sasl, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
            sasl_plain_username=user, sasl_plain_password=given,
        )  # fmt: skip
        try:
            await producer.start()
            await producer.send_and_wait("sasl", b"v")
        finally:
            await producer.stop()

    asyncio.run(produce(password))
    with pytest.raises(AioKafkaError):
        asyncio.run(produce("wrong"))


def assert_closed(client: RawClient) -> None:
    with pytest.raises((EOFError, ConnectionResetError)):
        client.receive_frame()


def test_a_request_before_authentication_closes_the_connection(node: Node) -> None:
    for versions_first in (False, True):
        with RawClient(node.sasl) as client:
            if versions_first:
                client.ask(ApiVersionsRequest(), 0)
            client.send(MetadataRequest(topics=None), 12)
            assert_closed(client)


def test_the_response_to_a_failure_is_delayed_and_the_last(node: Node) -> None:
    with RawClient(node.sasl) as client:
        assert handshake(client, "PLAIN").error_code == ErrorCode.NONE
        started = time.monotonic()
        response = send_token(client, plain_token("alice", "wrong"))
        assert time.monotonic() - started >= DELAY_S - LOOP_CLOCK_S
        assert (response.error_code, response.error_message) == (
            ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid username or password",
        )  # fmt: skip
        assert_closed(client)


def test_raw_tokens_follow_the_first_version_of_the_handshake(node: Node) -> None:
    with RawClient(node.sasl) as client:
        assert handshake(client, "SCRAM-SHA-256", version=0).mechanisms == list(MECHANISMS)
        first = scram_first(SCRAM_USER)
        client.send_frame(first)
        client.send_frame(scram_final("SCRAM-SHA-256", first, client.receive_frame(), SCRAM_PASSWORD))
        assert client.receive_frame().startswith(b"v=")
        assert client.ask(MetadataRequest(topics=None), 12).brokers
    with RawClient(node.sasl) as client:
        handshake(client, "PLAIN", version=0)
        client.send_frame(plain_token("alice", "wrong"))
        assert_closed(client)


def test_frames_are_small_before_authentication_and_large_after(node: Node) -> None:
    with RawClient(node.sasl) as client:
        client.socket.sendall(struct.pack(">i", 5001))
        assert_closed(client)
    with RawClient(node.sasl) as client:
        handshake(client, "PLAIN")
        assert send_token(client, plain_token("alice", "alice-secret")).error_message == ""
        topics = [{"name": f"unknown-{number:050}"} for number in range(200)]
        request = message(MetadataRequest, topics=topics, allow_auto_topic_creation=False)
        assert len(client.ask(request, 12).topics) == len(topics)


def test_no_password_is_logged_or_described(node: Node) -> None:
    with RawClient(node.plaintext) as client:
        query = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        (result,) = client.ask(message(DescribeConfigsRequest, resources=[query], include_synonyms=True), 4).results
    assert "secret" not in repr([(row.value, row.synonyms) for row in result.configs])
    assert "is ignored" not in node.broker.log()
    assert "alice-secret" not in node.broker.log()
    assert SCRAM_PASSWORD not in node.broker.log()


def test_acls_distinguish_the_users() -> None:
    acls = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS;User:alice"}
    settings, address = sasl_node(acls)
    with Broker(settings=settings) as broker:
        add_scram_user(listener_address(settings, "PLAINTEXT"))
        request = message(MetadataRequest, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        with RawClient(address) as carol:
            handshake(carol, "SCRAM-SHA-512")
            first = scram_first(SCRAM_USER)
            answer = send_token(carol, first)
            send_token(carol, scram_final("SCRAM-SHA-512", first, answer.auth_bytes, SCRAM_PASSWORD))
            assert carol.ask(request, 12).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with RawClient(address) as alice:
            handshake(alice, "PLAIN")
            send_token(alice, plain_token("alice", "alice-secret"))
            assert alice.ask(request, 12).topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert f"Principal = User:{SCRAM_USER} is Denied operation = DESCRIBE" in broker.log()

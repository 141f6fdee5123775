"""What an eavesdropper records between clients and a closed broker: no secret, no name and no record."""

from __future__ import annotations

import asyncio
import struct
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from barnabas import Broker, Security
from tests.support.byte_relay import ByteRelay
from tests.support.kafka import free_port

USER, PASSWORD, NEW_PASSWORD = "spied-user", "spied-password", "spied-new-password"
TOPIC, GROUP, KEY, VALUE, HEADER = "spied-topic", "spied-group", b"spied-key", b"spied-value", "spied-header"
SECRETS = [text.encode() for text in (USER, PASSWORD, NEW_PASSWORD, TOPIC, GROUP, HEADER)] + [KEY, VALUE]
PLAIN_TOKEN = b"\0" + USER.encode() + b"\0" + PASSWORD.encode()
RECORD_HEADER = struct.Struct(">BHH")
RECORD_TYPES = range(20, 24)  # change cipher spec, alert, handshake, application data
LARGEST_RECORD = (1 << 14) + 2048


@contextmanager
def relayed(security: Security, **settings: str) -> Iterator[tuple[Broker, ByteRelay]]:
    """A broker that its clients reach through the relay only."""
    port = free_port()
    with ByteRelay(port) as relay:
        advertised = {"advertised.listeners": f"{security.protocol}://127.0.0.1:{relay.port}"}
        broker = Broker(port=port, security=security, settings={**advertised, **settings})
        with broker:
            yield broker, relay


def use(broker: Broker, relay: ByteRelay) -> None:
    """Log in, create a user, write and read, with three clients."""
    address = f"127.0.0.1:{relay.port}"
    admin = KafkaAdminClient(**broker.client_settings("kafka-python") | {"bootstrap_servers": address})
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("spied-user-2", ScramMechanism.SCRAM_SHA_256, NEW_PASSWORD)]
    )
    admin.close()
    settings = broker.client_settings("confluent-kafka") | {"bootstrap.servers": address}
    producer = Producer(settings)
    producer.produce(TOPIC, VALUE, KEY, headers={HEADER: b"spied"})
    assert producer.flush(20) == 0
    asyncio.run(write_with_aiokafka(broker.client_settings("aiokafka") | {"bootstrap_servers": address}))
    consumer = Consumer({**settings, "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    message = consumer.poll(20)
    assert message is not None
    assert message.error() is None
    consumer.close()


async def write_with_aiokafka(settings: dict[str, object]) -> None:
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait(TOPIC, VALUE, KEY)


def readable(relay: ByteRelay) -> set[bytes]:
    """The secrets that the capture contains, as they are, in base64, or in UTF-16."""
    captured = b"".join(relay.streams)
    return {
        secret
        for secret in SECRETS
        for form in (secret, b64encode(secret).rstrip(b"="), secret.decode().encode("utf-16-le"))
        if form in captured
    }


def assert_only_tls_records(stream: bytes | bytearray) -> None:
    position = 0
    while position < len(stream):
        kind, version, length = RECORD_HEADER.unpack_from(stream, position)
        assert kind in RECORD_TYPES, f"a byte {kind} at {position} begins no TLS record"
        assert version in (0x0301, 0x0303)
        assert length <= LARGEST_RECORD
        position += RECORD_HEADER.size + length
    assert position == len(stream)


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_capture_has_no_secret_and_no_record(protocol: str, mechanism: str) -> None:
    security = Security(mechanism=mechanism, users={USER: PASSWORD})
    fast = {"group.initial.rebalance.delay.ms": "0", "ssl.enabled.protocols": protocol}
    with relayed(security, **fast) as (broker, relay):
        use(broker, relay)
    assert len(relay.streams) >= 8
    assert all(map(len, relay.streams))
    assert readable(relay) == set()
    for stream in relay.streams:
        assert_only_tls_records(stream)


def test_the_same_capture_without_tls_has_them() -> None:
    """So the test above would find them. Changed passwords are not among them: clients send salted ones."""
    security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users={USER: PASSWORD})
    with relayed(security, **{"group.initial.rebalance.delay.ms": "0"}) as (broker, relay):
        use(broker, relay)
    assert readable(relay) == {*SECRETS} - {NEW_PASSWORD.encode()}
    assert PLAIN_TOKEN in b"".join(relay.streams)
    with pytest.raises((AssertionError, struct.error)):
        assert_only_tls_records(relay.streams[0])


def test_without_tls_a_scram_login_shows_no_password() -> None:
    security = Security(protocol="SASL_PLAINTEXT", users={USER: PASSWORD})
    with relayed(security, **{"group.initial.rebalance.delay.ms": "0"}) as (broker, relay):
        use(broker, relay)
    assert PASSWORD.encode() not in readable(relay)
    assert USER.encode() in readable(relay)

"""`barnabas.Broker(security=...)`: real clients connect with its settings, and only with them."""

from __future__ import annotations

import asyncio
import re
import ssl
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, TopicAuthorizationFailedError

import barnabas
from barnabas.pytest_plugin import SETTINGS
from barnabas.security import PROTOCOLS, SecurityError
from tests.support.kafka import run_tool
from tests.support.librdkafka import error_of

SECURITIES = {
    "SASL_SSL": barnabas.Security(),
    "SASL_PLAINTEXT": barnabas.Security(protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256"),
    "SSL": barnabas.Security(protocol="SSL"),
    "PLAIN": barnabas.Security(mechanism="PLAIN", users={"a b": 'q"uo\\te'}),
}


def produce(broker: barnabas.Broker, user: str | None = None) -> None:
    producer = KafkaProducer(**broker.client_settings("kafka-python", user))
    try:
        producer.send("words", b"kafka-python").get(timeout=10)
    finally:
        producer.close()


async def read_with_aiokafka(settings: dict[str, object], count: int) -> list[bytes]:
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("words", b"aiokafka")
    async with AIOKafkaConsumer("words", auto_offset_reset="earliest", **settings) as consumer:
        return [(await asyncio.wait_for(consumer.getone(), 10)).value for _ in range(count)]


@pytest.mark.parametrize("security", SECURITIES.values(), ids=SECURITIES)
def test_three_clients_connect_with_the_brokers_settings(security: barnabas.Security) -> None:
    with barnabas.Broker(settings=SETTINGS, security=security) as broker:
        produce(broker)
        producer = Producer(broker.client_settings("confluent-kafka"))
        producer.produce("words", b"confluent-kafka")
        assert producer.flush(10) == 0
        values = asyncio.run(read_with_aiokafka(broker.client_settings("aiokafka"), 3))
        assert sorted(values) == [b"aiokafka", b"confluent-kafka", b"kafka-python"]


@pytest.mark.needs_kafka
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_java_tool_connects_with_the_written_file(protocol: str) -> None:
    security = barnabas.Security(protocol=protocol, users={"java": 'ja\\va"s'})
    with barnabas.Broker(security=security) as broker:
        produce(broker)
        path = broker.write_client_properties()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        done = run_tool(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", broker.bootstrap, "--command-config", path, "--list"),
        )
        assert done.stdout.split() == ["words"], done.stderr


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_list_of_processes_shows_no_password_of_scram(mechanism: str) -> None:
    with barnabas.Broker(security=barnabas.Security(mechanism=mechanism, users={"alice": "wonder"})) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_text()
        (path,) = re.findall(r"@([^\0]+)", command)
        assert "wonder" not in command
        assert "password" not in command
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        produce(broker)


def test_other_clients_are_refused() -> None:
    with (
        barnabas.Broker(security=SECURITIES["SASL_SSL"]) as broker,
        barnabas.Broker(security=SECURITIES["SASL_SSL"]) as other,
    ):
        settings = broker.client_settings("confluent-kafka") | {"socket.connection.setup.timeout.ms": 2000}
        wrong: dict[str, dict[str, Any]] = {
            "password": {"sasl.password": "wrong"},
            "authority": {"ssl.ca.location": other.client_settings("confluent-kafka")["ssl.ca.location"]},
            "protocol": {"security.protocol": "PLAINTEXT"},
        }
        assert AdminClient(settings).list_topics(timeout=10).brokers
        for name, change in wrong.items():
            assert error_of({**settings, **change}), name


def test_a_client_without_a_certificate_is_refused() -> None:
    with barnabas.Broker(security=SECURITIES["SSL"]) as broker:
        settings = broker.client_settings("kafka-python")
        authority = broker.client_settings("java")["ssl.truststore.location"]
        settings["ssl_context"] = ssl.create_default_context(cafile=authority)
        with pytest.raises(KafkaError):
            KafkaAdminClient(**settings, bootstrap_timeout_ms=2000)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_with_acls_only_the_first_user_has_rights(protocol: str) -> None:
    security = barnabas.Security(protocol=protocol, users={"admin": "1", "guest": "2"}, has_acls=True)
    with barnabas.Broker(security=security) as broker:
        produce(broker)
        with pytest.raises(TopicAuthorizationFailedError):
            produce(broker, "guest")


def test_a_restarted_broker_knows_its_users(tmp_path: Path) -> None:
    security = barnabas.Security(users={"kept": "secret"})
    with barnabas.Broker(tmp_path / "data", security=security) as broker:
        produce(broker)
        broker.restart()
        produce(broker)
    with barnabas.Broker(tmp_path / "data", security=security) as again:
        consumer = KafkaConsumer(
            "words", auto_offset_reset="earliest", consumer_timeout_ms=8000, **again.client_settings("kafka-python")
        )
        assert [next(consumer).offset for _ in range(2)] == [0, 1]
        consumer.close()


def test_wrong_names_are_refused() -> None:
    with pytest.raises(SecurityError, match="protocol 'TLS' is not one of SSL, "):
        barnabas.Security(protocol="TLS")
    with pytest.raises(SecurityError, match="mechanism 'GSSAPI' is not one of"):
        barnabas.Security(mechanism="GSSAPI")
    with pytest.raises(SecurityError, match="users is empty"):
        barnabas.Security(users={})
    with pytest.raises(SecurityError, match="user node has the name of the broker's certificate"):
        barnabas.Broker(security=barnabas.Security(protocol="SSL", users={"node": ""}))
    broker = barnabas.Broker(security=barnabas.Security(protocol="SASL_PLAINTEXT"))
    with pytest.raises(SecurityError, match="library 'sarama' is not one of kafka-python, "):
        broker.client_settings("sarama")
    with pytest.raises(SecurityError, match="user 'bob' is not one of user"):
        broker.client_settings("java", "bob")
    with pytest.raises(SecurityError, match="has no security"):
        barnabas.Broker().client_settings("java")


def test_passwords_are_not_in_the_representation() -> None:
    assert "secret" not in repr(barnabas.Security(users={"alice": "secret"}))


def test_the_fixture_is_a_closed_broker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import pytest, barnabas
from kafka import KafkaProducer

@pytest.fixture(scope="session")
def kafka_security():
    return barnabas.Security(users={"alice": "wonder"})

def test_it(kafka_secure_broker):
    settings = kafka_secure_broker.client_settings("kafka-python")
    assert settings["sasl_plain_username"] == "alice"
    producer = KafkaProducer(**settings)
    producer.send("words", b"pytest").get(timeout=10)
    producer.close()
"""
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout

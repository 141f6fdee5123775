"""A cluster whose nodes talk to each other over mutual TLS; its clients have certificates too."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas import Broker, Cluster
from barnabas.embedded import BrokerError
from broker.config.security_configs import STANDARD_AUTHORIZER
from tests.support.certificates import Certificates
from tests.support.waiting import until

pytestmark = pytest.mark.smoke


def settings(certificates: Certificates) -> dict[str, str]:
    return {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.create("node", "/CN=node")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "ssl.client.auth": "required",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:CN=node;User:CN=admin",
    }


def client(certificates: Certificates, name: str) -> dict[str, Any]:
    key = str(certificates.create(name, f"/CN={name}"))
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.ca),
        "ssl.certificate.location": key,
        "ssl.key.location": key,
    }


def test_nodes_replicate_and_forward_over_mutual_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "ca")
    with Cluster(2, 1, data_dir=tmp_path / "data", settings=settings(certificates), start_timeout_s=60) as cluster:
        admin = {"bootstrap.servers": cluster.bootstrap, **client(certificates, "admin")}
        new_topic = NewTopic("t", num_partitions=2, replication_factor=2)
        administrator = AdminClient(admin)
        administrator.create_topics([new_topic], operation_timeout=20)["t"].result(20)
        producer = Producer({**admin, "acks": "all"})
        for number in range(100):
            producer.produce("t", b"%d" % number * 1000, partition=number % 2)
        assert producer.flush(30) == 0
        other = AdminClient({**admin, **client(certificates, "other")})
        with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
            other.create_topics([NewTopic("u", 1, 2)])["u"].result(20)
        consumer = Consumer({**admin, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        received: list[bytes] = []

        def has_all() -> bool:
            received.extend(message.value() or b"" for message in consumer.consume(100, 1))
            return len(received) >= 100

        until(has_all, "the consumer receives all records")
        consumer.close()
        assert all("TLS handshake failed" not in node.log() for node in cluster.nodes.values())


def test_a_node_with_a_certificate_of_another_authority_does_not_join(tmp_path: Path) -> None:
    certificates, foreign = Certificates(tmp_path / "ca"), Certificates(tmp_path / "foreign")
    with Cluster(1, 1, data_dir=tmp_path / "data", settings=settings(certificates), start_timeout_s=60) as cluster:
        both = tmp_path / "both.pem"
        both.write_text(certificates.ca.read_text() + foreign.ca.read_text())
        own = {"ssl.keystore.location": str(foreign.create("node", "/CN=node")), "ssl.truststore.location": str(both)}
        wrong = {**cluster.nodes[1].settings, **own}
        cluster.nodes[1].stop()
        intruder = Broker(data_dir=cluster.nodes[1].data_dir, settings=wrong, start_timeout_s=60)
        with ThreadPoolExecutor(1) as threads:
            started = threads.submit(intruder.start)
            until(lambda: "the TLS handshake failed" in cluster.nodes[2].log(), "a refused handshake")
            os.kill(intruder.pid, signal.SIGKILL)  # kill() would close the pipe that start() reads
            with pytest.raises(BrokerError, match="did not start"):
                started.result()


def test_a_node_does_not_start_if_other_nodes_with_its_settings_could_not_connect(tmp_path: Path) -> None:
    certificates, foreign = Certificates(tmp_path / "ca"), Certificates(tmp_path / "foreign")
    wrong = {**settings(certificates), "ssl.truststore.location": str(foreign.ca)}
    with pytest.raises(BrokerError, match=r"listener PLAINTEXT is for connections between brokers.*must trust"):
        Broker(settings=wrong).start()

"""`barnabas.Cluster(security=...)`: its nodes and its clients connect with their own names, and others do not."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import barnabas
from barnabas.security import SecurityError

USERS = {"admin": "admin-secret", "guest": "guest-secret"}


def client(cluster: barnabas.Cluster, user: str = "admin") -> dict[str, Any]:
    return cluster.client_settings("confluent-kafka", user)


def create_topic(cluster: barnabas.Cluster, name: str, user: str = "admin") -> None:
    topic = NewTopic(name, num_partitions=3, replication_factor=3)
    administrator = AdminClient(client(cluster, user))
    administrator.create_topics([topic], operation_timeout=20)[name].result(30)


def produce(cluster: barnabas.Cluster, value: bytes) -> None:
    producer = Producer({**client(cluster), "acks": "all"})
    producer.produce("t", value, partition=0)
    assert producer.flush(30) == 0


def values(cluster: barnabas.Cluster, count: int) -> list[bytes | None]:
    consumer = Consumer({**client(cluster), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found = [message.value() for message in consumer.consume(count, 30)]
    consumer.close()
    return found


@pytest.mark.long
def test_a_closed_cluster_keeps_its_passwords_and_rights_when_it_is_opened_again(tmp_path: Path) -> None:
    security = barnabas.Security(users=USERS, has_acls=True)
    with barnabas.Cluster(3, data_dir=tmp_path, security=security) as cluster:
        create_topic(cluster, "t")
        produce(cluster, b"first")
        with pytest.raises(KafkaException) as denied:
            create_topic(cluster, "u", "guest")
        assert denied.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        secret = (tmp_path / "certs" / "nodes.secret").read_text()
        lines = [Path(f"/proc/{node.pid}/cmdline").read_text() for node in cluster.nodes.values()]
        assert not [line for line in lines if secret in line or "admin-secret" in line]
    for path in ("certs/nodes.secret", "nodes.properties", "certs/users.scram"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o600
    with barnabas.Cluster(3, data_dir=tmp_path, security=security) as cluster:
        produce(cluster, b"second")
        assert values(cluster, 2) == [b"first", b"second"]


@pytest.mark.long
@pytest.mark.parametrize(
    "security",
    [
        barnabas.Security(protocol="SSL", users=USERS, has_acls=True),
        barnabas.Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users=USERS, has_acls=True),
        barnabas.Security(mechanism="PLAIN", users=USERS),
        barnabas.Security(protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", users=USERS),
    ],
    ids=lambda security: f"{security.protocol}-{security.mechanism}-{security.has_acls}",
)
def test_nodes_replicate_with_every_protocol(security: barnabas.Security) -> None:
    with barnabas.Cluster(3, 1, security=security) as cluster:
        create_topic(cluster, "t")
        produce(cluster, b"value")
        assert values(cluster, 1) == [b"value"]


def test_the_nodes_user_is_no_users_name() -> None:
    with pytest.raises(SecurityError, match="barnabas-node is the cluster's own"):
        barnabas.Cluster(1, security=barnabas.Security(users={"barnabas-node": "x"}))

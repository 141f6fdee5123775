"""Schedule topics in a cluster of three with SASL_SSL, also between its nodes, and ACLs."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import barnabas
from tests.support.waiting import until

LITERAL, ALLOW = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
RECORDS = 150
REFUSED = "TOPIC_AUTHORIZATION_FAILED"


def new_topic(name: str, **config: str) -> NewTopic:
    return NewTopic(name, 2, 3, config={key.replace("_", "."): value for key, value in config.items()})


def create(admin: AdminClient, topic: NewTopic) -> None:
    admin.create_topics([topic], operation_timeout=20)[topic.topic].result(30)


def set_target(admin: AdminClient, topic: str) -> None:
    entry = ConfigEntry("barnabas.deliver.to", "target", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def schedule(producer: Producer, numbers: range) -> None:
    for number in numbers:
        headers = [("deliver-after", b"%d" % (number * 10))]
        producer.produce("mine", b"%d" % number, headers=headers, partition=number % 2)  # type: ignore[arg-type]
    assert producer.flush(60) == 0


class Reader:
    """Collects the values of the target."""

    def __init__(self, settings: dict[str, object]) -> None:
        self._consumer = Consumer({**settings, "group.id": "reader", "auto.offset.reset": "earliest"})
        self._consumer.subscribe(["target"])
        self.values: Counter[int] = Counter()

    def has(self, count: int) -> bool:
        message = self._consumer.poll(0.5)
        if message is not None and message.error() is None:
            self.values[int(message.value() or b"")] += 1
        return self.values.total() >= count

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.long
def test_deliveries_survive_a_kill_and_need_rights_on_the_target_only_when_it_is_set() -> None:
    security = barnabas.Security(users={"admin": "admin-secret", "clerk": "clerk-secret"}, has_acls=True)
    with barnabas.Cluster(3, security=security) as cluster:
        settings = cluster.client_settings("confluent-kafka", "admin")
        admin = AdminClient(settings)
        clerk = AdminClient(cluster.client_settings("confluent-kafka", "clerk"))
        create(admin, new_topic("target", min_insync_replicas="3"))
        grant = AclBinding(ResourceType.TOPIC, "mine", LITERAL, "User:clerk", "*", AclOperation.ALL, ALLOW)
        admin.create_acls([grant])[grant].result(30)
        with pytest.raises(KafkaException, match=REFUSED):
            create(clerk, new_topic("mine", barnabas_deliver_to="target"))
        create(clerk, new_topic("mine"))
        with pytest.raises(KafkaException, match=REFUSED):
            set_target(clerk, "mine")
        set_target(admin, "mine")
        producer = Producer({**cluster.client_settings("confluent-kafka", "clerk"), "enable.idempotence": True})
        schedule(producer, range(10))
        reader = Reader(settings)
        until(lambda: reader.has(10), "the first are delivered")
        victim = admin.list_topics("mine", timeout=30).topics["mine"].partitions[0].leader
        cluster.nodes[victim].kill()  # then the target has too few replicas in sync
        schedule(producer, range(10, RECORDS))
        others = [node for number, node in cluster.nodes.items() if number != victim]
        until(lambda: any("to target is interrupted: " in node.log() for node in others), "it is interrupted")
        cluster.nodes[victim].start()
        until(lambda: reader.has(RECORDS), "all are delivered")
        reader.close()
        assert reader.values == Counter(range(RECORDS))

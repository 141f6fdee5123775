"""Schedule topics with stock clients: records arrive when they are due, once, also after kills and fail-overs."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from barnabas import Broker, Security
from tests.support.cluster import Cluster
from tests.support.librdkafka import create_topic, read_to_end
from tests.support.seeds import seed_of
from tests.support.waiting import until

LITERAL, ALLOW = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
_TOLERANCE_MS = 100
"""What a record may be early: the wall clock is read in milliseconds by two processes."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(params=[pytest.param("segments", marks=pytest.mark.long), "commitlog"])
def of_engine(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(settings={"barnabas.log.storage.engine": request.param}) as running:
        yield running


def create_schedule(bootstrap: str, partitions: int = 1, replicas: int = 1) -> None:
    create_topic(bootstrap, "target", 2, replicas)
    create_topic(bootstrap, "schedule", partitions, replicas, **{"barnabas.deliver.to": "target"})


def delivered(bootstrap: str) -> list[Message]:
    return read_to_end(bootstrap, "target", "read_committed")


def values(messages: list[Message]) -> list[int]:
    return sorted(int(message.value() or b"") for message in messages)


def headers_of(message: Message) -> dict[str, bytes]:
    return dict(message.headers() or [])  # type: ignore[arg-type]


class Scheduler:
    """Produces records with a number each, and remembers when they are due."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self.due: dict[int, int] = {}
        self._failed: list[str] = []

    def schedule(self, delays_ms: list[int]) -> None:
        """Records that are due after these delays; returns when they are acknowledged."""
        for delay_ms in delays_ms:
            number, now_ms = len(self.due), int(time.time() * 1000)
            self.due[number] = now_ms + delay_ms
            self._producer.produce(
                "schedule",
                b"%d" % number,
                key=b"key-%d" % (number % 20),
                timestamp=now_ms,
                headers=[("deliver-after", b"%d" % delay_ms)],
                on_delivery=self._on_delivery,
            )
        assert self._producer.flush(60) == 0
        assert self._failed == []

    def _on_delivery(self, error: object, _message: Message) -> None:
        if error is not None:
            self._failed.append(str(error))

    def check(self, messages: list[Message]) -> None:
        """All are delivered once, and none was early."""
        counts = Counter(int(message.value() or b"") for message in messages)
        assert [number for number, count in counts.items() if count != 1] == []
        assert set(counts) == set(self.due)
        for message in messages:
            assert message.timestamp()[1] >= self.due[int(message.value() or b"")] - _TOLERANCE_MS


def test_records_arrive_when_they_are_due_with_key_value_and_headers(broker: Broker) -> None:
    create_schedule(broker.bootstrap)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    due_ms = int(time.time() * 1000) + 700
    producer.produce("schedule", b"2", key=b"a", headers=[("x", None), ("deliver-at", b"%d" % due_ms)])
    producer.produce("schedule", b"1", key=b"b")
    assert producer.flush(30) == 0
    at_once = until(lambda: delivered(broker.bootstrap), "the record without header is delivered")[0]
    assert (at_once.key(), at_once.value(), headers_of(at_once)) == (b"b", b"1", {"schedule-id": b"schedule-0-1"})
    found = until(
        lambda: [one for one in delivered(broker.bootstrap) if one.value() == b"2"], "the other one is delivered"
    )
    assert found[0].key() == b"a"
    assert found[0].headers() == [("x", None), ("deliver-at", b"%d" % due_ms), ("schedule-id", b"schedule-0-0")]
    assert due_ms <= found[0].timestamp()[1] < due_ms + 1_000


def test_a_later_record_without_value_cancels_those_with_its_key(broker: Broker) -> None:
    create_schedule(broker.bootstrap)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, key in enumerate((b"kept", b"cancelled", b"cancelled")):
        producer.produce("schedule", b"%d" % number, key=key, headers=[("deliver-after", b"500")])
    producer.produce("schedule", None, key=b"cancelled")
    producer.produce("schedule", b"3", key=b"cancelled", headers=[("deliver-after", b"800")])
    assert producer.flush(30) == 0
    until(lambda: 3 in values(delivered(broker.bootstrap)), "the last one is delivered")
    assert values(delivered(broker.bootstrap)) == [0, 3]


def test_a_broker_with_security_needs_no_rights_for_its_own_deliveries() -> None:
    security = Security(has_acls=True, users={"admin": "a", "clerk": "b"}, protocol="SASL_PLAINTEXT")
    with Broker(security=security) as broker:
        settings = broker.client_settings("confluent-kafka", "admin")
        admin = AdminClient(settings)
        config = {"barnabas.deliver.to": "target"}
        for topic in (NewTopic("target", 1, 1), NewTopic("schedule", 1, 1, config=config)):
            admin.create_topics([topic])[topic.topic].result(30)
        grant = AclBinding(ResourceType.TOPIC, "mine", LITERAL, "User:clerk", "*", AclOperation.ALL, ALLOW)
        admin.create_acls([grant])[grant].result(30)
        clerk = AdminClient(broker.client_settings("confluent-kafka", "clerk"))
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):  # no Write on the target
            clerk.create_topics([NewTopic("mine", 1, 1, config=config)])["mine"].result(30)
        producer = Producer(settings)
        producer.produce("schedule", b"1", headers=[("deliver-after", b"100")])
        assert producer.flush(30) == 0
        consumer = Consumer({**settings, "group.id": "reader", "auto.offset.reset": "earliest"})
        consumer.subscribe(["target"])
        message = consumer.poll(60)
        consumer.close()
        assert message is not None
        assert message.value() == b"1"


@pytest.mark.parametrize(
    "headers",
    [
        [("deliver-at", b"soon")],
        [("deliver-after", b"-1")],
        [("deliver-after", b"1"), ("deliver-at", b"1")],
        [("deliver-after", b"%d" % (31 * 86_400_000))],
    ],
)
def test_a_record_that_breaks_the_rules_is_refused(
    broker: Broker, headers: list[tuple[str, str | bytes | None]]
) -> None:
    create_schedule(broker.bootstrap)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("schedule", b"1", headers=headers, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error.name() for error in errors] == ["INVALID_RECORD"]


def test_a_target_must_exist_and_not_be_a_schedule_topic(broker: Broker) -> None:
    create_schedule(broker.bootstrap)
    for target, reason in (
        ("absent", "does not exist"),
        ("schedule", "is a schedule topic"),
        ("new", "cannot be a target"),
    ):
        with pytest.raises(KafkaException, match=reason):
            create_topic(broker.bootstrap, "new", barnabas_deliver_to=target)


def _wait_for_more(bootstrap: str, count: int, scheduler: Scheduler) -> None:
    """Waits until some more records are delivered, or all."""
    wanted = min(len(delivered(bootstrap)) + count, len(scheduler.due))
    until(lambda: len(delivered(bootstrap)) >= wanted, "more are delivered")


def test_kills_neither_lose_nor_repeat_a_record(of_engine: Broker) -> None:
    seed, broker = seed_of(), of_engine
    print(f"seed {seed}")
    rng = random.Random(seed)
    create_schedule(broker.bootstrap, partitions=2)
    scheduler = Scheduler(broker.bootstrap)
    for _ in range(4):
        scheduler.schedule([rng.randrange(1_500) for _ in range(200)])
        _wait_for_more(broker.bootstrap, rng.randrange(60), scheduler)
        broker.kill()
        broker.start()
    until(lambda: len(delivered(broker.bootstrap)) >= len(scheduler.due), "all are delivered")
    scheduler.check(delivered(broker.bootstrap))


@pytest.mark.long
def test_another_leader_continues_after_a_kill() -> None:
    seed = seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Cluster() as cluster:
        create_schedule(cluster.bootstrap, partitions=3, replicas=3)
        cluster.wait_until_known("schedule")
        scheduler = Scheduler(cluster.bootstrap)
        for victim in (1, 2, 3):
            scheduler.schedule([rng.randrange(3_000) for _ in range(300)])
            _wait_for_more(cluster.bootstrap, 20, scheduler)
            cluster.nodes[victim].kill()
            scheduler.schedule([rng.randrange(3_000) for _ in range(100)])
            cluster.start()
        until(lambda: len(delivered(cluster.bootstrap)) >= len(scheduler.due), "all are delivered")
        scheduler.check(delivered(cluster.bootstrap))

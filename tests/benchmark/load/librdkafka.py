"""Load by librdkafka."""

from __future__ import annotations

import os
from contextlib import closing
from itertools import cycle

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.running_broker import RunningBroker

_CHUNK = 10_000
_QUEUED_BYTES = 256 << 20
_QUEUED_RECORDS = 1_500_000
_TIMEOUT_S = 120
_SILENCE_S = 20


def produce(broker: RunningBroker, topic: str, count: int, value_bytes: int) -> Outcome:
    """Records of one size, acks=1, batches of up to 128 KiB, round-robin over the partitions."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "acks": "1",
            "batch.size": 131072,
            "batch.num.messages": 131072 // value_bytes + 1,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    partitions = len(producer.list_topics(topic, timeout=30).topics[topic].partitions)
    messages = [{"value": os.urandom(value_bytes)}] * (_CHUNK // partitions)
    turn = cycle(range(partitions))
    queued = 0
    with Meter(broker.pid) as meter:
        while queued < count:
            while len(producer) * value_bytes > _QUEUED_BYTES or len(producer) > _QUEUED_RECORDS:
                producer.poll(0.005)
            queued += producer.produce_batch(topic, messages[: count - queued], partition=next(turn))
            producer.poll(0)
        left = producer.flush(_TIMEOUT_S)
    assert left == 0, f"{left} records were not acknowledged"
    return meter.records(count / meter.wall_s, count * value_bytes)


def consume(broker: RunningBroker, topic: str, count: int) -> Outcome:
    """Records from the beginning of the partitions, as Python objects.

    The CPU time counts per byte sent: the client fetches ahead, up to 256 MiB more than it consumes.
    """
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "bench",
        "enable.auto.commit": False,
        "check.crcs": False,
        "fetch.wait.max.ms": 100,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 262144,
    }
    # Always closed: garbage collection of a consumer whose broker has stopped takes minutes.
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        assert partitions, f"there is no {topic}: also select the load that produces to it"
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        received = 0
        with Meter(broker.pid) as meter:
            while received < count:
                messages = consumer.consume(min(50_000, count - received), _SILENCE_S)
                assert messages, "nothing came"
                received += len(messages)
    return meter.records(count / meter.wall_s, meter.loopback_bytes)

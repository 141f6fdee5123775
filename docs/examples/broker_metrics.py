"""Writes what a broker says of itself into a topic, every few seconds until it is stopped. See README.md.

    python broker_metrics.py [--bootstrap HOST:PORT] [--every SECONDS] [--times N]

RULES    1. Only Kafka's protocol is asked, so that any broker will do; internal topics are left out.
         2. A record is JSON of one replica (bytes, behind), one partition (log_start, log_end) or one group's place in it
            (lag); its key says which, so that the latest record of each key is how things stand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

TOPIC = "broker-metrics"
A_DAY = {"retention.ms": "86400000"}


def replicas(admin: KafkaAdminClient) -> Iterator[dict[str, Any]]:
    """The size of each replica, and how far it is behind its leader."""
    for answer in admin.describe_log_dirs():
        for folder in answer["log_dirs"]:
            for topic in folder["topics"]:
                for one in topic["partitions"]:
                    place = {"broker": answer["broker"], "topic": topic["name"], "partition": one["partition_index"]}
                    yield {**place, "bytes": one["partition_size"], "behind": one["offset_lag"]}


def partitions(consumer: KafkaConsumer, places: list[TopicPartition]) -> Iterator[dict[str, Any]]:
    """From where to where each log goes."""
    starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    for place in places:
        offsets = {"log_start": starts[place], "log_end": ends[place]}
        yield {"topic": place.topic, "partition": place.partition, **offsets}


def groups(admin: KafkaAdminClient, ends: dict[TopicPartition, int]) -> Iterator[dict[str, Any]]:
    """How far each group is behind."""
    for name in [group["group_id"] for group in admin.list_groups()]:
        for place, committed in admin.list_group_offsets(name)[name].items():
            if place in ends:
                lag = ends[place] - committed.offset
                yield {"topic": place.topic, "partition": place.partition, "group": name, "lag": lag}


def sample(admin: KafkaAdminClient, consumer: KafkaConsumer) -> list[dict[str, Any]]:
    """Everything, as it is now (rule 1)."""
    held = [one for one in replicas(admin) if not one["topic"].startswith("__")]
    places = sorted({TopicPartition(one["topic"], one["partition"]) for one in held})
    logs = list(partitions(consumer, places))
    ends = {TopicPartition(one["topic"], one["partition"]): one["log_end"] for one in logs}
    return [*held, *logs, *groups(admin, ends)]


def key_of(one: dict[str, Any]) -> str:
    """What a record is about (rule 2)."""
    whose = f"broker {one['broker']} " if "broker" in one else f"group {one['group']} " if "group" in one else ""
    return f"{whose}{one['topic']}-{one['partition']}"


def main() -> None:
    """As a program."""
    parser = argparse.ArgumentParser(description="A broker's own numbers, in a topic.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--times", type=int, help="end after so many samples")
    options = parser.parse_args()
    admin = KafkaAdminClient(bootstrap_servers=options.bootstrap)
    consumer = KafkaConsumer(bootstrap_servers=options.bootstrap)
    producer = KafkaProducer(bootstrap_servers=options.bootstrap, acks="all")
    with contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=-1, topic_configs=A_DAY)])
    done = 0
    while done != options.times:
        for one in sample(admin, consumer):
            producer.send(TOPIC, key=key_of(one).encode(), value=json.dumps(one).encode())
        producer.flush()
        done += 1
        if done != options.times:
            time.sleep(options.every)


if __name__ == "__main__":
    main()

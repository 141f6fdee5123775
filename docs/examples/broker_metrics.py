"""Writes a broker's metrics to a topic, every few seconds until it is stopped. See README.md.

    python broker_metrics.py [--bootstrap HOST:PORT] [--every SECONDS] [--times N]

RULES    1. Only Kafka's protocol is used: any Kafka broker works. Internal topics are left out.
         2. A record is JSON about one replica (bytes, behind), one partition (log_start, log_end) or one group's partition
            (lag). Its key identifies the subject: the latest record of each key is the current state.
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
    """Yields the size of each replica, and its lag behind the leader."""
    for response in admin.describe_log_dirs():
        for folder in response["log_dirs"]:
            for topic in folder["topics"]:
                for partition in topic["partitions"]:
                    subject = {
                        "broker": response["broker"],
                        "topic": topic["name"],
                        "partition": partition["partition_index"],
                    }
                    yield {**subject, "bytes": partition["partition_size"], "behind": partition["offset_lag"]}


def partitions(consumer: KafkaConsumer, topic_partitions: list[TopicPartition]) -> Iterator[dict[str, Any]]:
    """Yields the start and end offset of each log."""
    starts, ends = consumer.beginning_offsets(topic_partitions), consumer.end_offsets(topic_partitions)
    for tp in topic_partitions:
        offsets = {"log_start": starts[tp], "log_end": ends[tp]}
        yield {"topic": tp.topic, "partition": tp.partition, **offsets}


def groups(admin: KafkaAdminClient, ends: dict[TopicPartition, int]) -> Iterator[dict[str, Any]]:
    """Yields the lag of each group."""
    for name in [group["group_id"] for group in admin.list_groups()]:
        for tp, committed in admin.list_group_offsets(name)[name].items():
            if tp in ends:
                lag = ends[tp] - committed.offset
                yield {"topic": tp.topic, "partition": tp.partition, "group": name, "lag": lag}


def sample(admin: KafkaAdminClient, consumer: KafkaConsumer) -> list[dict[str, Any]]:
    """Returns all current metrics (rule 1)."""
    replica_metrics = [one for one in replicas(admin) if not one["topic"].startswith("__")]
    topic_partitions = sorted({TopicPartition(one["topic"], one["partition"]) for one in replica_metrics})
    logs = list(partitions(consumer, topic_partitions))
    ends = {TopicPartition(one["topic"], one["partition"]): one["log_end"] for one in logs}
    return [*replica_metrics, *logs, *groups(admin, ends)]


def key_of(metric: dict[str, Any]) -> str:
    """Returns the key of a record (rule 2)."""
    owner = next((f"{name} {metric[name]} " for name in ("broker", "group") if name in metric), "")
    return f"{owner}{metric['topic']}-{metric['partition']}"


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description="Writes a broker's metrics to a topic.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--times", type=int, help="the number of samples; default: no limit")
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

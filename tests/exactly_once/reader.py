"""Reads topics with read_committed from their beginnings: [to-the-end] TOPIC PARTITIONS [TOPIC PARTITIONS]...

With `to-the-end` it exits at the end of the topics.
"""

from __future__ import annotations

from typing import Any

import confluent_kafka

from tests.exactly_once.client import Client, read_committed, run

POLL_S = 0.1


def follow(client: Client) -> None:
    """Reads until SIGTERM, or until all is read."""
    words = client.arguments
    stops = words[0] == "to-the-end"
    topics = words[1:] if stops else words
    partitions = [
        confluent_kafka.TopicPartition(topic, partition, 0)
        for topic, count in zip(topics[::2], topics[1::2], strict=True)
        for partition in range(int(count))
    ]
    consumer = read_committed(client, client.name, **{"enable.auto.commit": False, "enable.partition.eof": stops})
    consumer.assign(partitions)
    for topic_partition in partitions:
        client.history.note("assigned", "", topic_partition.topic, topic_partition.partition)
    left = {(topic_partition.topic, topic_partition.partition) for topic_partition in partitions}
    while left and not client.stop_requested.is_set():
        messages: list[Any] = consumer.consume(500, POLL_S)
        for message in messages:
            topic_and_partition = message.topic(), message.partition()
            if message.error() is None:
                client.history.note("polled", "", *topic_and_partition, message.offset(), message.value().decode())
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                left.discard(topic_and_partition)
    consumer.close()


if __name__ == "__main__":
    run(follow)

"""A program that reads topics as committed readers see them, from their beginnings: TOPIC PARTITIONS [TOPIC PARTITIONS]...

With the word `to-the-end` before the topics it ends where they end.
"""

from __future__ import annotations

import confluent_kafka

from tests.exactly_once.client import QUICK, Client, run

POLL_S = 0.1


def follow(client: Client) -> None:
    """Read until it is asked to end, or until all is read."""
    words = client.arguments
    stops = words[0] == "to-the-end"
    topics = words[1:] if stops else words
    places = [
        confluent_kafka.TopicPartition(topic, partition, 0)
        for topic, count in zip(topics[::2], topics[1::2], strict=True)
        for partition in range(int(count))
    ]
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": client.bootstrap, "group.id": client.name, "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": stops, "fetch.wait.max.ms": 50, **QUICK,
        }
    )  # fmt: skip
    consumer.assign(places)
    for place in places:
        client.history.note("assigned", "", place.topic, place.partition)
    left = {(place.topic, place.partition) for place in places}
    while left and not client.over.is_set():
        for message in consumer.consume(500, POLL_S):
            where = message.topic(), message.partition()
            if message.error() is None:
                client.history.note("polled", "", *where, message.offset(), message.value().decode())
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                left.discard(where)
    consumer.close()


if __name__ == "__main__":
    run(follow)

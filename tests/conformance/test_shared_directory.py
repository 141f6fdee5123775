"""Kafka's tools show the same of a data directory under Barnabas and under Apache Kafka.

NOT HERE What clients find in a directory that both brokers have served (`test_alternating_brokers.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas import Broker
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.waiting import until

TOPIC = "shared"
RECORDS = 500
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}
WAIT_S = 30


def use(bootstrap: str) -> None:
    """Creates the topic, fills it and commits the end offsets of a group."""
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
    topic = NewTopic(TOPIC, 2, config={"retention.ms": "-1", "segment.bytes": "1048576"})
    admin = AdminClient(client)
    admin.create_topics([topic])[TOPIC].result(WAIT_S)
    producer = Producer({**client, "enable.idempotence": True, "compression.type": "lz4"})
    for index in range(RECORDS):
        producer.produce(TOPIC, value=str(index), partition=index % 2)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**client, "group.id": "visitors"})
    ends = [TopicPartition(TOPIC, partition, RECORDS // 2) for partition in (0, 1)]
    consumer.committed(ends, WAIT_S)  # waits for a coordinator
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()


TOOLS = (
    ("org.apache.kafka.tools.TopicCommand", "--describe", "--topic", TOPIC),
    ("kafka.admin.ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", TOPIC),
    ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--group", "visitors"),
)


@needs_kafka
def test_kafka_tools_print_the_same_for_both_brokers(tmp_path: Path) -> None:
    """Ids, partitions, leaders, configs, commits and lags, as `kafka-topics` and other tools print them."""
    directory = tmp_path / "data"
    with Broker(data_dir=directory, settings=SETTINGS) as ours:
        use(ours.bootstrap)
        here = [_told(ours.bootstrap, *tool) for tool in TOOLS]
    with ApacheKafka(data_dir=directory) as kafka:
        _committed(kafka.bootstrap)
        there = [_told(kafka.bootstrap, *tool) for tool in TOOLS]
        quorum = _told(kafka.bootstrap, "org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
    assert _words(here) == _words(there)
    assert any(line.split() == ["LeaderId:", "1"] for line in quorum)
    assert sum("Partition:" in line for line in here[0]) == 2
    assert any("retention.ms=-1" in line for line in here[1])
    assert sum(line.split()[:2] == ["visitors", TOPIC] for line in here[2]) == 2


def _words(response: list[list[str]]) -> list[list[list[str]]]:
    """Configs are in the order of a hash map."""
    return [[sorted(re.split(r"[\s,]+", line)) for line in lines] for lines in response]


def _committed(bootstrap: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "visitors"})

    def look() -> TopicPartition | None:
        try:
            (found,) = consumer.committed([TopicPartition(TOPIC, 0)], WAIT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return None
        return found

    assert until(look, "a coordinator of the group", WAIT_S).offset == RECORDS // 2
    consumer.close()


def _told(bootstrap: str, tool: str, *arguments: str) -> list[str]:
    done = run_tool(tool, "--bootstrap-server", bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())

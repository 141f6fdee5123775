"""Apache Kafka itself answers the batches of tests/support/batches.py as the table says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.messages.produce_fetch import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.batches import TOPICS, Case, cases
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.raw_client import RawClient

PRODUCE_VERSION = 9  # the last one before topic ids come with 13 that all fields of interest are in


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    """One node with the table's topics."""
    with ApacheKafka() as node, RawClient(node.bootstrap) as client:
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
            )
            for name, settings in TOPICS.items()
        ]
        answer = client.ask(CreateTopicsRequest(topics=topics), 5)
        assert not [topic for topic in answer.topics if topic.error_code], answer
        yield node


def ask(client: RawClient, case: Case) -> tuple[ErrorCode, tuple[int, ...]]:
    """Kafka's code and the records that it blames; a topic that is not ready yet is asked again."""
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(name=case.topic, partition_data=[PartitionProduceData(index=0, records=case.data)])
        ],
    )
    deadline = time.monotonic() + 10
    while True:
        answer = client.ask(request, PRODUCE_VERSION).responses[0].partition_responses[0]
        code = ErrorCode(answer.error_code)
        if code not in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}:
            return code, tuple(error.batch_index for error in answer.record_errors)
        assert time.monotonic() < deadline, "the topic does not get ready"


@needs_kafka
def test_kafka_answers_as_the_table_says(kafka: ApacheKafka) -> None:
    """Rule 2 of the table: our answers are compared with Kafka's own, and not with what somebody remembers."""
    wrong: list[str] = []
    with RawClient(kafka.bootstrap) as client:
        for case in cases(int(time.time() * 1000)):
            if case.kafka is None:
                continue  # it never answers: an exception in its handler
            code, rejected = ask(client, case)
            blamed = () if case.kafka == ErrorCode.NONE else case.rejected
            late_in_the_middle = case.ours == ErrorCode.NONE and rejected
            if code != case.kafka or (rejected != blamed and not late_in_the_middle):
                wrong.append(f"{case.topic}: {case.name}: {code.name} {rejected}, not {case.kafka.name} {blamed}")
    assert not wrong, "\n".join(wrong)

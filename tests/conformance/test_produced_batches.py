"""The batches of tests/support/batches.py, sent to Apache Kafka and to our broker: both answer as the table says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.messages.produce_fetch import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.batches import TOPICS, Case, cases
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.raw_client import RawClient

PRODUCE_VERSION = 9  # the last one that names topics, and all fields of interest are in it
NOT_YET = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}


@contextmanager
def client_with_topics(bootstrap: str) -> Iterator[RawClient]:
    """A client of a broker that has the table's topics."""
    with RawClient(bootstrap) as client:
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
        yield client


def ask(client: RawClient, case: Case) -> PartitionProduceResponse:
    """What is answered; a topic that is not ready yet is asked again."""
    partitions = [PartitionProduceData(index=0, records=case.data)]
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=case.topic, partition_data=partitions)]
    )
    deadline = time.monotonic() + 10
    while True:
        answer: PartitionProduceResponse = client.ask(request, PRODUCE_VERSION).responses[0].partition_responses[0]
        if answer.error_code not in NOT_YET:
            return answer
        assert time.monotonic() < deadline, "the topic does not get ready"


def code_and_blamed(answer: PartitionProduceResponse) -> tuple[ErrorCode, tuple[int, ...]]:
    """The answer's code and the records that it names."""
    return ErrorCode(answer.error_code), tuple(error.batch_index for error in answer.record_errors)


@needs_kafka
def test_kafka_answers_as_the_table_says() -> None:
    """Rule 2 of the table: our answers are compared with Kafka's own, and not with what somebody remembers."""
    wrong: list[str] = []
    with ApacheKafka() as node, client_with_topics(node.bootstrap) as client:
        for case in cases(int(time.time() * 1000)):
            if case.kafka is None:
                continue  # it never answers: an exception in its handler
            code, blamed = code_and_blamed(ask(client, case))
            is_known = blamed == case.rejected or ErrorCode.NONE in {case.ours, case.kafka}
            if code != case.kafka or not is_known:
                wrong.append(f"{case.topic}: {case.name}: {code.name} {blamed}, not {case.kafka.name}")
    assert not wrong, "\n".join(wrong)


def test_our_broker_answers_as_the_table_says() -> None:
    """The same bytes over a socket; what was taken stands in the log without a gap."""
    wrong: list[str] = []
    ends = dict.fromkeys(TOPICS, 0)
    with Broker() as broker, client_with_topics(broker.bootstrap) as client:
        for case in cases(int(time.time() * 1000)):
            answer = ask(client, case)
            found = code_and_blamed(answer)
            if found != (case.ours, case.rejected if case.ours else ()):
                wrong.append(f"{case.topic}: {case.name}: {found}, not {case.ours.name} {case.rejected}")
            elif case.ours:
                assert answer.error_message, case
            elif answer.base_offset != ends[case.topic]:
                wrong.append(f"{case.topic}: {case.name}: offset {answer.base_offset}, not {ends[case.topic]}")
            if not found[0]:
                assert case.data is not None
                ends[case.topic] = answer.base_offset + int.from_bytes(case.data[57:61], "big")
    assert not wrong, "\n".join(wrong)

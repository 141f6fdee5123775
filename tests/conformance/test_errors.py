"""Error codes of Metadata and DescribeTopicPartitions, on any broker.

NOT HERE Errors of Produce (`test_read_and_write_path.py`), of admin requests (`test_admin_answers.py`), of batches
         (`test_produced_batches.py`), of sequence numbers (`test_producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from tests.support.raw_client import RawClient
from tests.support.waiting import until


@pytest.fixture
def client(kafka_broker: Broker) -> Iterator[Any]:
    with RawClient(kafka_broker.bootstrap) as raw:
        yield raw


def described(client: RawClient, name: str, *, may_make: bool, version: int = 9) -> Any:
    """One topic of the Metadata response."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=may_make)
    return client.ask(request, version).topics[0]


def test_an_auto_created_topic_is_unknown_in_the_first_answer(client: Any, kafka_topic: str) -> None:
    """Metadata does not wait for the topic that it creates, and creates none unless the request allows it."""
    name = f"{kafka_topic}.itself"
    for may_make in (False, True):
        first = described(client, name, may_make=may_make)
        assert (first.error_code, first.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    found = until(lambda: described(client, name, may_make=False).partitions, f"{name} makes itself")
    assert found[0].leader_id >= 0


@pytest.mark.parametrize("may_make", [False, True])
@pytest.mark.parametrize("version", [4, 9, 12])
@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250], ids=["empty", "dots", "blank", "long"])
def test_a_name_that_no_topic_can_have_is_invalid_and_not_only_unknown(
    client: Any, name: str, version: int, may_make: bool
) -> None:
    """With auto-creation and without: clients give up instead of retrying."""
    answer = described(client, name, may_make=may_make, version=version)
    assert (answer.error_code, answer.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)


def test_described_partitions_of_topics_that_do_not_exist(client: Any) -> None:
    """Java's describeTopics raises the exception of the code."""
    codes = {"a b": ErrorCode.INVALID_TOPIC_EXCEPTION, "none.such": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in codes])
    answer = client.ask(request, 0)
    assert {topic.name: topic.error_code for topic in answer.topics} == codes

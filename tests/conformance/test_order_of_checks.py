"""Requests with two mistakes, and parameters at their limits: both brokers answer the same.

NOT HERE Requests with one mistake (`test_admin_answers.py`, `test_read_and_write_path.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.groups import HeartbeatRequest
from protocol.messages.logs import DeleteRecordsRequest
from protocol.messages.metadata import DescribeTopicPartitionsRequest, FindCoordinatorRequest
from protocol.messages.produce_fetch import ListOffsetsRequest
from protocol.messages.transactions import TxnOffsetCommitRequest
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import append_request, create, one_record
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

TOPIC, BROKER, SUBSCRIPTION, GROUP = 2, 4, 16, 32
SET, APPEND = 0, 2
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
INVALID_REQUEST = ErrorCode.INVALID_REQUEST
OFFSETS = "__consumer_offsets"
SETTINGS = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "2"}


def _has_offsets_topic(client: RawClient) -> bool:
    found = client.ask(FindCoordinatorRequest(key="g", key_type=0), 3).error_code
    return not found and client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id=""), 4).error_code in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )


def _prepare(client: RawClient) -> RawClient:
    create(client, "a", "b", partitions=3)
    until(lambda: _has_offsets_topic(client), f"{OFFSETS} has a coordinator")
    return client


@pytest.fixture(scope="module")
def ours() -> Iterator[RawClient]:
    with Broker(settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        yield _prepare(client)


@pytest.fixture(scope="module")
def kafka() -> Iterator[RawClient]:
    with ApacheKafka(SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        yield _prepare(client)


@pytest.fixture(params=["ours", pytest.param("kafka", marks=needs_kafka)])
def client(request: pytest.FixtureRequest) -> RawClient:
    client: RawClient = request.getfixturevalue(request.param)
    return client


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "a"), (BROKER, "1"), (SUBSCRIPTION, "s"), (GROUP, "g")])
def test_an_empty_list_of_configs_describes_all(client: RawClient, kind: int, name: str) -> None:
    def names(keys: list[str] | None) -> set[str]:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        (result,) = client.ask(message(DescribeConfigsRequest, resources=[resource]), 4).results
        return {config.name for config in result.configs}

    assert names([]) == names(None) != set()


@pytest.mark.parametrize(
    ("config", "operation", "code", "sentence"),
    [
        ("no.such", SET, ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such"),
        ("flush.ms", APPEND, ErrorCode.INVALID_CONFIG, "Can't APPEND to key flush.ms because its type is not LIST."),
        ("flush.ms", SET, UNKNOWN_TOPIC, "The topic 'nowhere' does not exist."),
    ],
)
def test_configs_are_checked_before_the_topic(
    client: RawClient, config: str, operation: int, code: ErrorCode, sentence: str
) -> None:
    row = {"name": config, "value": "1"}
    resource: dict[str, Any] = {"resource_type": TOPIC, "resource_name": "nowhere"}
    change = {**resource, "configs": [{**row, "config_operation": operation}]}
    answers = [client.ask(message(IncrementalAlterConfigsRequest, resources=[change]), 1)]
    if operation == SET:
        replaced = {**resource, "configs": [row]}
        answers.append(client.ask(message(AlterConfigsRequest, resources=[replaced], validate_only=False), 2))
    for answer in answers:
        (result,) = answer.responses
        assert (result.error_code, result.error_message) == (code, sentence)


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, ""), (TOPIC, "a/b"), (GROUP, "")])
def test_operations_on_configs_are_checked_before_the_name(client: RawClient, kind: int, name: str) -> None:
    change = {"name": "flush.ms", "value": "1", "config_operation": APPEND}
    resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
    (result,) = client.ask(message(IncrementalAlterConfigsRequest, resources=[resource]), 1).responses
    sentence = "Can't APPEND to key flush.ms because its type is not LIST."
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_CONFIG, sentence)


_ALL_INVALID: Any = ([("a", INVALID_REQUEST, []), ("b", INVALID_REQUEST, [])], None)


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "expected"),
    [
        (["a", "b"], 0, None, ([("a", 0, [0])], ("a", 1))),
        (["a", "b"], -1, ("b", 1), ([("b", 0, [1])], ("b", 2))),
        (["a", "b"], 9, ("a", 2), ([("a", 0, [2]), ("b", 0, [0, 1, 2])], None)),
        (["a", "b"], 9, ("aa", 0), _ALL_INVALID),
        (["a", "b"], 9, ("a", -1), _ALL_INVALID),
        ([], 9, ("aa", 2), ([("b", 0, [0, 1, 2])], None)),
        ([], 9, ("a", -1), ([], None)),
    ],
)
def test_a_page_of_topics_begins_at_the_cursor(
    client: RawClient, names: list[str], limit: int, cursor: Any, expected: Any
) -> None:
    """At least one partition; the cursor names a requested topic, or any if all are requested."""
    request = message(
        DescribeTopicPartitionsRequest,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    )
    answer = client.ask(request, 0)
    topics = [
        (topic.name, topic.error_code, [partition.partition_index for partition in topic.partitions])
        for topic in answer.topics
    ]
    following = answer.next_cursor and (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert (topics, following) == expected


def _listed(client: RawClient) -> ErrorCode:
    partition = {"partition_index": 9, "timestamp": -4}
    request = message(ListOffsetsRequest, topics=[{"name": "a", "partitions": [partition]}])
    return ErrorCode(client.ask(request, 4).topics[0].partitions[0].error_code)


def _deleted(client: RawClient) -> ErrorCode:
    partition = {"partition_index": 9, "offset": 0}
    topic = {"name": OFFSETS, "partitions": [partition]}
    answer = client.ask(message(DeleteRecordsRequest, topics=[topic], timeout_ms=1000), 2)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def _committed(client: RawClient, transactional_id: str = "t", group_id: str = "g") -> ErrorCode:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    request = message(
        TxnOffsetCommitRequest,
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=0,
        producer_epoch=0,
        topics=[{"name": "nowhere", "partitions": [partition]}],
    )
    return ErrorCode(client.ask(request, 3).topics[0].partitions[0].error_code)


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (_listed, ErrorCode.UNSUPPORTED_VERSION),
        (_deleted, UNKNOWN_TOPIC),
        (lambda client: _committed(client, transactional_id=""), UNKNOWN_TOPIC),
        (lambda client: _committed(client, group_id=""), UNKNOWN_TOPIC),
    ],
    ids=["timestamp, then partition", "partition, then internal topic", "topic, then id", "topic, then group"],
)
def test_the_first_of_two_mistakes_is_named(
    client: RawClient, ask: Callable[[RawClient], ErrorCode], expected: ErrorCode
) -> None:
    assert ask(client) == expected


def test_a_record_for_an_internal_topic_is_refused_without_a_message(client: RawClient) -> None:
    (topic,) = client.ask(append_request(OFFSETS, 0, one_record(b"x")), 12).responses
    (partition,) = topic.partition_responses
    assert (partition.error_code, partition.error_message) == (ErrorCode.INVALID_TOPIC_EXCEPTION, None)

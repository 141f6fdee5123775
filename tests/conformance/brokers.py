"""One node of Barnabas or of Apache Kafka, and requests for one partition, for tests that expect the same of both brokers.

RULES    1. A test that runs alike against both has the fixture parameters `BOTH` (follower_harness.py) and uses `running`.
         2. A test that compares with recorded answers (tests/support/goldens.py) runs with RECORDED
            and calls `assert_as_recorded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.logs import DeleteRecordsRequest
from protocol.messages.produce_fetch import ListOffsetsRequest, ProduceRequest
from protocol.messages.transactions import InitProducerIdRequest
from tests.support.config_cases import Change, resource
from tests.support.goldens import as_json, check_golden, golden
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import fetch_request
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

KAFKA = "apache-kafka"
RECORDED = ["barnabas", pytest.param(KAFKA, marks=[needs_kafka, pytest.mark.golden])]
"""The brokers whose answers are compared with a record; those of Apache Kafka may replace it."""
EARLIEST, LATEST = -2, -1
NOT_READY = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
T = TypeVar("T")


@contextmanager
def running(
    kind: str, settings: Mapping[str, object] | None = None, data_dir: Path | None = None
) -> Iterator[Broker | ApacheKafka]:
    """A node with these settings; `kind` is one of BOTH."""
    node: Any = ApacheKafka(settings, data_dir=data_dir) if kind == KAFKA else Broker(data_dir, settings=settings)
    with node as broker:
        yield broker


def assert_as_recorded(record: str, kind: str, answers: Any, *, as_ours: Callable[[Any], Any] | None = None) -> None:
    """Compares answers with the record of Apache Kafka's, one paragraph for each difference; `kind` has answered.

    `as_ours` changes the record where ours differ on purpose.
    """
    if kind == KAFKA:
        check_golden(record, answers)
    recorded = golden(record)
    theirs, ours = _by_name(as_ours(recorded) if as_ours else recorded), _by_name(as_json(answers))
    found = [
        f"{name}:\n  Kafka    {theirs.get(name)}\n  Barnabas {ours.get(name)}"
        for name in theirs | ours
        if theirs.get(name) != ours.get(name)
    ]
    assert not found, "\n".join(found)


def _by_name(answers: Any) -> dict[str, Any]:
    """A mapping, or a list of mappings as one: the names are numbered."""
    if isinstance(answers, dict):
        return answers
    return {f"{number} {name}": value for number, one in enumerate(answers) for name, value in one.items()}


def append(
    client: RawClient,
    topic: str,
    records: bytes | None,
    *,
    index: int = 0,
    acks: int = 1,
    version: int = 9,
    **more: Any,
) -> Any:
    """Produces one batch to one partition; the partition's response."""
    topics = [{"name": topic, "partition_data": [{"index": index, "records": records}]}]
    request = message(ProduceRequest, acks=acks, timeout_ms=10_000, topic_data=topics, **more)
    return client.ask(request, version).responses[0].partition_responses[0]


def append_when_ready(client: RawClient, topic: str, records: bytes | None, acks: int = -1) -> Any:
    """Like `append`, but waits until the new partition has a leader: Apache Kafka answers CreateTopics before that."""

    def answer() -> Any:
        row = append(client, topic, records, acks=acks)
        return None if row.error_code in NOT_READY else row

    return until(answer, f"{topic} has a leader")


def offset_at(client: RawClient, topic: str, timestamp: int = LATEST, index: int = 0, **more: Any) -> Any:
    """The response of ListOffsets for a partition; EARLIEST, LATEST or milliseconds."""
    topics = [{"name": topic, "partitions": [{"partition_index": index, "timestamp": timestamp}]}]
    return client.ask(message(ListOffsetsRequest, topics=topics, **more), 7).topics[0].partitions[0]


def fetched(client: RawClient, topic: str, offset: int, index: int = 0, *, version: int = 12, **fields: Any) -> Any:
    """The response of a consumer's Fetch for a partition; `fields` are those of the request."""
    request = fetch_request(version, {(topic, b"", index): offset}, **fields)
    return client.ask(request, version).responses[0].partitions[0]


def delete_records(client: RawClient, topic: str, offset: int, index: int = 0) -> Any:
    """The response of DeleteRecords for a partition."""
    topics = [{"name": topic, "partitions": [{"partition_index": index, "offset": offset}]}]
    (found,) = client.ask(message(DeleteRecordsRequest, topics=topics, timeout_ms=5000), 2).topics
    (row,) = found.partitions
    assert (found.name, row.partition_index) == (topic, index)
    return row


def alter_configs(client: RawClient, kind: int, name: str, *changes: Change) -> None:
    """Changes the configs of a resource."""
    (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource(kind, name, *changes)]), 1).responses
    assert answer.error_code == ErrorCode.NONE, answer


def describe_configs(client: RawClient, kind: int, name: str, keys: list[str] | None = None) -> Any:
    """A resource's part of DescribeConfigs, with synonyms and documentation."""
    query = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    more = {"include_synonyms": True, "include_documentation": True}
    return client.ask(message(DescribeConfigsRequest, resources=[query], **more), 4).results[0]


def new_producer(client: RawClient, name: str | None = None, version: int = 4) -> tuple[int, int] | None:
    """The id and epoch of a new producer; None while the broker has no block of ids or no coordinator."""
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answer = client.ask(request, version)
    return None if answer.error_code else (answer.producer_id, answer.producer_epoch)

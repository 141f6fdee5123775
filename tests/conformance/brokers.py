"""One node of Barnabas or of Apache Kafka, and requests for one partition, for tests that expect the same of both brokers.

RULES    1. A test that runs alike against both takes `BOTH` as its fixture's parameters and starts a node with `running`.
         2. A test that compares with recorded answers (tests/support/goldens.py) names those that differ with `differences`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.follower_harness import BOTH
from tests.support.kafka import ApacheKafka
from tests.support.raw_client import RawClient
from tests.support.waiting import until

KAFKA = "apache-kafka"
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


def differences(theirs: Mapping[str, object], ours: Mapping[str, object]) -> str:
    """One paragraph for each entry that differs; "" if none does."""
    return "\n".join(
        f"{name}:\n  Kafka    {theirs.get(name)}\n  Barnabas {ours.get(name)}"
        for name in theirs | ours
        if theirs.get(name) != ours.get(name)
    )


def append(client: RawClient, topic: str, records: bytes, *, index: int = 0, acks: int = 1, version: int = 9) -> Any:
    """Produces one batch to one partition; the partition's response."""
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=records)])]
    request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=data)
    return client.ask(request, version).responses[0].partition_responses[0]


def append_when_ready(client: RawClient, topic: str, records: bytes, acks: int = -1) -> Any:
    """Like `append`, but waits until the new partition has a leader: Apache Kafka answers CreateTopics before that."""

    def answer() -> Any:
        row = append(client, topic, records, acks=acks)
        return None if row.error_code in NOT_READY else row

    return until(answer, f"{topic} has a leader")


def offset_at(client: RawClient, topic: str, timestamp: int = LATEST) -> Any:
    """The response of ListOffsets for partition 0; EARLIEST, LATEST or milliseconds."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    return client.ask(request, 7).topics[0].partitions[0]


__all__ = [
    "BOTH", "EARLIEST", "KAFKA", "LATEST", "append", "append_when_ready", "differences", "offset_at", "running",
]  # fmt: skip

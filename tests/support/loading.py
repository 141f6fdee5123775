"""Create, fill and read topics over a raw client, for tests of whole processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages import produce_fetch
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from protocol.messages.produce_fetch import FetchRequest, ProduceRequest
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS

CONSUMER = -1
_IN_FLIGHT = 32
_LATEST = -1
_FIRST_VERSION_WITH_REPLICA_STATE = 15

Place = tuple[str, bytes, int]
"""Topic, topic id, partition."""


def topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    assignments: Sequence[tuple[int, list[int]]] = (),
    configs: Sequence[tuple[str, str | None]] = (),
) -> CreatableTopic:
    """A topic of a CreateTopics request; `assignments` are the brokers of its partitions."""
    return message(
        CreatableTopic,
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[{"partition_index": i, "broker_ids": b} for i, b in assignments],
        configs=[{"name": key, "value": value} for key, value in configs],
    )


def create(client: RawClient, *names: str, partitions: int = 1, **configs: object) -> list[bytes]:
    """Create topics; returns their ids. Config names have underscores for dots."""
    settings = [(name.replace("_", "."), str(value)) for name, value in configs.items()]
    topics = [topic(name, partitions, configs=settings) for name in names]
    answer = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
    assert [made.error_code for made in answer.topics] == [0] * len(names), answer
    ids = {made.name: made.topic_id for made in answer.topics}
    return [ids[name] for name in names]


def produce_request(records: Mapping[str, list[bytes]], *, acks: int = 1, timeout_ms: int = 30_000) -> ProduceRequest:
    """A request with a batch for each of the first partitions of each topic."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            produce_fetch.TopicProduceData(
                name=name,
                partition_data=[
                    produce_fetch.PartitionProduceData(index=index, records=memoryview(data))
                    for index, data in enumerate(batches)
                ],
            )
            for name, batches in records.items()
        ],
    )


def one_record(value: bytes, timestamp_ms: int = RECENT_MS) -> bytes:
    """A batch of one record without a key."""
    builder = BatchBuilder()
    builder.append(timestamp_ms, None, value)
    return bytes(builder.build())


def append_request(topic: str, partition: int, data: bytes, timeout_ms: int = 30_000) -> ProduceRequest:
    """A request with a batch for one partition."""
    request = produce_request({topic: [data]}, timeout_ms=timeout_ms)
    request.topic_data[0].partition_data[0].index = partition
    return request


def append_one(client: RawClient, topic: str, partition: int, value: bytes, timeout_ms: int = 30_000) -> str:
    """Append one record; returns the error's name.

    A test that awaits REQUEST_TIMED_OUT needs a timeout below the client's of 30 s.
    """
    request = append_request(topic, partition, one_record(value), timeout_ms)
    (answer,) = client.ask(request, 9).responses[0].partition_responses
    return ErrorCode(answer.error_code).name


def produce(client: RawClient, records: Mapping[str, list[bytes]]) -> None:
    """Append a batch to each of the first partitions of each topic."""
    answer = client.ask(produce_request(records), 9)
    codes = {partition.error_code for topic in answer.responses for partition in topic.partition_responses}
    assert codes == {0}


def load(client: RawClient, topic: str, batches: Iterable[bytes]) -> None:
    """Append batches to partition 0, several requests in flight."""
    remaining = iter(batches)
    while requests := [produce_request({topic: [batch]}) for batch in islice(remaining, _IN_FLIGHT)]:
        for request in requests:
            client.send(request, 9)
        for request in requests:
            (partition,) = client.receive(request, 9).responses[0].partition_responses
            assert partition.error_code == 0


def end_offset(client: RawClient, topic: str) -> int:
    """The end offset of partition 0."""
    return end_offsets(client, topic)[0]


def end_offsets(client: RawClient, topic: str, partitions: int = 1) -> list[int]:
    """The end offsets of the first partitions."""
    requested = [{"partition_index": index, "timestamp": _LATEST} for index in range(partitions)]
    topics = [{"name": topic, "partitions": requested}]
    request = message(produce_fetch.ListOffsetsRequest, replica_id=CONSUMER, topics=topics)
    found = sorted(client.ask(request, 7).topics[0].partitions, key=lambda partition: int(partition.partition_index))
    assert {partition.error_code for partition in found} == {0}
    return [int(partition.offset) for partition in found]


def fetch_request(
    version: int,
    positions: Mapping[Place, int],
    *,
    replica_id: int = CONSUMER,
    replica_epoch: int = -1,
    max_bytes: int = 1 << 20,
    partition: Mapping[str, Any] | None = None,
    **fields: Any,
) -> FetchRequest:
    """A Fetch from these offsets, with topic names or ids as the version requires.

    `partition` are further fields of each partition, `fields` those of the request.
    """
    topics: dict[tuple[str, bytes], list[produce_fetch.FetchPartition]] = {}
    for (name, topic_id, index), offset in positions.items():
        made = produce_fetch.FetchPartition(
            **{"partition": index, "fetch_offset": offset, "partition_max_bytes": max_bytes, **(partition or {})}
        )
        topics.setdefault((name, topic_id), []).append(made)
    request = FetchRequest(
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": max_bytes, **fields},
        topics=[
            produce_fetch.FetchTopic(topic=name, topic_id=topic_id, partitions=parts)
            for (name, topic_id), parts in topics.items()
        ],
    )
    if version >= _FIRST_VERSION_WITH_REPLICA_STATE:
        request.replica_state = produce_fetch.ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch)
    else:
        request.replica_id = replica_id
    return request


def ask_for(client: RawClient, request: FetchRequest, version: int) -> tuple[Any, int]:
    """The response and its size on the wire."""
    client.send(request, version)
    frame = client.receive_frame()
    return client.decode(frame, request, version), len(frame) + 4

"""Waits until a topic's partitions have leaders that serve them.

Apache Kafka answers CreateTopics before it creates the partitions (docs/conformance.md).
"""

from __future__ import annotations

from protocol.messages.common import Topic
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce_fetch import ListOffsetsPartition, ListOffsetsRequest
from tests.support.raw_client import RawClient
from tests.support.waiting import until

LATEST = -1


def await_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Returns when the leader of each partition answers ListOffsets."""
    until(lambda: _served(bootstrap, topic) >= set(range(count)), f"{topic} is served", 40.0)


def _served(bootstrap: str, topic: str) -> set[int]:
    """The partitions whose leaders serve them."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with RawClient(bootstrap) as client:
        metadata = client.ask(request, 9)
    found: set[int] = set()
    for broker in metadata.brokers:
        led = [one.partition_index for one in metadata.topics[0].partitions if one.leader_id == broker.node_id]
        if led:
            found |= _that_answer(f"{broker.host}:{broker.port}", topic, led)
    return found


def _that_answer(leader: str, topic: str, partitions: list[int]) -> set[int]:
    query = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in partitions]
    with RawClient(leader) as client:
        response = client.ask(ListOffsetsRequest(topics=[Topic(name=topic, partitions=query)]), 6)
    return {one.partition_index for one in response.topics[0].partitions if one.error_code == 0}

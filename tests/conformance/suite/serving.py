"""Whether the partitions of a topic are served, asked of each one's leader.

Apache Kafka answers CreateTopics when the topic is in the metadata and makes its partitions after that (docs/conformance.md).
"""

from __future__ import annotations

from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce_fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.support.raw_client import RawClient
from tests.support.waiting import until

LATEST = -1


def await_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Come back when all of them tell their ends."""
    until(lambda: _served(bootstrap, topic) >= set(range(count)), f"{topic} is served", 40.0)


def _served(bootstrap: str, topic: str) -> set[int]:
    """The partitions of the topic whose leaders know of it."""
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
    asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in partitions]
    with RawClient(leader) as client:
        told = client.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=asked)]), 6)
    return {one.partition_index for one in told.topics[0].partitions if one.error_code == 0}

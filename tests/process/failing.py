"""A broker, this one or Apache Kafka, with three log directories, one of them on a disk that can fail.

RULES    1. A topic has partitions in every directory, as the broker describes them. The state of each partition is one table,
            the same for both brokers.
         2. Acknowledged records are remembered, and must exist whenever their partition is served.
NOT HERE The failing disk (tests/support/faulty_directory.py), the claims (test_failing_directory.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages import metadata
from protocol.messages.logs import DescribeLogDirsRequest
from protocol.records import headers, records
from tests.support.loading import append_one, fetch_request
from tests.support.raw_client import RawClient
from tests.support.waiting import until

TOPIC: Final = "t"
PARTITIONS: Final = 6
FIRST, FAILING, THIRD = "first", "failing", "third"


class PartitionStatus(NamedTuple):
    """The state of one partition in Metadata, DescribeTopicPartitions, Produce and Fetch responses."""

    error: str
    leader: int
    isr: list[int]
    offline: list[int]
    described: tuple[str, int, list[int], list[int], list[int], list[int]]
    """Error, leader, ISR, eligible leaders, last known leaders, offline replicas."""
    produced: str
    fetched: str


class FailingClient:
    """The client: the acknowledged records, and the state of the partitions."""

    def __init__(self, topic: str = TOPIC, partitions: int = PARTITIONS) -> None:
        self._topic = topic
        self._all = range(partitions)
        self.acknowledged: dict[int, list[bytes]] = {index: [] for index in self._all}

    def write(self, client: RawClient, index: int) -> str:
        """Appends one record; returns the error's name."""
        value = b"%d of %d" % (len(self.acknowledged[index]), index)
        code = append_one(client, self._topic, index, value)
        if code == "NONE":
            self.acknowledged[index].append(value)
        return code

    def log_dirs(self, client: RawClient) -> dict[str, tuple[str, list[int]]]:
        """The error's name and the topic's partitions of each log directory."""
        answer = client.ask(DescribeLogDirsRequest(topics=None), 4)
        return {
            Path(result.log_dir).name: (
                ErrorCode(result.error_code).name,
                sorted(p.partition_index for topic in result.topics if topic.name == self._topic for p in topic.partitions),
            )
            for result in answer.results
        }  # fmt: skip

    def table(self, client: RawClient) -> dict[int, PartitionStatus]:
        """The state of each partition."""
        topics = [metadata.MetadataRequestTopic(name=self._topic)]
        requested = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        known = {p.partition_index: p for p in client.ask(requested, 12).topics[0].partitions}
        topic = metadata.TopicRequest(name=self._topic)
        request = metadata.DescribeTopicPartitionsRequest(topics=[topic], response_partition_limit=100)
        described = client.ask(request, 0)
        more = {p.partition_index: p for p in described.topics[0].partitions}
        return {
            index: PartitionStatus(
                ErrorCode(known[index].error_code).name,
                known[index].leader_id,
                known[index].isr_nodes,
                known[index].offline_replicas,
                (
                    ErrorCode(more[index].error_code).name,
                    more[index].leader_id,
                    more[index].isr_nodes,
                    more[index].eligible_leader_replicas,
                    more[index].last_known_elr,
                    more[index].offline_replicas,
                ),
                self.write(client, index),
                ErrorCode(self.fetch(client, index).error_code).name,
            )
            for index in self._all
        }

    def check_no_loss(self, client: RawClient) -> None:
        """Checks that all acknowledged records are readable in order, once the log is open."""
        for index in self._all:
            until(partial(self._has_all, client, index), f"{self.acknowledged[index]} in partition {index}")

    def _has_all(self, client: RawClient, index: int) -> bool:
        data = bytes(self.fetch(client, index).records or b"")
        found = [r.value for at, head in headers(data) for r in records(data, at, head, max_bytes=1 << 20)]
        rest = iter(found)
        return all(value in rest for value in self.acknowledged[index])

    def fetch(self, client: RawClient, index: int) -> Any:
        """The records of a partition from its beginning."""
        answer = client.ask(fetch_request(11, {(self._topic, b"", index): 0}), 11)
        return answer.responses[0].partitions[0]


def directories(home: Path) -> list[Path]:
    """The metadata log is in the first one."""
    return [home / name for name in (FIRST, FAILING, THIRD)]

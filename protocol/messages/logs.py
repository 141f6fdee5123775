"""Logs: start offsets, sizes and log directories."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import PartitionError, Response, Topic, TopicPartitions
from protocol.schema import Ignorable, Int16, Int32, Int64, Message, Since


class DeleteRecordsPartition(Message):
    """The new log start offset of a partition; -1 means its high watermark."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsRequest(Message, api_key=21, versions=(0, 2), flexible=2):
    """Delete the oldest records; the response waits until all live replicas have done so."""

    topics: list[Topic[DeleteRecordsPartition]]
    timeout_ms: Int32


class DeleteRecordsPartitionResult(Message):
    """The low watermark of a partition: the lowest log start offset of its live replicas; -1 with most errors."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


class DeleteRecordsResponse(Response, request=DeleteRecordsRequest):
    topics: list[Topic[DeleteRecordsPartitionResult]]


class DescribeLogDirsRequest(Message, api_key=35, versions=(1, 5), flexible=2):
    """Describe the log directories; null topics means all partitions."""

    topics: list[TopicPartitions[Int32]] | None


class DescribeLogDirsPartition(Message):
    """One log: the current replica or, during a move, the future replica."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: bool


class DescribeLogDirsResult(Message):
    """One log directory; the sizes are of its file system, -1 if unknown."""

    error_code: Int16
    log_dir: str
    topics: list[Topic[DescribeLogDirsPartition]]
    total_bytes: Annotated[Int64, Since(4), Ignorable] = -1
    usable_bytes: Annotated[Int64, Since(4), Ignorable] = -1
    is_cordoned: Annotated[bool, Since(5), Ignorable] = False


class DescribeLogDirsResponse(Response, request=DescribeLogDirsRequest):
    error_code: Annotated[Int16, Since(3), Ignorable] = 0
    results: list[DescribeLogDirsResult]


class AlterReplicaLogDir(Message):
    """The replicas to move to one log directory."""

    path: str
    topics: list[Topic[Int32]]


class AlterReplicaLogDirsRequest(Message, api_key=34, versions=(1, 2), flexible=2):
    """Move replicas between the log directories of this broker."""

    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirTopicResult(Message):
    """Partitions of one topic."""

    topic_name: str
    partitions: list[PartitionError]


class AlterReplicaLogDirsResponse(Response, request=AlterReplicaLogDirsRequest):
    results: list[AlterReplicaLogDirTopicResult]

"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Annotated, Generic

from protocol.messages.common import PartitionError, Response, Topic, TopicPartitions
from protocol.primitives import ZERO_UUID
from protocol.schema import EMPTY, Ignorable, Int8, Int16, Int32, Int64, Message, P, Records, Since, Tag, Until, Uuid


class PartitionProduceData(Message):
    """The batches for one partition."""

    index: Int32
    records: Records | None


class TopicProduceData(Message):
    """The batches for the partitions of one topic; identified by id from version 13 on."""

    name: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partition_data: list[PartitionProduceData]


class ProduceRequest(Message, api_key=0, versions=(3, 13), flexible=9):
    """Append batches. acks: 0 no response, 1 after the leader's append, -1 after the append of all in-sync replicas."""

    transactional_id: str | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]


class BatchIndexAndErrorMessage(Message):
    """One refused record; its index counts from the first record sent for the partition."""

    batch_index: Int32
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Message):
    """The current leader, for a client whose leader is outdated."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message):
    """The result for one partition; base_offset is -1 if the records were refused."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], Since(8), Ignorable] = EMPTY
    error_message: Annotated[str | None, Since(8), Ignorable] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, Since(10), Tag(0)] = None


class TopicProduceResponse(Message):
    """The results for one topic."""

    name: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse]


class NodeEndpoint(Message):
    """The address of a broker named in a current_leader."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


class ProduceResponse(Message, request=ProduceRequest):
    """Not sent with acks 0."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], Since(10), Tag(0)] = EMPTY


class ReplicaState(Message):
    """The fetching follower and its broker epoch."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    """The fetch offset and the maximum size for one partition."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(9), Ignorable] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Uuid, Since(17), Tag(0), Ignorable] = ZERO_UUID
    high_watermark: Annotated[Int64, Since(18), Tag(1), Ignorable] = 0x7FFF_FFFF_FFFF_FFFF


class FetchTopic(Message, Generic[P]):
    """A topic; identified by id from version 13 on."""

    topic: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partitions: list[P]


class FetchRequest(Message, api_key=1, versions=(4, 18), flexible=12):
    """Fetch batches: the response waits for min_bytes, or for max_wait_ms at most."""

    cluster_id: Annotated[str | None, Since(12), Tag(0), Ignorable] = None
    replica_id: Annotated[Int32, Until(14)] = -1
    replica_state: Annotated[ReplicaState | None, Since(15), Tag(1)] = None
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Since(7), Ignorable] = 0
    session_epoch: Annotated[Int32, Since(7), Ignorable] = -1
    topics: list[FetchTopic[FetchPartition]]
    forgotten_topics_data: Annotated[list[FetchTopic[Int32]], Since(7)] = EMPTY
    rack_id: Annotated[str, Since(11), Ignorable] = ""


class FetchEpochEndOffset(Message):
    """The offset where the follower's log diverges from the leader's."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(Message):
    """The snapshot that a follower must fetch because the log no longer contains its offset."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    """An aborted transaction: a producer's records from first_offset up to its abort marker."""

    producer_id: Int64
    first_offset: Int64


class PartitionData(Message):
    """The fetched records of one partition, with its high watermark and other offsets."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    diverging_epoch: Annotated[FetchEpochEndOffset | None, Since(12), Tag(0)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, Since(12), Tag(1)] = None
    snapshot_id: Annotated[SnapshotId | None, Since(12), Tag(2)] = None
    aborted_transactions: list[AbortedTransaction] | None = None
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    records: Records | None


class FetchResponse(Response, request=FetchRequest):
    """Error_code applies to the whole request and its session."""

    error_code: Annotated[Int16, Since(7), Ignorable] = 0
    session_id: Annotated[Int32, Since(7)] = 0
    responses: list[FetchTopic[PartitionData]]
    node_endpoints: Annotated[list[NodeEndpoint], Since(16), Tag(0)] = EMPTY


class ListOffsetsPartition(Message):
    """A timestamp, or a special value: -1 latest, -2 earliest, -3 max timestamp, ..."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Since(4), Ignorable] = -1
    timestamp: Int64


class ListOffsetsRequest(Message, api_key=2, versions=(1, 11), flexible=6):
    """Find offsets by timestamp. replica_id is -1 for a client."""

    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: list[Topic[ListOffsetsPartition]]
    timeout_ms: Annotated[Int32, Since(10), Ignorable] = 0


class ListOffsetsPartitionResponse(PartitionError):
    """The first offset at or after the timestamp; -1 if there is none."""

    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


class ListOffsetsResponse(Message, request=ListOffsetsRequest):
    throttle_time_ms: Annotated[Int32, Since(2), Ignorable] = 0
    topics: list[Topic[ListOffsetsPartitionResponse]]


class OffsetForLeaderPartition(Message):
    """The leader epoch to query, and the client's current leader epoch."""

    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


class OffsetForLeaderEpochRequest(Message, api_key=23, versions=(2, 4), flexible=4):
    """Find the end offsets of leader epochs. replica_id: -1 a client, -2 a debugging client."""

    replica_id: Annotated[Int32, Since(3), Ignorable] = -2
    topics: list[TopicPartitions[OffsetForLeaderPartition]]


class OffsetForLeaderEpochEpochEndOffset(Message):
    """The largest epoch up to the requested one, and its end offset; -1 and -1 if unknown."""

    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderEpochResponse(Response, request=OffsetForLeaderEpochRequest):
    topics: list[TopicPartitions[OffsetForLeaderEpochEpochEndOffset]]

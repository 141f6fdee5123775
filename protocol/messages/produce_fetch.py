"""Messages that move and find records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

from protocol.primitives import ZERO_UUID
from protocol.schema import (
    EMPTY,
    Annotated,
    Ignorable,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    Since,
    Tag,
    Until,
    Uuid,
)


class PartitionProduceData(Message):
    """The batches for one partition."""

    index: Int32
    records: Records | None


class TopicProduceData(Message):
    """The batches for the partitions of one topic; named by id since version 13."""

    name: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partition_data: list[PartitionProduceData]


class ProduceRequest(Message, api_key=0, versions=(3, 13), flexible=9):
    """Append batches. acks: 0 no answer at all, 1 the leader has it, -1 every in-sync replica has it."""

    transactional_id: str | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]


class BatchIndexAndErrorMessage(Message):
    """One refused record, counted from the start of what was sent for the partition."""

    batch_index: Int32
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Message):
    """Who leads now, for a client that asked somebody else."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message):
    """Where a partition's records went: base_offset is -1 when they were refused."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], Since(8), Ignorable] = EMPTY
    error_message: Annotated[str | None, Since(8), Ignorable] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, Since(10), Tag(0)] = None


class TopicProduceResponse(Message):
    """What became of one topic's batches."""

    name: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse]


class NodeEndpoint(Message):
    """Where a broker named in a current_leader listens."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


class ProduceResponse(Message, api_key=0, versions=(3, 13), flexible=9):
    """The answer to ProduceRequest, partition by partition; not sent with acks 0."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], Since(10), Tag(0)] = EMPTY


class ReplicaState(Message):
    """The follower that fetches, and the epoch of its registration."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    """From where, and at most how much, to read of one partition."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(9), Ignorable] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Uuid, Since(17), Tag(0), Ignorable] = ZERO_UUID
    high_watermark: Annotated[Int64, Since(18), Tag(1), Ignorable] = 0x7FFF_FFFF_FFFF_FFFF


class FetchTopic(Message):
    """Partitions of one topic to read; named by id since version 13."""

    topic: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partitions: list[FetchPartition]


class ForgottenTopic(Message):
    """Partitions that an incremental fetch takes out of its session."""

    topic: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partitions: list[Int32]


class FetchRequest(Message, api_key=1, versions=(4, 18), flexible=12):
    """Read batches: at once when min_bytes are there, else when they are or max_wait_ms is over."""

    cluster_id: Annotated[str | None, Since(12), Tag(0), Ignorable] = None
    replica_id: Annotated[Int32, Until(14)] = -1
    replica_state: Annotated[ReplicaState | None, Since(15), Tag(1)] = None
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Since(7), Ignorable] = 0
    session_epoch: Annotated[Int32, Since(7), Ignorable] = -1
    topics: list[FetchTopic]
    forgotten_topics_data: Annotated[list[ForgottenTopic], Since(7)] = EMPTY
    rack_id: Annotated[str, Since(11), Ignorable] = ""


class FetchEpochEndOffset(Message):
    """Where the follower's log stops agreeing with the leader's."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(Message):
    """The snapshot a follower must load, because its offset is no longer in the log."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    """A producer whose records from first_offset on, up to its abort marker, are void."""

    producer_id: Int64
    first_offset: Int64


class PartitionData(Message):
    """What was read of one partition, with the offsets that bound it."""

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


class FetchableTopicResponse(Message):
    """What was read of one topic."""

    topic: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partitions: list[PartitionData]


class FetchResponse(Message, api_key=1, versions=(4, 18), flexible=12):
    """The answer to FetchRequest; error_code is of the whole request, and of its session."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(7), Ignorable] = 0
    session_id: Annotated[Int32, Since(7)] = 0
    responses: list[FetchableTopicResponse]
    node_endpoints: Annotated[list[NodeEndpoint], Since(16), Tag(0)] = EMPTY


class ListOffsetsPartition(Message):
    """The wanted time, or one of the negative stand-ins: -1 latest, -2 earliest, -3 max timestamp, ..."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Since(4), Ignorable] = -1
    timestamp: Int64


class ListOffsetsTopic(Message):
    """Partitions of one topic to look up."""

    name: str
    partitions: list[ListOffsetsPartition]


class ListOffsetsRequest(Message, api_key=2, versions=(1, 11), flexible=6):
    """Offsets by time. replica_id is -1 for a client."""

    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: list[ListOffsetsTopic]
    timeout_ms: Annotated[Int32, Since(10), Ignorable] = 0


class ListOffsetsPartitionResponse(Message):
    """The first offset at or after the time; -1 when there is none."""

    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


class ListOffsetsTopicResponse(Message):
    """Look-ups of one topic."""

    name: str
    partitions: list[ListOffsetsPartitionResponse]


class ListOffsetsResponse(Message, api_key=2, versions=(1, 11), flexible=6):
    """The answer to ListOffsetsRequest."""

    throttle_time_ms: Annotated[Int32, Since(2), Ignorable] = 0
    topics: list[ListOffsetsTopicResponse]


class OffsetForLeaderPartition(Message):
    """An epoch whose end is asked for, and the epoch the asker believes to be current."""

    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


class OffsetForLeaderTopic(Message):
    """Partitions of one topic."""

    topic: str
    partitions: list[OffsetForLeaderPartition]


class OffsetForLeaderEpochRequest(Message, api_key=23, versions=(2, 4), flexible=4):
    """Where did these leader epochs end? replica_id: -1 a client, -2 a debugger."""

    replica_id: Annotated[Int32, Since(3), Ignorable] = -2
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderEpochEpochEndOffset(Message):
    """The largest epoch up to the asked one, and where it ended; -1, -1 when unknown."""

    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    """Ends of epochs in one topic."""

    topic: str
    partitions: list[OffsetForLeaderEpochEpochEndOffset]


class OffsetForLeaderEpochResponse(Message, api_key=23, versions=(2, 4), flexible=4):
    """The answer to OffsetForLeaderEpochRequest."""

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult]

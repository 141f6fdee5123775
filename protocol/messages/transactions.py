"""Idempotent and transactional producers."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import ErrorResponse, PartitionError, PartitionIndexes, Response, Topic, TopicPartitions
from protocol.schema import EMPTY, Ignorable, Int8, Int16, Int32, Int64, Message, Since, Until


class InitProducerIdRequest(Message, api_key=22, versions=(0, 6), flexible=2):
    """Allocate a producer id and epoch. Version 6 is unstable in Kafka 4.3 and not advertised."""

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1
    enable2_pc: Annotated[bool, Since(6)] = False
    keep_prepared_txn: Annotated[bool, Since(6)] = False


class InitProducerIdResponse(ErrorResponse, request=InitProducerIdRequest):
    """Producer id and epoch are -1 with an error."""

    producer_id: Int64 = -1
    producer_epoch: Int16
    ongoing_txn_producer_id: Annotated[Int64, Since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Since(6)] = -1


class AddPartitionsToTxnTransaction(Message):
    """One transaction, from version 4 on; verify_only: only check that the partitions are part of it."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool = False
    topics: list[Topic[Int32]]


class AddPartitionsToTxnRequest(Message, api_key=24, versions=(0, 5), flexible=3):
    """Up to version 3 from a client, with one transaction; from version 4 on from a broker, with several."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], Since(4)] = EMPTY
    v3_and_below_transactional_id: Annotated[str, Until(3)] = ""
    v3_and_below_producer_id: Annotated[Int64, Until(3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Until(3)] = 0
    v3_and_below_topics: Annotated[list[Topic[Int32]], Until(3)] = EMPTY


class AddPartitionsToTxnPartitionResult(Message):
    """The result for one partition."""

    partition_index: Int32
    partition_error_code: Int16


class AddPartitionsToTxnTopicResult(Message):
    """The results for one topic."""

    name: str
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResult(Message):
    """The results for one transaction."""

    transactional_id: str
    topic_results: list[AddPartitionsToTxnTopicResult]


class AddPartitionsToTxnResponse(Response, request=AddPartitionsToTxnRequest):
    error_code: Annotated[Int16, Since(4), Ignorable] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], Since(4)] = EMPTY
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Until(3)] = EMPTY


class AddOffsetsToTxnRequest(Message, api_key=25, versions=(0, 4), flexible=3):
    """Add a group's offsets to a transaction."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


class AddOffsetsToTxnResponse(ErrorResponse, request=AddOffsetsToTxnRequest):
    pass


class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible=3):
    """Commit or abort; from version 5 on every end bumps the producer epoch (KIP-890)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


class EndTxnResponse(ErrorResponse, request=EndTxnRequest):
    """From version 5 on with the producer id and epoch to continue with."""

    producer_id: Annotated[Int64, Since(5), Ignorable] = -1
    producer_epoch: Annotated[Int16, Since(5), Ignorable] = -1


class WritableTxnMarker(Message):
    """The marker of one transaction; transaction_result: True is commit."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: bool
    topics: list[PartitionIndexes]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Since(2), Ignorable] = 0


class WriteTxnMarkersRequest(Message, api_key=27, versions=(1, 2), flexible=1):
    """A transaction coordinator asks partition leaders to write transaction markers."""

    markers: list[WritableTxnMarker]


class WritableTxnMarkerResult(Message):
    """The results for one transaction."""

    producer_id: Int64
    topics: list[Topic[PartitionError]]


class WriteTxnMarkersResponse(Message, request=WriteTxnMarkersRequest):
    markers: list[WritableTxnMarkerResult]


class TxnOffsetCommitRequestPartition(Message):
    """An offset to commit with the transaction."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(2), Ignorable] = -1
    committed_metadata: str | None


class TxnOffsetCommitRequest(Message, api_key=28, versions=(0, 5), flexible=3):
    """Commit offsets as part of a transaction."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[str, Since(3)] = ""
    group_instance_id: Annotated[str | None, Since(3)] = None
    topics: list[Topic[TxnOffsetCommitRequestPartition]]


class TxnOffsetCommitResponse(Response, request=TxnOffsetCommitRequest):
    topics: list[Topic[PartitionError]]


class DescribeProducersRequest(Message, api_key=61, versions=(0, 0), flexible=0):
    """Describe the active producers of partitions."""

    topics: list[PartitionIndexes]


class DescribedProducer(Message):
    """A partition's state of one producer; current_txn_start_offset: -1 outside a transaction."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


class DescribeProducersResponsePartition(PartitionError):
    """The producers of a partition."""

    error_message: str | None = None
    active_producers: list[DescribedProducer]


class DescribeProducersResponse(Response, request=DescribeProducersRequest):
    topics: list[Topic[DescribeProducersResponsePartition]]


class DescribeTransactionsRequest(Message, api_key=65, versions=(0, 0), flexible=0):
    """Describe transactions."""

    transactional_ids: list[str]


class DescribedTransaction(Message):
    """The state of a transaction; with an error only the id is valid."""

    error_code: Int16
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: list[TopicPartitions[Int32]]


class DescribeTransactionsResponse(Response, request=DescribeTransactionsRequest):
    transaction_states: list[DescribedTransaction]


class ListTransactionsRequest(Message, api_key=66, versions=(0, 2), flexible=0):
    """List the transactions that this broker coordinates; empty filters and a negative duration match all."""

    state_filters: list[str]
    producer_id_filters: list[Int64]
    duration_filter: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[str | None, Since(2)] = None


class ListedTransaction(Message):
    """A transactional id, its producer id, and the state of its transaction."""

    transactional_id: str
    producer_id: Int64
    transaction_state: str


class ListTransactionsResponse(ErrorResponse, request=ListTransactionsRequest):
    unknown_state_filters: list[str]
    transaction_states: list[ListedTransaction]

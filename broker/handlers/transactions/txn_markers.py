"""What leaders of partitions are told and asked about transactions: WriteTxnMarkers and DescribeProducers.

RULES    1. A marker is answered partition by partition, when it is committed there.
         2. Only the cluster itself, and who may alter it, writes markers.
         3. A partition tells of all producers that it remembers, with or without a transaction; a follower's does too, for
            whoever looks for a transaction that hangs on one replica.
NOT HERE How a marker gets into a partition (`coordinators/transactions/txn_marker_writer.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.coordinators.transactions.transaction import TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker
from broker.coordinators.transactions.txn_marker_writer import LocalMarkers, when_open
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import (
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.metadata.topic_names import check_topic_name
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager

_NONE: Final = ErrorCode.NONE
_NOT_HERE: Final = "This server does not host this topic-partition."


class PartitionTransactionsHandler:
    """The handlers of this module and what they need."""

    def __init__(self, replicas: ReplicaManager, markers: LocalMarkers, authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._markers = markers
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.WRITE_TXN_MARKERS, 1, 2, self.write_markers),
            Route(ApiKey.DESCRIBE_PRODUCERS, 0, 0, self.describe_producers),
        ]

    # ------------------------------------------------------------ WriteTxnMarkers
    def write_markers(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse | Pending:
        """Write markers, perhaps of several transactions."""
        is_allowed = any(
            self._authorizer.authorize(context.connection.principal, operation, Resource.CLUSTER, CLUSTER_NAME)
            for operation in (Operation.CLUSTER_ACTION, Operation.ALTER)
        )
        answer = WriteTxnMarkersResponse(markers=[])
        waiting: list[tuple[Marker, TopicPartition, WritableTxnMarkerPartitionResult]] = []
        for asked in request.markers:
            marker = Marker(
                asked.producer_id,
                asked.producer_epoch,
                asked.transaction_result,
                asked.coordinator_epoch,
                asked.transaction_version,
            )
            result = WritableTxnMarkerResult(producer_id=asked.producer_id, topics=[])
            answer.markers.append(result)
            for topic in asked.topics:
                refusal = ErrorCode.UNKNOWN_SERVER_ERROR if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                partitions = [
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=refusal)
                    for index in topic.partition_indexes
                ]
                result.topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
                if is_allowed and marker.producer_id >= 0 and marker.epoch >= 0:
                    waiting += [(marker, (topic.name, one.partition_index), one) for one in partitions]
        return self._write(answer, waiting)

    def _write(
        self,
        answer: WriteTxnMarkersResponse,
        waiting: list[tuple[Marker, TopicPartition, WritableTxnMarkerPartitionResult]],
    ) -> WriteTxnMarkersResponse | Pending:
        left = len(waiting)
        pending = Pending()

        def written(one: WritableTxnMarkerPartitionResult, error: ErrorCode) -> None:
            nonlocal left
            one.error_code = error
            left -= 1
            if not left:
                pending.complete(answer)

        for marker, partition, one in waiting:
            self._markers.write_one(marker, partition, partial(written, one))
        return pending if waiting else answer

    # ------------------------------------------------------------ DescribeProducers
    def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse | Pending:
        """Who writes to some partitions."""
        answer = DescribeProducersResponse(topics=[])
        waiting: list[tuple[TopicPartition, DescribeProducersResponsePartition]] = []
        for topic in request.topics:
            refusal = self._why_not(context, topic.name)
            partitions = [
                DescribeProducersResponsePartition(
                    partition_index=index,
                    error_code=_NONE if refusal is None else refusal.code,
                    error_message=None if refusal is None else refusal.message,
                    active_producers=[],
                )
                for index in topic.partition_indexes
            ]
            answer.topics.append(DescribeProducersResponseTopic(name=topic.name, partitions=partitions))
            if refusal is None:
                waiting += [((topic.name, one.partition_index), one) for one in partitions]
        left = len(waiting)
        pending = Pending()

        def looked(one: DescribeProducersResponsePartition, partition: Partition | ErrorCode) -> None:
            nonlocal left
            _describe(one, partition)
            left -= 1
            if not left:
                pending.complete(answer)

        for key, one in waiting:
            when_open(self._replicas, key, partial(looked, one))
        return pending if waiting else answer

    def _why_not(self, context: RequestContext, topic: str) -> KafkaError | None:
        """Why nothing is told of a topic."""
        try:
            check_topic_name(topic)
        except KafkaError as error:
            return error
        if not self._authorizer.authorize(context.connection.principal, Operation.READ, Resource.TOPIC, topic):
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        if topic not in self._replicas.image.topics_by_name:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HERE)
        return None


def _describe(one: DescribeProducersResponsePartition, partition: Partition | ErrorCode) -> None:
    if not isinstance(partition, Partition):
        one.error_code = partition
    else:
        one.active_producers = [
            DescribedProducer(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.txn_first_offset,
            )
            for producer_id, producer in partition.log.producers.producers.items()
        ]

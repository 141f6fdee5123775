"""WriteTxnMarkers and DescribeProducers: transaction APIs of partition leaders.

RULES    1. The response to WriteTxnMarkers waits until the markers are committed or have failed.
         2. Markers require CLUSTER_ACTION or ALTER on the cluster.
         3. DescribeProducers returns all producers in the partition's state, transactional or not. Followers answer too: an
            administrator can look for hanging transactions on a replica.
NOT HERE Appending a marker (`coordinators/transactions/txn_marker_writer.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.coordinators.runtime.coordinator_runtime import error_code
from broker.coordinators.transactions.transaction import TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker
from broker.coordinators.transactions.txn_marker_writer import TxnMarkerWriter, open_partition
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import common, transactions
from protocol.messages.common import PartitionError
from replication.completion import Completion, all_done
from replication.metadata.topic_names import check_topic_name
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager

_NONE: Final = ErrorCode.NONE
_NOT_HERE: Final = "This server does not host this topic-partition."


class TxnMarkersHandler(AuthorizingHandlers):
    """The handlers of WriteTxnMarkers and DescribeProducers."""

    def __init__(self, replicas: ReplicaManager, markers: TxnMarkerWriter, authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._markers = markers
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.WRITE_TXN_MARKERS, 1, 2, self.write_markers),
            Route(ApiKey.DESCRIBE_PRODUCERS, 0, 0, self.describe_producers),
        ]

    # ------------------------------------------------------------ WriteTxnMarkers
    def write_markers(
        self, context: RequestContext, request: transactions.WriteTxnMarkersRequest
    ) -> Completion[transactions.WriteTxnMarkersResponse]:
        """Handle WriteTxnMarkers."""
        is_allowed = self._is_authorized(context, Operation.ALTER, log_denied=False) or self._is_authorized(
            context, Operation.CLUSTER_ACTION
        )
        response = transactions.WriteTxnMarkersResponse(markers=[])
        waiting: list[tuple[Marker, TopicPartition, PartitionError]] = []
        for entry in request.markers:
            marker = Marker(
                entry.producer_id,
                entry.producer_epoch,
                entry.transaction_result,
                entry.coordinator_epoch,
                entry.transaction_version,
            )
            result = transactions.WritableTxnMarkerResult(producer_id=entry.producer_id, topics=[])
            response.markers.append(result)
            for topic in entry.topics:
                refusal = ErrorCode.UNKNOWN_SERVER_ERROR if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                partitions = [
                    PartitionError(partition_index=index, error_code=refusal) for index in topic.partition_indexes
                ]
                result.topics.append(common.Topic(name=topic.name, partitions=partitions))
                if is_allowed and marker.producer_id >= 0 and marker.epoch >= 0:
                    waiting += [(marker, (topic.name, result.partition_index), result) for result in partitions]

        def respond(_done: None) -> transactions.WriteTxnMarkersResponse:
            for (*_, result), commit in zip(waiting, written, strict=True):
                result.error_code = error_code(commit)
            return response

        written = [self._markers.write_one(marker, key) for marker, key, _ in waiting]
        return all_done(written).map(respond)

    # ------------------------------------------------------------ DescribeProducers
    def describe_producers(
        self, context: RequestContext, request: transactions.DescribeProducersRequest
    ) -> Completion[transactions.DescribeProducersResponse]:
        """Handle DescribeProducers."""
        response = transactions.DescribeProducersResponse(topics=[])
        waiting: list[tuple[TopicPartition, transactions.DescribeProducersResponsePartition]] = []
        for topic in request.topics:
            refusal = self._topic_error(context, topic.name)
            partitions = [
                transactions.DescribeProducersResponsePartition(
                    partition_index=index,
                    error_code=_NONE if refusal is None else refusal.code,
                    error_message=None if refusal is None else refusal.message,
                    active_producers=[],
                )
                for index in topic.partition_indexes
            ]
            response.topics.append(common.Topic(name=topic.name, partitions=partitions))
            if refusal is None:
                waiting += [((topic.name, result.partition_index), result) for result in partitions]

        opened = []
        for key, result in waiting:
            opened.append(open_partition(self._replicas, key))
            opened[-1].then(partial(_describe, result))  # at once: the log may be closed while others are opened
        return all_done(opened).map(lambda _: response)

    def _topic_error(self, context: RequestContext, topic: str) -> KafkaError | None:
        """The error of a topic, if any."""
        try:
            check_topic_name(topic)
        except KafkaError as error:
            return error
        if not self._is_authorized(context, Operation.READ, Resource.TOPIC, topic):
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        if topic not in self._replicas.image.topics_by_name:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HERE)
        return None


def _describe(result: transactions.DescribeProducersResponsePartition, opened: Completion[Partition]) -> None:
    result.error_code = error_code(opened)
    if opened.error is None:
        result.active_producers = [
            transactions.DescribedProducer(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.txn_first_offset,
            )
            for producer_id, producer in opened.value.log.open().producers.producers.items()
        ]

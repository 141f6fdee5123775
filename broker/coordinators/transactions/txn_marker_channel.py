"""Sends transaction markers to the leaders of their partitions (Kafka: TransactionMarkerChannelManager).

RULES    1. One request per leader. A missing response counts as NOT_LEADER_OR_FOLLOWER: the coordinator retries
            and looks up the leader again.
         2. A deleted partition needs no marker.
NOT HERE Writing markers on this broker (`txn_marker_writer.py`), retries (`transaction_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.coordinators.transactions.remote_verification import SendToBroker
from broker.coordinators.transactions.transaction import TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker, WrittenMarkers
from broker.coordinators.transactions.txn_marker_writer import TxnMarkerWriter
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.schema import Message
from replication.completion import Completion, failed
from replication.metadata.image import MetadataImage

_NO_LEADER: Final = -1


class TxnMarkerChannel:
    """Writes markers on this broker and sends them to others."""

    def __init__(
        self, broker_id: int, local: TxnMarkerWriter, image: Callable[[], MetadataImage], send: SendToBroker
    ) -> None:
        self._broker_id = broker_id
        self._local = local
        self._image = image
        self._send = send

    def write(self, marker: Marker, partitions: Iterable[TopicPartition]) -> WrittenMarkers:
        """Write a marker into some partitions; returns the result of each."""
        written: WrittenMarkers = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            by_leader.setdefault(self._leader_of(partition), []).append(partition)
        for leader_id, led in by_leader.items():
            if leader_id == self._broker_id:
                written |= self._local.write(marker, led)
            elif leader_id == _NO_LEADER:
                written |= dict.fromkeys(led, failed(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)))
            else:
                written |= self._send_markers(leader_id, marker, led)
        return written

    def _leader_of(self, partition: TopicPartition) -> int:
        """The leader of a partition; this broker handles deleted ones (rule 2)."""
        topic = self._image().topics_by_name.get(partition[0])
        state = None if topic is None else topic.partitions.get(partition[1])
        return self._broker_id if state is None else state.leader

    def _send_markers(self, leader_id: int, marker: Marker, partitions: list[TopicPartition]) -> WrittenMarkers:
        written: WrittenMarkers = {partition: Completion() for partition in partitions}
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        entry = WritableTxnMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            transaction_result=marker.is_commit,
            topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.version,
        )

        def on_response(response: Completion[Message | None]) -> None:
            codes = _codes(response.result())
            for partition, result in written.items():
                code = codes.get(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if code is ErrorCode.NONE:
                    result.complete(None)
                else:
                    result.fail(KafkaError(code))

        self._send(leader_id, WriteTxnMarkersRequest(markers=[entry])).then(on_response)
        return written


def _codes(response: Message | None) -> dict[TopicPartition, ErrorCode]:
    if not isinstance(response, WriteTxnMarkersResponse):
        return {}
    return {
        (topic.name, one.partition_index): ErrorCode(one.error_code)
        for marker in response.markers
        for topic in marker.topics
        for one in topic.partitions
    }
